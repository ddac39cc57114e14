//! The four acceptance suites, unchanged.

use vrampager_hal::accept::{self, Outcome};
use vrampager_hal::{DeviceId, Discovery};
use vrampager_nv::{Nv, Planes};
use vrampager_nv_abi::{Status, escape};
use vrampager_nv_driver::{Failure, Injection, Kind};

fn nv(text: &str) -> std::sync::Arc<Nv> {
    let config = text.parse().expect("the tests write valid configurations");
    Nv::new(config, &Planes::default()).expect("simulated GPUs exclude nothing")
}

const MACHINES: [&str; 4] = [
    "sim,vram=16M,bar1=1M,gpus=2,release=570.144,doorbell=strict",
    "sim,vram=16M,bar1=1M,gpus=2,latency=100us,doorbell=strict",
    "sim,vram=16M,bar1=1M,gpus=2,release=580.82.07,arch=ampere,doorbell=strict",
    "sim,vram=16M,bar1=1M,gpus=3,visible=1:2,release=610.10,arch=blackwell,doorbell=strict",
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

/// Mission row A4.
#[test]
fn a_device_tells_of_its_multiprocessors_and_of_what_it_lacks() {
    for (arch, version) in [("ampere", "8.6"), ("ada", "8.9"), ("blackwell", "10.4")] {
        let nv = nv(&format!("sim,vram=64M,arch={arch}"));
        let info = nv.devices().unwrap().remove(0);
        let text = |text: &str| text.to_owned();
        let wanted = [
            ("SM version", text(version)),
            ("SMs", text("at most 32")),
            ("warps", text("48 for each SM")),
        ];
        assert_eq!(info.properties, wanted);
        assert_eq!(info.unsupported, [""; 0]);
    }
    // The control that asks, wherever it comes in the order of controls.
    let refused = (1..20).filter(|&nth| {
        let nv = nv("sim,vram=64M");
        nv.simulated().unwrap().inject(Injection {
            kind: Kind::Escape,
            number: escape::RM_CONTROL.into(),
            nth,
            failure: Failure::Status(Status::NOT_SUPPORTED),
        });
        let devices = nv.devices().unwrap_or_default();
        let lacks = devices.iter().flat_map(|info| &info.unsupported);
        lacks.eq(&["telling of its multiprocessors"])
    });
    assert_eq!(refused.count(), 1);
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

/// A full ring takes longer than any single operation may.
#[test]
fn slow_devices_keep_the_promises_of_a_queue() {
    let nv = nv("sim,vram=16M,latency=12ms");
    let report = accept::queue::run(&*nv, DeviceId(0));
    assert!(report.passed(), "{report}");
}
