//! The workloads of the design notes, as traces of operations on numbered slots.

#[path = "../../src/testing/rng.rs"]
mod rng;

pub(crate) use rng::Rng;

impl Rng {
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Pages: lognormal around 16, clamped to 64 MiB.
    pub(crate) fn lognormal(&mut self, sigma: f64) -> u32 {
        let pages = (16_f64.ln() + sigma * self.normal()).exp().round();
        pages.clamp(1.0, 16384.0) as u32
    }
}

/// `pages == 0` frees the slot.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) slot: u32,
    pub(crate) pages: u32,
    pub(crate) align: u32,
    pub(crate) flags: u8,
}

pub(crate) const TOP: u8 = 1;
pub(crate) const CONTIGUOUS: u8 = 2;

pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) pages: u64,
    pub(crate) slots: usize,
    pub(crate) warm: Vec<Op>,
    pub(crate) ops: Vec<Op>,
}

impl Trace {
    /// How many slots are ever taken at once, what fails counted.
    pub(crate) fn most_live(&self) -> usize {
        let mut taken = vec![false; self.slots];
        let (mut live, mut most) = (0, 0);
        for op in self.warm.iter().chain(&self.ops) {
            let before = std::mem::replace(&mut taken[op.slot as usize], op.pages > 0);
            live = live + usize::from(op.pages > 0) - usize::from(before);
            most = most.max(live);
        }
        most
    }
}

fn churn(
    name: String,
    (pages, live): (u64, usize),
    pairs: usize,
    mut draw: impl FnMut(&mut Rng) -> Op,
    seed: u64,
) -> Trace {
    let mut rng = Rng(seed);
    let mut warm: Vec<Op> = Vec::new();
    for slot in 0..live {
        warm.push(Op {
            slot: slot as u32,
            ..draw(&mut rng)
        });
    }
    let mut pair = |ops: &mut Vec<Op>| {
        let slot = rng.below(live as u64) as u32;
        ops.push(Op {
            slot,
            pages: 0,
            align: 1,
            flags: 0,
        });
        ops.push(Op {
            slot,
            ..draw(&mut rng)
        });
    };
    for _ in 0..live {
        pair(&mut warm);
    }
    let mut ops = Vec::new();
    for _ in 0..pairs {
        pair(&mut ops);
    }
    Trace {
        name,
        pages,
        slots: live,
        warm,
        ops,
    }
}

fn plain(pages: u32) -> Op {
    Op {
        slot: 0,
        pages,
        align: 1,
        flags: 0,
    }
}

fn label(live: usize) -> &'static str {
    match live {
        10_000 => "10k",
        100_000 => "100k",
        _ => "1M",
    }
}

pub(crate) fn w1(live: usize, pairs: usize) -> Trace {
    let name = format!("W1/{}", label(live));
    churn(
        name,
        (1 << 28, live),
        pairs,
        |rng| plain(rng.lognormal(2.0)),
        1,
    )
}

pub(crate) fn w2(tight: bool, pairs: usize) -> Trace {
    let (name, pages) = if tight {
        ("W2/tight", 88 << 18)
    } else {
        ("W2/1T", 1 << 28)
    };
    let draw = |rng: &mut Rng| {
        let pages = rng.lognormal(2.0);
        let align = [16, 16, 512, 1][rng.below(4) as usize];
        Op {
            align,
            ..plain(pages)
        }
    };
    churn(name.into(), (pages, 100_000), pairs, draw, 2)
}

pub(crate) fn w4(pairs: usize) -> Trace {
    let draw = |rng: &mut Rng| {
        let pages = rng.lognormal(2.0);
        Op {
            flags: (rng.below(2) as u8) * TOP,
            ..plain(pages)
        }
    };
    churn("W4/100k".into(), (1 << 28, 100_000), pairs, draw, 4)
}

