//! A B+tree whose leaves tile an address space with live ranges and holes.
//!
//! Live ranges and holes are the same kind of thing here, a segment with a start; a segment ends
//! where the next begins. So there is one structure to descend for every question: which range
//! holds an address, what lies around it, where is the first hole of a length. Giving a range
//! back turns its segment into a hole and removes up to two neighbouring segments: it never
//! needs memory. Every inner node knows the longest hole under each child, which makes the
//! search for the lowest or highest hole that is long enough a single descent too.
#![expect(
    clippy::cast_possible_truncation,
    reason = "slots and children of a node number at most 32"
)]

use alloc::vec::Vec;

use super::node::{FANOUT, Inner, Leaf, Segment, Side};
use crate::SpaceError;

/// Inner levels: a level is added only when sixteen times as much was inserted.
const DEPTH: usize = 12;

/// Nodes with fewer entries than this are merged with a neighbour, if the result leaves room.
const SPARSE: u32 = FANOUT as u32 / 4;
const ROOMY: u32 = FANOUT as u32 * 3 / 4;

/// Records with stable numbers.
#[derive(Clone, Debug)]
struct Slab<T> {
    items: Vec<T>,
    spare: Vec<u32>,
}

impl<T> Slab<T> {
    const fn new() -> Self {
        Self {
            items: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Makes sure that `count` more records need no memory, and that releasing never will.
    #[inline]
    fn reserve(&mut self, count: usize) -> Result<(), SpaceError> {
        if self.items.capacity() - self.items.len() + self.spare.len() >= count {
            return Ok(());
        }
        self.grow(count)
    }

    /// Grows the list of spare records first: should growing the records fail then, the list has
    /// more room than it needs, and never less.
    #[cold]
    fn grow(&mut self, count: usize) -> Result<(), SpaceError> {
        let out = |_| SpaceError::MetadataExhausted;
        let len = self.items.len();
        let room = (len + count).max(len * 2);
        self.spare
            .try_reserve_exact(room - self.spare.len())
            .map_err(out)?;
        self.items.try_reserve_exact(room - len).map_err(out)
    }

    fn add(&mut self, item: T) -> u32 {
        if let Some(id) = self.spare.pop() {
            self.items[id as usize] = item;
            return id;
        }
        self.items.push(item);
        u32::try_from(self.items.len() - 1).expect("fewer nodes than u32 can number")
    }

    fn release(&mut self, id: u32) {
        self.spare.push(id);
    }

    fn used(&self) -> usize {
        self.items.len() - self.spare.len()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    node: u32,
    at: u32,
}

/// The way from the root to a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    steps: [Step; DEPTH],
    leaf: u32,
    at: usize,
}

/// # Invariants
/// Leaves are at one depth, and none is empty. Two holes are never adjacent, in one leaf or two.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    inners: Slab<Inner>,
    leaves: Slab<Leaf>,
    root: u32,
    height: usize,
    longest: u64,
}

impl Tree {
    /// A space that is one hole; it is not empty.
    pub(super) fn new(start: u64, end: u64) -> Result<Self, SpaceError> {
        let mut leaves = Slab::new();
        leaves.reserve(1)?;
        let root = leaves.add(Leaf::hole(start, end));
        Ok(Self {
            inners: Slab::new(),
            leaves,
            root,
            height: 0,
            longest: end - start,
        })
    }

    pub(super) fn longest(&self) -> u64 {
        self.longest
    }

    /// Bytes of host memory held.
    pub(super) fn bytes(&self) -> usize {
        self.inners.items.capacity() * size_of::<Inner>()
            + self.leaves.items.capacity() * size_of::<Leaf>()
            + (self.inners.spare.capacity() + self.leaves.spare.capacity()) * size_of::<u32>()
    }

    /// Nodes in use, inner ones and leaves.
    pub(super) fn nodes(&self) -> usize {
        self.inners.used() + self.leaves.used()
    }

    /// Makes sure that the next insertion needs no memory.
    #[inline]
    pub(super) fn reserve(&mut self) -> Result<(), SpaceError> {
        self.leaves.reserve(1)?;
        self.inners.reserve(self.height + 1)
    }

    /// Makes sure that the next two [cuts](Self::cut) need no memory.
    pub(super) fn reserve_cuts(&mut self) -> Result<(), SpaceError> {
        self.leaves.reserve(2)?;
        self.inners.reserve(2 * self.height + 3)
    }

