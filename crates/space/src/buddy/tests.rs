use std::vec;
use std::vec::Vec;

use super::*;
use crate::testing::{Rng, assert_subquadratic};

const PAGE: u64 = 4096;

fn pages(count: u64) -> BuddyRequest {
    BuddyRequest::new(count * PAGE)
}

#[test]
fn sizes_that_no_block_can_be_rounded_up_to_are_refused() {
    let mut mm = Buddy::new(u64::MAX, 1).unwrap();
    let size = (1 << 63) + 1;
    let request = BuddyRequest::new(size).min_block(1 << 63);
    let invalid = |argument, value| Err(SpaceError::Invalid { argument, value });
    assert_eq!(mm.alloc(&request), invalid("min_block", 1 << 63));
    assert_eq!(mm.alloc(&pages(1).align(3)), invalid("align", 3));
    let far = BuddyRequest::new(size).contiguous().align(1 << 63);
    assert_eq!(mm.alloc(&far).unwrap()[0].offset, 0);
    mm.check();
}

#[test]
fn a_run_that_would_end_past_two_to_the_64_is_not_looked_at() {
    let mut mm = Buddy::new(u64::MAX, 1).unwrap();
    let all = mm.alloc_one(&BuddyRequest::new(u64::MAX)).unwrap();
    assert_eq!((all.offset, all.size), (0, u64::MAX));
    mm.free(all.span(), Content::Dirty);
    mm.alloc_one(&BuddyRequest::new(1 << 63)).unwrap();
    let middle = Span::new(1 << 63, 1).unwrap();
    mm.alloc_one(&BuddyRequest::new(1).within(middle)).unwrap();
    let far = mm.alloc_one(&BuddyRequest::new(3).align(1 << 63));
    assert!(matches!(far, Err(SpaceError::NoSpace { .. })), "{far:?}");
    mm.check();
}

/// All combinations of what a request may say, near the ends of 64 bits.
fn edge_requests(chunk: u64) -> impl Iterator<Item = BuddyRequest> {
    let top = !(chunk - 1);
    let half = 1 << 63;
    let sizes = [
        chunk,
        3 * chunk,
        half - chunk,
        half,
        half + chunk,
        top - chunk,
        top,
    ];
    let powers = [1, 2, 1 << 32, 1 << 62, half];
    let spans = [
        (0, top),
        (chunk, top),
        (half, top),
        (half - chunk, half + chunk),
    ];
    let spans = spans.map(|(lo, hi)| Span::from_bounds(lo, hi));
    let limited = move |request: BuddyRequest| {
        let within = spans.into_iter().flatten();
        let within = within.map(move |span| request.within(span));
        [request].into_iter().chain(within)
    };
    sizes
        .into_iter()
        .flat_map(move |size| powers.map(|align| BuddyRequest::new(size).align(align)))
        .flat_map(move |request| [request, request.min_block(chunk), request.min_block(half)])
        .flat_map(limited)
        .flat_map(|request| [request, request.contiguous()])
        .flat_map(|request| [request, request.top_down()])
}

#[test]
fn requests_near_two_to_the_64_are_served_or_refused_in_any_state() {
    for (size, chunk) in [
        (u64::MAX, 1),
        (u64::MAX - 1, 1),
        (1 << 63, 1),
        (u64::MAX, PAGE),
    ] {
        let empty = Buddy::new(size, chunk).unwrap();
        let top = empty.size() - chunk;
        let live = |places: &[u64]| {
            let mut mm = empty.clone();
            for &place in places {
                let there = Span::new(place, chunk).unwrap();
                mm.alloc_one(&BuddyRequest::new(chunk).within(there))
                    .unwrap();
            }
            mm
        };
        // All that is free begins just behind the middle.
        let mut upper = empty.clone();
        upper.alloc_one(&BuddyRequest::new(1 << 63)).unwrap();
        let middle = Span::new(1 << 63, chunk).filter(|middle| middle.end() <= size);
        if let Some(middle) = middle {
            let there = BuddyRequest::new(chunk).within(middle);
            upper.alloc_one(&there).unwrap();
        }
        for mm in [
            live(&[]),
            live(&[0]),
            live(&[top]),
            live(&[1 << 62, top]),
            upper,
        ] {
            for request in edge_requests(chunk) {
                let mut mm = mm.clone();
                let before = (mm.free_bytes(), mm.largest_free());
                for block in mm.alloc(&request).unwrap_or_default() {
                    mm.check();
                    mm.free(block.span(), Content::Dirty);
                }
                assert_eq!((mm.free_bytes(), mm.largest_free()), before, "{request:?}");
            }
        }
    }
}

