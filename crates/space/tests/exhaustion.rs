//! Host memory that runs out at any moment: every operation succeeds or says so and changes
//! nothing, and what gives space back asks for none.
#![expect(
    unsafe_code,
    reason = "an allocator that can be told to refuse has to be a global allocator"
)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../src/testing/rng.rs"]
mod rng;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Debug;

use rng::Rng;
use vrampager_addr::Span;
use vrampager_space::{
    Block, Buddy, BuddyRequest, Content, FakeOffsets, Fit, Mode, RangeAllocator, RangeRequest,
    SpaceError, SpaceFence, SubAllocator, VaSpace, Zone,
};

/// The system's allocator, which counts what a thread asks for and has, and refuses when told to.
struct Meter;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread has got and not given back.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// How many more requests are served.
    static ALLOWED: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Counts a request. Returns whether to refuse it; nothing is refused while a thread ends.
fn refuses() -> bool {
    let refused = ALLOWED.try_with(|allowed| {
        let left = allowed.get();
        allowed.set(left.saturating_sub(u64::from(left < u64::MAX)));
        left == 0
    });
    ASKED.try_with(|asked| asked.set(asked.get() + 1)).ok();
    refused.unwrap_or(false)
}

// SAFETY: memory comes from and goes back to `System`; a null pointer is a legal answer. The other
// methods of the trait are built on these two.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses() {
            return std::ptr::null_mut();
        }
        holds(|held| held.wrapping_add(layout.size()));
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        holds(|held| held.wrapping_sub(layout.size()));
        // SAFETY: `pointer` came from `System` with this layout, as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn holds(change: impl FnOnce(usize) -> usize) {
    HELD.try_with(|held| held.set(change(held.get()))).ok();
}

#[global_allocator]
static METER: Meter = Meter;

/// Runs `work` with `allowed` requests for memory. Returns what it says and what it asked for.
fn metered<T>(allowed: u64, work: impl FnOnce() -> T) -> (T, u64) {
    let before = ASKED.get();
    ALLOWED.set(allowed);
    let result = work();
    ALLOWED.set(u64::MAX);
    (result, ASKED.get() - before)
}

/// Memory for the test's own list of what is live, which is neither counted nor refused.
fn list<T>() -> Vec<T> {
    let (allowed, asked) = (ALLOWED.replace(u64::MAX), ASKED.get());
    let list = Vec::with_capacity(4000);
    ALLOWED.set(allowed);
    ASKED.set(asked);
    list
}

/// A structure under test, and what its user remembers.
trait Subject: Sized {
    /// What one step says: comparable, and small.
    type Answer: PartialEq + Debug;

    fn new() -> Result<Self, SpaceError>;

    /// The step that `dice` say, without asking for memory on the test's own account.
    fn step(&mut self, dice: Rng) -> Result<Self::Answer, SpaceError>;

    /// Whether that step gives something back.
    fn frees(&self, dice: Rng) -> bool;

    /// What can be seen of the state, after comparing all records.
    fn state(&self) -> String;
}

/// What the steps of one seed answered, and how much memory each asked for.
struct Course<A> {
    answers: Vec<Result<A, SpaceError>>,
    asked: Vec<u64>,
}

fn dice(seed: u64, step: u64) -> Rng {
    Rng(seed * 1_000_003 + step * 7919)
}

/// The steps of one seed with all the memory they want.
fn undisturbed<S: Subject>(seed: u64, steps: u64) -> Course<S::Answer> {
    let mut subject = S::new().unwrap();
    let (mut answers, mut asked) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let frees = subject.frees(dice(seed, step));
        let (answer, count) = metered(u64::MAX, || subject.step(dice(seed, step)));
        assert!(
            !frees || count == 0,
            "step {step} frees, and asked for memory"
        );
        subject.state();
        answers.push(answer);
        asked.push(count);
    }
    Course { answers, asked }
}

