//! Every stage of every kind of move fails once (cases R1, V8): bytes and numbers are as before,
//! the error names buffer and stage, and the second try succeeds.

use crate::rig::{Rig, pattern};
use vrampager_core::{BufferId, Error, MemType, Placement, Snapshot, Source, Totals};
use vrampager_sim::{Call, Injection};

/// More than any move here takes of one kind of call.
const CALLS_MAX: u64 = 12;
/// Three extents in a buddy space, so that every stage of mapping consists of three calls.
const PAGES: u64 = 7;

/// A kind of move: how to set it up, and how to do it.
struct Move {
    name: &'static str,
    arrange: fn(&mut Rig) -> BufferId,
    act: fn(&mut Rig, BufferId) -> Result<(), Error>,
    arrives: MemType,
}

fn in_vram(rig: &mut Rig) -> BufferId {
    rig.dirty("b", PAGES, 1)
}

fn in_gtt(rig: &mut Rig) -> BufferId {
    let id = rig.dirty("b", PAGES, 1);
    rig.move_to(id, MemType::GTT).unwrap();
    rig.touch_in_gtt(id);
    id
}

fn in_system(rig: &mut Rig) -> BufferId {
    let id = rig.create("b", PAGES, Placement::vram());
    rig.write(id, &pattern(1, PAGES)).unwrap();
    id
}

fn in_file(rig: &mut Rig) -> BufferId {
    let (file, _) = rig.add_file(&pattern(1, PAGES));
    let mut desc = Rig::desc("b", PAGES, Placement::vram());
    desc.content = Source::File { file, offset: 0 };
    rig.create_desc(&desc).unwrap()
}

fn to_vram(rig: &mut Rig, id: BufferId) -> Result<(), Error> {
    rig.move_to(id, MemType::VRAM)
}

fn to_gtt(rig: &mut Rig, id: BufferId) -> Result<(), Error> {
    rig.move_to(id, MemType::GTT)
}

fn to_system(rig: &mut Rig, id: BufferId) -> Result<(), Error> {
    rig.move_to(id, MemType::SYSTEM)
}

const MOVES: [Move; 7] = [
    Move {
        name: "VRAM to GTT",
        arrange: in_vram,
        act: to_gtt,
        arrives: MemType::GTT,
    },
    Move {
        name: "GTT to VRAM",
        arrange: in_gtt,
        act: to_vram,
        arrives: MemType::VRAM,
    },
    Move {
        name: "GTT to SYSTEM",
        arrange: in_gtt,
        act: to_system,
        arrives: MemType::SYSTEM,
    },
    Move {
        name: "SYSTEM to GTT",
        arrange: in_system,
        act: to_gtt,
        arrives: MemType::GTT,
    },
    Move {
        name: "SYSTEM to VRAM",
        arrange: in_system,
        act: to_vram,
        arrives: MemType::VRAM,
    },
    Move {
        name: "file to VRAM",
        arrange: in_file,
        act: to_vram,
        arrives: MemType::VRAM,
    },
    Move {
        name: "file to GTT",
        arrange: in_file,
        act: to_gtt,
        arrives: MemType::GTT,
    },
];

impl Rig {
    /// Maps a buffer in the GTT for the GPU.
    fn touch_in_gtt(&mut self, id: BufferId) {
        self.move_to(id, MemType::GTT).unwrap();
    }
}

/// What a failed operation must not change. Counts of what was tried may grow.
fn state(rig: &mut Rig) -> Snapshot {
    rig.reap_all();
    Snapshot {
        totals: Totals::default(),
        ..rig.device.snapshot()
    }
}

