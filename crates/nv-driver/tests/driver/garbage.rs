//! Nothing that a process hands over makes the driver panic, hang or lose count.

use std::ops::DerefMut as _;

use vrampager_nv_abi::method::{GpEntry, userd};
use vrampager_nv_abi::{Node, class, escape, uvm};
use vrampager_nv_driver::Live;
use vrampager_nv_probe::{Answer, Nodes as _};
use zerocopy::IntoBytes;

use super::client::{Client, ENTRIES, Gpu, PUSH, Queue, USERD};

const VA: u64 = 0x20_0000_0000;
const MIB: u64 = 1 << 20;

/// A small seeded generator (SplitMix64): the same seed gives the same test everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).expect("the upper half")
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let len = u64::try_from(from.len()).expect("short lists");
        from[usize::try_from(self.below(len)).expect("short lists")]
    }
}

/// Values that packets are made of: handles that exist, addresses, sizes, and nonsense.
fn value(random: &mut Random, handles: &[u32]) -> u64 {
    match random.below(8) {
        0..=2 => random.pick(handles).into(),
        3 => VA + random.below(64) * MIB,
        4 => random.pick(&[
            0,
            1,
            0x1000,
            MIB,
            2 * MIB,
            u64::MAX,
            u64::MAX - 0xFFF,
            1 << 49,
        ]),
        5 => random.below(16),
        6 => random.below(1 << 20),
        _ => random.next(),
    }
}