/// The same steps, with all memory refused during `unlucky` from its request number `refused`
/// on. It fails and changes nothing, or does without; then everything goes on as if nothing had
/// been refused.
fn disturbed<S: Subject>(seed: u64, course: &Course<S::Answer>, unlucky: usize, refused: u64) {
    let mut subject = S::new().unwrap();
    for (step, expected) in course.answers.iter().enumerate() {
        let dice = || dice(seed, step as u64);
        let context = || format!("seed {seed}, step {unlucky}, request {refused} refused");
        let mut answer = None;
        if step == unlucky {
            let before = subject.state();
            let (first, asked) = metered(refused, || subject.step(dice()));
            assert!(asked > refused, "{}: it never was", context());
            if matches!(first, Err(SpaceError::MetadataExhausted)) {
                assert_eq!(subject.state(), before, "{}", context());
            } else {
                answer = Some(first);
            }
        }
        let frees = subject.frees(dice());
        let (answer, asked) = metered(u64::MAX, || answer.unwrap_or_else(|| subject.step(dice())));
        assert!(!frees || asked == 0, "{}: step {step} asked", context());
        assert_eq!(answer, *expected, "{} at step {step}", context());
    }
    subject.state();
}

/// Refuses each request for memory of each step in turn.
fn exhaust<S: Subject>(seeds: u64, steps: u64) {
    for refused in 0.. {
        let (subject, asked) = metered(refused, S::new);
        if asked <= refused {
            break;
        }
        assert_eq!(subject.err(), Some(SpaceError::MetadataExhausted));
    }
    let mut tried = 0;
    for seed in 0..seeds {
        let course = undisturbed::<S>(seed, steps);
        for (step, &asked) in course.asked.iter().enumerate() {
            for refused in 0..asked {
                disturbed::<S>(seed, &course, step, refused);
                tried += 1;
            }
        }
    }
    assert!(tried > 5 * seeds, "{tried} refusals test nothing");
}

fn pick<T>(rng: &mut Rng, list: &[T]) -> usize {
    usize::try_from(rng.below(list.len() as u64)).unwrap()
}

struct Ranges {
    space: RangeAllocator,
    live: Vec<Span>,
}

impl Ranges {
    fn scan(&self, rng: &mut Rng) -> Result<(u64, u64), SpaceError> {
        let request = RangeRequest::new(100 + rng.below(400)).align(3);
        let mut scan = self.space.eviction_scan(&request)?;
        for span in &self.live {
            scan.add(span.start(), span.len())?;
        }
        let place =
            |found: Option<vrampager_space::Eviction>| found.map_or(0, |it| it.place.start());
        Ok((place(scan.first()?), place(scan.cheapest()?)))
    }
}

impl Subject for Ranges {
    type Answer = (u64, u64);

    fn new() -> Result<Self, SpaceError> {
        let space = RangeAllocator::new(Span::new(0, 5000).unwrap());
        let live = list();
        Ok(Self { space, live })
    }

    fn frees(&self, mut dice: Rng) -> bool {
        dice.below(10) >= 7 && !self.live.is_empty()
    }

    fn step(&mut self, mut rng: Rng) -> Result<(u64, u64), SpaceError> {
        let kind = rng.below(10);
        if kind >= 7 && !self.live.is_empty() {
            let at = pick(&mut rng, &self.live);
            let span = self.live.swap_remove(at);
            self.space.remove(span.start()).unwrap();
            return Ok((span.start(), span.len()));
        }
        if kind == 6 {
            return self.scan(&mut rng);
        }
        let span = if kind == 5 {
            let span = Span::new(rng.below(4900), 1 + rng.below(9)).unwrap();
            self.space.reserve(span, 1)?;
            span
        } else {
            let modes = [Mode::Low, Mode::High, Mode::Best, Mode::Evict];
            let mode = modes[pick(&mut rng, &modes)];
            let request = RangeRequest::new(1 + rng.below(30)).align(1 + rng.below(4));
            self.space.insert(&request.mode(mode))?
        };
        self.live.push(span);
        Ok((span.start(), span.len()))
    }

    fn state(&self) -> String {
        self.space.check();
        format!("{:?} {}", self.space, self.space.len())
    }
}

struct Sub<const TIGHT: bool> {
    space: SubAllocator,
    live: Vec<(u64, u64)>,
}

impl<const TIGHT: bool> Subject for Sub<TIGHT> {
    type Answer = (u64, u64);

