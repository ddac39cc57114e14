//! GPU addresses run out, and come back behind their fences.

use vrampager_addr::Span;
use vrampager_core::{
    BufferDesc, Config, Device, Done, Effect, Error, ErrorKind, Performed, Placement, Priority,
    Reach, Source, Step, VramManager,
};
use vrampager_hal::{HalError, MemId};

const PAGE: u64 = 4096;
const DONE: Performed = Performed {
    fence: None,
    failed: None,
};

/// A device with eight pages of addresses.
fn device() -> Device {
    let span = |start, pages| Span::new(start, pages * PAGE).unwrap();
    let mut device = Device::new(Config {
        host: MemId(1),
        pages: span(0, 16),
        addresses: span(1 << 20, 8),
        swap: 0,
    });
    let own = Reach::Own {
        mem: MemId(2),
        base: vrampager_addr::Va(1 << 30),
    };
    let vram = Box::new(VramManager::new(64 * PAGE));
    device.register(vrampager_core::MemType::VRAM, vram, own, &[]);
    device
}

fn desc(pages: u64) -> BufferDesc {
    BufferDesc {
        name: "b".into(),
        len: pages * PAGE,
        placement: Placement::vram(),
        priority: Priority::default(),
        content: Source::Zero,
    }
}

/// Creates a buffer; the outcome, and all effects that it took.
fn create(device: &mut Device, pages: u64) -> (Result<Done, Error>, Vec<Effect>) {
    let task = device.create(&desc(pages)).unwrap();
    let mut all = Vec::new();
    loop {
        match device.step(task) {
            Step::Perform(effects) => {
                all.extend_from_slice(&effects);
                assert!(device.performed(task, &DONE).is_none());
                device.check();
            }
            Step::Done(result) => return (result, all),
            Step::Blocked | Step::Granted(_) => panic!("creating needs nobody else"),
        }
    }
}

#[test]
fn the_error_says_how_many_addresses_are_left() {
    let mut device = device();
    create(&mut device, 6).0.unwrap();

    let (refused, _) = create(&mut device, 3);

    let expected = Error::OutOfAddresses {
        needed: 3 * PAGE,
        free: 2 * PAGE,
        largest: 2 * PAGE,
    };
    assert_eq!(refused, Err(expected.clone()));
    assert_eq!(expected.kind(), ErrorKind::OutOfAddresses);
    let text = "out of GPU addresses: 12 KiB needed, 8 KiB free, largest hole 8 KiB";
    assert_eq!(expected.to_string(), text);
}

#[test]
fn more_than_the_whole_address_space_is_invalid() {
    let refused = device().create(&desc(9));

    let text = "buffer is larger than the address space";
    assert_eq!(refused, Err(Error::Invalid(text)));
}

#[test]
fn released_addresses_are_given_back_before_they_are_used_again() {
    let mut device = device();
    let (first, _) = create(&mut device, 8);
    let Ok(Done::Created(first)) = first else {
        panic!("{first:?}")
    };
    device.release(first).unwrap();

    let (second, effects) = create(&mut device, 8);

    assert!(second.is_ok());
    let span = Span::new(1 << 20, 8 * PAGE).unwrap();
    let order = [Effect::ReleaseVa(span), Effect::ReserveVa(span)];
    assert_eq!(effects, order);
}

#[test]
fn addresses_that_the_device_refuses_are_free_again_for_core() {
    let mut device = device();
    let task = device.create(&desc(8)).unwrap();
    let Step::Perform(_) = device.step(task) else {
        panic!("addresses are reserved first")
    };
    let error = HalError::Unsupported("anything").into();
    let failed = Some((0, error));
    let fence = None;
    let undo = device.performed(task, &Performed { fence, failed });
    let refused = device.step(task);

    let again = create(&mut device, 8).0;

    assert!(undo.is_none());
    assert!(matches!(refused, Step::Done(Err(Error::Effect { .. }))));
    assert!(again.is_ok());
}