#[test]
fn a_two_to_the_64_space_has_order_51_and_hands_it_out() {
    let mut mm = Buddy::new(u64::MAX, PAGE).unwrap();
    assert_eq!(mm.max_order(), 51);
    let blocks = mm.alloc(&BuddyRequest::new(1 << 63)).unwrap();
    assert_eq!((blocks.len(), blocks[0].size), (1, 1 << 63));
    mm.check();
}

#[test]
fn one_block_of_every_order_fills_an_odd_space() {
    let mut mm = Buddy::new(PAGE * ((1 << 17) - 1), PAGE).unwrap();
    assert_eq!(mm.max_order(), 16);
    for order in 0..=16 {
        mm.alloc(&pages(1 << order)).unwrap();
    }
    assert!(matches!(
        mm.alloc(&pages(1)),
        Err(SpaceError::NoSpace { free: 0, .. })
    ));
}

#[test]
fn contiguous_requests_use_runs_across_blocks() {
    let mut mm = Buddy::new(PAGE * 48, PAGE).unwrap();
    let mut lists: [Vec<Block>; 3] = Default::default();
    for page in 0..48 {
        lists[page % 3].extend(mm.alloc(&pages(1)).unwrap());
    }
    let [left, middle, right] = lists;
    let give = |mm: &mut Buddy, list: Vec<Block>| {
        list.into_iter()
            .for_each(|block| mm.free(block.span(), Content::Dirty));
    };
    assert!(mm.alloc(&pages(3).contiguous()).is_err());
    give(&mut mm, middle);
    assert!(mm.alloc(&pages(3).contiguous()).is_err());
    assert!(mm.alloc(&pages(2).contiguous()).is_err());
    give(&mut mm, right);
    assert!(mm.alloc(&pages(3).contiguous()).is_err());
    let two = mm.alloc(&pages(2).contiguous()).unwrap();
    give(&mut mm, left);
    let three = mm.alloc(&pages(3).contiguous()).unwrap();
    assert_eq!(two[0].size + three[0].size, 5 * PAGE);
    mm.check();
}

#[test]
fn a_refusal_tells_of_the_space_as_it_was_before_the_blocks_that_did_not_suffice() {
    let mut mm = Buddy::new(8 * PAGE, PAGE).unwrap();
    for page in [5, 7] {
        let there = Span::new(page * PAGE, PAGE).unwrap();
        mm.alloc(&pages(1).within(there)).unwrap();
    }
    let all = Span::new(0, 8 * PAGE).unwrap();
    let pairs = pages(6).min_block(2 * PAGE);
    for request in [pairs, pairs.within(all), pages(6).align(2 * PAGE)] {
        let Err(SpaceError::NoSpace { free, largest, .. }) = mm.alloc(&request) else {
            panic!("{request:?} is served");
        };
        assert_eq!((free, largest), (6 * PAGE, 4 * PAGE), "{request:?}");
    }
}