    fn new() -> Result<Self, SpaceError> {
        Ok(Self {
            space: SubAllocator::new(1 << 20, 16, if TIGHT { Fit::Tight } else { Fit::Fast })?,
            live: list(),
        })
    }

    fn frees(&self, mut dice: Rng) -> bool {
        dice.below(10) >= 7 && !self.live.is_empty()
    }

    fn step(&mut self, mut rng: Rng) -> Result<(u64, u64), SpaceError> {
        if rng.below(10) >= 7 && !self.live.is_empty() {
            let at = pick(&mut rng, &self.live);
            let (offset, size) = self.live.swap_remove(at);
            self.space.free(offset, size);
            return Ok((offset, size));
        }
        let size = 1 + rng.below(4000);
        let offset = self.space.alloc(size, 1 << rng.below(9))?;
        self.live.push((offset, size));
        Ok((offset, size))
    }

    fn state(&self) -> String {
        self.space.check();
        let mut holes: Vec<Span> = self.space.clone().holes().collect();
        holes.sort_unstable();
        format!("{holes:?} {}", self.space.len())
    }
}

/// A buddy allocator of `CHUNKS` pages, which lists its blocks if there are very many.
struct Blocks<const CHUNKS: u64> {
    space: Buddy,
    live: Vec<Span>,
}

const PAGE: u64 = 4096;

impl<const CHUNKS: u64> Blocks<CHUNKS> {
    fn request(rng: &mut Rng) -> BuddyRequest {
        let size = 1 + rng.below(40);
        let mut request = BuddyRequest::new(size * PAGE);
        if rng.below(3) == 0 {
            request = request.prefer(Content::Cleared);
        }
        if rng.below(4) == 0 {
            request = request.contiguous();
        }
        if rng.below(4) == 0 {
            request = request.top_down();
        }
        if rng.below(4) == 0 {
            let start = rng.below(100);
            request =
                request.within(Span::new(start * PAGE, (size + rng.below(30)) * PAGE).unwrap());
        }
        request
    }
}

impl<const CHUNKS: u64> Subject for Blocks<CHUNKS> {
    type Answer = Vec<Block>;

    fn new() -> Result<Self, SpaceError> {
        Ok(Self {
            space: Buddy::new(CHUNKS * PAGE, PAGE)?,
            live: list(),
        })
    }

    fn frees(&self, mut dice: Rng) -> bool {
        match dice.below(12) {
            7..=9 => !self.live.is_empty(),
            10 => true,
            _ => false,
        }
    }

    fn step(&mut self, mut rng: Rng) -> Result<Vec<Block>, SpaceError> {
        let kind = rng.below(12);
        let content = [Content::Dirty, Content::Cleared][pick(&mut rng, &[0, 1])];
        match kind {
            7..=9 if !self.live.is_empty() => {
                let at = pick(&mut rng, &self.live);
                self.space.free(self.live.swap_remove(at), content);
                Ok(Vec::new())
            }
            10 => {
                self.space.reset(content);
                Ok(Vec::new())
            }
            11 if !self.live.is_empty() => {
                let at = pick(&mut rng, &self.live);
                let block = self.live[at];
                let from = rng.below(block.len() / PAGE);
                let keep = 1 + rng.below(block.len() / PAGE - from);
                let keep = Span::new(block.start() + from * PAGE, keep * PAGE).unwrap();
                self.space.trim(block, keep, content)?;
                self.live[at] = keep;
                Ok(Vec::new())
            }
            _ => {
                let blocks = self.space.alloc(&Self::request(&mut rng))?;
                self.live.extend(blocks.iter().map(Block::span));
                Ok(blocks)
            }
        }
    }

    fn state(&self) -> String {
        self.space.check();
        let free = (self.space.free_bytes(), self.space.cleared_bytes());
        format!("{free:?} {}", self.space.largest_free())
    }
}

struct Addresses {
    space: VaSpace,
    live: Vec<Span>,
}

/// The last six are added later, if at all.
const ZONES: [&str; 8] = ["low", "high", "a", "b", "c", "d", "e", "f"];

