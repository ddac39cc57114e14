//! What channels do to memory, and what stops them.

use vrampager_nv_abi::ctrl::{self, fault};
use vrampager_nv_abi::method::{
    GpEntry, Header, copy, host, launch, notifier, reduction, remap, sem, subchannel, userd,
};
use vrampager_nv_abi::{Status, class, uvm};
use vrampager_nv_driver::Progress;
use vrampager_nv_probe::Answer;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::client::{Client, ENTRIES, Gpu, PUSH, Queue, USERD};

pub(crate) const VA: u64 = 0x20_0000_0000;
pub(crate) const DATA: u64 = VA + (64 << 20);
pub(crate) const MIB: u64 = 1 << 20;

/// Words for consecutive methods of a subchannel.
pub(crate) fn methods(subchannel: u32, method: u32, data: &[u32]) -> Vec<u32> {
    let count = u32::try_from(data.len()).expect("the test sets this up right");
    let mut words = vec![Header::increasing(subchannel, method, count)];
    words.extend(data);
    words
}

pub(crate) fn halves(value: u64) -> [u32; 2] {
    [
        u32::try_from(value >> 32).expect("the test sets this up right"),
        u32::try_from(value & 0xFFFF_FFFF).expect("the test sets this up right"),
    ]
}

pub(crate) fn bind_copy() -> Vec<u32> {
    methods(
        subchannel::COPY,
        host::SET_OBJECT,
        &[class::AMPERE_DMA_COPY_B],
    )
}

pub(crate) fn semaphore(address: u64, payload: u64, execute: u32) -> Vec<u32> {
    let [address_hi, address_lo] = halves(address);
    let [payload_hi, payload_lo] = halves(payload);
    let data = [address_lo, address_hi, payload_lo, payload_hi, execute];
    methods(subchannel::HOST, host::SEM_ADDR_LO, &data)
}

pub(crate) fn copy_line(from: u64, to: u64, len: u32, flags: u32) -> Vec<u32> {
    let data = [halves(from), halves(to)].concat();
    let mut words = methods(subchannel::COPY, copy::OFFSET_IN_UPPER, &data);
    words.extend(methods(subchannel::COPY, copy::LINE_LENGTH_IN, &[len]));
    let launch = launch::NON_PIPELINED | launch::SRC_PITCH | launch::DST_PITCH | flags;
    words.extend(methods(subchannel::COPY, copy::LAUNCH_DMA, &[launch]));
    words
}

/// Puts words behind the others and moves the put pointer; nothing runs yet.
pub(crate) fn submit(client: &mut Client, queue: &mut Queue, base: u64, words: &[u32]) {
    let at = PUSH + u64::from(queue.put) * 0x1000;
    client.write(queue.ring, at, words.as_bytes());
    let words = u32::try_from(words.len()).expect("the test sets this up right");
    let entry = GpEntry {
        address: base + at,
        words,
    }
    .encode();
    client.write(queue.ring, u64::from(queue.put) * 8, &entry.to_le_bytes());
    queue.put = (queue.put + 1) % ENTRIES;
    client.write(queue.ring, USERD + userd::GP_PUT, &queue.put.to_le_bytes());
}

pub(crate) fn machine() -> (Client, Gpu, Queue) {
    let mut client = Client::new("");
    let gpu = client.gpu(0);
    let queue = client.queue(gpu, VA);
    (client, gpu, queue)
}

#[test]
fn a_copy_moves_the_bytes_and_its_four_word_release_says_so() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    client.write(place, 0, b"bytes to be moved");
    let [high, low] = halves(DATA + 0x8000);
    let words = [
        bind_copy(),
        copy_line(DATA, DATA + 0x1000, 17, 0),
        methods(subchannel::COPY, copy::SET_SEMAPHORE_A, &[high, low, 7]),
        methods(
            subchannel::COPY,
            copy::LAUNCH_DMA,
            &[launch::FLUSH | 2 << launch::SEMAPHORE_SHIFT],
        ),
    ];
    submit(&mut client, &mut queue, VA, &words.concat());
    assert_eq!(client.driver().run_until_idle(1234, 10), Progress::Idle);
    assert_eq!(&client.read::<17>(place, 0x1000), b"bytes to be moved");
    assert_eq!(client.read(place, 0x8000), 7_u64.to_le_bytes());
    assert_eq!(client.read(place, 0x8008), 1234_u64.to_le_bytes());
    assert_eq!(
        client.read(queue.ring, USERD + userd::GP_GET),
        1_u32.to_le_bytes()
    );
}

