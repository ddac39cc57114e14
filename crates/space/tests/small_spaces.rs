//! Small spaces, all of them: every request in every state, and every short sequence, against
//! models that look at each cell.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use vrampager_addr::Span;
use vrampager_space::{
    Block, Buddy, BuddyRequest, Conditions, Content, ErrorKind, Mode, RangeAllocator, RangeRequest,
    SpaceError,
};

const MODES: [Mode; 4] = [Mode::Best, Mode::Low, Mode::High, Mode::Evict];

/// What to ask of a range allocator; `RangeRequest` keeps its fields to itself.
#[derive(Clone, Copy, Debug)]
struct Ask {
    size: u64,
    align: u64,
    mode: Mode,
    once: bool,
    window: Span,
}

impl Ask {
    fn request(&self) -> RangeRequest {
        let request = RangeRequest::new(self.size)
            .align(self.align)
            .mode(self.mode)
            .within(self.window);
        if self.once { request.once() } else { request }
    }

    fn assert_no_space(&self, error: &SpaceError, seen: (u64, u64)) {
        let &SpaceError::NoSpace {
            needed,
            free,
            largest,
            conditions,
        } = error
        else {
            panic!("{error} for {self:?}");
        };
        assert_eq!((needed, free, largest), (self.size, seen.0, seen.1));
        let aligned = conditions.contains(Conditions::ALIGN);
        let once = conditions.contains(Conditions::ONCE);
        assert_eq!((aligned, once), (self.align > 1, self.once));
        assert!(conditions.contains(Conditions::WITHIN));
    }

    /// Where the request goes in a hole.
    fn fits(&self, (lo, hi): (u64, u64)) -> Option<u64> {
        let (lo, hi) = (lo.max(self.window.start()), hi.min(self.window.end()));
        let starts = lo..(hi + 1).saturating_sub(self.size);
        let mut starts = starts.filter(|start| start.is_multiple_of(self.align));
        match self.mode {
            Mode::High => starts.next_back(),
            Mode::Best | Mode::Low | Mode::Evict => starts.next(),
        }
    }

    /// The answer, given the holes from the oldest to the newest.
    fn answer(&self, holes: &[(u64, u64)]) -> Option<u64> {
        let mut holes: Vec<_> = holes.to_vec();
        match self.mode {
            Mode::Low => holes.sort_unstable(),
            Mode::High => holes.sort_unstable_by_key(|&(lo, _)| core::cmp::Reverse(lo)),
            Mode::Best => holes.sort_unstable_by_key(|&(lo, hi)| (hi - lo, lo)),
            Mode::Evict => holes.reverse(),
        }
        let (lo, hi) = (self.window.start(), self.window.end());
        let by_address = matches!(self.mode, Mode::Low | Mode::High);
        // In address order the search begins, and ends, with the window.
        holes.retain(|hole| hole.1 - hole.0 >= self.size);
        holes.retain(|hole| !by_address || hole.0 < hi && hole.1 > lo);
        holes.truncate(if self.once { 1 } else { usize::MAX });
        holes.into_iter().find_map(|hole| self.fits(hole))
    }
}

/// Holes of a space of which the set bits are taken, in address order.
fn holes(taken: u64, cells: u64) -> Vec<(u64, u64)> {
    let free = |cell: u64| taken >> cell & 1 == 0;
    let begins = |&cell: &u64| free(cell) && (cell == 0 || !free(cell - 1));
    let hole = |lo: u64| {
        let end = (lo..cells).find(|&cell| !free(cell));
        (lo, end.unwrap_or(cells))
    };
    (0..cells).filter(begins).map(hole).collect()
}

