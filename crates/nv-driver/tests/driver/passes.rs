//! How much a pass over the channels does, whatever is in their rings.

use vrampager_nv_abi::class;
use vrampager_nv_abi::method::{compute, copy, host, launch, remap, sem, subchannel};
use vrampager_nv_driver::Progress;

use super::channels::{
    DATA, MIB, VA, bind_copy, copy_line, halves, machine, methods, semaphore, submit,
};

const PASS_BYTES: u64 = 16 * MIB;
const PASS_STEPS: u64 = 1 << 14;

/// A launch of the most lines there may be, all at the same place.
fn giant(len: u32) -> Vec<u32> {
    [
        bind_copy(),
        methods(subchannel::COPY, copy::PITCH_IN, &[0, 0]),
        methods(subchannel::COPY, copy::LINE_COUNT, &[1 << 24]),
        copy_line(DATA, DATA + MIB, len, launch::MULTI_LINE),
    ]
    .concat()
}

#[test]
fn a_giant_launch_takes_a_bounded_part_of_each_pass_and_ends_with_its_client() {
    let (mut client, gpu, mut queue) = machine();
    let other_base = VA + (16 << 20);
    let mut other = client.queue(gpu, other_base);
    let (_, place) = client.buffer(gpu, DATA, 2 * MIB);
    submit(&mut client, &mut queue, VA, &giant(1 << 20));
    for pass in 1..=3_u64 {
        let words = semaphore(DATA, pass, sem::RELEASE);
        submit(&mut client, &mut other, other_base, &words);
        assert_eq!(client.driver().run(0), Progress::Moved);
        assert_eq!(client.driver().counted().copied_bytes, pass * PASS_BYTES);
        let released = client.read(place, 0);
        assert_eq!(u64::from(u32::from_le_bytes(released)), pass, "the other");
    }
    client.die();
    assert_eq!(client.driver().live().channels, 0);
    assert_eq!(client.driver().run(0), Progress::Idle);
    assert_eq!(client.driver().counted().copied_bytes, 3 * PASS_BYTES);
}

#[test]
fn lines_without_bytes_take_their_part_of_a_pass_too() {
    let (mut client, gpu, mut queue) = machine();
    client.buffer(gpu, DATA, 2 * MIB);
    submit(&mut client, &mut queue, VA, &giant(0));
    let passes = usize::try_from((1 << 24) / PASS_STEPS).unwrap();
    assert_eq!(client.driver().run_until_idle(0, passes), Progress::Moved);
    assert_eq!(client.driver().counted().copies, 0);
    assert_eq!(client.driver().run_until_idle(0, 10), Progress::Idle);
    assert_eq!(client.driver().counted().copies, 1);
}

#[test]
fn launches_share_the_pass_of_their_channel_and_release_when_all_their_bytes_are_there() {
    const LEN: u64 = 12 * MIB;
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, 3 * LEN);
    let value = |at: u64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let bytes: Vec<u8> = (0..LEN / 8)
        .flat_map(|at| value(at).to_le_bytes())
        .collect();
    client.write(place, 0, &bytes);
    let [high, low] = halves(DATA + 3 * LEN - 16);
    let len = u32::try_from(LEN).unwrap();
    // Words of two bytes, filled with a constant.
    let components = remap::CONST_A | 1 << remap::SIZE_SHIFT;
    let fill = (len - 16) / 2;
    let words = [
        bind_copy(),
        copy_line(DATA, DATA + LEN, len, 0),
        methods(subchannel::COPY, copy::SET_SEMAPHORE_A, &[high, low, 7]),
        methods(subchannel::COPY, copy::SET_REMAP_CONST_A, &[0xABCD]),
        methods(subchannel::COPY, copy::SET_REMAP_COMPONENTS, &[components]),
        copy_line(
            0,
            DATA + 2 * LEN,
            fill,
            launch::REMAP | 1 << launch::SEMAPHORE_SHIFT,
        ),
    ];
    submit(&mut client, &mut queue, VA, &words.concat());
    let filled = |client: &mut super::client::Client| {
        let last = client.read::<2>(place, 3 * LEN - 18);
        (last, u32::from_le_bytes(client.read(place, 3 * LEN - 16)))
    };
    assert_eq!(client.driver().run(0), Progress::Moved);
    assert_eq!(client.driver().counted().copied_bytes, PASS_BYTES);
    assert_eq!(filled(&mut client), ([0, 0], 0));
    assert_eq!(client.driver().run_until_idle(0, 10), Progress::Idle);
    assert_eq!(filled(&mut client), ([0xCD, 0xAB], 7));
    assert_eq!(client.driver().counted().copied_bytes, 2 * LEN - 16);
    for at in [0, LEN / 16, LEN / 8 - 1] {
        assert_eq!(client.read(place, LEN + at * 8), value(at).to_le_bytes());
    }
    let middle = client.read::<4>(place, 2 * LEN + (PASS_BYTES - LEN) - 2);
    assert_eq!(middle, [0xCD, 0xAB, 0xCD, 0xAB], "where the pass ended");
}

#[test]
fn a_loop_of_launch_descriptors_takes_many_passes_and_then_stops_its_channel() {
    let (mut client, gpu, mut queue) = machine();
    let (_, place) = client.buffer(gpu, DATA, MIB);
    let mut qmd = [0_u8; 256];
    // It depends on itself: the pointer, the bit that enables it and the action to launch.
    let pointer = u32::try_from((DATA + 0x1000) >> 8).unwrap();
    qmd[0x3C..0x40].copy_from_slice(&pointer.to_le_bytes());
    qmd[64] = 1 | 1 << 1;
    client.write(place, 0x1000, &qmd);
    let words = [
        methods(
            subchannel::COMPUTE,
            host::SET_OBJECT,
            &[class::ADA_COMPUTE_A],
        ),
        methods(subchannel::COMPUTE, compute::SEND_PCAS_A, &[pointer]),
        methods(subchannel::COMPUTE, compute::SEND_SIGNALING_PCAS2_B, &[9]),
    ];
    submit(&mut client, &mut queue, VA, &words.concat());
    assert_eq!(client.driver().run(0), Progress::Moved);
    let launches = client.driver().counted().launches;
    assert!(
        (PASS_STEPS / 2..=PASS_STEPS).contains(&launches),
        "{launches}"
    );
    assert_eq!(client.driver().run_until_idle(0, 10), Progress::Idle);
    assert_eq!(client.driver().counted().channel_errors, 1);
    assert_eq!(client.driver().counted().launches, 1 << 16);
}