    /// Cuts the live range at `path` in two: one that ends at `start`, and one from there on that
    /// has the colour `color`. The caller has reserved.
    pub(super) fn cut(&mut self, path: &Path, start: u64, color: u32) {
        let mut path = *path;
        if self.leaf(&path).len as usize == FANOUT {
            self.split_leaf(&path);
            path = self.seek(start);
        }
        let at = path.at + 1;
        self.leaf_mut(&path).open(at, start, color, false);
    }

    #[inline]
    fn leaf(&self, path: &Path) -> &Leaf {
        &self.leaves.items[path.leaf as usize]
    }

    #[inline]
    fn leaf_mut(&mut self, path: &Path) -> &mut Leaf {
        &mut self.leaves.items[path.leaf as usize]
    }

    #[inline]
    fn inner(&self, step: Step) -> &Inner {
        &self.inners.items[step.node as usize]
    }

    #[inline]
    fn inner_mut(&mut self, step: Step) -> &mut Inner {
        &mut self.inners.items[step.node as usize]
    }

    #[inline]
    pub(super) fn segment(&self, path: &Path) -> Segment {
        self.leaf(path).get(path.at)
    }

    pub(super) fn set_val(&mut self, path: &Path, val: u32) {
        let at = path.at;
        self.leaf_mut(path).vals[at] = val;
    }

    /// The segment that holds `address`, which lies in the space.
    #[inline]
    pub(super) fn lookup(&self, address: u64) -> Segment {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners.items[node as usize];
            node = inner.children[inner.rank(address)];
        }
        let leaf = &self.leaves.items[node as usize];
        leaf.get(leaf.rank(address))
    }

    /// The way to the segment that holds `address`, which lies in the space.
    #[inline]
    pub(super) fn seek(&self, address: u64) -> Path {
        let mut path = Path {
            steps: [Step::default(); DEPTH],
            leaf: self.root,
            at: 0,
        };
        for step in &mut path.steps[..self.height] {
            let inner = &self.inners.items[path.leaf as usize];
            let at = inner.rank(address);
            *step = Step {
                node: path.leaf,
                at: at as u32,
            };
            path.leaf = inner.children[at];
        }
        path.at = self.leaf(&path).rank(address);
        path
    }

    /// The first hole of at least `size`, coming from `from`.
    #[inline]
    pub(super) fn first_hole(&self, size: u64, from: Side) -> Option<Path> {
        if self.longest < size {
            return None;
        }
        let mut path = Path {
            steps: [Step::default(); DEPTH],
            leaf: self.root,
            at: 0,
        };
        self.descend(&mut path, 0, size, from);
        Some(path)
    }

    /// Moves to the next hole of at least `size`, away from `from`.
    pub(super) fn next_hole(&self, path: &mut Path, size: u64, from: Side) -> bool {
        let beyond = |at: usize| match from {
            Side::Low => (at + 1, FANOUT),
            Side::High => (0, at),
        };
        if let Some(at) = self.leaf(path).pick(beyond(path.at), size, from) {
            path.at = at;
            return true;
        }
        for level in (0..self.height).rev() {
            let step = path.steps[level];
            let inner = self.inner(step);
            if let Some(at) = inner.pick(beyond(step.at as usize), size, from) {
                path.steps[level].at = at as u32;
                path.leaf = inner.children[at];
                self.descend(path, level + 1, size, from);
                return true;
            }
        }
        false
    }

    /// Completes a path below `level`, from the node in `path.leaf`, which has a long enough hole.
    #[inline]
    fn descend(&self, path: &mut Path, level: usize, size: u64, from: Side) {
        for level in level..self.height {
            let inner = &self.inners.items[path.leaf as usize];
            let at = inner
                .pick((0, FANOUT), size, from)
                .expect("the parent saw the hole");
            path.steps[level] = Step {
                node: path.leaf,
                at: at as u32,
            };
            path.leaf = inner.children[at];
        }
        let leaf = self.leaf(path);
        path.at = leaf
            .pick((0, FANOUT), size, from)
            .expect("the parent saw the hole");
    }