#[test]
fn an_invalid_request_names_the_argument_at_fault_and_its_value() {
    let mut mm = Buddy::new(12 * PAGE, PAGE).unwrap();
    let within =
        |request: BuddyRequest, start, end| request.within(Span::from_bounds(start, end).unwrap());
    for (request, argument, value) in [
        (BuddyRequest::new(5000), "size", 5000),
        (pages(13), "size", 13 * PAGE),
        (pages(13).min_block(16 * PAGE), "size", 13 * PAGE),
        (pages(1).min_block(16 * PAGE), "min_block", 16 * PAGE),
        (pages(9).min_block(8 * PAGE), "min_block", 8 * PAGE),
        (pages(1).min_block(3 * PAGE), "min_block", 3 * PAGE),
        (pages(3).align(8 * PAGE), "align", 8 * PAGE),
        (pages(1).align(3), "align", 3),
        (pages(1).align(u64::MAX), "align", u64::MAX),
        (within(pages(1), 0, 2 * PAGE - 1), "within", 2 * PAGE - 1),
        (within(pages(1), 1, 2 * PAGE), "within", 1),
        (within(pages(3), PAGE, 3 * PAGE), "within", 2 * PAGE),
        (
            within(pages(3).min_block(2 * PAGE), 0, 3 * PAGE),
            "within",
            3 * PAGE,
        ),
        (
            within(pages(2).min_block(2 * PAGE), PAGE, 3 * PAGE),
            "within",
            PAGE,
        ),
        (
            within(pages(1).align(2 * PAGE), PAGE, 2 * PAGE),
            "within",
            PAGE,
        ),
        (
            within(pages(1).align(4 * PAGE), PAGE, 4 * PAGE),
            "within",
            3 * PAGE,
        ),
        (
            within(pages(3).contiguous(), PAGE, 5 * PAGE),
            "within",
            4 * PAGE,
        ),
        (
            within(pages(9).contiguous(), 0, 12 * PAGE),
            "size",
            9 * PAGE,
        ),
    ] {
        let expected = Err(SpaceError::Invalid { argument, value });
        assert_eq!(mm.alloc(&request), expected, "{request:?}");
    }
    let block = mm.alloc_one(&pages(4)).unwrap();
    let at = block.offset;
    for (start, len, value) in [
        (at, 5 * PAGE, 5 * PAGE),
        (at + PAGE, 4 * PAGE, 4 * PAGE),
        (at + PAGE, 0, 0),
        (at + PAGE, 5, 5),
        (at + 5, PAGE, at + 5),
        (at - PAGE, PAGE, at - PAGE),
        (at + 4 * PAGE, PAGE, at + 4 * PAGE),
    ] {
        let keep = Span::new(start, len).unwrap();
        let argument = "keep";
        let expected = Err(SpaceError::Invalid { argument, value });
        assert_eq!(
            mm.trim(block.span(), keep, Content::Dirty),
            expected,
            "{keep:?}"
        );
    }
}

/// Whether the request could be served if nothing were live, by trying.
fn empty_space_serves(request: &BuddyRequest, chunks: u64) -> bool {
    let mut empty = Buddy::new(chunks * PAGE, PAGE).unwrap();
    empty.alloc(request).is_ok()
}

#[test]
fn debug_output_is_short_however_large_the_space() {
    let mut mm = Buddy::new(1 << 34, PAGE).unwrap();
    for block in mm.alloc(&pages(5)).unwrap() {
        mm.free(block.span(), Content::Cleared);
    }
    mm.alloc(&pages(2)).unwrap();
    let text = std::format!("{mm:?}");
    assert!(text.len() < 1000, "{} bytes", text.len());
    assert!(
        text.contains("free_bytes: 17179860992, cleared_bytes: "),
        "{text}"
    );
    assert!(text.contains("free_blocks: [0, 1, 1, 1, "), "{text}");
}

#[test]
fn the_highest_three_pages_lie_at_the_bottom_of_the_highest_four() {
    let mut mm = Buddy::new(16 * PAGE, PAGE).unwrap();
    let run = mm.alloc_one(&pages(3).top_down()).unwrap();
    assert_eq!((run.offset, run.size), (12 * PAGE, 3 * PAGE));
    let page = mm.alloc_one(&pages(1).top_down()).unwrap();
    assert_eq!(page.offset, 15 * PAGE);
}

#[test]
#[should_panic(expected = "is not live")]
fn freeing_a_block_twice_is_a_bug() {
    let mut mm = Buddy::new(PAGE * 16, PAGE).unwrap();
    let block = mm.alloc(&pages(2)).unwrap()[0];
    mm.free(block.span(), Content::Dirty);
    mm.free(block.span(), Content::Dirty);
}

/// All records, to compare.
fn records(mm: &Buddy) -> std::string::String {
    std::format!("{:?}", (&mm.map, &mm.live, &mm.quick, mm.held))
}