#[test]
fn the_ring_wraps_and_every_entry_runs_once() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    let add = semaphore(
        DATA,
        1,
        sem::REDUCTION | reduction::ADD << sem::REDUCTION_SHIFT | sem::PAYLOAD_64BIT,
    );
    for _ in 0..5 {
        for _ in 0..ENTRIES - 1 {
            submit(&mut client, &mut queue, VA, &add);
        }
        client.driver().run_until_idle(0, 100);
    }
    let runs = u64::from(5 * (ENTRIES - 1));
    assert_eq!(client.read(place, 0), runs.to_le_bytes());
}

#[test]
fn a_copy_crosses_mappings_of_different_memory() {
    let (mut client, gpu, mut queue) = machine();
    let (_, first) = client.buffer(gpu, DATA, 0x1000);
    let (_, second) = client.buffer(gpu, DATA + 0x1000, 0x1000);
    let (_, target) = client.buffer(gpu, DATA + MIB, 0x2000);
    client.write(first, 0xFFE, b"ab");
    client.write(second, 0, b"cd");
    let copy = copy_line(DATA + 0xFFE, DATA + MIB + 0xFFF, 4, 0);
    submit(&mut client, &mut queue, VA, &[bind_copy(), copy].concat());
    client.driver().run_until_idle(0, 10);
    assert_eq!(&client.read::<4>(target, 0xFFF), b"abcd");
}

#[test]
fn several_lines_are_copied_each_at_its_pitch() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    client.write(place, 0, b"ab..cd..ef..");
    let words = [
        bind_copy(),
        methods(subchannel::COPY, copy::PITCH_IN, &[4, 3]),
        methods(subchannel::COPY, copy::LINE_COUNT, &[3]),
        copy_line(DATA, DATA + 0x1000, 2, launch::MULTI_LINE),
    ];
    submit(&mut client, &mut queue, VA, &words.concat());
    client.driver().run_until_idle(0, 10);
    assert_eq!(&client.read::<9>(place, 0x1000), b"ab\0cd\0ef\0");
}

#[test]
fn remapping_fills_with_a_constant_and_leaves_what_it_is_told_to() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    client.write(place, 0, &[0xFF; 16]);
    // Two components of two bytes: the constant, then one that stays.
    let components = remap::CONST_A
        | remap::NO_WRITE << remap::SELECTOR_STRIDE
        | 1 << remap::SIZE_SHIFT
        | 1 << remap::DST_COMPONENTS_SHIFT;
    let words = [
        bind_copy(),
        methods(subchannel::COPY, copy::SET_REMAP_CONST_A, &[0x1234]),
        methods(subchannel::COPY, copy::SET_REMAP_COMPONENTS, &[components]),
        copy_line(0, DATA, 3, launch::REMAP),
    ];
    submit(&mut client, &mut queue, VA, &words.concat());
    client.driver().run_until_idle(0, 10);
    let filled = [0x34, 0x12, 0xFF, 0xFF];
    assert_eq!(
        client.read::<13>(place, 0),
        *[&filled.repeat(3)[..], &[0xFF]].concat()
    );
}

#[test]
fn each_acquire_waits_until_its_own_condition_holds() {
    let cases = [
        (sem::ACQUIRE, 5, 6, 5),
        (sem::ACQ_STRICT_GEQ, 5, 4, 9),
        (sem::ACQ_CIRC_GEQ, 2, 0xFFFF_FFF0, 3),
        (sem::ACQ_AND, 0b100, 0b011, 0b110),
        (sem::ACQ_NOR, 0xFFFF_FFFE, 0xFFFF_FFFF, 0xFFFF_FFFE),
    ];
    for (operation, payload, not_yet, then) in cases {
        let (mut client, gpu, mut queue) = machine();
        let (_, place) = client.buffer(gpu, DATA, MIB);
        client.write(place, 0, &u32::to_le_bytes(not_yet));
        let words = [
            semaphore(DATA, payload, operation),
            semaphore(DATA + 0x100, 1, sem::RELEASE),
        ];
        submit(&mut client, &mut queue, VA, &words.concat());
        assert_eq!(
            client.driver().run_until_idle(0, 10),
            Progress::Waiting,
            "{operation}"
        );
        assert_eq!(client.read(place, 0x100), [0; 4], "{operation}");
        client.write(place, 0, &u32::to_le_bytes(then));
        assert_eq!(
            client.driver().run_until_idle(0, 10),
            Progress::Idle,
            "{operation}"
        );
        assert_eq!(
            client.read(place, 0x100),
            1_u32.to_le_bytes(),
            "{operation}"
        );
    }
}