    /// The way to the segment behind, if there is one.
    #[inline]
    pub(super) fn next(&self, path: &Path) -> Option<Path> {
        let mut path = *path;
        if path.at < self.leaf(&path).last() {
            path.at += 1;
            return Some(path);
        }
        self.step_leaf(path, Side::High)
    }

    /// The way to the segment in front, if there is one.
    #[inline]
    pub(super) fn prev(&self, path: &Path) -> Option<Path> {
        let mut path = *path;
        if path.at > 0 {
            path.at -= 1;
            return Some(path);
        }
        self.step_leaf(path, Side::Low)
    }

    /// The nearest slot of the neighbouring leaf towards `to`.
    fn step_leaf(&self, mut path: Path, to: Side) -> Option<Path> {
        let level = (0..self.height).rev().find(|&level| {
            let step = path.steps[level];
            match to {
                Side::High => step.at + 1 < self.inner(step).len,
                Side::Low => step.at > 0,
            }
        })?;
        let step = &mut path.steps[level];
        step.at = if to == Side::High {
            step.at + 1
        } else {
            step.at - 1
        };
        path.leaf = self.inners.items[step.node as usize].children[step.at as usize];
        for step in &mut path.steps[level + 1..self.height] {
            let inner = &self.inners.items[path.leaf as usize];
            let at = if to == Side::High { 0 } else { inner.len - 1 };
            *step = Step {
                node: path.leaf,
                at,
            };
            path.leaf = inner.children[at as usize];
        }
        path.at = if to == Side::High {
            0
        } else {
            self.leaf(&path).last()
        };
        Some(path)
    }

    /// Longest hole of the leaf, or of the node at a level below the root.
    #[inline]
    fn longest_at(&self, path: &Path, level: usize) -> u64 {
        match level.checked_sub(1) {
            None => self.longest,
            Some(above) => {
                let step = path.steps[above];
                self.inner(step).longest[step.at as usize]
            }
        }
    }

    /// Notes the longest hole of the path's leaf, as far up as it matters.
    #[inline]
    fn set_longest(&mut self, path: &Path, mut value: u64) {
        for level in (0..self.height).rev() {
            let step = path.steps[level];
            let above = self.longest_at(path, level);
            let inner = self.inner_mut(step);
            let old = core::mem::replace(&mut inner.longest[step.at as usize], value);
            if old == value {
                return;
            }
            if value < above {
                if old < above {
                    return;
                }
                value = inner.longest();
            }
        }
        self.longest = value;
    }

    /// Turns `[start, end)` of the hole at `path` into a live range. What is left of the hole in
    /// front keeps its number, what is left behind gets `rest`.
    ///
    /// The caller has made sure of memory by [`reserve`](Self::reserve).
    pub(super) fn occupy(&mut self, path: &Path, (start, end): (u64, u64), color: u32, rest: u32) {
        let hole = self.segment(path);
        let parts = usize::from(start > hole.start) + usize::from(end < hole.end);
        let mut path = *path;
        if self.leaf(&path).len as usize + parts > FANOUT {
            self.split_leaf(&path);
            path = self.seek(hole.start);
        }
        let mut at = path.at;
        let leaf = self.leaf_mut(&path);
        if start > hole.start {
            at += 1;
            leaf.open(at, start, color, false);
        } else {
            leaf.set(at, color, false);
        }
        if end < hole.end {
            leaf.open(at + 1, end, rest, true);
        }
        if self.longest_at(&path, self.height) == hole.end - hole.start {
            let longest = self.leaf(&path).longest();
            self.set_longest(&path, longest);
        }
    }

    /// Turns the live range at `path` into a hole, joined with the holes next to it, that has
    /// the number `val`.
    pub(super) fn vacate(&mut self, path: &Path, val: u32) {
        let mut path = *path;
        let at = path.at;
        let leaf = self.leaf_mut(&path);
        leaf.set(at, val, true);
        if at < leaf.last() {
            if leaf.holes >> (at + 1) & 1 != 0 {
                leaf.close(at + 1);
            }
        } else {
            self.absorb_next(&path);
        }
        if at > 0 {
            let leaf = self.leaf_mut(&path);
            if leaf.holes >> (at - 1) & 1 != 0 {
                leaf.close(at);
                leaf.vals[at - 1] = val;
                path.at = at - 1;
            }
        } else if let Some(before) = self.step_leaf(path, Side::Low)
            && self.segment(&before).hole
        {
            // The hole in front takes over this one, which is the first of the next leaf.
            self.set_val(&before, val);
            self.absorb_next(&before);
            path = before;
        }
        let hole = self.segment(&path);
        let longest = self
            .longest_at(&path, self.height)
            .max(hole.end - hole.start);
        self.set_longest(&path, longest);
        if self.leaf(&path).len < SPARSE {
            self.merge_leaf(&path);
        }
        while self.height > 0 && self.inners.items[self.root as usize].len == 1 {
            let only = self.inners.items[self.root as usize].children[0];
            self.inners.release(self.root);
            self.root = only;
            self.height -= 1;
        }
    }

