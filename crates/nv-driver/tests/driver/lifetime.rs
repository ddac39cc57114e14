//! What keeps what alive, and what goes with what.

use std::ops::DerefMut as _;

use vrampager_nv_abi::method::sem;
use vrampager_nv_abi::{Node, Status, class, ctrl, escape, uvm};
use vrampager_nv_driver::{Errno, Live};
use vrampager_nv_probe::{Answer, Nodes as _};
use zerocopy::FromZeros;

use super::channels::{DATA, MIB, VA, machine, semaphore, submit};
use super::client::{Client, Gpu};

#[test]
fn memory_lives_until_both_the_resource_manager_and_uvm_let_go_in_either_order() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let before = client.driver().live();
    for rm_first in [true, false] {
        let memory = client.vidmem(gpu, MIB).unwrap();
        client.range(VA, MIB).unwrap();
        client.map_uvm(gpu, memory, VA, MIB).unwrap();
        if rm_first {
            client.free(memory).unwrap();
        } else {
            client.uvm_free(VA, MIB).unwrap();
        }
        assert_eq!(client.driver().live().vram_bytes, before.vram_bytes + MIB);
        if rm_first {
            client.uvm_free(VA, MIB).unwrap();
        } else {
            client.free(memory).unwrap();
        }
        assert_eq!(client.driver().live(), before);
    }
}

#[test]
fn a_mapping_of_the_resource_manager_dies_with_either_object() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let memory = client.vidmem(gpu, MIB).unwrap();
    client.map_dma(gpu, memory, VA, MIB).unwrap();
    client.free(memory).unwrap();
    assert_eq!(client.driver().live().dma_maps, 0);
    let memory = client.vidmem(gpu, MIB).unwrap();
    client.map_dma(gpu, memory, VA, MIB).unwrap();
    client.free(gpu.virt).unwrap();
    assert_eq!(client.driver().live().dma_maps, 0);
    client.free(memory).unwrap();
    assert_eq!(client.driver().live().vram_bytes, 0);
}

#[test]
fn the_default_address_space_is_a_second_namespace_with_its_own_exclusivity() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let memory = client.vidmem(gpu, MIB).unwrap();
    client.range(VA, MIB).unwrap();
    client.map_uvm(gpu, memory, VA, MIB).unwrap();
    client.map_dma(gpu, memory, VA, MIB).unwrap();
    assert_eq!(
        client.map_dma(gpu, memory, VA + 0x1000, 0x1000),
        Err(Answer::Status(Status::NO_MEMORY))
    );
    client.uvm_free(VA, MIB).unwrap();
    assert_eq!(
        client.map_dma(gpu, memory, VA, MIB),
        Err(Answer::Status(Status::NO_MEMORY))
    );
}

#[test]
fn freeing_a_device_takes_everything_below_it() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    client.queue(gpu, VA);
    client.pin(gpu, MIB).unwrap();
    client.free(gpu.device).unwrap();
    let live = client.driver().live();
    assert_eq!(
        (live.objects, live.channels, live.pins, live.cpu_maps),
        (0, 0, 0, 0)
    );
    // UVM holds the queue's memory and the VA space until its own objects go.
    assert_eq!((live.uvm_maps, live.vram_bytes, live.vaspaces), (1, MIB, 1));
    client.uvm_free(VA, MIB).unwrap();
    assert_eq!(client.driver().live().vram_bytes, 0);
}

#[test]
fn a_process_that_dies_in_the_middle_leaves_nothing() {
    let mut client = Client::new("gpus=2");
    let (one, two) = (client.gpu(0), client.gpu(1));
    client.peers(one, two).unwrap();
    client.queue(one, VA);
    client.queue(two, VA + (64 << 20));
    let (memory, _) = client.buffer(one, VA + (128 << 20), MIB);
    client.map_uvm(two, memory, VA + (128 << 20), MIB).unwrap();
    client.map_dma(one, memory, VA, MIB).unwrap();
    client.pin(two, MIB).unwrap();
    client.die();
    assert_eq!(client.driver().live(), Live::default());
    assert_eq!(client.driver().store().pieces(), 0);
}

#[test]
fn files_may_be_closed_in_any_order() {
    for rotation in 0..5 {
        let mut client = Client::new("");
        let gpu = client.gpu(0);
        client.queue(gpu, VA);
        let mut fds = vec![client.ctl, client.uvm, gpu.fd];
        fds.extend([
            client.linked(0).unwrap(),
            client.open(Node::Control).unwrap(),
        ]);
        fds.rotate_left(rotation);
        for fd in fds {
            client.close(fd);
        }
        client.die();
        assert_eq!(
            client.driver().live(),
            Live::default(),
            "starting with file {rotation}"
        );
    }
}

#[test]
fn a_linked_gpu_file_keeps_the_control_file_and_its_clients() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let ctl = client.ctl;
    client.close(ctl);
    assert_eq!(client.driver().live().clients, 1);
    client.close(gpu.fd);
    assert_eq!(client.driver().live().clients, 0);
}

