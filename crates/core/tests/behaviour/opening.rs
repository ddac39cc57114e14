//! Bringing a device up fails at every stage without a trace (case R1).

use std::sync::Arc;

use vrampager_core::{Device, Limits, OpenError, Runner};
use vrampager_hal::{ChannelKind, DeviceId, Discovery, HalErrorKind};
use vrampager_sim::{Call, Injection, Simulator};

const LIMITS: Limits = Limits {
    vram: 1 << 20,
    gtt: 1 << 20,
    host: 1 << 20,
    swap: 0,
};

fn open(sim: &Arc<Simulator>, limits: Limits) -> Result<(Device, Runner), Box<OpenError>> {
    vrampager_core::open(sim.open(DeviceId(0)).unwrap(), limits, None)
}

/// How many calls of one kind bringing a device up takes, and the errors when each fails.
fn failures(call: Call) -> Vec<OpenError> {
    let mut errors = Vec::new();
    for nth in 1.. {
        let sim = Simulator::new("vram=4M,mode=deterministic".parse().unwrap()).unwrap();
        let device = sim.device(DeviceId(0)).unwrap();
        device.inject(Injection::FailCall { call, nth });
        match open(&sim, LIMITS) {
            Ok((_, runner)) => {
                assert!(nth > 20 || runner.close().is_zero());
                return errors;
            }
            Err(error) => errors.push(*error),
        }
        // The second try succeeds, or the first left something behind.
        let (_, runner) = open(&sim, LIMITS).unwrap();
        assert!(runner.close().is_zero());
    }
    errors
}

#[test]
fn each_stage_that_fails_is_undone_and_named_and_the_second_try_succeeds() {
    let stages = [
        (Call::ReserveVa, 3, "reserve-va"),
        (Call::Create, 2, "heap has"),
        (Call::MapGpu, 2, "heap has"),
        (Call::MapCpu, 1, "host heap has"),
        (Call::CreateTimeline, 1, "host heap has"),
        // Channels are made by the first work.
        (Call::CreateChannel, 0, ""),
    ];
    for (call, count, name) in stages {
        let errors = failures(call);

        assert_eq!(errors.len(), count, "{call:?}");
        for error in errors {
            assert!(error.to_string().contains(name), "{call:?}: {error}");
            assert!(error.leftovers.is_zero(), "{call:?}: {}", error.leftovers);
        }
    }
}

/// Nothing below a mapping that stays may be taken away; the rest goes, and what is left is told.
#[test]
fn what_the_device_does_not_take_back_is_listed() {
    for call in [
        Call::UnmapGpu,
        Call::UnmapCpu,
        Call::Destroy,
        Call::ReleaseVa,
        Call::DestroyChannel,
        Call::DestroyTimeline,
    ] {
        let sim = Simulator::new("vram=4M,mode=deterministic".parse().unwrap()).unwrap();
        let (_, runner) = open(&sim, LIMITS).unwrap();
        let stream = runner.open_stream(ChannelKind::Copy).unwrap();
        let fence = runner.submit(stream, &[], &[]).unwrap();
        runner.wait(fence).unwrap();
        let device = sim.device(DeviceId(0)).unwrap();
        device.inject(Injection::FailCall { call, nth: 1 });

        let left = runner.close();
        let reopened = open(&sim, LIMITS);

        assert!(!left.is_zero(), "{call:?}");
        assert!(reopened.is_ok_and(|(_, runner)| runner.close().is_zero()));
    }
}

/// Mission row A4.
#[test]
fn a_channel_is_made_by_the_first_work_which_can_be_tried_again_when_it_fails() {
    let sim = Simulator::new("vram=4M,mode=deterministic".parse().unwrap()).unwrap();
    let (_, runner) = open(&sim, LIMITS).unwrap();
    let streams = [ChannelKind::Copy, ChannelKind::Compute];
    let streams = streams.map(|kind| runner.open_stream(kind).unwrap());
    assert_eq!(runner.counters().channels, 0);
    sim.device(DeviceId(0))
        .unwrap()
        .inject(Injection::FailCall {
            call: Call::CreateChannel,
            nth: 1,
        });

    let refused = runner.submit(streams[1], &[], &[]);
    let after_refusal = runner.counters().channels;
    let fence = runner.submit(streams[1], &[], &[]).unwrap();

    assert_eq!(refused.unwrap_err().kind(), HalErrorKind::OutOfMemory);
    assert_eq!(after_refusal, 0);
    assert_eq!(runner.counters().channels, 1, "the other is not used");
    runner.wait(fence).unwrap();
    assert!(runner.close().is_zero());
}

#[test]
fn limits_larger_than_the_device_are_refused_with_its_numbers() {
    let sim = Simulator::new("vram=4M,mode=deterministic".parse().unwrap()).unwrap();
    let limits = Limits {
        vram: 5 << 20,
        ..LIMITS
    };

    let refused = open(&sim, limits).unwrap_err();

    let text = "VRAM heap has 4 MiB free, 5 MiB needed, at create";
    assert_eq!(refused.to_string(), text);
    assert!(refused.leftovers.is_zero());
}

#[test]
fn a_limit_of_nothing_is_refused() {
    let sim = Simulator::new("vram=4M,mode=deterministic".parse().unwrap()).unwrap();
    let limits = Limits { vram: 0, ..LIMITS };

    let refused = open(&sim, limits).unwrap_err();

    let text = "invalid request: limits for VRAM, GTT and host memory are at least one page";
    assert_eq!(refused.to_string(), text);
}