/// Whether freeing `block` is refused, and changes nothing.
fn is_refused(mm: &mut Buddy, block: Span) -> bool {
    let before = records(mm);
    let free = std::panic::AssertUnwindSafe(|| mm.free(block, Content::Dirty));
    let refused = std::panic::catch_unwind(free).is_err();
    assert!(!refused || records(mm) == before);
    mm.check();
    refused
}

#[test]
fn a_copy_from_before_a_trim_can_not_be_freed() {
    let lists = Buddy::with_lists(1024, PAGE.ilog2());
    for mut mm in [Buddy::new(1024 * PAGE, PAGE), lists].map(Result::unwrap) {
        for (whole, keep) in [(2, 1), (64, 5), (64, 63), (65, 64), (512, 65), (512, 511)] {
            let old = mm.alloc_one(&pages(whole)).unwrap().span();
            let keep = Span::new(old.start(), keep * PAGE).unwrap();
            mm.trim(old, keep, Content::Dirty).unwrap();
            assert!(is_refused(&mut mm, old), "the tail is free");
            // Then the tail is somebody else's, to the same end.
            let tail = Span::from_bounds(keep.end(), old.end()).unwrap();
            let tail = mm
                .alloc_one(&BuddyRequest::new(tail.len()).within(tail))
                .unwrap();
            assert!(is_refused(&mut mm, old), "the tail is live");
            for len in [old.len() + PAGE, keep.len() - 1] {
                let other = Span::new(old.start(), len).unwrap();
                assert!(is_refused(&mut mm, other), "{other:?} is no block");
            }
            mm.free(tail.span(), Content::Dirty);
            mm.free(keep, Content::Dirty);
            assert!(is_refused(&mut mm, keep));
            assert_eq!(mm.free_bytes(), mm.size());
        }
    }
}

#[test]
fn a_copy_from_before_a_trim_can_not_be_trimmed() {
    let mut mm = Buddy::new(64 * PAGE, PAGE).unwrap();
    let old = mm.alloc_one(&pages(8)).unwrap().span();
    let keep = Span::new(0, PAGE).unwrap();
    mm.trim(old, keep, Content::Dirty).unwrap();
    let before = records(&mm);
    let again = std::panic::AssertUnwindSafe(|| mm.trim(old, keep, Content::Dirty));
    assert!(std::panic::catch_unwind(again).is_err());
    assert_eq!(records(&mm), before);
}

#[test]
fn cleared_and_dirty_requests_do_not_mix_while_both_kinds_last() {
    let mut mm = Buddy::new(PAGE << 12, PAGE).unwrap();
    for block in mm.alloc(&pages(5).top_down()).unwrap() {
        mm.free(block.span(), Content::Cleared);
    }
    assert_eq!(mm.cleared_bytes(), 5 * PAGE);
    let mut clear = Vec::new();
    for _ in 0..5 {
        let dirty = mm.alloc(&pages(1)).unwrap();
        assert_eq!(dirty[0].content, Content::Dirty);
        let got = mm.alloc(&pages(1).prefer(Content::Cleared)).unwrap();
        assert_eq!(got[0].content, Content::Cleared);
        clear.extend(got);
        mm.check();
    }
    assert_eq!(mm.cleared_bytes(), 0);
    clear
        .into_iter()
        .for_each(|block| mm.free(block.span(), Content::Cleared));
    assert_eq!(mm.cleared_bytes(), 5 * PAGE);
    mm.reset(Content::Cleared);
    assert_eq!(mm.cleared_bytes(), mm.free_bytes());
    mm.check();
}

/// Who owns each chunk, and whether it is known to be zero: all a buddy allocator promises.
struct Model {
    owner: Vec<Option<usize>>,
    clear: Vec<bool>,
}

impl Model {
    fn chunks(block: Block) -> core::ops::Range<usize> {
        let first = usize::try_from(block.offset / PAGE).unwrap();
        first..first + usize::try_from(block.size / PAGE).unwrap()
    }

    fn take(&mut self, block: Block, id: usize) {
        let all_clear = Self::chunks(block).all(|chunk| self.clear[chunk]);
        assert_eq!(
            block.content == Content::Cleared,
            all_clear,
            "content of {block:?}"
        );
        for chunk in Self::chunks(block) {
            assert_eq!(
                self.owner[chunk].replace(id),
                None,
                "chunk {chunk} was not free"
            );
            self.clear[chunk] = false;
        }
    }