#[test]
fn freeing_twice_is_no_error() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let memory = client.vidmem(gpu, MIB).unwrap();
    client.free(memory).unwrap();
    client.free(memory).unwrap();
    client.free(0xDEAD).unwrap();
}

#[test]
fn a_duplicate_keeps_memory_and_is_an_object_of_its_own() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let memory = client.vidmem(gpu, MIB).unwrap();
    let mut packet = escape::RmDupObject::new_zeroed();
    packet.client = client.root;
    packet.parent = gpu.device;
    packet.source_client = client.root;
    packet.source = memory;
    let ctl = client.ctl;
    client
        .escape(ctl, escape::RM_DUP_OBJECT, &mut packet)
        .unwrap();
    assert_eq!(Status(packet.status), Status::OK);
    client.free(memory).unwrap();
    assert_eq!(client.driver().live().vram_bytes, MIB);
    client.free(packet.object).unwrap();
    assert_eq!(client.driver().live().vram_bytes, 0);
}

#[test]
fn parted_peers_lose_what_they_mapped_of_each_other_and_keep_the_rest() {
    for command in [uvm::DISABLE_PEER_ACCESS, uvm::UNREGISTER_GPU] {
        let mut client = Client::new("gpus=2");
        let (one, two) = (client.gpu(0), client.gpu(1));
        client.peers(one, two).unwrap();
        let (theirs, own) = (
            client.vidmem(one, MIB).unwrap(),
            client.vidmem(two, MIB).unwrap(),
        );
        client.range(VA, 2 * MIB).unwrap();
        client.map_uvm(two, theirs, VA, MIB).unwrap();
        client.map_uvm(two, own, VA + MIB, MIB).unwrap();
        client.free(theirs).unwrap();
        assert_eq!(client.driver().live().vram_bytes, 2 * MIB);
        if command == uvm::UNREGISTER_GPU {
            let mut packet = uvm::UnregisterGpu::new_zeroed();
            packet.uuid = one.uuid;
            client.uvm(command, &mut packet).unwrap();
        } else {
            let mut packet = uvm::PeerAccess::new_zeroed();
            (packet.uuid_a, packet.uuid_b) = (two.uuid, one.uuid);
            client.uvm(command, &mut packet).unwrap();
        }
        let live = client.driver().live();
        assert_eq!((live.uvm_maps, live.vram_bytes), (1, MIB), "{command}");
    }
}

#[test]
fn mapping_over_a_mapping_replaces_it_and_releases_what_was_there() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let (first, second) = (
        client.vidmem(gpu, MIB).unwrap(),
        client.vidmem(gpu, MIB).unwrap(),
    );
    client.range(VA, MIB).unwrap();
    client.map_uvm(gpu, first, VA, MIB).unwrap();
    client.free(first).unwrap();
    client.map_uvm(gpu, second, VA, MIB / 2).unwrap();
    assert_eq!(
        client.driver().live().memories,
        2,
        "half of the first is still mapped"
    );
    client.map_uvm(gpu, second, VA + MIB / 2, MIB / 2).unwrap();
    assert_eq!(client.driver().live().memories, 1);
}

#[test]
fn unmapping_the_middle_keeps_both_ends_and_their_memory() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let memory = client.vidmem(gpu, MIB).unwrap();
    client.range(VA, MIB).unwrap();
    client.map_uvm(gpu, memory, VA, MIB).unwrap();
    let mut packet = uvm::UnmapExternal::new_zeroed();
    packet.base = VA + 0x1000;
    packet.length = 0x1000;
    packet.uuid = gpu.uuid;
    client.uvm(uvm::UNMAP_EXTERNAL, &mut packet).unwrap();
    assert_eq!(client.driver().live().uvm_maps, 2);
    client.free(memory).unwrap();
    client.uvm_free(VA, MIB).unwrap();
    assert_eq!(client.driver().live().vram_bytes, 0);
}

#[test]
fn device_memory_is_handed_out_in_64_kib_and_runs_out_as_no_memory() {
    let mut client = Client::new("vram=4M");
    let gpu = client.gpu(0);
    let held: Vec<_> = (0..64).map(|_| client.vidmem(gpu, 4096).unwrap()).collect();
    assert_eq!(
        client.vidmem(gpu, 4096),
        Err(Answer::Status(Status::NO_MEMORY))
    );
    client.free(held[3]).unwrap();
    client.vidmem(gpu, 4096).unwrap();
}

#[test]
fn the_cpu_window_runs_out_and_comes_back_by_unmapping() {
    let mut client = Client::new("bar1=1M");
    let gpu = client.gpu(0);
    let memory = client.vidmem(gpu, 2 * MIB).unwrap();
    let (_, cookie, _) = client.map_cpu(gpu, memory, MIB, Node::Gpu(0)).unwrap();
    let full = client.map_cpu(gpu, memory, 4096, Node::Gpu(0));
    assert_eq!(full.unwrap_err(), Answer::Status(Status::NO_MEMORY));
    client.unmap_cpu(gpu, memory, cookie).unwrap();
    client.map_cpu(gpu, memory, MIB, Node::Gpu(0)).unwrap();
}

