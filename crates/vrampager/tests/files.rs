//! Clean file-backed buffers and the swap file (mission rows E1, D8).
#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use vrampager::{Error, ErrorKind, MemType, Pager, SwapFile};

const MIB: u64 = 1 << 20;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from(i * 7 % 253).unwrap() ^ seed)
        .collect()
}

fn file_with(dir: &Path, name: &str, bytes: &[u8]) -> File {
    let path = dir.join(name);
    File::create(&path).unwrap().write_all(bytes).unwrap();
    File::open(path).unwrap()
}

fn small_pager() -> Pager {
    Pager::builder("sim:vram=4M,bar=1M")
        .unwrap()
        .host(8 * MIB)
        .open()
        .unwrap()
}

#[test]
fn clean_buffers_are_dropped_without_a_copy_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = pattern(6 << 20, 0);
    let pager = small_pager();
    let file = pager
        .file(file_with(dir.path(), "w", &bytes), Path::new("w"))
        .unwrap();
    // Three parts of 2 MiB at odd offsets and lengths, on 4 MiB of VRAM.
    let parts: Vec<_> = [
        (1, 2 * MIB - 7),
        (2 * MIB + 3, 2 * MIB - 3),
        (4 * MIB, 2 * MIB),
    ]
    .map(|(offset, len)| {
        let buffer = pager
            .buffer("part", len)
            .backed_by(&file, offset)
            .create()
            .unwrap();
        (offset, buffer)
    })
    .into();
    for _ in 0..3 {
        for (_, part) in &parts {
            pager
                .submission()
                .read(part)
                .unwrap()
                .submit()
                .unwrap()
                .wait()
                .unwrap();
            assert_eq!(part.residency(), Some(MemType::VRAM));
        }
    }
    let totals = pager.stats().manager.totals;
    assert!(totals.dropped_clean >= 6 * MIB, "{totals:?}");
    assert_eq!(
        totals.device_to_host, 0,
        "clean bytes are never copied out: {totals:?}"
    );
    for (offset, part) in &parts {
        let mut back = vec![0; usize::try_from(part.len()).unwrap()];
        part.read(0, &mut back).unwrap();
        let at = usize::try_from(*offset).unwrap();
        assert_eq!(back, bytes[at..at + back.len()]);
    }
    drop(parts);
    assert!(pager.close().unwrap().is_zero());
}

#[test]
fn a_written_file_backed_buffer_keeps_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let pager = small_pager();
    let bytes = pattern(3 << 20, 1);
    let file = pager
        .file(file_with(dir.path(), "w", &bytes), Path::new("w"))
        .unwrap();
    let tuned = pager
        .buffer("tuned", 3 * MIB)
        .backed_by(&file, 0)
        .create()
        .unwrap();
    let other = pager.buffer("other", 3 * MIB).create().unwrap();
    tuned.write(5, b"changed").unwrap();
    for buffer in [&tuned, &other, &tuned, &other] {
        pager
            .submission()
            .read(buffer)
            .unwrap()
            .submit()
            .unwrap()
            .wait()
            .unwrap();
    }
    let mut back = vec![0; 3 << 20];
    tuned.read(0, &mut back).unwrap();
    let mut expected = bytes;
    expected[5..12].copy_from_slice(b"changed");
    assert_eq!(back, expected);
}

#[test]
fn a_file_that_changed_underneath_is_reported_and_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let pager = small_pager();
    let file = file_with(dir.path(), "w", &pattern(1 << 20, 2));
    let file = pager.file(file, Path::new("w")).unwrap();
    let buffer = pager
        .buffer("layer.0", MIB)
        .backed_by(&file, 0)
        .create()
        .unwrap();
    let writer = File::options()
        .write(true)
        .open(dir.path().join("w"))
        .unwrap();
    writer.write_all_at(b"x", MIB).unwrap();
    let error = pager
        .submission()
        .read(&buffer)
        .unwrap()
        .submit()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert_eq!(
        error.to_string(),
        "buffer `layer.0`: file changed underneath: size was 1048576, is 1048577"
    );
    assert_eq!(
        buffer.residency(),
        None,
        "nothing of the other content was kept"
    );
}

