//! The two ways to reach real GPUs (mission row A2), in a process of their own.

use vrampager::{Error, ErrorKind, Pager, Plane, PlanesError, discover, planes};

fn refused(error: Error) -> PlanesError {
    assert_eq!(error.kind(), ErrorKind::Busy);
    let Error::Planes(refused) = error else {
        panic!("{error}");
    };
    refused
}

#[test]
fn the_planes_of_a_process_exclude_each_other_in_both_directions() {
    let pci = planes().enter(Plane::Pci).unwrap();
    let wanted = PlanesError {
        wanted: Plane::KernelDriver,
        used: Plane::Pci,
    };
    assert_eq!(refused(Pager::builder("nv:0").unwrap_err()), wanted);
    assert_eq!(refused(discover("nv:0").unwrap_err()), wanted);
    drop(discover("nv:sim").expect("simulated GPUs have no addresses to lose"));
    drop(pci);

    let driver = discover("nv:0").unwrap();
    let again = discover("nv:1").expect("the same plane may be used twice");
    let wanted = PlanesError {
        wanted: Plane::Pci,
        used: Plane::KernelDriver,
    };
    assert_eq!(planes().enter(Plane::Pci).unwrap_err(), wanted);
    drop(driver);
    assert_eq!(planes().enter(Plane::Pci).unwrap_err(), wanted);
    drop(again);
    planes().enter(Plane::Pci).unwrap();
}