#[test]
fn a_file_shows_nothing_once_its_mapping_or_the_memory_is_gone() {
    for free in [false, true] {
        let mut client = Client::new("");
        let gpu = client.gpu(0);
        let memory = client.vidmem(gpu, MIB).unwrap();
        let (_, cookie, fd) = client.map_cpu(gpu, memory, MIB, Node::Gpu(0)).unwrap();
        client.nodes().mmap(fd, MIB, 0).unwrap();
        if free {
            client.free(memory).unwrap();
        } else {
            client.unmap_cpu(gpu, memory, cookie).unwrap();
        }
        let shown = client.nodes().mmap(fd, MIB, 0);
        assert_eq!(shown, Err(Answer::from(Errno::Inval)));
        let other = client.vidmem(gpu, MIB).unwrap();
        let again = client.map_packet(gpu, other, MIB, fd);
        let again = client.deref_mut().map_cpu(again);
        assert_eq!(again, Err(Answer::Status(Status::STATE_IN_USE)));
    }
}

#[test]
fn a_window_is_taken_of_the_gpu_that_has_the_memory_whoever_maps_it() {
    let mut client = Client::new("gpus=2,bar1=1M");
    let (one, two) = (client.gpu(0), client.gpu(1));
    let memory = client.vidmem(one, 2 * MIB).unwrap();
    client.map_cpu(two, memory, MIB, Node::Gpu(0)).unwrap();
    let full = client.map_cpu(one, memory, 4096, Node::Gpu(0));
    assert_eq!(full.unwrap_err(), Answer::Status(Status::NO_MEMORY));
    let theirs = client.vidmem(two, MIB).unwrap();
    client.map_cpu(two, theirs, MIB, Node::Gpu(1)).unwrap();
}

#[test]
fn into_an_address_space_of_uvm_the_resource_manager_maps_nothing() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let mut params = class::VirtualAlloc::new_zeroed();
    params.vaspace = gpu.vaspace;
    let virt = client.alloc(gpu.device, class::NV01_MEMORY_VIRTUAL, &mut params);
    let memory = client.vidmem(gpu, MIB).unwrap();
    let theirs = Gpu {
        virt: virt.unwrap(),
        ..gpu
    };
    let refused = Err(Answer::Status(Status::NOT_SUPPORTED));
    assert_eq!(client.map_dma(theirs, memory, VA, MIB), refused);
    client.range(VA, MIB).unwrap();
    client.map_uvm(gpu, memory, VA, MIB).unwrap();
    let mut packet = escape::RmUnmapMemoryDma::new_zeroed();
    packet.client = client.root;
    packet.device = gpu.device;
    packet.dma = theirs.virt;
    packet.memory = memory;
    packet.dma_offset = VA;
    let ctl = client.ctl;
    client
        .escape(ctl, escape::RM_UNMAP_MEMORY_DMA, &mut packet)
        .unwrap();
    assert_eq!(Status(packet.status), Status::NOT_SUPPORTED);
    assert_eq!(client.driver().live().uvm_maps, 1);
    let uvm = client.uvm;
    client.close(uvm);
    client.free(memory).unwrap();
    client.die();
    assert_eq!(client.driver().live(), Live::default());
}

#[test]
fn after_the_file_that_tied_the_space_to_its_process_is_closed_nothing_new_is_made() {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let mm = client.tie.expect("the simulated kernel ties them");
    client.range(VA, MIB).unwrap();
    client.close(mm);
    assert_eq!(
        client.range(VA + MIB, MIB),
        Err(Answer::Status(Status::PAGE_TABLE_NOT_AVAIL))
    );
    let memory = client.vidmem(gpu, MIB).unwrap();
    assert_eq!(
        client.map_uvm(gpu, memory, VA, MIB),
        Err(Answer::Status(Status::PAGE_TABLE_NOT_AVAIL))
    );
    client.uvm_free(VA, MIB).unwrap();
}

#[test]
fn freeing_a_subcontext_frees_the_channels_made_in_it_and_no_others() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    let other = client.queue(gpu, VA + (16 << 20));
    submit(
        &mut client,
        &mut queue,
        VA,
        &semaphore(DATA, 5, sem::RELEASE),
    );
    client.free(queue.share).unwrap();
    assert_eq!(client.driver().live().channels, 1);
    client.driver().run_until_idle(0, 10);
    assert_eq!(client.read(place, 0), [0; 4], "it has not run");
    let mut token = ctrl::WorkSubmitToken::new_zeroed();
    let gone = client.control(queue.channel, ctrl::GET_WORK_SUBMIT_TOKEN, &mut token);
    assert_eq!(gone, Err(Answer::Status(Status::OBJECT_NOT_FOUND)));
    let left = client.control(other.channel, ctrl::GET_WORK_SUBMIT_TOKEN, &mut token);
    assert_eq!(left, Ok(()));
}