/// Fails the `nth` call during one move; the error, if the move noticed.
fn fail_once(each: &Move, call: Call, nth: u64) -> Option<Error> {
    let context = format!("{}, {call:?} {nth}", each.name);
    let mut rig = Rig::new(16, 16, 32, 0);
    let id = (each.arrange)(&mut rig);
    let before = (state(&mut rig), rig.residency(id));
    rig.inject(Injection::FailCall { call, nth });

    let first = (each.act)(&mut rig, id);
    let residency = rig.residency(id);

    if let Err(error) = &first {
        let stayed = residency == before.1 && state(&mut rig) == before.0;
        // Steps that were complete stay: the hop, or the move when only the mapping failed.
        let steps = [Some(MemType::GTT), Some(each.arrives)];
        let moved = residency != before.1 && steps.contains(&residency);
        assert!(stayed || moved, "{context}: {error}");
        (each.act)(&mut rig, id).unwrap();
    }
    assert_eq!(rig.residency(id), Some(each.arrives), "{context}");
    assert_eq!(rig.read(id).unwrap(), pattern(1, PAGES), "{context}");
    // A fault that the move did not meet may strike at the end.
    assert!(rig.close(&[id]) || first.is_ok(), "{context}");
    first.err()
}

#[test]
fn a_mapping_that_fails_at_any_stage_of_any_move_changes_nothing() {
    for each in &MOVES {
        let errors: Vec<Error> = (1..=CALLS_MAX)
            .filter_map(|nth| fail_once(each, Call::MapGpu, nth))
            .collect();

        let maps = each.arrives != MemType::SYSTEM;
        assert_eq!(errors.is_empty(), !maps, "{}", each.name);
        for error in errors {
            let text = error.to_string();
            assert!(text.starts_with("buffer `b`: VRAM heap has"), "{text}");
        }
    }
}

#[test]
fn an_unmapping_that_fails_at_the_start_of_any_move_changes_nothing() {
    for each in &MOVES {
        let error = fail_once(each, Call::UnmapGpu, 1);

        if let Some(error) = error {
            let text = error.to_string();
            assert_eq!(text, "buffer `b`: unmap-gpu failed with SIM_INJECTED (0x1)");
        }
    }
}

#[test]
fn a_refused_submission_is_no_failure_of_a_move() {
    for each in &MOVES {
        for nth in 1..=CALLS_MAX {
            assert_eq!(fail_once(each, Call::Submit, nth), None, "{}", each.name);
        }
    }
}

#[test]
fn addresses_that_cannot_be_reserved_leave_no_buffer() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let call = Call::ReserveVa;
    rig.inject(Injection::FailCall { call, nth: 1 });
    let before = state(&mut rig);
    let desc = Rig::desc("b", 4, Placement::vram());

    let refused = rig.create_desc(&desc).unwrap_err();
    let after = state(&mut rig);
    let id = rig.create_desc(&desc).unwrap();

    let text = "buffer `b`: reserve-va failed with SIM_INJECTED (0x1)";
    assert_eq!(refused.to_string(), text);
    assert_eq!(before, after);
    assert!(rig.close(&[id]));
}

/// TTM E3: a victim that cannot be moved stays, and the next one is taken.
#[test]
fn a_victim_whose_move_fails_stays_and_another_goes() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let [first, second] = [1, 2].map(|seed| rig.dirty("b", 4, seed));
    let call = Call::MapGpu;
    rig.inject(Injection::FailCall { call, nth: 1 });

    let next = rig.create("next", 4, Placement::vram());
    rig.touch(&[next]).unwrap();

    let at = [first, second, next].map(|id| rig.residency(id));
    assert_eq!(
        at,
        [Some(MemType::VRAM), Some(MemType::GTT), Some(MemType::VRAM)]
    );
    assert_eq!(rig.read(first).unwrap(), pattern(1, 4));
    assert!(rig.close(&[first, second, next]));
}

