//! The copy engine stops in the middle (case R6): the source stays authoritative, the copy is
//! repeated, no byte is lost.

use crate::rig::{PAGE, Rig, pattern};
use vrampager_core::{ErrorKind, MemType, Placement};
use vrampager_sim::{Call, Injection};

fn stop(nth: u64, after_bytes: u64) -> Injection {
    Injection::StopCopy { nth, after_bytes }
}

#[test]
fn a_move_that_stops_at_any_byte_arrives_whole() {
    for after_bytes in [0, 1, PAGE - 1, PAGE, 3 * PAGE + 5, 8 * PAGE] {
        let mut rig = Rig::new(8, 8, 16, 0);
        let id = rig.dirty("b", 8, 1);
        rig.inject(stop(1, after_bytes));

        rig.move_to(id, MemType::GTT).unwrap();

        assert_eq!(rig.residency(id), Some(MemType::GTT));
        assert_eq!(rig.read(id).unwrap(), pattern(1, 8), "{after_bytes}");
        assert!(rig.close(&[id]), "{after_bytes}");
    }
}

/// The replay finds a ring too small for what the stopped channel still had; what does not fit
/// has to follow in order.
#[test]
fn copies_behind_a_fault_are_all_repeated_on_the_smallest_ring() {
    for nth in 1..=12 {
        let mut rig = Rig::with_ring(2, [16, 16, 32, 0]);
        let ids = [1, 2, 3, 4].map(|seed| rig.dirty("b", 4, seed));
        rig.inject(stop(nth, 100));

        for id in ids {
            rig.move_to(id, MemType::GTT).unwrap();
        }

        let contents = ids.map(|id| rig.read(id).unwrap());
        assert_eq!(contents, [1, 2, 3, 4].map(|seed| pattern(seed, 4)), "{nth}");
        assert!(rig.close(&ids), "{nth}");
    }
}

#[test]
fn a_full_queue_during_the_replay_delays_it_only() {
    for nth in 1..=12 {
        let mut rig = Rig::new(16, 16, 32, 0);
        let ids = [1, 2, 3, 4].map(|seed| rig.dirty("b", 4, seed));
        rig.inject(stop(1, 100));
        let call = Call::Submit;
        rig.inject(Injection::FailCall { call, nth });

        let moved = ids.map(|id| rig.move_to(id, MemType::GTT));

        assert_eq!(moved, [const { Ok(()) }; 4], "{nth}");
        let contents = ids.map(|id| rig.read(id).unwrap());
        assert_eq!(contents, [1, 2, 3, 4].map(|seed| pattern(seed, 4)), "{nth}");
        assert!(rig.close(&ids), "{nth}");
    }
}

/// A channel that cannot be replaced at once is replaced later.
#[test]
fn a_refused_recovery_is_tried_again() {
    for call in [Call::CreateChannel, Call::DestroyChannel] {
        let mut rig = Rig::new(8, 8, 16, 0);
        let id = rig.dirty("b", 8, 1);
        rig.inject(stop(1, 100));
        rig.inject(Injection::FailCall { call, nth: 1 });

        let moved = rig.move_to(id, MemType::GTT);
        let first = rig.read(id);
        let second = rig.read(id);

        assert_eq!(moved, Ok(()), "the copy is under way");
        assert!(first.is_err() || second.is_ok());
        assert_eq!(second.unwrap(), pattern(1, 8), "{call:?}");
        assert!(rig.close(&[id]), "{call:?}");
    }
}

/// A copy that was refused is not in the log that the next channel repeats: its target is gone.
#[test]
fn a_move_refused_on_a_stopped_channel_leaves_no_copy_behind() {
    let mut rig = Rig::new(16, 16, 32, 0);
    let [first, second] = [1, 2].map(|seed| rig.dirty("b", 4, seed));
    rig.inject(stop(1, 100));
    rig.move_to(first, MemType::GTT).unwrap();
    // The engine runs while it is polled; nobody looks after the channel.
    let polls = (0..100).map(|_| rig.runner.progress().len());
    assert!(polls.sum::<usize>() > 0);
    let call = Call::CreateChannel;
    rig.inject(Injection::FailCall { call, nth: 1 });

    let refused = rig.move_to(second, MemType::GTT);
    let contents = [first, second].map(|id| rig.read(id).unwrap());

    assert!(refused.is_err());
    assert_eq!(rig.residency(second), Some(MemType::VRAM));
    assert_eq!(contents, [1, 2].map(|seed| pattern(seed, 4)));
    assert!(rig.close(&[first, second]));
}

#[test]
fn a_copy_that_never_gets_further_is_a_lost_device() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.dirty("b", 8, 1);
    for _ in 0..20 {
        rig.inject(stop(1, 100));
    }
    rig.move_to(id, MemType::GTT).unwrap();
    let next = rig.create("next", 8, Placement::gtt());

    let refused = rig.touch(&[next]).unwrap_err();

    assert_eq!(refused.kind(), ErrorKind::DeviceLost);
    assert!(refused.to_string().contains("repeated faults"), "{refused}");
}