#[test]
fn every_request_in_every_space_of_seven_cells_goes_where_its_mode_says() {
    const CELLS: u64 = 7;
    for taken in 0..1_u64 << CELLS {
        let mut space = RangeAllocator::new(Span::new(0, CELLS).unwrap());
        for cell in (0..CELLS).filter(|cell| taken >> cell & 1 != 0) {
            space.reserve(Span::new(cell, 1).unwrap(), 0).unwrap();
        }
        let windows = (0..=CELLS).flat_map(|lo| (lo..=CELLS).map(move |hi| (lo, hi)));
        for ((lo, hi), size) in windows.flat_map(|window| (1..=CELLS).map(move |s| (window, s))) {
            for (mode, align) in MODES.iter().flat_map(|&m| (1..5).map(move |a| (m, a))) {
                for once in [false, true] {
                    let window = Span::from_bounds(lo, hi).unwrap();
                    let ask = Ask {
                        size,
                        align,
                        mode,
                        once,
                        window,
                    };
                    // Holes made before the first search by length or age count as made in
                    // address order.
                    let expected = ask.answer(&holes(taken, CELLS));
                    let mut space = space.clone();
                    let got = space.insert(&ask.request());
                    let start = got.as_ref().ok().map(|span| span.start());
                    assert_eq!(start, expected, "{ask:?} in {taken:#b}");
                    if let Err(error) = got {
                        if ask.fits((0, CELLS)).is_none() {
                            assert_eq!(error.kind(), ErrorKind::Invalid, "{ask:?}");
                            continue;
                        }
                        let longest = holes(taken, CELLS).into_iter().map(|(lo, hi)| hi - lo);
                        let longest = longest.max().unwrap_or(0);
                        let left = CELLS - u64::from(taken.count_ones());
                        ask.assert_no_space(&error, (left, longest));
                    }
                }
            }
        }
    }
}

/// A range allocator and its holes from the oldest to the newest.
#[derive(Clone)]
struct Aged {
    space: RangeAllocator,
    holes: Vec<(u64, u64)>,
    live: Vec<Span>,
}

impl Aged {
    fn insert(&mut self, ask: &Ask) {
        let expected = ask.answer(&self.holes);
        let got = self.space.insert(&ask.request()).ok();
        assert_eq!(
            got.map(Span::start),
            expected,
            "{ask:?} in {:?}",
            self.holes
        );
        let Some(span) = got else {
            return;
        };
        let around = |&(lo, hi): &(u64, u64)| lo <= span.start() && span.end() <= hi;
        let at = self.holes.iter().position(around).unwrap();
        let (lo, hi) = self.holes.remove(at);
        // What is left of a hole is new, the upper part last.
        self.holes.extend([(lo, span.start()), (span.end(), hi)]);
        self.holes.retain(|(lo, hi)| lo < hi);
        self.live.push(span);
    }

    fn remove(&mut self, at: usize) {
        let span = self.live.remove(at);
        assert_eq!(self.space.remove(span.start()), Some(span));
        let (mut lo, mut hi) = (span.start(), span.end());
        self.holes.retain(|&hole| {
            let joins = hole.1 == lo || hole.0 == hi;
            if joins {
                (lo, hi) = (lo.min(hole.0), hi.max(hole.1));
            }
            !joins
        });
        self.holes.push((lo, hi));
    }

    fn explore(&self, depth: u32) {
        self.space.check();
        if depth == 0 {
            return;
        }
        for (size, mode) in (1..4).flat_map(|size| MODES.map(|mode| (size, mode))) {
            for align in [1, 2] {
                let mut next = self.clone();
                next.insert(&Ask {
                    size,
                    align,
                    mode,
                    once: false,
                    window: self.space.span(),
                });
                next.explore(depth - 1);
            }
        }
        for at in 0..self.live.len() {
            let mut next = self.clone();
            next.remove(at);
            next.explore(depth - 1);
        }
    }
}

#[test]
fn every_sequence_of_four_in_a_space_of_eight_follows_its_modes() {
    // Three ranges live, so that there is something to remove from the first step on.
    let mut start = Aged {
        space: RangeAllocator::new(Span::new(0, 8).unwrap()),
        holes: vec![(0, 8)],
        live: Vec::new(),
    };
    for (size, mode) in [(1, Mode::Best), (2, Mode::High), (1, Mode::Evict)] {
        start.insert(&Ask {
            size,
            align: 1,
            mode,
            once: false,
            window: start.space.span(),
        });
    }
    start.explore(4);
}