/// What cannot even be undone is set aside with everything the device may still reach.
#[test]
fn a_move_that_can_be_neither_done_nor_undone_is_quarantined() {
    let mut rig = Rig::new(16, 16, 20, 0);
    // Host pages have no free block of sixteen, so that binding takes several mappings.
    let ids: Vec<_> = (0..8)
        .map(|_| rig.create("b", 1, Placement::gtt()))
        .collect();
    for &id in &ids {
        rig.write(id, &pattern(3, 1)).unwrap();
    }
    for &id in ids.iter().step_by(2) {
        rig.device.release(id).unwrap();
    }
    rig.reap_all();
    let big = rig.dirty("big", 16, 4);
    let fails = |call, nth| Injection::FailCall { call, nth };
    rig.inject(fails(Call::MapGpu, 2));
    // The first removes the buffer's own mapping, the second is the undoing.
    rig.inject(fails(Call::UnmapGpu, 2));

    let refused = rig.move_to(big, MemType::GTT);

    assert!(refused.is_err());
    assert_eq!(rig.device.snapshot().quarantined, 1);
    assert_eq!(rig.residency(big), Some(MemType::VRAM));
    assert_eq!(rig.read(big).unwrap(), pattern(4, 16));
    let odd: Vec<_> = ids.into_iter().skip(1).step_by(2).collect();
    for id in odd.into_iter().chain([big]) {
        rig.device.release(id).unwrap();
    }
    rig.reap_all();
    rig.device.check_drained();
    assert!(!rig.runner.close().is_zero(), "a mapping is left");
}

/// A mapping of the buffer itself that can be neither made nor unmade: the GPU may reach its bytes
/// for good, so it stays where it is, readable, and says why it cannot be used.
#[test]
fn a_buffer_with_a_stuck_mapping_keeps_its_bytes_and_its_place() {
    let mut rig = Rig::new(16, 16, 32, 0);
    let id = rig.create("b", PAGES, Placement::vram());
    let fails = |call, nth| Injection::FailCall { call, nth };
    rig.inject(fails(Call::MapGpu, 2));
    rig.inject(fails(Call::UnmapGpu, 1));

    let first = rig.touch(&[id]).unwrap_err();
    let second = rig.touch(&[id]).unwrap_err();
    let neighbour = rig.dirty("neighbour", 9, 2);
    rig.write(id, &pattern(1, PAGES)).unwrap();

    assert!(first.to_string().contains("VRAM heap has"), "{first}");
    assert!(second.to_string().contains("unmap-gpu"), "{second}");
    assert_eq!(rig.residency(id), Some(MemType::VRAM));
    assert_eq!(rig.read(id).unwrap(), pattern(1, PAGES));
    rig.device.release(id).unwrap();
    rig.device.release(neighbour).unwrap();
    rig.reap_all();
    rig.device.check_drained();
    assert_eq!(rig.device.snapshot().quarantined, 1);
}

#[test]
fn released_memory_that_the_device_does_not_take_back_is_counted_as_quarantined() {
    let mut rig = Rig::new(16, 16, 32, 0);
    let id = rig.dirty("b", PAGES, 1);
    let call = Call::UnmapGpu;
    rig.inject(Injection::FailCall { call, nth: 1 });
    rig.device.release(id).unwrap();

    rig.reap_all();
    let next = rig.dirty("next", 8, 2);

    let vram = rig.report(vrampager_core::Domain::Memory(MemType::VRAM));
    assert_eq!(vram.quarantined, PAGES * 4096);
    assert_eq!(rig.read(next).unwrap(), pattern(2, 8));
}

/// Case R3: a model that cannot be made resident as a whole is as intact as before.
#[test]
fn a_request_for_many_that_fails_at_one_can_be_repeated() {
    let mut rig = Rig::new(20, 20, 64, 0);
    let model: Vec<_> = (0..10).map(|seed| rig.dirty("layer", 2, seed)).collect();
    for &id in &model {
        rig.move_to(id, MemType::SYSTEM).unwrap();
    }
    let other = rig.dirty("other", 15, 99);
    rig.pin(other).unwrap();

    let refused = rig.touch(&model);
    let after_failure: Vec<_> = model.iter().map(|&id| rig.read(id).unwrap()).collect();
    rig.device.release(other).unwrap();
    let second = rig.touch(&model);

    let written: Vec<_> = (0..10).map(|seed| pattern(seed, 2)).collect();
    assert!(refused.is_err());
    assert_eq!(second, Ok(()));
    assert!(after_failure == written);
    assert!(rig.close(&model));
}