impl Subject for Addresses {
    type Answer = (u64, u64);

    fn new() -> Result<Self, SpaceError> {
        let zones = [
            Zone::between(ZONES[0], 0, 3000),
            Zone::between(ZONES[1], 3000, 4000),
        ];
        let mut space = VaSpace::new(&zones)?;
        space.add_timeline(0)?;
        space.add_timeline(1)?;
        Ok(Self {
            space,
            live: list(),
        })
    }

    fn frees(&self, mut dice: Rng) -> bool {
        match dice.below(20) {
            10..=13 => !self.live.is_empty(),
            14..=16 => true,
            _ => false,
        }
    }

    fn step(&mut self, mut rng: Rng) -> Result<(u64, u64), SpaceError> {
        let timeline = u32::try_from(rng.0 % 3).unwrap();
        let generation = u32::try_from(rng.0 / 3 % 4).unwrap();
        match rng.below(20) {
            10..=13 if !self.live.is_empty() => {
                let at = pick(&mut rng, &self.live);
                let span = self.live.swap_remove(at);
                let value = rng.below(40);
                let timeline = timeline % 2;
                let fence = SpaceFence { timeline, value };
                self.space
                    .retire(span.start(), (rng.below(4) > 0).then_some(fence));
                Ok((span.start(), value))
            }
            14 | 15 => Ok((self.space.signalled(timeline, rng.below(40)), 0)),
            16 => {
                self.space.close_generation(generation);
                self.space.remove_timeline(2);
                Ok((0, 0))
            }
            17 => {
                self.space.add_timeline(timeline)?;
                Ok((0, 0))
            }
            18 => {
                let span = Span::new(rng.below(2900), 1 + rng.below(5)).unwrap();
                self.space.reserve(span)?;
                Ok((span.start(), 0))
            }
            19 => {
                let number = rng.below(6);
                let start = 4000 + 50 * number;
                let name = ZONES[2 + usize::try_from(number).unwrap()];
                self.space
                    .add_zone(Zone::between(name, start, start + 40))?;
                Ok((start, 0))
            }
            _ => {
                let zone = ZONES[pick(&mut rng, &ZONES)];
                let size = 1 + rng.below(30);
                let span = self.space.carve(zone, size, 1 + rng.below(4), generation)?;
                self.live.push(span);
                Ok((span.start(), span.len()))
            }
        }
    }

    fn state(&self) -> String {
        self.space.check();
        let gone = [0, 1, 2, 3].map(|generation| self.space.is_gone(generation));
        format!("{:?} {gone:?}", self.space.stats())
    }
}

struct Offsets(FakeOffsets);

impl Subject for Offsets {
    type Answer = u64;

    fn new() -> Result<Self, SpaceError> {
        Ok(Self(FakeOffsets::new()))
    }

    fn frees(&self, mut dice: Rng) -> bool {
        dice.below(10) >= 6
    }

    fn step(&mut self, mut rng: Rng) -> Result<u64, SpaceError> {
        let kind = rng.below(10);
        let (object, client) = (rng.below(60), rng.below(6));
        match kind {
            0..=2 => self.0.add(object, 1 + rng.below(20_000)).map(Span::start),
            3 => self.0.allow(object, client).map(|()| 0),
            4 | 5 => self.0.allow_once(object, client).map(|()| 0),
            6 | 7 => {
                self.0.remove(object);
                Ok(0)
            }
            8 => {
                self.0.revoke(object, client);
                Ok(0)
            }
            _ => {
                self.0.revoke_all(object);
                Ok(0)
            }
        }
    }

    fn state(&self) -> String {
        self.0.check();
        let one = |object: u64| {
            let client = (0..6).map(|client| self.0.is_allowed(object, client));
            (self.0.offsets(object), client.collect::<Vec<_>>())
        };
        format!("{:?}", (0..60).map(one).collect::<Vec<_>>())
    }
}

#[test]
fn ranges_survive_the_loss_of_any_allocation() {
    exhaust::<Ranges>(3, 200);
}

#[test]
fn sub_allocations_survive_the_loss_of_any_allocation() {
    exhaust::<Sub<false>>(6, 2000);
    exhaust::<Sub<true>>(6, 2000);
}

