//! The release decides the layouts.

use vrampager_nv_abi::{AbiVersion, Status, escape, uvm, v570, v610};
use vrampager_nv_driver::{Errno, Live};
use vrampager_nv_probe::{Answer, Nodes as _};
use zerocopy::{FromZeros, IntoBytes};

use super::client::Client;

const VA: u64 = 0x20_0000_0000;
const MIB: u64 = 1 << 20;

#[test]
fn every_release_brings_up_a_channel_and_takes_all_back() {
    for release in ["570.144", "580.82.07", "595.45.04", "610.10"] {
        let mut client = Client::new(&format!("release={release}"));
        let gpu = client.gpu(0);
        client.queue(gpu, VA);
        let memory = client.vidmem(gpu, MIB).unwrap();
        client.range(VA + (32 << 20), MIB).unwrap();
        client.map_dma(gpu, memory, VA, MIB).unwrap();
        client.map_uvm(gpu, memory, VA + (32 << 20), MIB).unwrap();
        client.uvm_free(VA + (32 << 20), MIB).unwrap();
        client.die();
        assert_eq!(client.driver().live(), Live::default(), "{release}");
    }
}

#[test]
fn a_packet_of_another_release_is_refused_where_its_size_is_in_the_request() {
    let mut client = Client::new("release=580.82.07");
    assert_eq!(client.abi, AbiVersion::V580);
    let mut packet = v570::MapMemoryDma::new_zeroed();
    let ctl = client.ctl;
    let result = client.escape(ctl, escape::RM_MAP_MEMORY_DMA, &mut packet);
    assert_eq!(result, Err(Answer::from(Errno::Inval)));
}

#[test]
fn the_status_of_a_new_free_lands_where_old_clients_keep_the_length() {
    let mut client = Client::new("release=595.45.04");
    let mut old = v570::UvmFree::new_zeroed();
    old.base = VA;
    old.length = MIB;
    // The kernel copies as many bytes as its own packet has, whatever the client allocated.
    let bytes = &mut old.as_mut_bytes()[..size_of::<v610::UvmFree>()];
    let uvm_fd = client.uvm;
    client.nodes().ioctl(uvm_fd, uvm::FREE, bytes).unwrap();
    assert_eq!(old.length, u64::from(Status::INVALID_ADDRESS.0));
    assert_eq!(Status(old.status), Status::OK, "the client sees no error");
}
