//! The four acceptance suites, unchanged.

use vrampager_hal::accept::{self, Outcome};
use vrampager_hal::{DeviceId, Discovery};
use vrampager_nv::{Nv, Planes};

fn nv(text: &str) -> std::sync::Arc<Nv> {
    let config = text.parse().expect("the tests write valid configurations");
    Nv::new(config, &Planes::default()).expect("simulated GPUs exclude nothing")
}

const MACHINES: [&str; 4] = [
    "sim,vram=16M,bar1=1M,gpus=2,release=570.144",
    "sim,vram=16M,bar1=1M,gpus=2,latency=100us",
    "sim,vram=16M,bar1=1M,gpus=2,release=580.82.07,arch=ampere",
    "sim,vram=16M,bar1=1M,gpus=3,visible=1:2,release=610.10,arch=blackwell",
];

#[test]
fn all_suites_pass_on_every_layout_generation_and_a_slow_machine_without_a_check_left_out() {
    for machine in MACHINES {
        let nv = nv(machine);
        for report in accept::all(&*nv, DeviceId(0)) {
            assert!(report.passed(), "{machine}: {report}");
            let skipped = report
                .checks
                .iter()
                .filter(|check| matches!(check.outcome, Outcome::NotSupported { .. }));
            assert_eq!(skipped.count(), 0, "{machine}: {report}");
        }
    }
}

#[test]
fn suites_leave_nothing_in_the_driver() {
    let nv = nv(MACHINES[0]);
    let before = nv.simulated().unwrap().live();
    accept::all(&*nv, DeviceId(0));
    assert_eq!(nv.simulated().unwrap().live(), before);
    assert_eq!(nv.refused(DeviceId(0)), []);
}

#[test]
fn devices_that_may_not_be_seen_are_not_listed_and_others_count_from_zero() {
    let nv = nv("sim,gpus=3,vram=64M,visible=2:0");
    let names: Vec<_> = nv.devices().unwrap().into_iter().map(|d| d.name).collect();
    assert_eq!(
        names,
        ["NVIDIA 2684 at 0000:01:00", "NVIDIA 2684 at 0000:03:00"]
    );
}
