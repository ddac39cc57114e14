//! Failing every request of every kind of allocation, by status and by errno, leaves nothing.

use vrampager_nv_abi::{Handle, Node, Status, class, escape, uvm};
use vrampager_nv_driver::{Errno, Failure, Injection, Kind, Live};
use vrampager_nv_probe::Answer;

use super::client::{Client, Gpu};

const VA: u64 = 0x20_0000_0000;
const MIB: u64 = 1 << 20;

/// The stages of an allocation as clients make it, each with how the driver counts it.
const STAGES: [(Kind, u32); 5] = [
    (Kind::Alloc, class::NV01_MEMORY_LOCAL_USER),
    (Kind::Escape, escape::RM_MAP_MEMORY as u32),
    (Kind::Uvm, uvm::CREATE_EXTERNAL_RANGE),
    (Kind::Escape, escape::RM_MAP_MEMORY_DMA as u32),
    (Kind::Uvm, uvm::MAP_EXTERNAL_ALLOCATION),
];

/// A client that undoes in reverse what it has made when a stage fails.
fn allocate(client: &mut Client, gpu: Gpu) -> Result<Handle, (usize, Answer)> {
    let memory = client.vidmem(gpu, MIB).map_err(|answer| (0, answer))?;
    let result = stages_after_memory(client, gpu, memory);
    if result.is_err() {
        client.free(memory).expect("undoing works");
    }
    result.map(|()| memory)
}

fn stages_after_memory(
    client: &mut Client,
    gpu: Gpu,
    memory: Handle,
) -> Result<(), (usize, Answer)> {
    let files = client.driver().live().files;
    let mapped = client.map_cpu(gpu, memory, MIB, Node::Gpu(0));
    let opened = client.driver().live().files - files;
    assert_eq!(opened, 1, "a file is opened before the mapping is tried");
    let (_, _, fd) = mapped.map_err(|answer| (1, answer))?;
    client.close(fd);
    client.range(VA, MIB).map_err(|answer| (2, answer))?;
    let rest = client
        .map_dma(gpu, memory, VA, MIB)
        .map_err(|answer| (3, answer))
        .and_then(|_| {
            client
                .map_uvm(gpu, memory, VA, MIB)
                .map_err(|answer| (4, answer))
        });
    if rest.is_err() {
        client.uvm_free(VA, MIB).expect("undoing works");
    }
    rest
}

#[test]
fn a_failure_at_any_stage_is_seen_there_and_nothing_is_half_made() {
    for (stage, (kind, number)) in STAGES.into_iter().enumerate() {
        for failure in [
            Failure::Status(Status::NO_MEMORY),
            Failure::Errno(Errno::NoMem),
        ] {
            let mut client = Client::new("");
            let gpu = client.gpu(0);
            let before = client.driver().live();
            client.driver().inject(Injection {
                kind,
                number,
                nth: 1,
                failure,
            });
            let (failed, answer) = allocate(&mut client, gpu).unwrap_err();
            assert_eq!(failed, stage);
            let seen = match failure {
                Failure::Status(status) => Answer::Status(status),
                Failure::Errno(errno) => Answer::from(errno),
            };
            assert_eq!(answer, seen);
            // The file opened for a CPU mapping that failed is the client's to close.
            let files = before.files + usize::from(stage == 1);
            assert_eq!(
                client.driver().live(),
                Live { files, ..before },
                "stage {stage}"
            );
            let memory = allocate(&mut client, gpu).expect("the second try");
            client.uvm_free(VA, MIB).unwrap();
            client.free(memory).unwrap();
            assert_eq!(client.driver().live(), Live { files, ..before });
        }
    }
}

#[test]
fn a_refused_free_leaves_the_object_to_be_freed_again() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let before = client.driver().live();
    let memory = client.vidmem(gpu, MIB).unwrap();
    client.driver().inject("esc:0x29:1:0x40".parse().unwrap());
    assert_eq!(
        client.free(memory),
        Err(Answer::Status(Status::INVALID_STATE))
    );
    assert_eq!(client.driver().live().vram_bytes, MIB);
    client.free(memory).unwrap();
    assert_eq!(client.driver().live(), before);
}