#[test]
fn a_waiting_channel_does_not_hold_up_another() {
    let (mut client, gpu, mut queue) = machine();
    let mut other = client.queue(gpu, VA + (16 << 20));
    let (_, place) = client.buffer(gpu, DATA, MIB);
    let wait = [
        semaphore(DATA, 1, sem::ACQUIRE),
        semaphore(DATA + 8, 2, sem::RELEASE),
    ];
    submit(&mut client, &mut queue, VA, &wait.concat());
    let release = semaphore(DATA, 1, sem::RELEASE);
    submit(&mut client, &mut other, VA + (16 << 20), &release);
    assert_eq!(client.driver().run_until_idle(0, 10), Progress::Idle);
    assert_eq!(client.read(place, 8), 2_u32.to_le_bytes());
}

#[test]
fn reductions_combine_as_signed_or_unsigned_numbers() {
    let signed = |how: u32| sem::REDUCTION | how << sem::REDUCTION_SHIFT;
    let unsigned = |how: u32| signed(how) | sem::REDUCTION_UNSIGNED;
    let cases: [(u32, u32, u32, u32); 9] = [
        (unsigned(reduction::MIN), 7, u32::MAX, 7),
        (signed(reduction::MIN), 7, u32::MAX, u32::MAX),
        (unsigned(reduction::MAX), 7, u32::MAX, u32::MAX),
        (unsigned(reduction::XOR), 0b110, 0b011, 0b101),
        (unsigned(reduction::AND), 0b110, 0b011, 0b010),
        (unsigned(reduction::OR), 0b110, 0b011, 0b111),
        (unsigned(reduction::ADD), u32::MAX, 2, 1),
        (unsigned(reduction::INC), 3, 3, 0),
        (unsigned(reduction::DEC), 0, 9, 9),
    ];
    for (execute, old, payload, new) in cases {
        let (mut client, gpu, mut queue) = machine();
        let (_, place) = client.buffer(gpu, DATA, MIB);
        client.write(place, 0, &old.to_le_bytes());
        submit(
            &mut client,
            &mut queue,
            VA,
            &semaphore(DATA, payload.into(), execute),
        );
        client.driver().run_until_idle(0, 10);
        assert_eq!(client.read(place, 0), new.to_le_bytes(), "{execute:#x}");
    }
}

/// What a debugger on the queue's channel says of its faults.
fn faults(client: &mut Client, gpu: Gpu, queue: Queue) -> ctrl::MmuFaultInfo {
    let mut params = class::DebuggerAlloc::new_zeroed();
    params.app_client = client.root;
    let compute = client.alloc_bytes(queue.channel, class::ADA_COMPUTE_A, &mut []);
    params.compute_object = compute.expect("a compute object");
    let debugger = client.alloc(gpu.device, class::GT200_DEBUGGER, &mut params);
    let debugger = debugger.expect("a debugger");
    let mut info = ctrl::MmuFaultInfo::new_zeroed();
    let asked = client.control(debugger, ctrl::DEBUG_READ_MMU_FAULT_INFO, &mut info);
    asked.expect("debuggers know of faults");
    info
}

#[test]
fn a_freed_buffer_that_is_still_used_stops_the_channel_and_names_the_address() {
    let (mut client, gpu, mut queue) = machine();
    client.buffer(gpu, DATA, MIB);
    client.uvm_free(DATA, MIB).unwrap();
    let copy = copy_line(VA, DATA + 0x40, 4, 0);
    submit(&mut client, &mut queue, VA, &[bind_copy(), copy].concat());
    submit(
        &mut client,
        &mut queue,
        VA,
        &semaphore(VA + 0x800, 1, sem::RELEASE),
    );
    client.driver().run_until_idle(77, 10);
    assert_eq!(client.driver().counted().channel_errors, 1);
    assert_eq!(
        client.read(queue.ring, 0x800),
        [0; 4],
        "nothing runs after the fault"
    );
    assert_eq!(
        client.read(queue.error, notifier::STATUS),
        notifier::STATUS_ERROR.to_le_bytes()
    );
    assert_eq!(
        client.read(queue.error, notifier::INFO32),
        notifier::MMU_FAULT.to_le_bytes()
    );
    assert_eq!(
        client.read(queue.error, notifier::TIMESTAMP),
        77_u64.to_le_bytes()
    );
    let other = client.queue(gpu, VA + (32 << 20));
    assert_eq!(
        faults(&mut client, gpu, other).count,
        0,
        "faults are told apart by group"
    );
    let info = faults(&mut client, gpu, queue);
    assert_eq!(info.count, 1);
    let expected = ctrl::MmuFault {
        address: DATA + 0x40,
        fault_type: fault::PTE,
        access_type: fault::ACCESS_WRITE,
    };
    assert_eq!(info.list[0], expected);
}

