//! What one seed simulates: sizes, ring, and the faults to come (swarm testing: each seed leaves
//! some kinds of trouble out, so that others get further).

use std::io::ErrorKind;

use vrampager_hal::DeviceLossCause;
use vrampager_sim::{Call, Injection, StorageFault};

use crate::prng::Prng;

pub(crate) const PAGE: u64 = 4096;

/// Sizes in pages, and the plan of faults.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) vram: u64,
    pub(crate) gtt: u64,
    pub(crate) host: u64,
    pub(crate) swap: u64,
    pub(crate) ring: u64,
    pub(crate) clients: u64,
    pub(crate) streams: u64,
    /// Most pages of one buffer.
    pub(crate) largest: u64,
    pub(crate) operations: u64,
    pub(crate) device_faults: Vec<Injection>,
    pub(crate) swap_write_faults: Vec<(u64, StorageFault)>,
    pub(crate) read_faults: Vec<(u64, StorageFault)>,
    /// The device may be lost at some point.
    pub(crate) loss: bool,
}

/// Calls that may fail while the contract promises that nothing has changed.
const FORWARD: [Call; 4] = [
    Call::ReserveVa,
    Call::MapGpu,
    Call::Submit,
    Call::CreateChannel,
];
/// Calls whose failure leaves something behind.
const BACKWARD: [Call; 3] = [Call::UnmapGpu, Call::ReleaseVa, Call::DestroyChannel];

impl Scenario {
    pub(crate) fn new(seed: u64) -> Self {
        let mut sizes = Prng::stream(seed, "sizes");
        let (vram, gtt) = (sizes.between(4, 24), sizes.between(4, 16));
        let host = sizes.between(6, 32);
        let swap = *sizes.pick(&[0, 8, 32, 256, 256, 256]);
        let ring = *sizes.pick(&[2, 3, 5, 8, 64, 1024]);
        let mut scenario = Self {
            seed,
            vram,
            gtt,
            host,
            swap,
            ring,
            clients: sizes.between(2, 6),
            streams: sizes.between(1, 2),
            largest: (vram.min(gtt).min(host) / 2).max(1),
            operations: sizes.between(40, 240),
            device_faults: Vec::new(),
            swap_write_faults: Vec::new(),
            read_faults: Vec::new(),
            loss: false,
        };
        scenario.plan_faults(&mut Prng::stream(seed, "faults"));
        scenario
    }

    fn plan_faults(&mut self, prng: &mut Prng) {
        if prng.percent(25) {
            return;
        }
        for call in FORWARD {
            self.fail_calls(prng, call);
        }
        if prng.percent(30) {
            for call in BACKWARD {
                self.fail_calls(prng, call);
            }
        }
        for _ in 0..prng.below(4) {
            let nth = prng.between(1, 60);
            let after_bytes = prng.below(2 * PAGE);
            let stop = Injection::StopCopy { nth, after_bytes };
            self.device_faults.push(stop);
        }
        let disk = [
            StorageFault::NoSpace,
            StorageFault::Io(ErrorKind::Other),
            StorageFault::Io(ErrorKind::UnexpectedEof),
        ];
        for _ in 0..prng.below(4) {
            let fault = *prng.pick(&disk);
            self.swap_write_faults.push((prng.between(1, 20), fault));
        }
        for _ in 0..prng.below(4) {
            let fault = *prng.pick(&[disk[1], StorageFault::Changed]);
            self.read_faults.push((prng.between(1, 10), fault));
        }
        if prng.percent(8) {
            self.loss = true;
            let nth = prng.between(1, 200);
            let cause = DeviceLossCause::Removed;
            let lose = Injection::LoseDevice { nth, cause };
            self.device_faults.push(lose);
        }
    }

    fn fail_calls(&mut self, prng: &mut Prng, call: Call) {
        if prng.percent(50) {
            for _ in 0..prng.between(1, 3) {
                let nth = prng.between(1, 50);
                self.device_faults.push(Injection::FailCall { call, nth });
            }
        }
    }

    /// Faults planned, each of which can make one attempt at something fail.
    pub(crate) fn faults(&self) -> usize {
        self.device_faults.len() + self.swap_write_faults.len() + self.read_faults.len()
    }

    /// Whether something may be left behind that the device would not take back.
    pub(crate) fn may_leave(&self) -> bool {
        let mut calls = self.device_faults.iter().filter_map(|fault| match fault {
            Injection::FailCall { call, .. } => Some(call),
            Injection::StopCopy { .. } | Injection::LoseDevice { .. } => None,
        });
        calls.any(|call| BACKWARD.contains(call))
    }
}