#[test]
fn buddy_blocks_survive_the_loss_of_any_allocation() {
    exhaust::<Blocks<300>>(6, 120);
}

#[test]
fn buddy_blocks_that_are_listed_survive_the_loss_of_any_allocation() {
    exhaust::<Blocks<{ (1 << 52) - 1 }>>(6, 250);
}

#[test]
fn zones_survive_the_loss_of_any_allocation() {
    exhaust::<Addresses>(8, 300);
}

#[test]
fn offsets_survive_the_loss_of_any_allocation() {
    exhaust::<Offsets>(6, 200);
}

#[test]
fn what_needs_no_record_needs_no_memory_either() {
    let mut offsets = FakeOffsets::new();
    let span = offsets.add(1, PAGE).unwrap();
    offsets.allow(1, 7).unwrap();
    let (results, asked) = metered(0, || {
        let known = (offsets.add(1, 9 * PAGE), offsets.allow(1, 7));
        (known, offsets.allow_once(1, 7))
    });
    assert_eq!((results, asked), (((Ok(span), Ok(())), Ok(())), 0));
    let mut space = VaSpace::new(&[Zone::LOW]).unwrap();
    space.add_timeline(1).unwrap();
    assert_eq!(metered(0, || space.add_timeline(1)), (Ok(()), 0));
}

#[test]
fn listed_blocks_that_merge_with_nothing_are_freed_without_memory() {
    // Runs of 1365 chunks, end to end: each is made of a dozen aligned blocks, and while its
    // neighbours live none of them merge.
    const RUN: u64 = 1365 * PAGE;
    let mut space = Buddy::new(1 << 62, PAGE).unwrap();
    let exact = |n: u64| BuddyRequest::new(RUN).within(Span::new(n * RUN, RUN).unwrap());
    let runs: Vec<Block> = (0..2000)
        .map(|n| space.alloc_one(&exact(n)).unwrap())
        .collect();
    let bytes = space.metadata_bytes();
    for part in [0, 1] {
        let contents = [Content::Dirty, Content::Cleared].into_iter().cycle();
        for (&run, content) in runs.iter().skip(part).step_by(2).zip(contents) {
            let ((), asked) = metered(0, || space.free(run.span(), content));
            assert_eq!(asked, 0);
        }
        space.check();
    }
    assert_eq!(
        (space.metadata_bytes(), space.largest_free()),
        (bytes, 1 << 62)
    );
}

#[test]
fn a_tree_that_was_refused_memory_is_taken_down_without_any() {
    for refused in 0.. {
        let mut space = RangeAllocator::new(Span::new(0, 3000).unwrap());
        let mut left = Some(refused);
        for start in 0..3000 {
            let span = Span::new(start, 1).unwrap();
            let allowed = left.unwrap_or(u64::MAX);
            let (result, asked) = metered(allowed, || space.reserve(span, 0));
            left = left.and_then(|left| left.checked_sub(asked));
            if result.is_err() {
                space.reserve(span, 0).unwrap();
            }
        }
        for start in (0..3000).map(|n| n * 7 % 3000) {
            let (_, asked) = metered(0, || space.remove(start).unwrap());
            assert_eq!(asked, 0, "request {refused} refused");
        }
        space.check();
        if left.is_some() {
            assert!(refused > 10, "{refused} requests test nothing");
            break;
        }
    }
}

/// Whether `metadata_bytes` of what `make` makes is the memory that this holds, the value itself
/// counted or not.
fn assert_counts<T>(make: impl FnOnce() -> T, metadata_bytes: impl FnOnce(&T) -> usize) {
    let before = HELD.get();
    let value = make();
    let held = HELD.get().wrapping_sub(before);
    let said = metadata_bytes(&value);
    let inline = size_of::<T>();
    assert!(
        (held..=held + inline).contains(&said),
        "{said} bytes are said to be held, and {held} are"
    );
}