#[test]
fn a_read_only_mapping_can_be_read_and_not_written() {
    let (mut client, gpu, mut queue) = machine();
    let (memory, place) = client.buffer(gpu, DATA, MIB);
    client.range(DATA + MIB, MIB).unwrap();
    let mut packet = client.uvm_map_packet(gpu, memory, DATA + MIB, MIB);
    packet.attributes[0].mapping = uvm::access::READ_ONLY;
    client
        .uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
        .unwrap();
    client.write(place, 0, b"read");
    let read = copy_line(DATA + MIB, DATA + 0x1000, 4, 0);
    submit(&mut client, &mut queue, VA, &[bind_copy(), read].concat());
    client.driver().run_until_idle(0, 10);
    assert_eq!(&client.read::<4>(place, 0x1000), b"read");
    submit(
        &mut client,
        &mut queue,
        VA,
        &copy_line(DATA, DATA + MIB, 4, 0),
    );
    client.driver().run_until_idle(0, 10);
    assert_eq!(
        faults(&mut client, gpu, queue).list[0].fault_type,
        fault::RO_VIOLATION
    );
}

#[test]
fn a_channel_that_writes_where_the_host_has_no_memory_left_stops_and_others_go_on() {
    let (mut client, gpu, mut queue) = machine();
    let mut other = client.queue(gpu, VA + (128 << 20));
    let (_, place) = client.buffer(gpu, DATA, MIB);
    client.write(place, 0, &[7; 4]);
    let far = DATA + MIB / 2;
    let words = [bind_copy(), copy_line(DATA, far, 4, 0)];
    submit(&mut client, &mut queue, VA, &words.concat());
    let near = [bind_copy(), copy_line(DATA, DATA + 8, 4, 0)];
    submit(&mut client, &mut other, VA + (128 << 20), &near.concat());
    client.driver().store_mut().set_full(true);
    client.driver().run_until_idle(0, 10);
    assert_eq!(client.read(place, 8), [7; 4], "there is memory here");
    assert_eq!(client.driver().counted().channel_errors, 1);
    let info = faults(&mut client, gpu, queue);
    let told = (info.count, info.list[0].address, info.list[0].access_type);
    assert_eq!(told, (1, far, fault::ACCESS_WRITE));
    assert_eq!(faults(&mut client, gpu, other).count, 0);
}

#[test]
fn words_that_make_no_sense_stop_the_channel() {
    let cases: [&[u32]; 4] = [
        &[0xC000_0001],
        &[
            Header::increasing(subchannel::COPY, copy::LAUNCH_DMA, 1),
            0x182,
        ],
        &[Header::increasing(0, host::SET_OBJECT, 1), 0x1234],
        &[Header::increasing(0, 0x54, 1), 0],
    ];
    for words in cases {
        let (mut client, _, mut queue) = machine();
        submit(&mut client, &mut queue, VA, words);
        client.driver().run_until_idle(0, 10);
        assert_eq!(
            client.read(queue.error, notifier::INFO32),
            notifier::PBDMA_ERROR.to_le_bytes()
        );
    }
}

#[test]
fn a_burst_may_go_on_in_the_next_segment() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    let words = semaphore(DATA, 5, sem::RELEASE);
    submit(&mut client, &mut queue, VA, &words[..3]);
    submit(&mut client, &mut queue, VA, &words[3..]);
    client.driver().run_until_idle(0, 10);
    assert_eq!(client.read(place, 0), 5_u32.to_le_bytes());
}

#[test]
fn a_channel_runs_only_while_its_group_is_scheduled_and_uvm_knows_it() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    client.schedule(queue.group, 0).unwrap();
    submit(
        &mut client,
        &mut queue,
        VA,
        &semaphore(DATA, 5, sem::RELEASE),
    );
    assert_eq!(client.driver().run_until_idle(0, 10), Progress::Idle);
    assert_eq!(client.read(place, 0), [0; 4]);
    client.schedule(queue.group, 1).unwrap();
    client.driver().run_until_idle(0, 10);
    assert_eq!(client.read(place, 0), 5_u32.to_le_bytes());
    let mut packet = uvm::UnregisterGpu {
        uuid: gpu.uuid,
        status: 0,
    };
    client
        .uvm(uvm::UNREGISTER_GPU_VASPACE, &mut packet)
        .unwrap();
    submit(
        &mut client,
        &mut queue,
        VA,
        &semaphore(DATA, 6, sem::RELEASE),
    );
    client.driver().run_until_idle(0, 10);
    assert_eq!(client.driver().counted().channel_errors, 1);
    assert_eq!(client.read(place, 0), 5_u32.to_le_bytes());
}

