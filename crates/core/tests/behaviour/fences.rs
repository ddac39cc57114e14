//! Memory waits for the device; requests wait for memory; nobody waits for ever.

use crate::rig::{Rig, pattern};
use vrampager_core::{Done, Effect, EffectError, Error, MemType, Placement, Step, Target};
use vrampager_hal::{Access, ChannelKind, Fence, HalError, Op};
use vrampager_sim::Injection;

/// A fence that nothing signals unless the test does.
fn never(rig: &Rig) -> Fence {
    let timeline = rig.runner.open_stream(ChannelKind::Compute).unwrap();
    Fence { timeline, value: 1 }
}

/// Signals what [`never`] returned.
fn signal(rig: &Rig, fence: Fence) {
    let reached = rig.runner.submit(fence.timeline, &[], &[]).unwrap();
    assert_eq!(reached, fence);
    rig.runner.wait(fence).unwrap();
}

/// Case D1 (pytorch #189504): the first try succeeds, by waiting.
#[test]
fn memory_released_behind_pending_work_is_waited_for() {
    let mut rig = Rig::new(64, 64, 128, 0);
    let first = rig.create("first", 40, Placement::vram());
    let fence = rig.gpu_fill(&[(first, 1)]).unwrap();
    rig.device.release(first).unwrap();
    let pending = rig.device.next_ghost().map(<[Fence]>::to_vec);

    let second = rig.create("second", 40, Placement::vram());
    let placed = rig.touch(&[second]);

    assert_eq!(pending, Some(vec![fence]));
    assert_eq!(placed, Ok(()));
    assert!(
        rig.runner
            .progress()
            .contains(&(fence.timeline, fence.value))
    );
    assert!(rig.close(&[second]));
}

/// Case D2 (modular #6801).
#[test]
fn many_small_pieces_behind_pending_work_make_room_for_a_large_buffer() {
    let mut rig = Rig::new(83, 83, 166, 0);
    let ids: Vec<_> = (0..83)
        .map(|_| rig.create("small", 1, Placement::vram()))
        .collect();
    let fills: Vec<_> = ids.iter().map(|&id| (id, 1)).collect();
    rig.gpu_fill(&fills).unwrap();
    for id in ids {
        rig.device.release(id).unwrap();
    }
    let large = rig.create("large", 83, Placement::vram());

    let placed = rig.touch(&[large]);

    assert_eq!(placed, Ok(()));
    assert!(rig.close(&[large]));
}

#[test]
fn a_victim_that_the_gpu_works_on_is_waited_for() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let busy = rig.create("busy", 8, Placement::vram());
    rig.gpu_fill(&[(busy, 7)]).unwrap();

    let next = rig.dirty("next", 8, 1);

    assert_eq!(rig.residency(next), Some(MemType::VRAM));
    assert_eq!(rig.read(busy).unwrap(), vec![7; 8 * 4096]);
    assert!(rig.close(&[busy, next]));
}

#[test]
fn a_buffer_is_moved_only_when_the_gpu_is_done_with_it() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.create("b", 8, Placement::vram());
    let fence = rig.gpu_fill(&[(id, 7)]).unwrap();

    let mut to_gtt = crate::rig::gpu_read(id);
    to_gtt.target = Target::Places(Placement::gtt());
    let task = rig.device.exec(&[to_gtt]).unwrap();

    let Step::Perform(effects) = rig.device.step(task) else {
        panic!("a move has effects")
    };
    let outcome = rig.runner.perform(&effects);
    assert!(rig.device.performed(task, &outcome).is_none());
    rig.device.abort(task);

    assert_eq!(effects[0], Effect::Wait(vec![fence]));
    assert_eq!(rig.runner.failure(fence), None);
    assert_eq!(rig.residency(id), Some(MemType::GTT));
    assert_eq!(rig.read(id).unwrap(), vec![7; 8 * 4096]);
    assert!(rig.close(&[id]));
}

#[test]
fn an_idle_victim_goes_before_a_busy_one() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let busy = rig.create("busy", 4, Placement::vram());
    let fence = never(&rig);
    rig.gpu_fill_behind(&[fence], &[(busy, 7)]).unwrap();
    let idle = rig.dirty("idle", 4, 1);

    let next = rig.dirty("next", 4, 2);

    assert_eq!(rig.residency(busy), Some(MemType::VRAM));
    assert_eq!(rig.residency(idle), Some(MemType::GTT));
    signal(&rig, fence);
    assert_eq!(rig.read(busy).unwrap(), vec![7; 4 * 4096]);
    rig.runner.close_stream(fence.timeline).unwrap();
    assert!(rig.close(&[busy, idle, next]));
}

/// Every wait has a deadline (invariant 6): 15 seconds, here of virtual time.
#[test]
fn a_request_that_needs_hung_memory_ends_with_a_timeout() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let hung = rig.create("hung", 8, Placement::vram());
    let fence = never(&rig);
    rig.gpu_fill_behind(&[fence], &[(hung, 7)]).unwrap();
    rig.device.release(hung).unwrap();
    let next = rig.create("next", 8, Placement::vram());

    let refused = rig.touch(&[next]).unwrap_err();
    signal(&rig, fence);
    let later = rig.touch(&[next]);

    let Error::Effect { buffer, error } = refused else {
        panic!("{refused}")
    };
    assert_eq!(&*buffer, "next");
    assert!(matches!(error, EffectError::Hal(HalError::Timeout { .. })));
    assert_eq!(later, Ok(()));
    rig.runner.close_stream(fence.timeline).unwrap();
    assert!(rig.close(&[next]));
}

