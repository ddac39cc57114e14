//! Buffers that equal a part of a file (mission row E1).

use crate::rig::{PAGE, Rig, pattern};
use vrampager_core::{BufferId, EffectError, Error, MemType, Placement, Source};
use vrampager_hal::StorageError;
use vrampager_sim::{SimStorage, StorageFault};

/// Not page-aligned, and no whole number of pages.
const OFFSET: u64 = 1001;
const LEN: u64 = 3 * PAGE + 77;

fn region(file: &[u8]) -> Vec<u8> {
    let start = usize::try_from(OFFSET).unwrap();
    file[start..start + usize::try_from(LEN).unwrap()].to_vec()
}

fn backed(rig: &mut Rig) -> (BufferId, std::sync::Arc<SimStorage>) {
    let (file, storage) = rig.add_file(&pattern(5, 8));
    let mut desc = Rig::desc("weights", 1, Placement::vram());
    desc.len = LEN;
    desc.content = Source::File {
        file,
        offset: OFFSET,
    };
    (rig.create_desc(&desc).unwrap(), storage)
}

#[test]
fn a_file_backed_buffer_holds_its_region_on_the_cpu_and_on_the_gpu() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let (id, _) = backed(&mut rig);

    let on_cpu = rig.read(id).unwrap();
    rig.touch(&[id]).unwrap();
    let on_gpu = rig.read(id).unwrap();

    assert_eq!(rig.residency(id), Some(MemType::VRAM));
    assert!(on_cpu == region(&pattern(5, 8)) && on_gpu == on_cpu);
    assert!(rig.close(&[id]));
}

#[test]
fn a_clean_buffer_is_dropped_and_read_again() {
    let mut rig = Rig::new(4, 8, 16, 0);
    let (id, _) = backed(&mut rig);
    rig.touch(&[id]).unwrap();
    let other = rig.dirty("other", 4, 1);
    let dropped = rig.residency(id);

    rig.touch(&[id]).unwrap();

    let totals = rig.device.snapshot().totals;
    assert_eq!(dropped, None);
    assert_eq!(totals.file_read, 2 * LEN);
    assert_eq!(totals.dropped_clean, 4 * PAGE);
    assert_eq!(rig.read(id).unwrap(), region(&pattern(5, 8)));
    assert!(rig.close(&[id, other]));
}

#[test]
fn a_write_makes_it_dirty_and_the_file_is_not_read_again() {
    let mut rig = Rig::new(4, 8, 16, 0);
    let (id, storage) = backed(&mut rig);
    rig.touch(&[id]).unwrap();
    let mut expected = region(&pattern(5, 8));
    expected[..9].copy_from_slice(b"new bytes");
    rig.write(id, b"new bytes").unwrap();
    storage.fail_read(1, StorageFault::Changed);

    let other = rig.dirty("other", 4, 1);

    assert_eq!(rig.residency(id), Some(MemType::GTT), "moved, not dropped");
    assert_eq!(rig.read(id).unwrap(), expected);
    assert!(rig.close(&[id, other]));
}

#[test]
fn a_source_that_changed_is_reported_with_the_buffers_name() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let (id, storage) = backed(&mut rig);
    storage.fail_read(1, StorageFault::Changed);

    let refused = rig.touch(&[id]).unwrap_err();

    let text = "buffer `weights`: file changed underneath: size was 32768, is 32767";
    assert_eq!(refused.to_string(), text);
    assert!(matches!(
        refused,
        Error::Effect {
            error: EffectError::Storage(StorageError::Changed { .. }),
            ..
        }
    ));
    assert_eq!(rig.residency(id), None);
    assert!(rig.close(&[id]));
}

#[test]
fn a_read_that_fails_leaves_the_buffer_as_it_was_for_another_try() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let (id, storage) = backed(&mut rig);
    storage.fail_read(1, StorageFault::Io(std::io::ErrorKind::Other));
    let before = rig.device.snapshot().domains;

    rig.touch(&[id]).unwrap_err();
    let after = rig.device.snapshot().domains;
    rig.touch(&[id]).unwrap();

    assert_eq!(before, after);
    assert_eq!(rig.read(id).unwrap(), region(&pattern(5, 8)));
    assert!(rig.close(&[id]));
}

/// More than all staging pieces of 2 MiB together, so that each is used twice.
const LARGE: u64 = 2500;

fn large(rig: &mut Rig) -> (BufferId, std::sync::Arc<SimStorage>) {
    let (file, storage) = rig.add_file(&pattern(5, LARGE));
    let mut desc = Rig::desc("large", LARGE, Placement::vram());
    desc.content = Source::File { file, offset: 0 };
    (rig.create_desc(&desc).unwrap(), storage)
}

#[test]
fn a_buffer_larger_than_all_staging_arrives_whole() {
    let mut rig = Rig::new(4096, 64, 64, 0);
    let (id, _) = large(&mut rig);

    rig.touch(&[id]).unwrap();
    let first = rig.read(id).unwrap();
    rig.write(id, &pattern(6, LARGE)).unwrap();
    let second = rig.read(id).unwrap();

    assert!(first == pattern(5, LARGE));
    assert!(second == pattern(6, LARGE));
    assert!(rig.close(&[id]));
}

#[test]
fn a_read_that_fails_in_any_piece_can_be_repeated() {
    for nth in 1..=5 {
        let mut rig = Rig::new(4096, 64, 64, 0);
        let (id, storage) = large(&mut rig);
        storage.fail_read(nth, StorageFault::Io(std::io::ErrorKind::Other));

        let refused = rig.touch(&[id]);
        let second = rig.touch(&[id]);

        assert!(refused.is_err(), "piece {nth}");
        assert_eq!(second, Ok(()), "piece {nth}");
        assert!(rig.read(id).unwrap() == pattern(5, LARGE), "piece {nth}");
        assert!(rig.close(&[id]), "piece {nth}");
    }
}

/// The copy out of staging is repeated from the staging piece, which nobody may refill before.
#[test]
fn a_copy_that_stops_in_any_piece_is_repeated() {
    for nth in 1..=5 {
        let mut rig = Rig::new(4096, 64, 64, 0);
        let (id, _) = large(&mut rig);
        rig.inject(vrampager_sim::Injection::StopCopy {
            nth,
            after_bytes: 1_000_000,
        });

        rig.touch(&[id]).unwrap();

        assert!(rig.read(id).unwrap() == pattern(5, LARGE), "piece {nth}");
        assert!(rig.close(&[id]), "piece {nth}");
    }
}
