//! Free blocks of a buddy allocator, in chunks: split, merge and content classes.

use alloc::vec::Vec;

use super::blocks::{Blocks, Class, FREE, Node};
use super::live::Live;
use crate::SpaceError;

/// Which of several equally good chunks to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Low,
    High,
}

/// What to look for, whatever the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Stay inside these chunks.
    pub(super) window: Option<(u64, u64)>,
    pub(super) end: End,
    pub(super) clear: bool,
}

/// Part of a free block that may be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    class: Class,
    block: Node,
    target: Node,
}

/// The free part of a space of `chunks` chunks.
///
/// # Invariants
/// Free blocks do not overlap, and two buddies are never both free (they are one block). A mixed
/// block holds at least one clear and one dirty chunk; its clear chunks are listed as pieces,
/// which are maximal aligned blocks. Clear and dirty blocks list no pieces.
#[derive(Clone, Debug)]
pub(super) struct FreeMap {
    blocks: Blocks,
    max_order: u32,
    free_chunks: u64,
    clear_chunks: u64,
}

/// Blocks that may have to be listed while a request takes one block and what is left of it is
/// put back: siblings on the way down to either end of a run, the tail of the last part, and what
/// the block will be made of when it is freed.
pub(super) const SLACK: usize = 6 * 64;

impl FreeMap {
    pub(super) fn new(chunks: u64, blocks: Blocks) -> Result<Self, SpaceError> {
        let mut map = Self {
            blocks,
            max_order: chunks.ilog2(),
            free_chunks: 0,
            clear_chunks: 0,
        };
        map.blocks.reserve(SLACK)?;
        map.give(0, chunks, Class::Dirty);
        Ok(map)
    }

    /// Whether blocks are listed, which takes memory for each.
    pub(super) fn is_listed(&self) -> bool {
        self.blocks.is_listed()
    }