    /// Extends the last segment of the path's leaf, a hole, over the first of the next leaf if
    /// that is a hole too. The longest hole of the path's leaf is left to the caller.
    fn absorb_next(&mut self, path: &Path) {
        let Some(mut behind) = self.step_leaf(*path, Side::High) else {
            return;
        };
        let taken = self.segment(&behind);
        if !taken.hole {
            return;
        }
        self.leaf_mut(path).set_end(taken.end);
        let next = self.leaf_mut(&behind);
        next.close(0);
        let level = if next.len == 0 {
            self.remove_leaf(&mut behind)
        } else {
            let longest = self.leaf(&behind).longest();
            self.set_longest(&behind, longest);
            self.height
        };
        // The boundary between the two is kept where their ways part.
        let parting = behind.steps[..level]
            .iter()
            .rev()
            .find(|step| step.at > 0)
            .copied();
        if let Some(step) = parting {
            self.inner_mut(step).keys[step.at as usize] = taken.end;
        }
    }

    /// Removes an empty leaf, and inner nodes that become empty by it. Returns the level above
    /// which boundaries still speak of what was removed.
    fn remove_leaf(&mut self, path: &mut Path) -> usize {
        self.set_longest(path, 0);
        self.leaves.release(path.leaf);
        for level in (0..self.height).rev() {
            let step = path.steps[level];
            let inner = self.inner_mut(step);
            inner.close(step.at as usize);
            if inner.len > 0 {
                // Behind the first child the boundary went with the child.
                return if step.at == 0 { level } else { 0 };
            }
            self.inners.release(step.node);
        }
        unreachable!("a space has a leaf: the one that absorbed this one's hole");
    }

    fn split_leaf(&mut self, path: &Path) {
        let edge = |side| self.step_leaf(*path, side).is_none();
        // Filling from one end leaves full leaves behind.
        let cut = if path.at + 1 >= FANOUT - 2 && edge(Side::High) {
            path.at
        } else if path.at <= 1 && edge(Side::Low) {
            path.at + 1
        } else {
            FANOUT / 2
        };
        let leaf = self.leaf_mut(path);
        let upper = leaf.split(cut);
        let (lower_longest, upper_longest, key) =
            (leaf.longest(), upper.longest(), upper.starts[0]);
        let child = self.leaves.add(upper);
        if let Some(level) = self.height.checked_sub(1) {
            let step = path.steps[level];
            self.inner_mut(step).longest[step.at as usize] = lower_longest;
        }
        self.add_child(
            path,
            self.height,
            (key, upper_longest, child),
            lower_longest,
        );
    }

    /// Adds a child behind the path's child at `level - 1`; at level 0 the tree grows.
    fn add_child(
        &mut self,
        path: &Path,
        level: usize,
        (key, longest, child): (u64, u64, u32),
        lower_longest: u64,
    ) {
        let Some(above) = level.checked_sub(1) else {
            let mut root = Inner::EMPTY;
            root.open(0, 0, lower_longest, self.root);
            root.open(1, key, longest, child);
            self.root = self.inners.add(root);
            self.height += 1;
            return;
        };
        let step = path.steps[above];
        let inner = self.inner_mut(step);
        let at = step.at as usize + 1;
        if (inner.len as usize) < FANOUT {
            inner.open(at, key, longest, child);
            return;
        }
        let (upper_key, mut upper) = inner.split();
        match at.checked_sub(FANOUT / 2) {
            Some(at) if at > 0 => upper.open(at, key, longest, child),
            _ => inner.open(at, key, longest, child),
        }
        let (lower_longest, upper_longest) = (inner.longest(), upper.longest());
        let new = self.inners.add(upper);
        if let Some(level) = above.checked_sub(1) {
            let step = path.steps[level];
            self.inner_mut(step).longest[step.at as usize] = lower_longest;
        }
        self.add_child(path, above, (upper_key, upper_longest, new), lower_longest);
    }