    fn give(&mut self, block: Block, content: Content) {
        for chunk in Self::chunks(block) {
            assert!(self.owner[chunk].take().is_some());
            self.clear[chunk] = content == Content::Cleared;
        }
    }

    fn agree(&self, mm: &Buddy) {
        let free = self.owner.iter().filter(|owner| owner.is_none()).count() as u64;
        let clear = self.clear.iter().filter(|&&clear| clear).count() as u64;
        assert_eq!(
            (mm.free_bytes(), mm.cleared_bytes()),
            (free * PAGE, clear * PAGE)
        );
    }
}

fn random_request(rng: &mut Rng, chunks: u64) -> BuddyRequest {
    let most = 1 + rng.below(chunks);
    let size = 1 + rng.below(most);
    let mut request = pages(size);
    if rng.below(3) == 0 {
        request = request.contiguous();
    }
    if rng.below(3) == 0 {
        request = request.top_down();
    }
    if rng.below(3) == 0 {
        request = request.prefer(Content::Cleared);
    }
    if rng.below(4) == 0 {
        request = request.min_block(PAGE << rng.below(4));
    }
    if rng.below(4) == 0 {
        request = request.align(PAGE << rng.below(5));
    }
    if rng.below(4) == 0 {
        let start = rng.below(chunks);
        let len = size.max(1 + rng.below(chunks - start)).min(chunks - start);
        request = request.within(Span::new(start * PAGE, len * PAGE).unwrap());
    }
    request
}

#[test]
fn random_operations_agree_with_an_ownership_table() {
    for seed in 0..60 {
        churn(seed, |chunks| Buddy::new(chunks * PAGE, PAGE));
        churn(seed, |chunks| Buddy::with_lists(chunks, PAGE.ilog2()));
    }
}

#[test]
fn bitmaps_and_lists_give_the_same_answers() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let chunks = 1 + rng.below(200);
        let mut one = Buddy::new(chunks * PAGE, PAGE).unwrap();
        let mut other = Buddy::with_lists(chunks, PAGE.ilog2()).unwrap();
        let mut live: Vec<Span> = Vec::new();
        for _ in 0..300 {
            let content = if rng.below(2) == 0 {
                Content::Dirty
            } else {
                Content::Cleared
            };
            match rng.below(8) {
                0..=3 => {
                    let request = random_request(&mut rng, chunks);
                    let got = one.alloc(&request);
                    assert_eq!(got, other.alloc(&request), "seed {seed} {request:?}");
                    live.extend(got.unwrap_or_default().iter().map(Block::span));
                }
                7 if rng.below(10) == 0 => {
                    one.reset(content);
                    other.reset(content);
                }
                kind if !live.is_empty() => {
                    let pick = usize::try_from(rng.below(live.len() as u64)).unwrap();
                    let block = live.swap_remove(pick);
                    if kind == 7 {
                        let from = block.start() + rng.below(block.len() / PAGE) * PAGE;
                        let most = (block.end() - from) / PAGE;
                        let keep = Span::new(from, (1 + rng.below(most)) * PAGE).unwrap();
                        let kept = one.trim(block, keep, content);
                        assert_eq!(kept, other.trim(block, keep, content));
                        live.extend(kept.map(|()| keep));
                    } else {
                        one.free(block, content);
                        other.free(block, content);
                    }
                }
                _ => {}
            }
            assert_eq!(one.cleared_bytes(), other.cleared_bytes());
            assert_eq!(one.free_bytes(), other.free_bytes());
            assert_eq!(one.largest_free(), other.largest_free());
            one.check();
            other.check();
        }
    }
}

