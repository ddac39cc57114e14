//! The simulated device keeps its contracts, and the suites see when it does not.

use std::sync::Arc;

use vrampager_addr::Span;
use vrampager_hal::accept::{self, Outcome, Report};
use vrampager_hal::{
    CpuMapping, DeviceId, DeviceInfo, Discovery, Gpu, GpuMap, HalError, Heap, MemId, Memory,
};
use vrampager_sim::{PlantedBug, SimConfig, Simulator};

const DEVICE: DeviceId = DeviceId(0);
const MODES: [&str; 2] = ["threaded", "deterministic"];

fn config(text: &str) -> SimConfig {
    text.parse().expect("the tests write valid configurations")
}

#[test]
fn the_simulated_device_passes_all_suites_in_both_modes() {
    for mode in MODES {
        let sim = Simulator::new(config(&format!("vram=16M,bar=1M,gpus=2,mode={mode}"))).unwrap();
        for report in accept::all(&*sim, DEVICE) {
            assert!(report.passed(), "{mode}: {report}");
        }
    }
}

#[test]
fn every_check_can_be_tried_on_the_simulated_device() {
    let sim = Simulator::new(config("vram=16M,bar=1M,gpus=2")).unwrap();
    let skipped = accept::all(&*sim, DEVICE)
        .into_iter()
        .flat_map(|report| report.checks)
        .filter(|check| matches!(check.outcome, Outcome::NotSupported { .. }));
    assert_eq!(skipped.collect::<Vec<_>>(), []);
}

#[test]
fn suites_pass_over_many_schedules() {
    for seed in 0..20 {
        let text = format!("vram=16M,bar=1M,gpus=2,mode=deterministic,ring=16,seed={seed}");
        let sim = Simulator::new(config(&text)).unwrap();
        for report in accept::all(&*sim, DEVICE) {
            assert!(report.passed(), "seed {seed}: {report}");
        }
    }
}

#[test]
fn a_suite_survives_an_open_that_fails_once() {
    let sim = Simulator::new(config("vram=16M,bar=1M,fault=open:1")).unwrap();
    let report = accept::discovery::run(&*sim, DEVICE);
    assert!(report.passed(), "{report}");
}

type Suite = fn(&dyn Discovery, DeviceId) -> Report;

/// Each defect, the suite of the contract it breaks, and the check that has to see it.
const DEFECTS: [(PlantedBug, Suite, &str); 12] = [
    (
        PlantedBug::OpensTwice,
        accept::discovery::run,
        "a second open is refused while the first goes on",
    ),
    (
        PlantedBug::RefusedOpenStaysBusy,
        accept::discovery::run,
        "a closed device can be opened again, whatever was refused meanwhile",
    ),
    (
        PlantedBug::MapsOnePageOff,
        accept::memory::run,
        "a GPU mapping shows the part that was asked for",
    ),
    (
        PlantedBug::HostNotZeroed,
        accept::memory::run,
        "host objects read as zeros",
    ),
    (
        PlantedBug::ReadOnlyIsWritable,
        accept::memory::run,
        "a read-only GPU mapping can be read and not written",
    ),
    (
        PlantedBug::ImportsACopy,
        accept::memory::run,
        "imported memory is the caller's own, at the caller's addresses",
    ),
    (
        PlantedBug::SharesACopy,
        accept::memory::run,
        "a device reaches memory of another one, at its address",
    ),
    (
        PlantedBug::SignalsEarly,
        accept::queue::run,
        "a signal is seen only after the bytes in front of it",
    ),
    (
        PlantedBug::RunsPastFault,
        accept::queue::run,
        "operations in front of a fault are complete, those behind have not run",
    ),
    (
        PlantedBug::TimeoutIsSuccess,
        accept::queue::run,
        "a wait ends at its deadline and what it waited for goes on",
    ),
    (
        PlantedBug::DestroyKeepsCount,
        accept::release::run,
        "counters rise and fall with exactly what is taken and given back",
    ),
    (
        PlantedBug::UnmapLeavesLastPage,
        accept::release::run,
        "an access after unmapping faults, in the first page and in the last",
    ),
];

#[test]
fn each_planted_defect_is_seen_by_the_suite_of_its_contract() {
    for (bug, suite, name) in DEFECTS {
        for mode in MODES {
            let config = config(&format!("vram=16M,bar=1M,gpus=2,mode={mode}")).planted(bug);
            let sim = Simulator::new(config).unwrap();
            let report = suite(&*sim, DEVICE);
            let seen = report.failures().any(|check| check.name == name);
            assert!(
                seen,
                "{bug:?} in {mode} mode was not seen by {name:?}: {report}"
            );
        }
    }
}

/// The simulated device without what a back end may lack.
#[derive(Debug)]
struct Plain<T>(T);

impl Memory for Plain<Arc<dyn Memory>> {
    fn reserve_va(&self, span: Span) -> Result<(), HalError> {
        self.0.reserve_va(span)
    }

    fn create(&self, heap: Heap, size: u64) -> Result<MemId, HalError> {
        self.0.create(heap, size)
    }

    fn map_cpu(&self, mem: MemId, offset: u64, len: u64) -> Result<CpuMapping, HalError> {
        self.0.map_cpu(mem, offset, len)
    }

    fn map_gpu(&self, map: GpuMap) -> Result<(), HalError> {
        self.0.map_gpu(map)
    }
}

impl Discovery for Plain<Arc<Simulator>> {
    fn devices(&self) -> Result<Vec<DeviceInfo>, HalError> {
        self.0.devices()
    }

    fn free_vram(&self, device: DeviceId) -> Result<u64, HalError> {
        self.0.free_vram(device)
    }

    fn open(&self, device: DeviceId) -> Result<Gpu, HalError> {
        let gpu = self.0.open(device)?;
        let memory = Arc::new(Plain(gpu.memory));
        Ok(Gpu { memory, ..gpu })
    }
}

/// Mission row A8: what a back end lacks is said, and is neither passed nor failed.
#[test]
fn foreign_memory_that_a_back_end_lacks_is_reported_as_not_supported() {
    let sim = Simulator::new(config("vram=16M,bar=1M,gpus=2")).unwrap();
    let report = accept::memory::run(&Plain(sim), DEVICE);
    assert!(report.passed(), "{report}");
    let skipped = report
        .checks
        .iter()
        .filter_map(|check| match &check.outcome {
            Outcome::NotSupported { why } => Some(why.as_str()),
            Outcome::Pass | Outcome::Fail { .. } => None,
        });
    let import = "importing host memory is not supported by this device";
    let share = "sharing memory with another device is not supported by this device";
    assert_eq!(
        skipped.collect::<Vec<_>>(),
        [import, import, import, import, share, share]
    );
}
