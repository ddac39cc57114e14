//! Many buffers at once, by wait-die (TTM K2): no deadlock, and the oldest request gets on.

use crate::rig::{Rig, gpu_read};
use vrampager_core::{Done, Error, Keep, MemType, Placement, Step, Target, TaskId};
use vrampager_hal::Access;

const VRAM: Option<MemType> = Some(MemType::VRAM);

/// Steps a task until it can go no further alone.
fn advance(rig: &mut Rig, task: TaskId) -> Step {
    loop {
        if let Some(step) = rig.step(task) {
            return step;
        }
    }
}

fn is_granted(step: &Step) -> bool {
    matches!(step, Step::Granted(_))
}

fn is_blocked(step: &Step) -> bool {
    matches!(step, Step::Blocked)
}

/// TTM `ttm_bo_reserve_deadlock`: the younger gives up what it holds.
#[test]
fn of_a_deadlocked_pair_the_younger_backs_off_and_both_end() {
    let mut rig = Rig::new(16, 16, 32, 0);
    let [a, b, gate] = [1, 2, 3].map(|seed| rig.dirty("b", 1, seed));
    let older = rig.device.exec(&[gpu_read(a), gpu_read(gate), gpu_read(b)]);
    let older = older.unwrap();
    let younger = rig.device.exec(&[gpu_read(b), gpu_read(a)]).unwrap();
    let gatekeeper = rig.device.exec(&[gpu_read(gate)]).unwrap();
    let bystander = rig.device.exec(&[gpu_read(b)]).unwrap();
    let opened = advance(&mut rig, gatekeeper);

    // The older holds `a` and waits at the gate; the younger holds `b` and wants `a`.
    let older_waits = advance(&mut rig, older);
    let younger_dies = advance(&mut rig, younger);
    let backoffs = rig.device.snapshot().totals.backoffs;
    let b_is_free = advance(&mut rig, bystander);

    assert!(is_granted(&opened) && is_blocked(&older_waits) && is_blocked(&younger_dies));
    assert_eq!(backoffs, 1);
    assert!(is_granted(&b_is_free));
    for task in [gatekeeper, bystander] {
        rig.device.finish(task, None, Keep::Evictable);
    }
    let older_goes = advance(&mut rig, older);
    assert!(is_granted(&older_goes));
    rig.device.finish(older, None, Keep::Evictable);
    let younger_goes = advance(&mut rig, younger);
    assert!(is_granted(&younger_goes));
    rig.device.finish(younger, None, Keep::Evictable);
    assert!(rig.close(&[a, b, gate]));
}

#[test]
fn a_younger_request_does_not_overtake_an_older_one_in_the_queue() {
    let mut rig = Rig::new(16, 16, 32, 0);
    let id = rig.dirty("b", 1, 1);
    let [holder, older, younger] = [(); 3].map(|()| rig.device.exec(&[gpu_read(id)]).unwrap());
    let granted = advance(&mut rig, holder);
    let waits = advance(&mut rig, older);
    rig.device.finish(holder, None, Keep::Evictable);

    let overtaking = advance(&mut rig, younger);
    let in_turn = advance(&mut rig, older);

    assert!(is_granted(&granted) && is_blocked(&waits));
    assert!(is_blocked(&overtaking));
    assert!(is_granted(&in_turn));
    rig.device.abort(older);
    rig.device.abort(younger);
    assert!(rig.close(&[id]));
}

/// TTM K3: a duplicate is no error, and the strongest access counts.
#[test]
fn a_buffer_named_twice_is_reserved_once_for_the_stronger_access() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.create("b", 4, Placement::vram());
    let mut write = gpu_read(id);
    write.access = Access::Write;

    let (task, grant) = rig.exec(&[gpu_read(id), write]).unwrap();
    rig.device.finish(task, None, Keep::Evictable);
    let other = rig.dirty("other", 8, 1);

    assert_eq!(grant.views.len(), 1);
    // Only a dirty buffer is moved instead of being dropped.
    assert_eq!(rig.residency(id), Some(MemType::GTT));
    assert!(rig.close(&[id, other]));
}

#[test]
fn a_buffer_for_the_cpu_and_the_gpu_is_brought_to_the_gpu() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.create("b", 4, Placement::vram());
    let mut cpu = gpu_read(id);
    cpu.target = Target::Cpu;

    let (task, _) = rig.exec(&[cpu, gpu_read(id)]).unwrap();
    rig.device.finish(task, None, Keep::Evictable);

    assert_eq!(rig.residency(id), VRAM);
    assert!(rig.close(&[id]));
}

#[test]
fn a_buffer_in_two_places_at_once_is_an_invalid_request() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.create("b", 4, Placement::vram());
    let mut in_gtt = gpu_read(id);
    in_gtt.target = Target::Places(Placement::gtt());

    let refused = rig.device.exec(&[in_gtt, gpu_read(id)]);

    let text = "a buffer is wanted in two places at once";
    assert_eq!(refused, Err(Error::Invalid(text)));
    assert!(rig.close(&[id]));
}