#[test]
fn reaping_hung_memory_gives_up_and_leaves_it_for_later() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let hung = rig.create("hung", 8, Placement::vram());
    let fence = never(&rig);
    rig.gpu_fill_behind(&[fence], &[(hung, 7)]).unwrap();
    rig.device.release(hung).unwrap();

    let task = rig.device.reap();
    let first = rig.run(task).unwrap();
    signal(&rig, fence);
    let task = rig.device.reap();
    let second = rig.run(task).unwrap();

    assert_eq!(first, Ok(Done::Idle));
    assert_eq!(second, Ok(Done::Reaped));
    rig.runner.close_stream(fence.timeline).unwrap();
    assert!(rig.close(&[]));
}

#[test]
fn a_reap_brings_back_one_piece() {
    let mut rig = Rig::new(8, 8, 16, 0);
    for seed in 0..2 {
        let id = rig.dirty("b", 2, seed);
        rig.device.release(id).unwrap();
    }
    let before = rig.device.snapshot().ghosts;

    let task = rig.device.reap();
    rig.run(task).unwrap().unwrap();

    assert_eq!(rig.device.snapshot().ghosts, before - 1);
    assert!(rig.close(&[]));
}

#[test]
fn a_later_write_waits_for_earlier_readers_and_a_read_does_not() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.dirty("b", 4, 1);
    let (task, grant) = rig.exec(&[crate::rig::gpu_read(id)]).unwrap();
    let fence = never(&rig);
    let waits = [&grant.waits[..], &[fence]].concat();
    let read = rig.runner.submit(rig.stream, &waits, &[]).unwrap();
    rig.device
        .finish(task, Some(read), vrampager_core::Keep::Evictable);

    let (reader, for_read) = rig.exec(&[crate::rig::gpu_read(id)]).unwrap();
    rig.device.abort(reader);
    let mut write = crate::rig::gpu_read(id);
    write.access = Access::Write;
    let (writer, for_write) = rig.exec(&[write]).unwrap();
    rig.device.abort(writer);

    assert!(!for_read.waits.contains(&read));
    assert!(for_write.waits.contains(&read));
    signal(&rig, fence);
    rig.runner.wait(read).unwrap();
    rig.runner.close_stream(fence.timeline).unwrap();
    assert!(rig.close(&[id]));
}

#[test]
fn a_stream_may_be_closed_while_another_waits_for_it() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let fence = never(&rig);
    let other = rig.runner.open_stream(ChannelKind::Copy).unwrap();
    let given_up = rig.runner.submit(other, &[fence], &[]).unwrap();
    let waiting = rig.runner.submit(rig.stream, &[given_up], &[]).unwrap();

    rig.runner.close_stream(other).unwrap();
    let waited = rig.runner.wait(waiting);

    assert_eq!(waited, Ok(()));
    signal(&rig, fence);
    rig.reap_all();
    assert!(rig.close(&[]));
}

#[test]
fn fences_of_a_closed_stream_hold_nobody_up() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.create("b", 4, Placement::vram());
    let opened = rig.runner.open_stream(ChannelKind::Copy).unwrap();
    let first = std::mem::replace(&mut rig.stream, opened);
    rig.gpu_fill(&[(id, 7)]).unwrap();
    let second = std::mem::replace(&mut rig.stream, first);
    rig.runner.close_stream(second).unwrap();

    let moved = rig.move_to(id, MemType::GTT);

    assert_eq!(moved, Ok(()));
    assert!(rig.close(&[id]));
}

/// A user's work is not repeated, and nobody waits for it for ever.
#[test]
fn a_fault_of_a_users_work_raises_its_fence_and_is_remembered() {
    let mut rig = Rig::new(16, 16, 32, 0);
    let ids = [1, 2].map(|seed| rig.dirty("b", 4, seed));
    let (task, grant) = rig.exec(&ids.map(crate::rig::gpu_read)).unwrap();
    rig.inject(Injection::StopCopy {
        nth: 1,
        after_bytes: 100,
    });
    let copy = Op::Copy {
        src: grant.views[0].va,
        dst: grant.views[1].va,
        len: 4096,
    };
    let fence = rig
        .runner
        .submit(rig.stream, &grant.waits, &[copy])
        .unwrap();
    rig.device
        .finish(task, Some(fence), vrampager_core::Keep::Evictable);

    let waited = rig.runner.wait(fence);
    let next = rig.gpu_fill(&[(ids[0], 9)]).unwrap();

    assert_eq!(waited, Ok(()));
    assert!(rig.runner.failure(fence).is_some());
    assert_eq!(rig.read(ids[0]).unwrap(), vec![9; 4 * 4096]);
    assert_eq!(rig.runner.failure(next), None);
    assert_eq!(&rig.read(ids[1]).unwrap()[100..], &pattern(2, 4)[100..]);
    assert!(rig.close(&ids));
}
