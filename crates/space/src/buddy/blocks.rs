//! Sets of aligned blocks by what they hold and by order.

use alloc::vec::Vec;

use crate::SpaceError;
use crate::bitset::BitTree;
use crate::ordered::OrderedMap;

/// What the chunks of a free block hold, or what else a block is listed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Dirty,
    Mixed,
    Clear,
    /// Not a free block but a clear part of a mixed one.
    Piece,
}

/// The classes of free blocks.
pub(super) const FREE: [Class; 3] = [Class::Dirty, Class::Mixed, Class::Clear];

/// A block of `1 << order` chunks at `index << order`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) order: u32,
    pub(super) index: u64,
}

impl Node {
    #[inline]
    pub(super) fn first(self) -> u64 {
        self.index << self.order
    }

    #[inline]
    pub(super) fn end(self) -> u64 {
        (self.index + 1) << self.order
    }

    /// Whether its buddy lies in front of it, and not in front of `first`.
    #[inline]
    pub(super) fn continues_from(self, first: u64) -> bool {
        self.index & 1 != 0 && self.buddy().first() >= first
    }

    /// The block it would be half of.
    #[inline]
    pub(super) fn parent(self) -> Self {
        Self {
            order: self.order + 1,
            index: self.index >> 1,
        }
    }

    /// The block it would be joined with.
    #[inline]
    pub(super) fn buddy(self) -> Self {
        Self {
            order: self.order,
            index: self.index ^ 1,
        }
    }
}

/// The blocks of one class: a bitmap per order.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    sets: Vec<BitTree>,
    /// Orders that are not empty.
    pub(super) mask: u64,
}

impl Orders {
    const NONE: Self = Self {
        sets: Vec::new(),
        mask: 0,
    };

    fn new(chunks: u64) -> Result<Self, SpaceError> {
        let max_order = chunks.ilog2();
        let mut sets = Vec::new();
        sets.try_reserve_exact(max_order as usize + 1)
            .map_err(|_| SpaceError::MetadataExhausted)?;
        for order in 0..=max_order {
            // One more pair than there are blocks: a buddy past the end reads as absent.
            sets.push(BitTree::new((chunks >> order) + 2)?);
        }
        Ok(Self { sets, mask: 0 })
    }

    /// Takes the lowest block of an order that is not empty out.
    #[inline]
    pub(super) fn take_first(&mut self, order: u32) -> u64 {
        let (index, is_last) = self.sets[order as usize].take_first();
        if is_last {
            self.mask &= !(1 << order);
        }
        index
    }

    #[inline]
    pub(super) fn contains(&self, node: Node) -> bool {
        self.mask >> node.order & 1 != 0 && self.sets[node.order as usize].contains(node.index)
    }

    #[inline]
    pub(super) fn insert(&mut self, node: Node) {
        self.sets[node.order as usize].insert(node.index);
        self.mask |= 1 << node.order;
    }

    /// Adds the block at the end of a run that starts at `first`, joined with its buddy for as long
    /// as that is here too, or in the run. Returns where the rest of the run ends.
    #[inline(never)]
    pub(super) fn merge(&mut self, mut node: Node, first: u64, max_order: u32) -> u64 {
        let mut end = node.first();
        while node.order < max_order {
            let buddy = node.buddy();
            if node.continues_from(first) {
                end = buddy.first();
            } else if self.contains(buddy) {
                self.remove(buddy);
            } else {
                break;
            }
            node = node.parent();
        }
        self.insert(node);
        end
    }

    #[inline]
    pub(super) fn remove(&mut self, node: Node) {
        if self.sets[node.order as usize].remove(node.index) {
            self.mask &= !(1 << node.order);
        }
    }
}

/// Class, order and index of a listed block.
type Key = (u8, u8, u64);

/// All blocks, by class and order.
///
/// # Invariants
/// Either there are bitmaps, or every block is `listed`.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    orders: [Orders; 4],
    listed: Option<OrderedMap<Key, ()>>,
}

#[expect(clippy::cast_possible_truncation, reason = "orders are below 64")]
fn key(class: Class, Node { order, index }: Node) -> Key {
    (class as u8, order as u8, index)
}

impl Blocks {
    /// No blocks of a space of `chunks` chunks, with a bit for each there could be.
    pub(super) fn with_bitmaps(chunks: u64) -> Result<Self, SpaceError> {
        let orders = || Orders::new(chunks);
        Ok(Self {
            orders: [orders()?, orders()?, orders()?, orders()?],
            listed: None,
        })
    }