#[test]
fn metadata_bytes_are_the_memory_that_is_held() {
    let sub = || {
        let mut space = SubAllocator::new(1 << 20, 1, Fit::Fast).unwrap();
        (0..1000).for_each(|at| assert!(space.alloc(1 + at % 300, 1).is_ok()));
        space
    };
    assert_counts(sub, SubAllocator::metadata_bytes);
    for chunks in [1, 7, 256, 5000, 1 << 20, 1 << 30] {
        let buddy = || {
            let mut space = Buddy::new(chunks, 1).unwrap();
            while space.free_bytes() > chunks / 2 {
                space
                    .alloc_one(&BuddyRequest::new(1.max(chunks / 500)))
                    .unwrap();
            }
            space
        };
        assert_counts(buddy, Buddy::metadata_bytes);
    }
    for mode in [Mode::Low, Mode::Best] {
        for colors in [1, 3] {
            let ranges = || {
                let mut space = RangeAllocator::new(Span::new(0, 1 << 40).unwrap());
                for at in 0..5000_u32 {
                    let request = RangeRequest::new(u64::from(1 + at % 300)).color(at % colors);
                    space.insert(&request.mode(mode)).unwrap();
                }
                space
            };
            assert_counts(ranges, RangeAllocator::metadata_bytes);
        }
    }
    let offsets = || {
        let mut space = FakeOffsets::new();
        for object in 0..500 {
            space.add(object, 4096).unwrap();
            (0..4).for_each(|client| space.allow(object, client).unwrap());
        }
        space
    };
    assert_counts(offsets, FakeOffsets::metadata_bytes);
    let zones = || {
        let mut space = VaSpace::new(&[Zone::LOW, Zone::HIGH]).unwrap();
        (0..9).for_each(|timeline| space.add_timeline(timeline).unwrap());
        for at in 0..500_u32 {
            let size = u64::from(4096 + at % 9);
            let span = space.carve("low", size, 1, at % 5).unwrap();
            if at % 3 == 0 {
                space.retire(span.start(), None);
            }
        }
        space
    };
    assert_counts(zones, VaSpace::metadata_bytes);
}

#[test]
fn giving_back_needs_no_memory_in_a_clone_either() {
    let mut sub = SubAllocator::new(1000, 1, Fit::Fast).unwrap();
    (0..1000).for_each(|at| assert_eq!(sub.alloc(1, 1), Ok(at)));
    let mut sub = sub.clone();
    let free = || (0..500).for_each(|at| sub.free(2 * at, 1));
    assert_eq!(metered(0, free).1, 0);
    sub.check();

    let mut buddy = Buddy::new(1 << 30, 1).unwrap();
    let take = |_| buddy.alloc_one(&BuddyRequest::new(3)).unwrap().span();
    let blocks: Vec<Span> = (0..500).map(take).collect();
    let mut buddy = buddy.clone();
    let free = || {
        blocks
            .iter()
            .for_each(|&block| buddy.free(block, Content::Cleared))
    };
    assert_eq!(metered(0, free).1, 0);
    buddy.check();

    let mut ranges = RangeAllocator::new(Span::new(0, 1 << 40).unwrap());
    for at in 0..500_u32 {
        let request = RangeRequest::new(5).color(at % 3);
        ranges.insert(&request.mode(Mode::Best)).unwrap();
    }
    let mut ranges = ranges.clone();
    let free = || (0..250).for_each(|at| assert!(ranges.remove(at * 10).is_some()));
    assert_eq!(metered(0, free).1, 0);
    ranges.check();

    let mut space = VaSpace::new(&[Zone::LOW]).unwrap();
    let carve = |at: u32| space.carve("low", 4096, 1, at % 3).unwrap().start();
    let starts: Vec<u64> = (0..500).map(carve).collect();
    let mut space = space.clone();
    let retire = || {
        for &start in &starts {
            space.retire(start, None);
        }
    };
    assert_eq!(metered(0, retire).1, 0);
    space.check();

    let mut offsets = FakeOffsets::new();
    for object in 0..500 {
        offsets.add(object, 4096).unwrap();
        offsets.allow(object, object % 7).unwrap();
    }
    let mut offsets = offsets.clone();
    let remove = || (0..500).for_each(|object| offsets.remove(object));
    assert_eq!(metered(0, remove).1, 0);
    offsets.check();
}