pub(crate) fn w5_mixed(live: usize, pairs: usize) -> Trace {
    let name = if live == 20_000 {
        "W5/mixed70"
    } else {
        "W5/mixed97"
    };
    let draw = |rng: &mut Rng| {
        if rng.below(10) == 0 {
            Op {
                flags: CONTIGUOUS,
                ..plain(1 + rng.below(1023) as u32)
            }
        } else {
            plain(1 << rng.below(10))
        }
    };
    churn(name.into(), (1 << 22, live), pairs, draw, 5)
}

pub(crate) fn w5_pow2(pairs: usize) -> Trace {
    let draw = |rng: &mut Rng| plain(1 << rng.below(10));
    churn("W5/pow2".into(), (1 << 22, 28_000), pairs, draw, 55)
}

pub(crate) fn w5_order0(live: usize, pairs: usize) -> Trace {
    let name = format!("W5s/{}", label(live));
    churn(name, (1 << 22, live), pairs, |_| plain(1), 6)
}

struct Model {
    tensors: Vec<u32>,
    pages: u64,
}

fn models(rng: &mut Rng) -> Vec<Model> {
    let dims = [1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144_u64];
    let draw = |_| {
        let d = dims[rng.below(8) as usize];
        let ff = d * [8, 11, 14][rng.below(3) as usize] / 4;
        let q = [1, 2][rng.below(2) as usize];
        let kv = d / [1, 4, 8][rng.below(3) as usize];
        let layer = [
            d * d * q,
            d * kv * q,
            d * kv * q,
            d * d * q,
            d * ff * q,
            d * ff * q,
            d * ff * q,
            2 * d,
            2 * d,
            128 * kv,
        ];
        let pages = |bytes: u64| bytes.clamp(16 << 10, 64 << 20).div_ceil(4096) as u32;
        let layer = layer.map(pages);
        let tensors: Vec<u32> = (0..30).flat_map(|_| layer).collect();
        Model {
            pages: tensors.iter().map(|&pages| u64::from(pages)).sum(),
            tensors,
        }
    };
    (0..64).map(draw).collect()
}

/// Hot swap: whole models come and go, least recently used first.
pub(crate) fn w3(ratio: f64, measured: usize) -> Trace {
    let mut rng = Rng(3);
    let models = models(&mut rng);
    let budget = models.iter().map(|model| model.pages).sum::<u64>() / 4;
    let mut cumulative: Vec<f64> = Vec::new();
    let mut sum = 0.0;
    for i in 0..64 {
        sum += f64::from(i + 1).powf(-0.8);
        cumulative.push(sum);
    }
    let (mut lru, mut live): (Vec<usize>, u64) = (Vec::new(), 0);
    let (mut warm, mut ops, mut evicted) = (Vec::new(), Vec::new(), false);
    while ops.len() < measured {
        let draw = rng.unit() * sum;
        let pick = cumulative.iter().position(|&c| draw < c).unwrap_or(63);
        if let Some(at) = lru.iter().position(|&model| model == pick) {
            lru.remove(at);
            lru.push(pick);
            continue;
        }
        while live + models[pick].pages > budget {
            evicted = true;
            let victim = lru.remove(0);
            live -= models[victim].pages;
            for tensor in 0..300 {
                let slot = (victim * 300 + tensor) as u32;
                ops.push(Op {
                    slot,
                    pages: 0,
                    align: 1,
                    flags: 0,
                });
            }
        }
        live += models[pick].pages;
        lru.push(pick);
        let list = if evicted { &mut ops } else { &mut warm };
        for (tensor, &pages) in models[pick].tensors.iter().enumerate() {
            list.push(Op {
                slot: (pick * 300 + tensor) as u32,
                ..plain(pages)
            });
        }
    }
    ops.truncate(measured);
    let pages = (budget as f64 * ratio) as u64;
    Trace {
        name: format!("W3/{ratio}"),
        pages,
        slots: 64 * 300,
        warm,
        ops,
    }
}