/// A buddy allocator and, for each chunk, whether it is free and whether it is clear.
#[derive(Clone)]
struct Chunks {
    space: Buddy,
    free: Vec<bool>,
    clear: Vec<bool>,
    live: Vec<Block>,
}

impl Chunks {
    fn new(chunks: usize) -> Self {
        Self {
            space: Buddy::new(chunks as u64, 1).unwrap(),
            free: vec![true; chunks],
            clear: vec![false; chunks],
            live: Vec::new(),
        }
    }

    fn cells(block: &Block) -> std::ops::Range<usize> {
        let start = usize::try_from(block.offset).unwrap();
        start..start + usize::try_from(block.size).unwrap()
    }

    fn count(&self) -> usize {
        self.free.iter().filter(|&&free| free).count()
    }

    /// Length of the longest aligned block that is all free: buddies always merge.
    fn largest(&self) -> usize {
        let blocks = (0..8).flat_map(|order| {
            let len = 1 << order;
            (0..self.free.len() / len).map(move |index| index * len..(index + 1) * len)
        });
        let free = blocks.filter(|block| self.free[block.clone()].iter().all(|&free| free));
        free.map(|block| block.len()).max().unwrap_or(0)
    }

    fn alloc(&mut self, size: usize, kind: u32) {
        let mut request = BuddyRequest::new(size as u64);
        let any_clear = self
            .free
            .iter()
            .zip(&self.clear)
            .any(|(&free, &clear)| free && clear);
        let runs = self
            .free
            .windows(size)
            .any(|run| run.iter().all(|&free| free));
        match kind {
            0 => {}
            1 => request = request.contiguous(),
            2 => request = request.top_down(),
            _ => request = request.prefer(Content::Cleared),
        }
        let expected = if kind == 1 {
            runs
        } else {
            size <= self.count()
        };
        let got = self.space.alloc(&request);
        assert_eq!(got.is_ok(), expected, "{request:?} in {:?}", self.free);
        let blocks = got.unwrap_or_default();
        assert!(blocks.len() < 2 || kind != 1);
        if kind == 3 && size == 1 && any_clear {
            assert_eq!(blocks[0].content, Content::Cleared);
        }
        assert!(blocks.is_empty() || blocks.iter().map(|b| b.size).sum::<u64>() == size as u64);
        for block in blocks {
            let clear = Self::cells(&block).all(|cell| self.clear[cell]);
            assert_eq!(block.content == Content::Cleared, clear);
            for cell in Self::cells(&block) {
                assert!(std::mem::replace(&mut self.free[cell], false));
                self.clear[cell] = false;
            }
            self.live.push(block);
        }
    }

    fn free(&mut self, at: usize, content: Content) {
        let block = self.live.remove(at);
        self.space.free(block.span(), content);
        for cell in Self::cells(&block) {
            self.free[cell] = true;
            self.clear[cell] = content == Content::Cleared;
        }
    }

    fn explore(&self, depth: u32) {
        self.space.check();
        let clear = self.clear.iter().filter(|&&clear| clear).count() as u64;
        assert_eq!(self.space.cleared_bytes(), clear);
        assert_eq!(self.space.free_bytes(), self.count() as u64);
        assert_eq!(self.space.largest_free(), self.largest() as u64);
        if depth == 0 {
            return;
        }
        for (size, kind) in (1..5).flat_map(|size| (0..4).map(move |kind| (size, kind))) {
            let mut next = self.clone();
            next.alloc(size, kind);
            next.explore(depth - 1);
        }
        for at in 0..self.live.len() {
            for content in [Content::Dirty, Content::Cleared] {
                let mut next = self.clone();
                next.free(at, content);
                next.explore(depth - 1);
            }
        }
    }
}

#[test]
fn every_sequence_of_four_keeps_a_buddy_of_six_to_eight_chunks_right() {
    for chunks in 6..=8 {
        // Some of it is clear from the start, and some of it live.
        let mut start = Chunks::new(chunks);
        for size in [1, 3, 1] {
            start.alloc(size, 0);
        }
        start.free(1, Content::Cleared);
        start.explore(4);
    }
}