    /// Makes sure that `count` more blocks can be listed.
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), SpaceError> {
        self.blocks.reserve(count)
    }

    /// How many blocks [`give`](Self::give) may list.
    pub(super) fn parts(&self, first: u64, count: u64) -> usize {
        let (mut end, mut parts) = (first + count, 0);
        while end > first {
            end -= 1 << self.order_before(end, first);
            parts += 1;
        }
        parts
    }

    /// The order of the largest aligned block that ends at `end` and does not start before `first`.
    #[inline]
    fn order_before(&self, end: u64, first: u64) -> u32 {
        (end - first)
            .ilog2()
            .min(end.trailing_zeros())
            .min(self.max_order)
    }

    pub(super) fn max_order(&self) -> u32 {
        self.max_order
    }

    pub(super) fn free_chunks(&self) -> u64 {
        self.free_chunks
    }

    pub(super) fn clear_chunks(&self) -> u64 {
        self.clear_chunks
    }

    /// Chunks in the largest free block.
    pub(super) fn largest(&self) -> u64 {
        self.blocks
            .free_mask()
            .checked_ilog2()
            .map_or(0, |order| 1 << order)
    }

    /// Makes `count` chunks from `first` free, all of one class.
    #[inline]
    pub(super) fn give(&mut self, first: u64, count: u64, class: Class) {
        self.free_chunks += count;
        if class == Class::Clear {
            self.clear_chunks += count;
        }
        // From the end: what a run was cut from continues behind it.
        let mut end = first + count;
        while end > first {
            let order = self.order_before(end, first);
            let index = (end >> order) - 1;
            end = self.merge(Node { order, index }, class, first);
        }
    }

    /// Adds the free block at the end of a run that starts at `first`, joined with its buddy for as
    /// long as that is free too, or in the run. Returns where the rest of the run ends.
    #[inline]
    fn merge(&mut self, node: Node, class: Class, first: u64) -> u64 {
        let others = self.blocks.mask(Class::Mixed) | self.blocks.mask(Class::Clear);
        let max_order = self.max_order;
        // While nothing is known to be clear there is one class to look for.
        if others == 0
            && class == Class::Dirty
            && let Some(dirty) = self.blocks.dense(class)
        {
            return dirty.merge(node, first, max_order);
        }
        self.merge_classes(node, class, first)
    }

    #[inline(never)]
    fn merge_classes(&mut self, mut node: Node, given: Class, first: u64) -> u64 {
        let (mut class, mut end) = (given, node.first());
        while node.order < self.max_order {
            let buddy = node.buddy();
            let mut other = given;
            if node.continues_from(first) {
                end = buddy.first();
            } else if let Some(free) = self.class_of(buddy) {
                self.blocks.remove(free, buddy);
                other = free;
            } else {
                break;
            }
            if class != other {
                for (part, class) in [(node, class), (buddy, other)] {
                    if class == Class::Clear {
                        self.blocks.insert(Class::Piece, part);
                    }
                }
                class = Class::Mixed;
            }
            node = node.parent();
        }
        self.blocks.insert(class, node);
        end
    }

    #[inline]
    fn class_of(&self, node: Node) -> Option<Class> {
        FREE.into_iter()
            .find(|&class| self.blocks.contains(class, node))
    }

    /// The free block that holds `chunk`.
    pub(super) fn covering(&self, chunk: u64) -> Option<(Class, Node)> {
        (0..=self.max_order).find_map(|order| {
            let node = Node {
                order,
                index: chunk >> order,
            };
            self.class_of(node).map(|class| (class, node))
        })
    }

    /// Class of a part of a mixed block. A clear part is taken off the list of pieces, because
    /// it is about to stand for itself.
    fn detach(&mut self, node: Node) -> Class {
        if self.blocks.contains(Class::Piece, node) {
            self.blocks.remove(Class::Piece, node);
            return Class::Clear;
        }
        self.classify(node)
    }

    fn classify(&self, node: Node) -> Class {
        if self.blocks.contains(Class::Piece, node) {
            return Class::Clear;
        }
        let inside = (0..node.order).any(|order| self.piece_in(order, node).is_some());
        if inside { Class::Mixed } else { Class::Dirty }
    }

    /// The first piece of `order` inside `node`.
    fn piece_in(&self, order: u32, node: Node) -> Option<Node> {
        if self.blocks.mask(Class::Piece) >> order & 1 == 0 {
            return None;
        }
        let from = node.first() >> order;
        let index = self.blocks.next(Class::Piece, order, from)?;
        (index << order < node.end()).then_some(Node { order, index })
    }

    /// Takes `target` out of the free block `node` of `class`; the rest stays free.
    fn carve(&mut self, mut class: Class, mut node: Node, target: Node) -> Class {
        self.blocks.remove(class, node);
        while node.order > target.order {
            let order = node.order - 1;
            node = Node {
                order,
                index: target.index >> (order - target.order),
            };
            let sibling = Node {
                order,
                index: node.index ^ 1,
            };
            let mut rest = class;
            if class == Class::Mixed {
                rest = self.detach(sibling);
                class = self.detach(node);
            }
            self.blocks.insert(rest, sibling);
        }
        self.free_chunks -= 1 << node.order;
        match class {
            Class::Dirty => {}
            Class::Clear => self.clear_chunks -= 1 << node.order,
            Class::Mixed | Class::Piece => self.forget_pieces(node),
        }
        class
    }

    fn forget_pieces(&mut self, node: Node) {
        for order in 0..node.order {
            while let Some(piece) = self.piece_in(order, node) {
                self.blocks.remove(Class::Piece, piece);
                self.clear_chunks -= 1 << order;
            }
        }
    }

    /// Notes the clear parts of the `count` chunks that would be claimed, unless all are, for
    /// [`give_back`](Self::give_back).
    pub(super) fn note_clear(
        &self,
        found: &Found,
        count: u64,
        parts: &mut Vec<(u64, u64)>,
    ) -> Result<(), SpaceError> {
        if found.class != Class::Mixed {
            return Ok(());
        }
        let (first, end) = (found.target.first(), found.target.first() + count);
        for order in self.blocks.at_least(Class::Piece, 0) {
            let mut next = self.blocks.next(Class::Piece, order, first >> order);
            while let Some(index) = next.filter(|index| index << order < end) {
                let piece = Node { order, index };
                parts
                    .try_reserve(1)
                    .map_err(|_| SpaceError::MetadataExhausted)?;
                parts.push((piece.first().max(first), piece.end().min(end)));
                next = self.blocks.next(Class::Piece, order, index + 1);
            }
        }
        Ok(())
    }

    /// Undoes a claim that reported `held`, with what was noted of it, in ascending order.
    pub(super) fn give_back(
        &mut self,
        (first, count): (u64, u64),
        held: Class,
        parts: &[(u64, u64)],
    ) {
        if held == Class::Clear {
            self.give(first, count, Class::Clear);
            return;
        }
        let (mut at, end) = (first, first + count);
        let from = parts.partition_point(|&(_, part_end)| part_end <= first);
        for &(lo, hi) in parts[from..].iter().take_while(|&&(lo, _)| lo < end) {
            self.give(at, lo - at, Class::Dirty);
            self.give(lo, hi - lo, Class::Clear);
            at = hi;
        }
        self.give(at, end - at, Class::Dirty);
    }

    /// Takes the first `count` chunks of a block of `order` that holds nothing clear, wherever
    /// it is. The common case, kept short.
    #[inline]
    pub(super) fn take_dirty(&mut self, order: u32, count: u64) -> Option<u64> {
        let dirty = self.blocks.dense(Class::Dirty)?;
        let found = (dirty.mask >> order).trailing_zeros();
        if found == 64 {
            return None;
        }
        let big = order + found;
        // The lowest, not the latest: reusing what is cached would be faster by a third on single
        // pages, and leave no room for contiguous requests at 70 % use.
        let mut index = dirty.take_first(big);
        for order in (order..big).rev() {
            index <<= 1;
            dirty.insert(Node {
                order,
                index: index + 1,
            });
        }
        self.free_chunks -= 1 << order;
        let target = Node { order, index };
        self.put_back(target.first() + count, target.end(), Class::Dirty);
        Some(target.first())
    }

    /// Every free block, in no order.
    pub(super) fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        let classes = FREE.into_iter();
        classes.flat_map(|class| self.blocks.members(class))
    }

    /// How many free blocks there are of each order.
    pub(super) fn counts(&self) -> [u64; 64] {
        let mut counts = [0; 64];
        for node in self.nodes() {
            counts[node.order as usize] += 1;
        }
        counts
    }

    /// Bytes of host memory held for records.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// Finds a block of `order` to take, in the window if there is one, from the classes in
    /// order of preference.
    pub(super) fn find_block(&self, search: &Search, order: u32) -> Option<Found> {
        if order > self.max_order {
            return None;
        }
        if let Some(window) = search.window {
            return self.find_within(order, search, window);
        }
        let end = search.end;
        let (class, node) = if search.clear {
            self.find(Class::Clear, order, end)
                .or_else(|| self.find_piece(order, end))
                .or_else(|| self.find(Class::Dirty, order, end))
                .or_else(|| self.find(Class::Mixed, order, end))?
        } else {
            self.find(Class::Dirty, order, end)
                .or_else(|| self.find(Class::Mixed, order, end))
                .or_else(|| self.find(Class::Clear, order, end))?
        };
        let (block, target) = self.aim(class, node, order, search);
        Some(Found {
            class,
            block,
            target,
        })
    }

    /// Takes the first `count` chunks of what was found. Returns the first chunk and what they
    /// held; `Mixed` unless all held the same.
    pub(super) fn claim(&mut self, found: Found, count: u64) -> (u64, Class) {
        let first = found.target.first();
        if found.class == Class::Mixed && count != 1 << found.target.order {
            return (first, self.take_exact(first, count));
        }
        let held = self.carve(found.class, found.block, found.target);
        self.put_back(first + count, found.target.end(), held);
        (first, held)
    }

    /// Frees the end of a block that was just taken. Its parts can't merge: the buddy of each
    /// holds what stays taken.
    #[inline]
    fn put_back(&mut self, first: u64, end: u64, class: Class) {
        if first == end {
            return;
        }
        self.free_chunks += end - first;
        if class == Class::Clear {
            self.clear_chunks += end - first;
        }
        let mut at = first;
        while at < end {
            let order = at.trailing_zeros();
            let index = at >> order;
            self.blocks.insert(class, Node { order, index });
            at += 1 << order;
        }
    }

    /// The free block behind a find, and the part of it to take.
    fn aim(&self, class: Class, node: Node, order: u32, search: &Search) -> (Node, Node) {
        let end = search.end;
        if class != Class::Mixed {
            return (node, corner(node, order, end));
        }
        if search.clear && self.blocks.contains(Class::Piece, node) {
            let (_, block) = self
                .covering(node.first())
                .expect("a piece lies in a free block");
            return (block, corner(node, order, end));
        }
        let mut at = node;
        while at.order > order {
            let near = corner(at, at.order - 1, end);
            let far = Node {
                index: near.index ^ 1,
                ..near
            };
            let rank = |part| match self.classify(part) {
                Class::Dirty => 0,
                Class::Mixed => 1,
                Class::Clear | Class::Piece => 2,
            };
            at = if rank(near) <= rank(far) { near } else { far };
        }
        (node, at)
    }

    fn find(&self, class: Class, order: u32, end: End) -> Option<(Class, Node)> {
        find_in(&self.blocks, class, order, end).map(|node| (class, node))
    }

    fn find_piece(&self, order: u32, end: End) -> Option<(Class, Node)> {
        find_in(&self.blocks, Class::Piece, order, end).map(|node| (Class::Mixed, node))
    }

    fn find_within(&self, order: u32, search: &Search, window: (u64, u64)) -> Option<Found> {
        let classes = if search.clear {
            [Class::Clear, Class::Dirty, Class::Mixed]
        } else {
            FREE
        };
        classes.into_iter().find_map(|class| {
            let (block, target) = find_inside(&self.blocks, class, order, search.end, window)?;
            Some(Found {
                class,
                block,
                target,
            })
        })
    }

    /// Whether every chunk of `[first, end)` is free.
    pub(super) fn is_free(&self, first: u64, end: u64) -> bool {
        let mut at = first;
        while at < end {
            let Some((_, node)) = self.covering(at) else {
                return false;
            };
            at = node.end();
        }
        true
    }

    /// Takes exactly `count` chunks from `first`, which are free. `Clear` if all were.
    pub(super) fn take_exact(&mut self, first: u64, count: u64) -> Class {
        let (mut at, end) = (first, first + count);
        let mut result = None;
        while at < end {
            let (class, node) = self.covering(at).expect("the caller saw the chunks free");
            let order = (end - at).ilog2().min(at.trailing_zeros()).min(node.order);
            let target = Node {
                order,
                index: at >> order,
            };
            let part = self.carve(class, node, target);
            result = match result {
                None => Some(part),
                Some(old) if old == part => Some(old),
                Some(_) => Some(Class::Mixed),
            };
            at += 1 << order;
        }
        result.expect("the caller asks for at least one chunk")
    }

    /// First chunk of a free run of `count` chunks that starts at a multiple of `align`, however
    /// the run is made up of blocks.
    ///
    /// `live` are the blocks that are not free.
    pub(super) fn find_run(&self, count: u64, align: u64, live: &Live) -> Option<u64> {
        // A run of n chunks holds an aligned block of more than n / 4.
        let least = count.ilog2().saturating_sub(1);
        let enough = count.saturating_add(align - 1);
        FREE.into_iter().find_map(|class| {
            self.blocks.at_least(class, least).find_map(|order| {
                let mut next = self.blocks.next(class, order, 0);
                while let Some(index) = next {
                    let (lo, hi) = self.grow(Node { order, index }, (count, enough), live);
                    // There may be no such multiple, nor a run of the length, below 2^64.
                    let start = lo.checked_next_multiple_of(align);
                    let room = start.and_then(|start| hi.checked_sub(start));
                    if room.is_some_and(|room| room >= count) {
                        return start;
                    }
                    next = self.blocks.next(class, order, index + 1);
                }
                None
            })
        })
    }

    /// The free block with the `index` that begins, or ends, at the boundary `at` of another.
    fn neighbour(&self, at: u64, index: impl Fn(u32) -> u64) -> Option<Node> {
        let mask = self.blocks.free_mask();
        (0..=at.trailing_zeros().min(self.max_order))
            .filter(|&order| mask >> order & 1 != 0)
            .map(|order| Node {
                order,
                index: index(order),
            })
            .find(|&node| self.class_of(node).is_some())
    }

    /// The free run around `node`, at least `enough` chunks long unless it ends earlier.
    fn grow(&self, node: Node, (count, enough): (u64, u64), live: &Live) -> (u64, u64) {
        let (mut lo, mut hi) = (node.first(), node.end());
        // Where one free block ends another begins, or a live one.
        while hi - lo < enough && !live.starts(hi) {
            let Some(next) = self.neighbour(hi, |order| hi >> order) else {
                break;
            };
            hi = next.end();
        }
        // An odd block's buddy lies in front, and is not all free.
        let most = if node.index & 1 == 0 {
            u64::MAX
        } else {
            hi - lo + (1 << node.order)
        };
        while hi - lo < enough && lo > 0 && most > count {
            let Some(next) = self.neighbour(lo, |order| (lo >> order) - 1) else {
                break;
            };
            lo = next.first();
        }
        (lo, hi)
    }

    /// Declares all free chunks clear, or all dirty.
    pub(super) fn reset(&mut self, class: Class) {
        self.blocks.collect(class);
        self.clear_chunks = if class == Class::Clear {
            self.free_chunks
        } else {
            0
        };
    }

    /// Compares every invariant with a walk over all blocks.
    ///
    /// # Panics
    /// When one does not hold.
    pub(super) fn check(&self) {
        let of_class = |class| self.blocks.members(class).map(move |node| (class, node));
        let mut blocks: Vec<_> = FREE.into_iter().flat_map(of_class).collect();
        blocks.sort_unstable_by_key(|&(_, node)| node.first());
        let mut at = 0;
        for &(class, node) in &blocks {
            assert!(node.first() >= at, "free blocks overlap");
            at = node.end();
            if node.order < self.max_order {
                let buddy = node.buddy();
                assert!(self.class_of(buddy).is_none(), "two buddies are both free");
            }
            let seen = self.classify(node);
            let expected = if class == Class::Clear {
                Class::Dirty
            } else {
                class
            };
            assert_eq!(
                seen, expected,
                "pieces disagree with the class of their block"
            );
        }
        let total =
            |of: &mut dyn Iterator<Item = Node>| of.map(|node| 1 << node.order).sum::<u64>();
        assert_eq!(
            total(&mut blocks.iter().map(|&(_, node)| node)),
            self.free_chunks
        );
        let whole = total(&mut self.blocks.members(Class::Clear));
        let parts = total(&mut self.blocks.members(Class::Piece));
        assert_eq!(
            whole + parts,
            self.clear_chunks,
            "clear chunks are miscounted"
        );
        for piece in self.blocks.members(Class::Piece) {
            let (class, _) = self.covering(piece.first()).expect("a piece is free");
            assert_eq!(class, Class::Mixed, "a piece lies in a mixed block");
            let buddy = piece.buddy();
            assert!(
                !self.blocks.contains(Class::Piece, buddy),
                "clear pieces are maximal"
            );
        }
    }
}

