//! Domains as unhelpful as those of TTM's own tests, on a device without a runner.

use vrampager_addr::{Span, Va};
use vrampager_core::{
    BufferDesc, BufferId, Config, Device, Domain, Done, Effect, Error, Fit, Grant, MemType,
    Performed, Place, Placement, Preference, Priority, Reach, ResourceManager, Source, Space, Step,
    Target, TaskId, Use, VramManager,
};
use vrampager_hal::{Access, Fence, MemId, TimelineId};

const PAGE: u64 = 4096;
const HOSTILE: u8 = 0;

/// TTM's bad manager: says no to everything.
#[derive(Debug)]
struct AlwaysFull;

impl ResourceManager for AlwaysFull {
    fn alloc(&mut self, _size: u64, _place: &Place) -> Fit {
        Fit::NoSpace
    }

    fn free(&mut self, extents: &[Span]) {
        panic!("never gave {extents:?}");
    }

    fn space(&self) -> Space {
        Space::default()
    }

    fn check(&self) {}
}

/// Takes what it is given, and calls none of it good enough.
#[derive(Debug)]
struct NeverCompatible(VramManager);

impl ResourceManager for NeverCompatible {
    fn alloc(&mut self, size: u64, place: &Place) -> Fit {
        self.0.alloc(size, place)
    }

    fn free(&mut self, extents: &[Span]) {
        self.0.free(extents);
    }

    fn compatible(&self, _extents: &[Span], _place: &Place) -> bool {
        false
    }

    fn space(&self) -> Space {
        self.0.space()
    }

    fn check(&self) {
        self.0.check();
    }
}

/// A device with VRAM of 8 pages and `manager` as its first private domain.
fn device(manager: Box<dyn ResourceManager>) -> Device {
    let span = |start, pages| Span::new(start, pages * PAGE).unwrap();
    let mut device = Device::new(Config {
        host: MemId(1),
        pages: span(0, 16),
        addresses: span(1 << 20, 64),
        swap: 0,
    });
    let own = |mem, base| Reach::Own {
        mem: MemId(mem),
        base: Va(base),
    };
    let hostile = MemType::private(HOSTILE).unwrap();
    device.register(hostile, manager, own(3, 2 << 30), &[]);
    let vram = Box::new(VramManager::new(8 * PAGE));
    let to = [Place::new(hostile)];
    device.register(MemType::VRAM, vram, own(2, 1 << 30), &to);
    device
}

/// Steps a task, pretending that every effect succeeds.
fn run(device: &mut Device, task: TaskId) -> Result<Result<Done, Grant>, Error> {
    for value in 1..1000 {
        match device.step(task) {
            Step::Perform(effects) => {
                let copies = |effect: &Effect| matches!(effect, Effect::Copy(_));
                let timeline = TimelineId(1);
                let fence = Fence { timeline, value };
                let fence = effects.iter().any(copies).then_some(fence);
                let failed = None;
                assert!(
                    device
                        .performed(task, &Performed { fence, failed })
                        .is_none()
                );
                device.check();
            }
            Step::Blocked => panic!("a lone task is never blocked"),
            Step::Granted(grant) => return Ok(Err(grant)),
            Step::Done(result) => return result.map(Ok),
        }
    }
    panic!("a task ends after a bounded number of steps");
}

fn create(device: &mut Device, pages: u64, placement: Placement) -> BufferId {
    let task = device.create(&BufferDesc {
        name: "b".into(),
        len: pages * PAGE,
        placement,
        priority: Priority::default(),
        content: Source::Zero,
    });
    match run(device, task.unwrap()) {
        Ok(Ok(Done::Created(id))) => id,
        other => panic!("{other:?}"),
    }
}

fn touch(device: &mut Device, buffer: BufferId, access: Access) -> Result<(), Error> {
    let task = device.exec(&[Use {
        buffer,
        access,
        target: Target::Gpu,
    }])?;
    match run(device, task)? {
        Err(_) => device.finish(task, None, vrampager_core::Keep::Evictable),
        Ok(done) => panic!("{done:?}"),
    }
    Ok(())
}

fn hostile(preference: Preference) -> Place {
    Place::new(MemType::private(HOSTILE).unwrap()).with(preference)
}

/// TTM `ttm_bo_validate_failed_alloc`.
#[test]
fn a_domain_that_is_always_full_is_out_of_memory() {
    let mut device = device(Box::new(AlwaysFull));
    let placement = Placement::new(&[hostile(Preference::Always)]).unwrap();
    let id = create(&mut device, 1, placement);

    let refused = touch(&mut device, id, Access::Read);

    let Err(Error::OutOfMemory(shortage)) = refused else {
        panic!("{refused:?}")
    };
    let first = Domain::Memory(MemType::private(HOSTILE).unwrap());
    assert_eq!(shortage.domains[0].domain, first);
    assert_eq!(device.residency(id), Ok(None));
}

/// TTM `ttm_bo_validate_busy_placement`.
#[test]
fn a_fallback_is_taken_when_the_desired_domain_says_no() {
    let mut device = device(Box::new(AlwaysFull));
    let fallback = Place::new(MemType::VRAM).with(Preference::Fallback);
    let placement = Placement::new(&[hostile(Preference::Desired), fallback]).unwrap();
    let id = create(&mut device, 1, placement);

    touch(&mut device, id, Access::Read).unwrap();

    assert_eq!(device.residency(id), Ok(Some(MemType::VRAM)));
}

/// TTM `ttm_bo_validate_busy_domain_evict`: the victim stays, the newcomer gets nothing.
#[test]
fn victims_that_nobody_takes_stay_where_they_are() {
    let mut device = device(Box::new(AlwaysFull));
    let victim = create(&mut device, 8, Placement::vram());
    touch(&mut device, victim, Access::Write).unwrap();
    let next = create(&mut device, 1, Placement::vram());

    let refused = touch(&mut device, next, Access::Read);

    assert!(matches!(refused, Err(Error::OutOfMemory(_))));
    assert_eq!(device.residency(victim), Ok(Some(MemType::VRAM)));
    assert_eq!(device.residency(next), Ok(None));
}

/// Moving into it again and again would never end.
#[test]
#[should_panic(expected = "a manager carves what its place asks for")]
fn a_domain_that_calls_its_own_space_unfit_is_a_bug() {
    let inner = VramManager::new(8 * PAGE);
    let mut device = device(Box::new(NeverCompatible(inner)));
    let placement = Placement::new(&[hostile(Preference::Always)]).unwrap();
    let id = create(&mut device, 2, placement);

    let never = touch(&mut device, id, Access::Read);

    panic!("{never:?}");
}