fn churn(seed: u64, make: impl Fn(u64) -> Result<Buddy, SpaceError>) {
    let mut rng = Rng(seed);
    let chunks = 1 + rng.below(200);
    let mut mm = make(chunks).unwrap();
    let count = usize::try_from(chunks).unwrap();
    let mut model = Model {
        owner: vec![None; count],
        clear: vec![false; count],
    };
    let mut live: Vec<Block> = Vec::new();
    for step in 0..400 {
        let before = (mm.free_bytes(), mm.largest_free());
        if rng.below(5) < 3 {
            let request = random_request(&mut rng, chunks);
            let answer = if request.contiguous && rng.below(2) == 0 {
                mm.alloc_one(&request).map(|block| vec![block])
            } else {
                mm.alloc(&request)
            };
            match answer {
                Ok(blocks) => {
                    let got: u64 = blocks.iter().map(|block| block.size).sum();
                    assert_eq!(got, request.size, "seed {seed} step {step}");
                    assert!(!request.contiguous || blocks.len() == 1);
                    for block in blocks {
                        assert_eq!(block.offset % request.align.max(PAGE), 0);
                        assert!(request.within.is_none_or(|span| span.covers(block.span())));
                        model.take(block, step);
                        live.push(block);
                    }
                }
                Err(error) => {
                    assert_eq!((mm.free_bytes(), mm.largest_free()), before);
                    // What freeing everything would not help is not called a lack of space.
                    let is_no_space = error.kind() == crate::ErrorKind::NoSpace;
                    assert_eq!(is_no_space, empty_space_serves(&request, chunks));
                    if let SpaceError::NoSpace { free, largest, .. } = error {
                        assert_eq!((free, largest), before, "seed {seed} {request:?}");
                    }
                }
            }
        } else if !live.is_empty() {
            let pick = usize::try_from(rng.below(live.len() as u64)).unwrap();
            let block = live.swap_remove(pick);
            let content = if rng.below(2) == 0 {
                Content::Dirty
            } else {
                Content::Cleared
            };
            mm.free(block.span(), content);
            model.give(block, content);
        }
        mm.check();
        model.agree(&mm);
    }
    for block in live {
        mm.free(block.span(), Content::Dirty);
    }
    mm.check();
    assert_eq!(mm.free_bytes(), mm.size());
}

#[test]
fn spaced_small_blocks_take_no_longer_for_being_many() {
    // 4 GiB of 8 KiB blocks at 64 KiB spacing: the kernel's sorted lists were quadratic here.
    let spaced = BuddyRequest::new(8192).align(64 << 10).contiguous();
    type Make = fn(u64) -> Result<Buddy, SpaceError>;
    let bits: Make = |count| Buddy::new(count << 16, PAGE);
    let lists: Make = |count| Buddy::with_lists(count << 4, PAGE.ilog2());
    for (make, smallest) in [(bits, 1 << 12), (lists, 1 << 9)] {
        let fill_and_empty = |mm: &mut Buddy, count: u64| {
            let all: Vec<Block> = (0..count).map(|_| mm.alloc_one(&spaced).unwrap()).collect();
            assert!(mm.alloc_one(&spaced).is_err());
            all.into_iter()
                .for_each(|block| mm.free(block.span(), Content::Dirty));
            assert_eq!(mm.largest_free(), mm.size());
        };
        assert_subquadratic(smallest, |count| make(count).unwrap(), fill_and_empty);
    }
}

/// A space full of blocks of one page.
fn full(count: u64) -> (Buddy, Vec<Block>) {
    let mut mm = Buddy::new(count * PAGE, PAGE).unwrap();
    let blocks = (0..count).map(|_| mm.alloc_one(&pages(1)).unwrap());
    let blocks = blocks.collect();
    (mm, blocks)
}

#[test]
fn a_block_that_was_freed_lately_is_handed_out_first() {
    let (mut mm, blocks) = full(64);
    for at in [40, 3, 20] {
        mm.free(blocks[at].span(), Content::Dirty);
    }
    assert_eq!(mm.alloc_one(&pages(1)), Ok(blocks[20]));
    assert_eq!(mm.alloc(&pages(1)), Ok(vec![blocks[3]]));
    assert_eq!(mm.alloc_one(&pages(1)), Ok(blocks[40]));
    assert_eq!(mm.free_bytes(), 0);
    mm.check();
}

