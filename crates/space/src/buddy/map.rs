//! Free blocks of a buddy allocator, in chunks: split, merge and content classes.

use alloc::vec::Vec;

use crate::SpaceError;
use crate::bitset::{BitSet, DENSE_LIMIT, Flags};

/// What the chunks of a free block hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Dirty,
    Mixed,
    Clear,
}

/// Which of several equally good chunks to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Low,
    High,
}

/// A block of `1 << order` chunks at `index << order`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    order: u32,
    index: u64,
}

impl Node {
    fn first(self) -> u64 {
        self.index << self.order
    }

    fn end(self) -> u64 {
        (self.index + 1) << self.order
    }
}

/// Spaces of up to a terabyte of pages are dense at every order. In larger ones the small orders
/// are sparse, and the large ones must not cost memory that most of such a space never needs.
pub(super) fn dense_limit(chunks: u64) -> u64 {
    if chunks <= DENSE_LIMIT {
        DENSE_LIMIT + 2
    } else {
        1 << 16
    }
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

/// One set of block indices per order, and which of them are not empty.
#[derive(Clone, Debug)]
struct Orders {
    sets: Vec<BitSet>,
    mask: u64,
}

impl Orders {
    fn new(chunks: u64, max_order: u32) -> Result<Self, SpaceError> {
        let mut sets = Vec::new();
        sets.try_reserve_exact(max_order as usize + 1)
            .map_err(|_| SpaceError::MetadataExhausted)?;
        let limit = dense_limit(chunks);
        for order in 0..=max_order {
            // One more pair than there are blocks, so that a buddy past the end reads as absent.
            sets.push(BitSet::new((chunks >> order) + 2, limit)?);
        }
        Ok(Self { sets, mask: 0 })
    }

    #[inline]
    fn contains(&self, node: Node) -> bool {
        self.mask >> node.order & 1 != 0 && self.sets[node.order as usize].contains(node.index)
    }

    #[inline]
    fn insert(&mut self, node: Node) {
        self.sets[node.order as usize].insert(node.index);
        self.mask |= 1 << node.order;
    }

    #[inline]
    fn remove(&mut self, node: Node) {
        if self.sets[node.order as usize].remove(node.index) {
            self.mask &= !(1 << node.order);
        }
    }

    /// Non-empty orders at or above `order`, ascending.
    fn at_least(&self, order: u32) -> impl Iterator<Item = u32> + use<> {
        let mut mask = self.mask & (u64::MAX << order);
        core::iter::from_fn(move || {
            let next = mask.trailing_zeros();
            mask &= mask.wrapping_sub(1);
            (next < 64).then_some(next)
        })
    }

    fn clear(&mut self) {
        self.sets.iter_mut().for_each(BitSet::clear);
        self.mask = 0;
    }
}

/// The free part of a space of `chunks` chunks.
///
/// # Invariants
/// Free blocks do not overlap, and two buddies are never both free (they are one block). A mixed
/// block holds at least one clear and one dirty chunk; its clear chunks are listed in `pieces` as
/// maximal aligned blocks. Clear and dirty blocks list no pieces.
#[derive(Clone, Debug)]
pub(super) struct FreeMap {
    free: [Orders; 3],
    pieces: Orders,
    max_order: u32,
    free_chunks: u64,
    clear_chunks: u64,
    /// Pieces of the mixed blocks taken since [`begin`](Self::begin).
    forgotten: Vec<Node>,
}

const ALL: [Class; 3] = [Class::Dirty, Class::Mixed, Class::Clear];

impl FreeMap {
    pub(super) fn new(chunks: u64) -> Result<Self, SpaceError> {
        let max_order = chunks.ilog2();
        let orders = || Orders::new(chunks, max_order);
        let mut map = Self {
            free: [orders()?, orders()?, orders()?],
            pieces: orders()?,
            max_order,
            free_chunks: 0,
            clear_chunks: 0,
            forgotten: Vec::new(),
        };
        map.give(0, chunks, Class::Dirty);
        Ok(map)
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
        let mask = self.free.iter().fold(0, |mask, orders| mask | orders.mask);
        mask.checked_ilog2().map_or(0, |order| 1 << order)
    }

    /// Makes `count` chunks from `first` free, all of one class.
    pub(super) fn give(&mut self, first: u64, count: u64, class: Class) {
        self.free_chunks += count;
        if class == Class::Clear {
            self.clear_chunks += count;
        }
        let (mut at, end) = (first, first + count);
        while at < end {
            let order = (end - at)
                .ilog2()
                .min(at.trailing_zeros())
                .min(self.max_order);
            self.merge(
                Node {
                    order,
                    index: at >> order,
                },
                class,
            );
            at += 1 << order;
        }
    }

    /// Adds a free block, joined with its buddy for as long as that is free too.
    #[inline]
    fn merge(&mut self, mut node: Node, class: Class) {
        if class != Class::Dirty || self.free[1].mask | self.free[2].mask != 0 {
            return self.merge_classes(node, class);
        }
        // Nothing is known to be clear: there is one class to look for.
        let dirty = &mut self.free[Class::Dirty as usize];
        while node.order < self.max_order {
            let buddy = Node {
                index: node.index ^ 1,
                ..node
            };
            if !dirty.contains(buddy) {
                break;
            }
            dirty.remove(buddy);
            node = Node {
                order: node.order + 1,
                index: node.index >> 1,
            };
        }
        dirty.insert(node);
    }

    fn merge_classes(&mut self, mut node: Node, mut class: Class) {
        while node.order < self.max_order {
            let buddy = Node {
                index: node.index ^ 1,
                ..node
            };
            let Some(other) = self.class_of(buddy) else {
                break;
            };
            self.free[other as usize].remove(buddy);
            if class != other {
                for (part, class) in [(node, class), (buddy, other)] {
                    if class == Class::Clear {
                        self.pieces.insert(part);
                    }
                }
                class = Class::Mixed;
            }
            node = Node {
                order: node.order + 1,
                index: node.index >> 1,
            };
        }
        self.free[class as usize].insert(node);
    }

    #[inline]
    fn class_of(&self, node: Node) -> Option<Class> {
        ALL.into_iter()
            .find(|&class| self.free[class as usize].contains(node))
    }

    /// The free block that holds `chunk`.
    fn covering(&self, chunk: u64) -> Option<(Class, Node)> {
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
        if self.pieces.contains(node) {
            self.pieces.remove(node);
            return Class::Clear;
        }
        self.classify(node)
    }

    fn classify(&self, node: Node) -> Class {
        if self.pieces.contains(node) {
            return Class::Clear;
        }
        let inside = (0..node.order).any(|order| self.piece_in(order, node).is_some());
        if inside { Class::Mixed } else { Class::Dirty }
    }

    /// The first piece of `order` inside `node`.
    fn piece_in(&self, order: u32, node: Node) -> Option<Node> {
        if self.pieces.mask >> order & 1 == 0 {
            return None;
        }
        let index = self.pieces.sets[order as usize].next(node.first() >> order)?;
        (index << order < node.end()).then_some(Node { order, index })
    }

    /// Takes `target` out of the free block `node` of `class`; the rest stays free.
    fn carve(&mut self, mut class: Class, mut node: Node, target: Node) -> Class {
        self.free[class as usize].remove(node);
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
            self.free[rest as usize].insert(sibling);
        }
        self.free_chunks -= 1 << node.order;
        match class {
            Class::Dirty => {}
            Class::Clear => self.clear_chunks -= 1 << node.order,
            Class::Mixed => self.forget_pieces(node),
        }
        class
    }

    fn forget_pieces(&mut self, node: Node) {
        for order in 0..node.order {
            while let Some(piece) = self.piece_in(order, node) {
                self.pieces.remove(piece);
                self.clear_chunks -= 1 << order;
                // Without host memory a rollback knows less, which is safe.
                if self.forgotten.try_reserve(1).is_ok() {
                    self.forgotten.push(piece);
                }
            }
        }
    }

    /// Starts an operation that may be undone with [`give_back`](Self::give_back).
    pub(super) fn begin(&mut self) {
        self.forgotten.clear();
    }

    /// Undoes a claim that reported `held`, including which of its chunks were clear.
    pub(super) fn give_back(&mut self, first: u64, count: u64, held: Class) {
        let end = first + count;
        if held == Class::Clear {
            self.give(first, count, Class::Clear);
            return;
        }
        let mut pieces = core::mem::take(&mut self.forgotten);
        pieces.sort_unstable_by_key(|piece| piece.first());
        let mut at = first;
        for piece in pieces
            .iter()
            .filter(|piece| piece.first() >= first && piece.end() <= end)
        {
            self.give(at, piece.first() - at, Class::Dirty);
            self.give(piece.first(), 1 << piece.order, Class::Clear);
            at = piece.end();
        }
        self.give(at, end - at, Class::Dirty);
        self.forgotten = pieces;
    }

    /// Takes the first `count` chunks of a block of `order` that holds nothing clear, wherever
    /// it is. The common case, kept short.
    #[inline]
    pub(super) fn take_dirty(&mut self, order: u32, count: u64) -> Option<u64> {
        let dirty = &mut self.free[Class::Dirty as usize];
        let found = (dirty.mask >> order).trailing_zeros();
        if found == 64 {
            return None;
        }
        let big = order + found;
        // The lowest, not the latest: reusing what is cached would be faster by a third on single
        // pages, and leave no room for contiguous requests at 70 % use.
        let mut index = dirty.sets[big as usize].first();
        dirty.remove(Node { order: big, index });
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

    /// Bytes of host memory held for records.
    pub(super) fn bytes(&self) -> usize {
        self.free
            .iter()
            .chain([&self.pieces])
            .flat_map(|orders| &orders.sets)
            .map(BitSet::bytes)
            .sum()
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
            self.free[class as usize].insert(Node {
                order,
                index: at >> order,
            });
            at += 1 << order;
        }
    }

    /// The free block behind a find, and the part of it to take.
    fn aim(&self, class: Class, node: Node, order: u32, search: &Search) -> (Node, Node) {
        let end = search.end;
        if class != Class::Mixed {
            return (node, corner(node, order, end));
        }
        if search.clear && self.pieces.contains(node) {
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
                Class::Clear => 2,
            };
            at = if rank(near) <= rank(far) { near } else { far };
        }
        (node, at)
    }

    fn find(&self, class: Class, order: u32, end: End) -> Option<(Class, Node)> {
        find_in(&self.free[class as usize], order, end).map(|node| (class, node))
    }

    fn find_piece(&self, order: u32, end: End) -> Option<(Class, Node)> {
        find_in(&self.pieces, order, end).map(|node| (Class::Mixed, node))
    }

    fn find_within(&self, order: u32, search: &Search, window: (u64, u64)) -> Option<Found> {
        let classes = if search.clear {
            [Class::Clear, Class::Dirty, Class::Mixed]
        } else {
            ALL
        };
        classes.into_iter().find_map(|class| {
            let orders = &self.free[class as usize];
            let (block, target) = find_inside(orders, order, search.end, window)?;
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
            if part == Class::Clear && self.forgotten.try_reserve(1).is_ok() {
                self.forgotten.push(target);
            }
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
    /// `starts` says which chunks a live block starts at.
    pub(super) fn find_run(&self, count: u64, align: u64, starts: &Flags) -> Option<u64> {
        // A run of n chunks holds an aligned block of more than n / 4.
        let least = count.ilog2().saturating_sub(1);
        let enough = count + align - 1;
        ALL.into_iter().find_map(|class| {
            let orders = &self.free[class as usize];
            orders.at_least(least).find_map(|order| {
                let set = &orders.sets[order as usize];
                let mut next = set.next(0);
                while let Some(index) = next {
                    let (lo, hi) = self.grow(Node { order, index }, (count, enough), starts);
                    let start = lo.next_multiple_of(align);
                    if start + count <= hi {
                        return Some(start);
                    }
                    next = set.next(index + 1);
                }
                None
            })
        })
    }

    /// The free block with the `index` that begins, or ends, at the boundary `at` of another.
    fn neighbour(&self, at: u64, index: impl Fn(u32) -> u64) -> Option<Node> {
        let mask = self.free.iter().fold(0, |mask, orders| mask | orders.mask);
        (0..=at.trailing_zeros().min(self.max_order))
            .filter(|&order| mask >> order & 1 != 0)
            .map(|order| Node {
                order,
                index: index(order),
            })
            .find(|&node| self.class_of(node).is_some())
    }

    /// The free run around `node`, at least `enough` chunks long unless it ends earlier.
    fn grow(&self, node: Node, (count, enough): (u64, u64), starts: &Flags) -> (u64, u64) {
        let (mut lo, mut hi) = (node.first(), node.end());
        // Where one free block ends another begins, or a live one.
        while hi - lo < enough && !starts.get(hi) {
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
        let mut all = self.blocks();
        all.sort_unstable_by_key(|&(_, node)| node.first());
        for orders in &mut self.free {
            orders.clear();
        }
        self.pieces.clear();
        for &(_, node) in &all {
            self.free[class as usize].insert(node);
        }
        self.clear_chunks = if class == Class::Clear {
            self.free_chunks
        } else {
            0
        };
    }

    fn blocks(&self) -> Vec<(Class, Node)> {
        ALL.into_iter()
            .flat_map(|class| members(&self.free[class as usize]).map(move |node| (class, node)))
            .collect()
    }

    /// Compares every invariant with a walk over all blocks.
    ///
    /// # Panics
    /// When one does not hold.
    pub(super) fn check(&self, chunks: u64) {
        let mut blocks = self.blocks();
        blocks.sort_unstable_by_key(|&(_, node)| node.first());
        let mut at = 0;
        for &(class, node) in &blocks {
            assert!(node.first() >= at, "free blocks overlap");
            at = node.end();
            if node.order < self.max_order {
                let buddy = Node {
                    index: node.index ^ 1,
                    ..node
                };
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
        assert!(at <= chunks, "a free block reaches past the end");
        let total =
            |of: &mut dyn Iterator<Item = Node>| of.map(|node| 1 << node.order).sum::<u64>();
        assert_eq!(
            total(&mut blocks.iter().map(|&(_, node)| node)),
            self.free_chunks
        );
        let whole = total(&mut members(&self.free[Class::Clear as usize]));
        let parts = total(&mut members(&self.pieces));
        assert_eq!(
            whole + parts,
            self.clear_chunks,
            "clear chunks are miscounted"
        );
        for piece in members(&self.pieces) {
            let (class, _) = self.covering(piece.first()).expect("a piece is free");
            assert_eq!(class, Class::Mixed, "a piece lies in a mixed block");
            let buddy = Node {
                index: piece.index ^ 1,
                ..piece
            };
            assert!(!self.pieces.contains(buddy), "clear pieces are maximal");
        }
    }
}

fn members(orders: &Orders) -> impl Iterator<Item = Node> {
    orders.at_least(0).flat_map(move |order| {
        let set = &orders.sets[order as usize];
        core::iter::successors(set.next(0), |&index| set.next(index + 1))
            .map(move |index| Node { order, index })
    })
}

fn find_in(orders: &Orders, order: u32, end: End) -> Option<Node> {
    match end {
        End::Low => {
            let order = orders.at_least(order).next()?;
            let index = orders.sets[order as usize].first();
            Some(Node { order, index })
        }
        End::High => orders
            .at_least(order)
            .filter_map(|order| {
                let index = orders.sets[order as usize].prev(u64::MAX)?;
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
    orders: &Orders,
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
    let candidates = orders.at_least(order).filter_map(|big| {
        let set = &orders.sets[big as usize];
        // Only the blocks at the edges of the window can fail to hold an aligned part.
        match end {
            End::Low => {
                let first = set.next(lo >> big)?;
                fits(big, first).or_else(|| fits(big, set.next(first + 1)?))
            }
            End::High => {
                let last = set.prev((hi - 1) >> big)?;
                fits(big, last).or_else(|| fits(big, set.prev(last.checked_sub(1)?)?))
            }
        }
    });
    match end {
        End::Low => candidates.min_by_key(|&(_, target)| target.index),
        End::High => candidates.max_by_key(|&(_, target)| target.index),
    }
}