/// Fills a packet word by word, two words at a time now and then.
fn fill(random: &mut Random, packet: &mut [u8], handles: &[u32]) {
    let mut at = 0;
    while at + 4 <= packet.len() {
        let value = value(random, handles);
        let size = if value > u32::MAX.into() && at + 8 <= packet.len() {
            8
        } else {
            4
        };
        packet[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        at += size;
    }
}

fn random_escape(client: &mut Client, random: &mut Random, fds: &[i32], handles: &[u32]) {
    const CALLS: [(u8, usize); 13] = [
        (escape::RM_ALLOC, 32),
        (escape::RM_ALLOC, 48),
        (escape::RM_FREE, 16),
        (escape::RM_CONTROL, 32),
        (escape::RM_ALLOC_MEMORY, 56),
        (escape::RM_MAP_MEMORY, 56),
        (escape::RM_UNMAP_MEMORY, 32),
        (escape::RM_MAP_MEMORY_DMA, 56),
        (escape::RM_UNMAP_MEMORY_DMA, 48),
        (escape::RM_DUP_OBJECT, 28),
        (escape::REGISTER_FD, 4),
        (escape::XFER_CMD, 16),
        (escape::CARD_INFO, 144),
    ];
    let (nr, size) = random.pick(&CALLS);
    let mut packet = vec![0; size];
    fill(random, &mut packet, handles);
    if nr != escape::REGISTER_FD && random.below(4) > 0 {
        // Most calls are for the client that exists.
        packet[..4].copy_from_slice(&client.root.to_le_bytes());
    }
    if nr == escape::RM_ALLOC && random.below(4) > 0 {
        let class = random.pick(&[
            class::NV01_DEVICE_0,
            class::NV01_MEMORY_LOCAL_USER,
            class::NV01_MEMORY_VIRTUAL,
            class::FERMI_VASPACE_A,
            class::KEPLER_CHANNEL_GROUP_A,
            class::FERMI_CONTEXT_SHARE_A,
            class::AMPERE_CHANNEL_GPFIFO_A,
            class::ADA_COMPUTE_A,
            class::GT200_DEBUGGER,
        ]);
        let mut params = vec![0; 376];
        fill(random, &mut params, handles);
        let address = client.put_first(&params);
        packet[12..16].copy_from_slice(&class.to_le_bytes());
        packet[16..24].copy_from_slice(&address.to_le_bytes());
    }
    let fd = random.pick(fds);
    // Whatever it says is right, as long as it says something.
    let _any_answer = client
        .nodes()
        .ioctl(fd, escape::request(nr, size), &mut packet);
}

/// Maps the buffer through a file, which a program may then map, close or leave, and now and then
/// takes the mapping or the buffer back.
fn random_map(client: &mut Client, random: &mut Random, fds: &[i32], gpu: Gpu, memory: u32) {
    let fd = random.pick(fds);
    let packet = client.map_packet(gpu, memory, MIB, fd);
    let cookie = client.deref_mut().map_cpu(packet);
    match random.below(8) {
        0 => drop(client.free(memory)),
        1..=3 => drop(client.unmap_cpu(gpu, memory, cookie.unwrap_or(0))),
        _ => {}
    }
    for &fd in fds {
        let file = client.nodes().file(fd).expect("an open descriptor");
        if let Ok(shown) = client.driver().mmap(file, MIB, 0) {
            // What is shown is there.
            client.read::<8>(shown.place, 0);
        }
    }
}

fn random_uvm(client: &mut Client, random: &mut Random, handles: &[u32], gpus: [Gpu; 2]) {
    let command = random.pick(&[
        uvm::REGISTER_GPU,
        uvm::UNREGISTER_GPU,
        uvm::REGISTER_GPU_VASPACE,
        uvm::UNREGISTER_GPU_VASPACE,
        uvm::REGISTER_CHANNEL,
        uvm::UNREGISTER_CHANNEL,
        uvm::ENABLE_PEER_ACCESS,
        uvm::DISABLE_PEER_ACCESS,
        uvm::MAP_EXTERNAL_ALLOCATION,
        uvm::UNMAP_EXTERNAL,
        uvm::FREE,
        uvm::CREATE_EXTERNAL_RANGE,
        uvm::VALIDATE_VA_RANGE,
    ]);
    let (size, _) = uvm::params_size(client.abi, command).expect("a known command");
    let mut packet = vec![0; size];
    fill(random, &mut packet, handles);
    if random.below(3) > 0 {
        let uuid = random.pick(&gpus).uuid;
        let at = match command {
            uvm::MAP_EXTERNAL_ALLOCATION => 24,
            uvm::UNMAP_EXTERNAL => 16,
            _ => 0,
        };
        if command != uvm::CREATE_EXTERNAL_RANGE && command != uvm::FREE {
            packet[at..at + 16].copy_from_slice(&uuid);
        }
    }
    let fd = client.uvm;
    let _any_answer = client.nodes().ioctl(fd, command, &mut packet);
}

/// Random words for a channel, some of which look like methods.
fn random_push(client: &mut Client, random: &mut Random, queue: &mut Queue) {
    let words: Vec<u32> = (0..random.below(64))
        .map(|_| match random.below(4) {
            0 => 0x2000_0000 | random.word() & 0x0003_9FFF,
            1 => u32::try_from(random.below(1 << 20)).expect("small"),
            2 => random.pick(&[0, 0x182, 0x14, 0x406, class::AMPERE_DMA_COPY_B, 0x20]),
            _ => random.word(),
        })
        .collect();
    client.write(queue.ring, PUSH, words.as_bytes());
    let words = u32::try_from(words.len()).expect("few words");
    let entry = GpEntry {
        address: VA + PUSH,
        words,
    }
    .encode();
    client.write(queue.ring, u64::from(queue.put) * 8, &entry.to_le_bytes());
    queue.put = (queue.put + 1) % ENTRIES;
    client.write(queue.ring, USERD + userd::GP_PUT, &queue.put.to_le_bytes());
    client.driver().run_until_idle(0, 20);
}

#[test]
fn random_packets_never_break_the_driver_and_the_end_of_the_process_frees_all() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut client = Client::new("gpus=2,vram=64M,host=64M");
        let gpus = [client.gpu(0), client.gpu(1)];
        let queue = client.queue(gpus[0], VA);
        let (memory, _) = client.buffer(gpus[1], VA + (64 << 20), MIB);
        let handles = [
            client.root,
            gpus[0].device,
            gpus[0].subdevice,
            gpus[0].virt,
            gpus[0].vaspace,
            gpus[1].device,
            queue.group,
            queue.share,
            queue.channel,
            memory,
            0xCAF0_0010,
            0xCAF0_0020,
        ];
        let bare = client.open(Node::Control).unwrap();
        let carriers = [0; 4].map(|_| client.linked(1).unwrap());
        let mut fds = vec![client.ctl, gpus[0].fd, gpus[1].fd, client.uvm, bare];
        fds.extend(carriers);
        for _ in 0..400 {
            match random.below(9) {
                0..=3 => random_escape(&mut client, &mut random, &fds, &handles),
                4..=7 => random_uvm(&mut client, &mut random, &handles, gpus),
                _ => random_map(&mut client, &mut random, &fds, gpus[1], memory),
            }
            client.driver().run(0);
        }
        client.die();
        assert_eq!(client.driver().live(), Live::default(), "seed {seed}");
        assert_eq!(client.driver().store().pieces(), 0, "seed {seed}");
    }
}

