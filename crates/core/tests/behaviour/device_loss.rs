//! The device disappears: every request says so, and everything can still be given back.

use crate::rig::{Rig, gpu_read};
use vrampager_core::{Error, ErrorKind, MemType, Placement};
use vrampager_hal::DeviceLossCause;
use vrampager_sim::Injection;

const CAUSE: DeviceLossCause = DeviceLossCause::Removed;

fn lose(nth: u64) -> Injection {
    Injection::LoseDevice { nth, cause: CAUSE }
}

#[test]
fn a_request_at_work_fails_with_device_lost_and_later_ones_are_refused() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.dirty("b", 8, 1);
    rig.inject(lose(1));

    let at_work = rig.move_to(id, MemType::SYSTEM).unwrap_err();
    let begun = rig.device.exec(&[gpu_read(id)]).unwrap_err();
    let created = rig.device.create(&Rig::desc("late", 1, Placement::vram()));

    assert_eq!(at_work.kind(), ErrorKind::DeviceLost);
    assert_eq!(begun, Error::DeviceLost(CAUSE));
    assert_eq!(created, Err(Error::DeviceLost(CAUSE)));
}

#[test]
fn all_is_given_back_after_a_loss_at_any_operation() {
    for nth in 1..=24 {
        let mut rig = Rig::new(8, 8, 16, 64);
        let ids = [1, 2, 3].map(|_| rig.create("b", 4, Placement::vram()));
        rig.inject(lose(nth));
        for id in ids {
            // Whether this succeeds depends on `nth`; what counts is what is left.
            drop(rig.gpu_fill(&[(id, 1)]).and_then(|_| rig.touch(&[id])));
        }

        assert!(rig.close(&ids), "{nth}");
    }
}

#[test]
fn a_request_that_waits_for_another_learns_of_the_loss() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.dirty("b", 8, 1);
    let waiting = rig.device.exec(&[gpu_read(id)]).unwrap();
    rig.inject(lose(1));
    rig.move_to(id, MemType::SYSTEM).unwrap_err();

    let result = rig.run(waiting);

    assert_eq!(result, Err(Error::DeviceLost(CAUSE)));
    assert!(rig.close(&[id]));
}