#[test]
fn a_file_replaced_at_its_path_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let pager = small_pager();
    let path = dir.path().join("w");
    let file = file_with(dir.path(), "w", &pattern(1 << 20, 2));
    let file = pager.file(file, &path).unwrap();
    let buffer = pager.buffer("b", MIB).backed_by(&file, 0).create().unwrap();
    file_with(dir.path(), "new", &pattern(1 << 20, 2));
    std::fs::rename(dir.path().join("new"), &path).unwrap();
    let error = buffer.read(0, &mut [0]).unwrap_err();
    assert!(
        error.to_string().contains("file changed underneath"),
        "{error}"
    );
}

#[test]
fn a_truncated_file_is_reported_by_buffer_and_offset() {
    let dir = tempfile::tempdir().unwrap();
    let pager = small_pager();
    let file = file_with(dir.path(), "w", &pattern(1 << 20, 3));
    let file = pager.file(file, Path::new("w")).unwrap();
    let buffer = pager
        .buffer("tail", MIB / 2)
        .backed_by(&file, MIB / 2)
        .create()
        .unwrap();
    File::options()
        .write(true)
        .open(dir.path().join("w"))
        .unwrap()
        .set_len(MIB / 2)
        .unwrap();
    let error = buffer.read(0, &mut [0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "buffer `tail`: file ends before 524288 bytes at offset 524288"
    );
}

#[test]
fn a_buffer_cannot_leave_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let pager = small_pager();
    let file = pager
        .file(file_with(dir.path(), "w", &[0; 100]), Path::new("w"))
        .unwrap();
    for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 2)] {
        let error = pager
            .buffer("b", len)
            .backed_by(&file, offset)
            .create()
            .unwrap_err();
        assert!(matches!(error, Error::Range { size: 100, .. }), "{error}");
    }
}

#[test]
fn a_directory_cannot_back_buffers() {
    let dir = tempfile::tempdir().unwrap();
    let pager = small_pager();
    let error = pager
        .file(File::open(dir.path()).unwrap(), dir.path())
        .unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
}

#[test]
fn the_swap_file_has_no_name_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let swap = SwapFile::create(dir.path(), 8 * MIB).unwrap();
    assert_eq!(swap.len(), 8 * MIB);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_swap_directory_that_does_not_exist_is_named_in_the_error() {
    let error = SwapFile::create(Path::new("/nonexistent/swap"), MIB).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/nonexistent/swap: cannot make a swap file"
    );
}

#[test]
fn dirty_bytes_survive_the_swap_file_on_disk_and_in_memory_file_systems() {
    // The second has no direct I/O.
    for dir in [
        tempfile::tempdir().unwrap(),
        tempfile::tempdir_in("/dev/shm").unwrap(),
    ] {
        let builder = Pager::builder("sim:vram=2M")
            .unwrap()
            .host(2 * MIB)
            .gtt(MIB);
        let pager = builder.swap(dir.path(), 16 * MIB).open().unwrap();
        let buffers: Vec<_> = (0..12)
            .map(|i| pager.buffer(&format!("b{i}"), MIB - 5).create().unwrap())
            .collect();
        for (seed, buffer) in (0..).zip(&buffers) {
            buffer.write(0, &pattern((1 << 20) - 5, seed)).unwrap();
        }
        assert!(pager.stats().manager.totals.swap_written >= 8 * MIB);
        for (seed, buffer) in (0..).zip(&buffers) {
            let mut back = vec![0; (1 << 20) - 5];
            buffer.read(0, &mut back).unwrap();
            assert_eq!(back, pattern((1 << 20) - 5, seed), "b{seed}");
        }
    }
}