    /// Joins a sparse leaf with a neighbour under the same parent, and sparse parents likewise.
    fn merge_leaf(&mut self, path: &Path) {
        let Some(level) = self.height.checked_sub(1) else {
            return;
        };
        let step = path.steps[level];
        let inner = self.inner(step);
        let at = step.at as usize;
        let len = |at: usize| self.leaves.items[inner.children[at] as usize].len;
        let Some(lower) = pair_to_merge(at, inner.len, len) else {
            return;
        };
        let (left, right) = (inner.children[lower], inner.children[lower + 1]);
        let upper = self.leaves.items[right as usize].clone();
        self.leaves.items[left as usize].append(&upper);
        self.leaves.release(right);
        let inner = self.inner_mut(step);
        inner.longest[lower] = inner.longest[lower].max(inner.longest[lower + 1]);
        inner.close(lower + 1);
        if self.inner(step).len < SPARSE {
            self.merge_inner(path, level);
        }
    }

    fn merge_inner(&mut self, path: &Path, level: usize) {
        let Some(above) = level.checked_sub(1) else {
            return;
        };
        let step = path.steps[above];
        let inner = self.inner(step);
        let len = |at: usize| self.inners.items[inner.children[at] as usize].len;
        let Some(lower) = pair_to_merge(step.at as usize, inner.len, len) else {
            return;
        };
        let (left, right) = (inner.children[lower], inner.children[lower + 1]);
        let key = inner.keys[lower + 1];
        let upper = self.inners.items[right as usize].clone();
        self.inners.items[left as usize].append(key, &upper);
        self.inners.release(right);
        let inner = self.inner_mut(step);
        inner.longest[lower] = inner.longest[lower].max(inner.longest[lower + 1]);
        inner.close(lower + 1);
        if self.inner(step).len < SPARSE {
            self.merge_inner(path, above);
        }
    }

    /// Compares every node with what is below it.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(super) fn check(&self, start: u64, end: u64) {
        let mut at = start;
        let longest = self.check_node(self.root, 0, &mut at);
        assert_eq!(
            (at, longest),
            (end, self.longest),
            "the root covers the space"
        );
    }

    fn check_node(&self, node: u32, level: usize, at: &mut u64) -> u64 {
        if level == self.height {
            let leaf = &self.leaves.items[node as usize];
            assert!(
                leaf.len > 0 && leaf.starts[0] == *at,
                "leaves tile the space"
            );
            assert!(
                leaf.starts[leaf.len as usize + 1..]
                    .iter()
                    .all(|&start| start == u64::MAX)
            );
            assert_eq!(leaf.holes.checked_shr(leaf.len).unwrap_or(0), 0);
            for slot in 0..leaf.len as usize {
                assert!(leaf.starts[slot] < leaf.end_of(slot), "a segment is empty");
            }
            *at = leaf.end();
            return leaf.longest();
        }
        let inner = &self.inners.items[node as usize];
        assert!(inner.len > 0 && inner.keys[0] == 0);
        assert!(
            inner.keys[inner.len as usize..]
                .iter()
                .all(|&key| key == u64::MAX)
        );
        assert!(
            inner.longest[inner.len as usize..]
                .iter()
                .all(|&longest| longest == 0)
        );
        for child in 0..inner.len as usize {
            assert!(
                child == 0 || inner.keys[child] == *at,
                "a key is where its child begins"
            );
            let longest = self.check_node(inner.children[child], level + 1, at);
            assert_eq!(longest, inner.longest[child], "longest hole under a child");
        }
        inner.longest()
    }
}

/// The lower of two neighbouring children, one of them `at`, that fit into one node.
fn pair_to_merge(at: usize, count: u32, len: impl Fn(usize) -> u32) -> Option<usize> {
    let fits = |lower: usize| len(lower) + len(lower + 1) <= ROOMY;
    let right = (at + 1 < count as usize).then_some(at);
    let left = at.checked_sub(1);
    right.into_iter().chain(left).find(|&lower| fits(lower))
}