fn find_in(blocks: &Blocks, class: Class, order: u32, end: End) -> Option<Node> {
    match end {
        End::Low => {
            let order = blocks.at_least(class, order).next()?;
            let index = blocks.next(class, order, 0)?;
            Some(Node { order, index })
        }
        End::High => blocks
            .at_least(class, order)
            .filter_map(|order| {
                let index = blocks.prev(class, order, u64::MAX)?;
                Some(Node { order, index })
            })
            .max_by_key(|node| node.first()),
    }
}

/// The first or last part of `order` in `node`.
fn corner(node: Node, order: u32, end: End) -> Node {
    let first = node.index << (node.order - order);
    let index = match end {
        End::Low => first,
        End::High => first + (1 << (node.order - order)) - 1,
    };
    Node { order, index }
}

/// The free block, and the part of `order` of it, nearest to an end of chunks `[lo, hi)`.
fn find_inside(
    blocks: &Blocks,
    class: Class,
    order: u32,
    end: End,
    (lo, hi): (u64, u64),
) -> Option<(Node, Node)> {
    let fits = |big: u32, index: u64| {
        let node = Node { order: big, index };
        let first = node.first().max(lo).div_ceil(1 << order);
        let last = (node.end().min(hi) >> order).checked_sub(1)?;
        let index = if end == End::Low { first } else { last };
        (first <= last).then_some((node, Node { order, index }))
    };
    let next = |order, from| blocks.next(class, order, from);
    let prev = |order, from| blocks.prev(class, order, from);
    let candidates = blocks.at_least(class, order).filter_map(|big| {
        // Only the blocks at the edges of the window can fail to hold an aligned part.
        match end {
            End::Low => {
                let first = next(big, lo >> big)?;
                fits(big, first).or_else(|| fits(big, next(big, first + 1)?))
            }
            End::High => {
                let last = prev(big, (hi - 1) >> big)?;
                fits(big, last).or_else(|| fits(big, prev(big, last.checked_sub(1)?)?))
            }
        }
    });
    match end {
        End::Low => candidates.min_by_key(|&(_, target)| target.index),
        End::High => candidates.max_by_key(|&(_, target)| target.index),
    }
}