    /// No blocks, without memory for those there could be.
    pub(super) const fn with_lists() -> Self {
        Self {
            orders: [Orders::NONE; 4],
            listed: Some(OrderedMap::new()),
        }
    }

    pub(super) fn is_listed(&self) -> bool {
        self.listed.is_some()
    }

    /// Makes sure that `count` more blocks can be listed.
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), SpaceError> {
        self.listed
            .as_mut()
            .map_or(Ok(()), |listed| listed.reserve(count))
    }

    pub(super) fn bytes(&self) -> usize {
        let of_sets = |orders: &Orders| {
            let sets = orders.sets.iter().map(BitTree::bytes);
            sets.sum::<usize>() + orders.sets.capacity() * size_of::<BitTree>()
        };
        let listed = self.listed.as_ref().map_or(0, OrderedMap::bytes);
        self.orders.iter().map(of_sets).sum::<usize>() + listed
    }

    /// The bitmaps of a class, if it has any.
    #[inline]
    pub(super) fn dense(&mut self, class: Class) -> Option<&mut Orders> {
        if self.listed.is_some() {
            return None;
        }
        Some(&mut self.orders[class as usize])
    }

    /// Orders of which there are blocks.
    #[inline]
    pub(super) fn mask(&self, class: Class) -> u64 {
        self.orders[class as usize].mask
    }

    /// Orders of which there are free blocks.
    pub(super) fn free_mask(&self) -> u64 {
        FREE.iter().fold(0, |mask, &class| mask | self.mask(class))
    }

    #[inline]
    pub(super) fn contains(&self, class: Class, node: Node) -> bool {
        match &self.listed {
            None => self.orders[class as usize].contains(node),
            Some(listed) => {
                self.mask(class) >> node.order & 1 != 0 && listed.contains(key(class, node))
            }
        }
    }

    /// Adds a block; the caller has reserved.
    #[inline]
    pub(super) fn insert(&mut self, class: Class, node: Node) {
        let orders = &mut self.orders[class as usize];
        match &mut self.listed {
            None => orders.insert(node),
            Some(listed) => {
                listed.insert(key(class, node), ());
                orders.mask |= 1 << node.order;
            }
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, class: Class, node: Node) {
        match &mut self.listed {
            None => self.orders[class as usize].remove(node),
            Some(listed) => {
                listed.remove(key(class, node));
                if self.next(class, node.order, 0).is_none() {
                    self.orders[class as usize].mask &= !(1 << node.order);
                }
            }
        }
    }

    /// The lowest index of an order at or above `from`.
    #[inline]
    pub(super) fn next(&self, class: Class, order: u32, from: u64) -> Option<u64> {
        let Some(listed) = &self.listed else {
            return self.orders[class as usize].sets[order as usize].next(from);
        };
        let from = key(class, Node { order, index: from });
        let ((of, at, index), ()) = listed.next(from)?;
        ((of, at) == (from.0, from.1)).then_some(index)
    }

    /// The highest index of an order at or below `from`.
    pub(super) fn prev(&self, class: Class, order: u32, from: u64) -> Option<u64> {
        let Some(listed) = &self.listed else {
            return self.orders[class as usize].sets[order as usize].prev(from);
        };
        let from = key(class, Node { order, index: from });
        let ((of, at, index), ()) = listed.prev(from)?;
        ((of, at) == (from.0, from.1)).then_some(index)
    }

    /// Non-empty orders at or above `order`, ascending.
    pub(super) fn at_least(&self, class: Class, order: u32) -> impl Iterator<Item = u32> + use<> {
        let mut mask = self.mask(class) & u64::MAX.checked_shl(order).unwrap_or(0);
        core::iter::from_fn(move || {
            let next = mask.trailing_zeros();
            mask &= mask.wrapping_sub(1);
            (next < 64).then_some(next)
        })
    }

    pub(super) fn members(&self, class: Class) -> impl Iterator<Item = Node> + '_ {
        self.at_least(class, 0).flat_map(move |order| {
            core::iter::successors(self.next(class, order, 0), move |&index| {
                self.next(class, order, index + 1)
            })
            .map(move |index| Node { order, index })
        })
    }

    /// Moves all free blocks to one class, and forgets the pieces.
    pub(super) fn collect(&mut self, target: Class) {
        for class in [Class::Dirty, Class::Mixed, Class::Clear, Class::Piece] {
            if class == target {
                continue;
            }
            while let Some(order) = self.at_least(class, 0).next()
                && let Some(index) = self.next(class, order, 0)
            {
                let node = Node { order, index };
                self.remove(class, node);
                if class != Class::Piece {
                    self.insert(target, node);
                }
            }
        }
    }
}