#[test]
fn blocks_that_wait_are_merged_before_any_but_a_plain_request() {
    let four = BuddyRequest::new(4 * PAGE);
    let one = BuddyRequest::new(PAGE);
    let requests = [
        (four, 8),
        (four.contiguous(), 8),
        (four.align(2 * PAGE), 8),
        (four.min_block(4 * PAGE), 8),
        (four.within(Span::new(8 * PAGE, 4 * PAGE).unwrap()), 8),
        (one.top_down(), 11),
        (one.prefer(Content::Cleared), 8),
    ];
    for (request, expected) in requests {
        let (mut mm, blocks) = full(16);
        // The highest is not the one that was freed last.
        for at in [9, 11, 10, 8] {
            mm.free(blocks[at].span(), Content::Dirty);
        }
        assert_eq!((mm.free_bytes(), mm.largest_free()), (4 * PAGE, 4 * PAGE));
        let found = mm.alloc(&request).unwrap();
        assert_eq!((found.len(), found[0].offset), (1, expected * PAGE));
        mm.check();
    }
}

#[test]
fn a_block_that_waits_to_be_merged_is_not_live() {
    let uses: [fn(&mut Buddy, Block); 3] = [
        |mm, block| mm.free(block.span(), Content::Dirty),
        |mm, block| mm.free(block.span(), Content::Cleared),
        |mm, block| {
            mm.trim(block.span(), block.span(), Content::Dirty).unwrap();
        },
    ];
    for wrong in uses {
        let (mut mm, blocks) = full(16);
        mm.free(blocks[5].span(), Content::Dirty);
        let again = std::panic::AssertUnwindSafe(|| wrong(&mut mm, blocks[5]));
        assert!(std::panic::catch_unwind(again).is_err());
        assert_eq!(mm.free_bytes(), PAGE);
        mm.check();
        assert_eq!(mm.alloc_one(&pages(1)), Ok(blocks[5]));
    }
}

#[test]
fn a_list_that_is_full_gives_its_oldest_block_to_be_merged() {
    let (mut mm, blocks) = full(64);
    for &block in &blocks[..32] {
        mm.free(block.span(), Content::Dirty);
    }
    assert_eq!(mm.quick.len(), 7);
    assert_eq!(mm.largest_free(), 32 * PAGE);
    mm.check();
    let four = mm.alloc_one(&pages(4)).unwrap();
    assert_eq!(four.offset, 16 * PAGE, "from what has been merged");
    for page in (25..32).rev() {
        assert_eq!(mm.alloc_one(&pages(1)), Ok(blocks[page]));
    }
    mm.check();
}

#[test]
fn chunks_around_two_to_the_32_are_handed_out_and_given_back() {
    let mut mm = Buddy::new(1 << 33, 1).unwrap();
    for first in [u32::MAX - 1, u32::MAX]
        .map(u64::from)
        .into_iter()
        .chain([1 << 32])
    {
        let there = Span::new(first, 1).unwrap();
        for _ in 0..2 {
            let block = mm.alloc_one(&BuddyRequest::new(1).within(there)).unwrap();
            assert_eq!(block.span(), there);
            mm.free(there, Content::Dirty);
            assert!(is_refused(&mut mm, there));
        }
    }
    assert_eq!(mm.largest_free(), mm.size());
}

#[test]
fn a_block_that_waits_is_only_for_who_asks_for_exactly_such_a_one() {
    let (mut mm, blocks) = full(16);
    mm.free(blocks[5].span(), Content::Dirty);
    for wrong in [pages(1).min_block(2 * PAGE), pages(1).align(2 * PAGE)] {
        let error = mm.alloc_one(&wrong).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NoSpace, "{wrong:?}");
        mm.alloc_one(&pages(1)).unwrap();
        mm.free(blocks[5].span(), Content::Dirty);
    }
    for size in [PAGE - 1, PAGE + 1, 2 * PAGE - 1] {
        let error = mm.alloc_one(&BuddyRequest::new(size)).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{size}");
    }
}

#[test]
fn a_reset_reaches_blocks_that_wait() {
    let (mut mm, blocks) = full(16);
    mm.free(blocks[5].span(), Content::Dirty);
    mm.reset(Content::Cleared);
    assert_eq!(mm.cleared_bytes(), PAGE);
    let block = mm.alloc_one(&pages(1)).unwrap();
    assert_eq!(
        (block.span(), block.content),
        (blocks[5].span(), Content::Cleared)
    );
}
