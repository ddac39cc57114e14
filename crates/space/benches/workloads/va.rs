//! How many addresses hot swap takes when freed ranges wait for a fence.

use vrampager_space::{SpaceFence, VaSpace, Zone};

use crate::traces;

/// The W3 trace over one zone. Each swap's ranges are retired behind a fence that signals when
/// `lag` more swaps have begun.
fn swaps(lag: u64, measured: usize) {
    let trace = traces::w3(1.0, measured);
    let budget = trace.pages * 4096;
    let mut space = VaSpace::new(&[Zone::LOW]).expect("one zone");
    space.add_timeline(0).expect("host memory");
    let mut starts = vec![None; trace.slots];
    let (mut swap, mut freeing, mut highest) = (0_u64, false, 0);
    for op in trace.warm.iter().chain(&trace.ops) {
        let slot = &mut starts[op.slot as usize];
        if op.pages == 0 {
            if !freeing {
                freeing = true;
                swap += 1;
                space.signalled(0, swap.saturating_sub(lag));
            }
            let start = slot.take().expect("a tensor is freed once");
            space.retire(
                start,
                Some(SpaceFence {
                    timeline: 0,
                    value: swap,
                }),
            );
        } else {
            freeing = false;
            let size = u64::from(op.pages) * 4096;
            let span = space
                .carve("low", size, 4096, VaSpace::SHARED)
                .expect("a terabyte");
            highest = highest.max(span.end());
            *slot = Some(span.start());
        }
    }
    space.check();
    let stats = space.stats();
    let of = |bytes: u64| bytes as f64 / budget as f64;
    println!(
        "VA/W3        fences {lag} swaps late: live and quarantined at most {:.3}, highest address \
         {:.3} of the budget; {} holes, {swap} swaps",
        of(stats.high_water),
        of(highest),
        stats.holes
    );
}

pub(crate) fn consumption(measured: usize) {
    for lag in [0, 1, 2, 4] {
        swaps(lag, measured);
    }
}