/// Case D10, TTM report 7: no spurious out of memory because others are at it too.
#[test]
fn a_request_waits_while_another_evicts() {
    let mut rig = Rig::new(8, 8, 32, 0);
    let full = rig.dirty("full", 8, 1);
    let ids = [1, 2].map(|_| rig.create("b", 4, Placement::vram()));
    let [first, second] = ids.map(|id| rig.device.exec(&[gpu_read(id)]).unwrap());
    let Step::Perform(effects) = rig.device.step(first) else {
        panic!("the first has to evict")
    };

    let meanwhile = rig.device.step(second);
    let outcome = rig.runner.perform(&effects);
    assert!(rig.device.performed(first, &outcome).is_none());
    let first_goes = advance(&mut rig, first);
    let second_goes = advance(&mut rig, second);

    assert!(is_blocked(&meanwhile));
    assert!(is_granted(&first_goes) && is_granted(&second_goes));
    rig.device.finish(first, None, Keep::Evictable);
    rig.device.finish(second, None, Keep::Evictable);
    assert!(rig.close(&[full, ids[0], ids[1]]));
}

#[test]
fn room_made_by_one_request_is_not_taken_by_another() {
    let mut rig = Rig::new(8, 8, 32, 0);
    let victims = [1, 2].map(|seed| rig.dirty("victim", 4, seed));
    let [big, small] = [8, 4].map(|pages| rig.create("b", pages, Placement::vram()));
    let first = rig.device.exec(&[gpu_read(big)]).unwrap();
    let second = rig.device.exec(&[gpu_read(small)]).unwrap();
    let half_way = rig.step(first);
    let moved = victims.map(|id| rig.residency(id));

    let meanwhile = rig.step(second);
    let first_goes = advance(&mut rig, first);

    assert!(half_way.is_none());
    assert_eq!(moved, [Some(MemType::GTT), VRAM]);
    assert!(meanwhile.is_some_and(|step| is_blocked(&step)));
    assert!(is_granted(&first_goes));
    rig.device.finish(first, None, Keep::Evictable);
    let second_goes = advance(&mut rig, second);
    assert!(is_granted(&second_goes));
    rig.device.finish(second, None, Keep::Evictable);
    assert!(rig.close(&[victims[0], victims[1], big, small]));
}

#[test]
fn a_request_waits_while_released_memory_is_on_its_way_back() {
    let mut rig = Rig::new(8, 8, 32, 0);
    let released = rig.dirty("released", 8, 1);
    let next = rig.create("next", 8, Placement::vram());
    rig.device.release(released).unwrap();
    let reap = rig.device.reap();
    let wanting = rig.device.exec(&[gpu_read(next)]).unwrap();
    let Step::Perform(effects) = rig.device.step(reap) else {
        panic!("there is something to reap")
    };

    let meanwhile = rig.device.step(wanting);
    let outcome = rig.runner.perform(&effects);
    assert!(rig.device.performed(reap, &outcome).is_none());
    let goes = advance(&mut rig, wanting);

    assert!(is_blocked(&meanwhile));
    assert!(is_granted(&goes));
    rig.device.finish(wanting, None, Keep::Evictable);
    assert_eq!(rig.run(reap), Ok(Ok(Done::Reaped)));
    assert!(rig.close(&[next]));
}

#[test]
fn a_request_waits_for_the_holder_of_the_only_victim() {
    let mut rig = Rig::new(8, 8, 32, 0);
    let only = rig.dirty("only", 8, 1);
    let next = rig.create("next", 8, Placement::vram());
    let holder = rig.device.exec(&[gpu_read(only)]).unwrap();
    let wanting = rig.device.exec(&[gpu_read(next)]).unwrap();
    let granted = advance(&mut rig, holder);

    let waits = advance(&mut rig, wanting);
    rig.device.finish(holder, None, Keep::Evictable);
    let goes = advance(&mut rig, wanting);

    assert!(is_granted(&granted) && is_blocked(&waits) && is_granted(&goes));
    rig.device.finish(wanting, None, Keep::Evictable);
    assert_eq!(rig.residency(next), VRAM);
    assert!(rig.close(&[only, next]));
}

#[test]
fn waiting_for_a_buffer_that_is_released_meanwhile_ends_with_an_error() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.dirty("b", 1, 1);
    let [holder, waiting] = [(); 2].map(|()| rig.device.exec(&[gpu_read(id)]).unwrap());
    let granted = advance(&mut rig, holder);
    let waits = advance(&mut rig, waiting);
    rig.device.release(id).unwrap();
    rig.device.finish(holder, None, Keep::Evictable);

    let gone = advance(&mut rig, waiting);

    assert!(is_granted(&granted) && is_blocked(&waits));
    assert!(matches!(gone, Step::Done(Err(Error::NoSuchBuffer))));
    assert!(rig.close(&[]));
}

#[test]
fn an_aborted_creation_leaves_nothing_behind() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let desc = Rig::desc("b", 1, Placement::vram());
    let task = rig.device.create(&desc).unwrap();
    let reserved = rig.step(task);

    rig.device.abort(task);

    assert!(reserved.is_none(), "the addresses are there, the id is not");
    assert_eq!(rig.device.snapshot().buffers, 0);
    assert!(rig.close(&[]));
}

#[test]
fn an_idle_reap_says_so() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let task = rig.device.reap();

    assert_eq!(rig.run(task), Ok(Ok(Done::Idle)));
    assert!(rig.close(&[]));
}