#[test]
fn one_gpu_copies_into_the_memory_of_another_that_it_has_mapped() {
    let mut client = Client::new("gpus=2");
    let (one, two) = (client.gpu(0), client.gpu(1));
    let mut queue = client.queue(one, VA);
    let (_, source) = client.buffer(one, DATA, MIB);
    let (memory, target) = client.buffer(two, DATA + MIB, MIB);
    client.peers(one, two).unwrap();
    client.map_uvm(one, memory, DATA + MIB, MIB).unwrap();
    client.write(source, 0, b"across");
    let copy = copy_line(DATA, DATA + MIB, 6, 0);
    submit(&mut client, &mut queue, VA, &[bind_copy(), copy].concat());
    client.driver().run_until_idle(0, 10);
    assert_eq!(&client.read::<6>(target, 0), b"across");
}

#[test]
fn a_launch_completes_at_once_and_releases_its_semaphores() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    let mut qmd = [0_u8; 256];
    qmd[0x60..0x68].copy_from_slice(&(DATA + 0x100).to_le_bytes());
    qmd[0x68..0x70].copy_from_slice(&9_u64.to_le_bytes());
    qmd[823 / 8] |= 1 << (823 % 8);
    client.write(place, 0x1000, &qmd);
    let compute = |method, data| methods(subchannel::COMPUTE, method, &[data]);
    let words = [
        compute(host::SET_OBJECT, class::ADA_COMPUTE_A),
        compute(0x2B4, u32::try_from((DATA + 0x1000) >> 8).unwrap()),
        compute(0x2C0, 9),
    ];
    submit(&mut client, &mut queue, VA, &words.concat());
    client.driver().run_until_idle(5, 10);
    assert_eq!(client.read(place, 0x100), 9_u64.to_le_bytes());
    assert_eq!(client.read(place, 0x108), 5_u64.to_le_bytes());
    assert_eq!(client.driver().counted().launches, 1);
}

#[test]
fn tokens_differ_and_an_unbound_channel_has_none() {
    let (mut client, gpu, queue) = machine();
    let other = client.queue(gpu, VA + (16 << 20));
    assert_ne!(queue.token, other.token);
    let (memory, _) = client.buffer(gpu, DATA, MIB);
    let params = super::client::channel_params(DATA, 0, memory, 0);
    let alone = client.channel(gpu.device, &params).unwrap();
    let mut token = ctrl::WorkSubmitToken::new_zeroed();
    let early = client.control(alone, ctrl::GET_WORK_SUBMIT_TOKEN, &mut token);
    assert_eq!(early, Err(Answer::Status(Status::INVALID_STATE)));
    let mut bind = ctrl::ChannelBind {
        engine_type: class::engine::COPY0,
    };
    client
        .control(alone, ctrl::CHANNEL_BIND, &mut bind)
        .unwrap();
    client
        .control(alone, ctrl::GET_WORK_SUBMIT_TOKEN, &mut token)
        .unwrap();
    assert_eq!(
        token.token >> 16,
        1,
        "copy engines have runlists of their own"
    );
}

#[test]
fn an_unexpected_put_beyond_the_ring_is_taken_modulo_its_entries() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    submit(
        &mut client,
        &mut queue,
        VA,
        &semaphore(DATA, 5, sem::RELEASE),
    );
    client.write(
        queue.ring,
        USERD + userd::GP_PUT,
        &(ENTRIES + 1).to_le_bytes(),
    );
    client.driver().run_until_idle(0, 10);
    let value = u32::read_from_bytes(&client.read::<4>(place, 0)).unwrap();
    assert_eq!(value, 5);
}

#[test]
fn with_a_latency_each_entry_begins_that_long_after_the_one_before_has_ended() {
    let mut client = Client::new("latency=10us");
    let gpu = client.gpu(0);
    let mut queue = client.queue(gpu, VA);
    let (_, place) = client.buffer(gpu, DATA, MIB);
    for value in [1, 2] {
        submit(
            &mut client,
            &mut queue,
            VA,
            &semaphore(DATA, value, sem::RELEASE),
        );
    }
    let mut seen_at = |now| {
        client.driver().run_until_idle(now, 10);
        u32::from_le_bytes(client.read(place, 0))
    };
    let seen = [0, 9_999, 10_000, 19_999, 20_000].map(&mut seen_at);
    assert_eq!(seen, [0, 0, 1, 1, 2]);
}
