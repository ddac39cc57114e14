//! The holes of a space, to be found by length and by the addresses of their ends.

use super::bins::{Bins, Hole};
use super::edges::{Edge, Edges, Home, Side};
use crate::SpaceError;

/// # Invariants
/// Both edges of every hole in the bins are in the table of edges.
#[derive(Clone, Debug)]
pub(super) struct Holes {
    pub(super) bins: Bins,
    edges: Edges,
}

/// What borders on a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Borders {
    homes: [Home; 2],
    /// The hole that ends where the range starts.
    pub(super) left: Option<u32>,
    /// The hole that starts where the range ends.
    pub(super) right: Option<u32>,
}

impl Holes {
    pub(super) fn new() -> Self {
        Self {
            bins: Bins::new(),
            edges: Edges::new(),
        }
    }

    /// Makes sure that `count` holes can exist without further memory.
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), SpaceError> {
        self.bins.reserve(count)?;
        self.edges.reserve(2 * count, &self.bins)
    }

    /// How many holes can exist without further memory.
    pub(super) fn room(&self) -> usize {
        self.bins.room().min(self.edges.room() / 2)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.edges.len() / 2
    }

    pub(super) fn bytes(&self) -> usize {
        self.bins.bytes() + self.edges.bytes()
    }

    /// The holes on both sides of `[start, end)`.
    ///
    /// # Panics
    /// When a hole starts at `start` or ends at `end`.
    #[inline]
    pub(super) fn borders(&self, start: u32, end: u32) -> Borders {
        let homes = [self.edges.home(start), self.edges.home(end)];
        let hints = homes.map(|home| self.edges.hints(home));
        let (mut left, mut right) = (None, None);
        if !(hints[0].is_nothing() && hints[1].is_nothing()) {
            let find = |side: usize, address| {
                let is = |edge| self.bins.address(edge) == address;
                self.edges.find(homes[side], hints[side], is)
            };
            left = find(0, start);
            right = find(1, end);
            assert!(
                left.is_none_or(|edge| edge.side() == Side::End)
                    && right.is_none_or(|edge| edge.side() == Side::Start),
                "units {start} to {end} are partly free already"
            );
        }
        Borders {
            homes,
            left: left.map(Edge::hole),
            right: right.map(Edge::hole),
        }
    }

    /// Removes the hole that has an address as its boundary on this side.
    ///
    /// # Panics
    /// When a hole has it on the other side.
    #[inline]
    pub(super) fn take_beside(&mut self, address: u32, side: Side) -> Option<Hole> {
        let home = self.edges.home(address);
        let hints = self.edges.hints(home);
        if hints.is_nothing() {
            return None;
        }
        let is = |edge| self.bins.address(edge) == address;
        let edge = self.edges.find(home, hints, is)?;
        assert!(edge.side() == side, "unit {address} is partly free already");
        Some(self.remove(edge.hole()))
    }

    #[inline(never)]
    pub(super) fn add(&mut self, start: u32, end: u32) {
        let homes = [self.edges.home(start), self.edges.home(end)];
        self.add_at(homes, start, end);
    }

    /// Adds a hole that borders on no other.
    #[inline]
    pub(super) fn add_between(&mut self, borders: Borders, start: u32, end: u32) {
        debug_assert_eq!((borders.left, borders.right), (None, None));
        self.add_at(borders.homes, start, end);
    }

    #[inline(always)]
    fn add_at(&mut self, homes: [Home; 2], start: u32, end: u32) {
        let id = self.bins.add(start, end - start);
        self.edges.insert(homes[0], Edge::new(id, Side::Start));
        self.edges.insert(homes[1], Edge::new(id, Side::End));
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, id: u32) -> Hole {
        let hole = self.bins.delete(id);
        self.edges.remove(hole.start, Edge::new(id, Side::Start));
        self.edges.remove(hole.end(), Edge::new(id, Side::End));
        hole
    }

    /// Changes the bounds of a hole.
    #[inline]
    pub(super) fn reshape(&mut self, id: u32, start: u32, end: u32) {
        let hole = self.bins.get(id);
        if start != hole.start {
            self.move_edge(Edge::new(id, Side::Start), hole.start, start);
        }
        if end != hole.end() {
            self.move_edge(Edge::new(id, Side::End), hole.end(), end);
        }
        self.bins.resize(id, start, end - start);
    }

    #[inline]
    fn move_edge(&mut self, edge: Edge, from: u32, to: u32) {
        self.edges.remove(from, edge);
        self.edges.insert(self.edges.home(to), edge);
    }

    /// # Panics
    /// When the records disagree.
    pub(super) fn check(&self) {
        for (bin, id, hole) in self.bins.all() {
            assert_eq!(
                bin,
                super::bins::bin_of(hole.len),
                "a hole is in the wrong bin"
            );
            for (side, address) in [(Side::Start, hole.start), (Side::End, hole.end())] {
                let (edge, home) = (Edge::new(id, side), self.edges.home(address));
                let hints = self.edges.hints(home);
                let found = self.edges.find(home, hints, |found| found == edge);
                assert_eq!(found, Some(edge));
            }
        }
        assert_eq!(
            self.bins.all().count(),
            self.len(),
            "edges of holes that are gone"
        );
        self.edges.check(&self.bins);
    }
}