#[test]
fn random_words_stop_at_most_their_channel() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut client = Client::new("vram=64M");
        let gpu = client.gpu(0);
        let mut queue = client.queue(gpu, VA);
        for _ in 0..20 {
            random_push(&mut client, &mut random, &mut queue);
        }
        client.die();
        assert_eq!(client.driver().live(), Live::default(), "seed {seed}");
    }
}

#[test]
fn addresses_at_the_end_of_the_space_fault_like_any_other() {
    use vrampager_nv_abi::method::{Header, copy, host, launch, subchannel};
    let launch = launch::NON_PIPELINED | launch::SRC_PITCH | launch::DST_PITCH;
    let semaphore_only = u32::MAX;
    for flags in [
        semaphore_only,
        0,
        launch::MULTI_LINE,
        launch::REMAP,
        launch::MULTI_LINE | launch::REMAP,
    ] {
        let mut client = Client::new("");
        let gpu = client.gpu(0);
        let queue = client.queue(gpu, VA);
        let header = |method, count| Header::increasing(subchannel::COPY, method, count);
        let all = u32::MAX;
        let words = [
            header(host::SET_OBJECT, 1),
            class::AMPERE_DMA_COPY_B,
            header(copy::OFFSET_IN_UPPER, 8),
            all,
            all,
            all,
            all - 4,
            all,
            all,
            all,
            all,
            header(copy::SET_SEMAPHORE_A, 2),
            all,
            all - 3,
            header(copy::LAUNCH_DMA, 1),
            if flags == semaphore_only {
                2 << 3
            } else {
                launch | flags
            },
        ];
        client.write(queue.ring, PUSH, words.as_bytes());
        let words = u32::try_from(words.len()).expect("few words");
        let entry = GpEntry {
            address: VA + PUSH,
            words,
        }
        .encode();
        client.write(queue.ring, 0, &entry.to_le_bytes());
        client.write(queue.ring, USERD + userd::GP_PUT, &1_u32.to_le_bytes());
        client.driver().run_until_idle(0, 10);
        assert_eq!(client.driver().counted().channel_errors, 1, "{flags:#x}");
    }
}

#[test]
fn a_ring_that_reaches_beyond_the_space_is_refused() {
    use vrampager_nv_abi::Status;
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let queue = client.queue(gpu, VA);
    let memory = client.vidmem(gpu, MIB).expect("device memory");
    let mut params = super::client::channel_params(u64::MAX - 7, queue.share, memory, 0);
    params.gpfifo_entries = 1 << 31;
    let result = client.channel(queue.group, &params);
    assert_eq!(result, Err(Answer::Status(Status::INVALID_ARGUMENT)));
}

#[test]
fn a_huge_range_in_the_way_of_a_channel_is_stepped_over_at_once() {
    use vrampager_nv_abi::Status;
    let mut client = Client::new("arch=blackwell");
    let gpu = client.gpu(0);
    let queue = client.queue(gpu, VA);
    client.range(1 << 41, 1 << 55).expect("addresses are cheap");
    let memory = client.vidmem(gpu, MIB).expect("device memory");
    let params = super::client::channel_params(VA, queue.share, memory, 0);
    let channel = client.channel(queue.group, &params).expect("a channel");
    let mut packet = client.register_packet(gpu, channel, 1 << 41);
    packet.length = 1 << 55;
    let result = client.uvm(uvm::REGISTER_CHANNEL, &mut packet);
    assert_eq!(result, Err(Answer::Status(Status::INVALID_ADDRESS)));
    packet.length += 4 << 20;
    client
        .uvm(uvm::REGISTER_CHANNEL, &mut packet)
        .expect("there is room behind it");
}
