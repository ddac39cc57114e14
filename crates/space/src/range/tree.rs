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
    reason = "children of a node number at most 64"
)]

use super::inner::{FANOUT, Inner, Wanted};
use super::leaf::{Leaf, Segment, Side};
use super::slots::{PARTS, SLOTS};
use super::tags::Tags;
use crate::SpaceError;
use crate::store::Store;

/// Inner levels: nodes are numbered by 32 bits, and a level is added only when sixteen times as
/// many leaves were made.
const DEPTH: usize = 9;

/// Nodes with fewer entries than this are merged with a neighbour, if the result leaves room.
const fn sparse(most: usize) -> usize {
    most / 4
}

const fn roomy(most: usize) -> usize {
    most * 3 / 4
}

/// Leaves that one insertion may add: a full one is split, and a range longer than a leaf reaches
/// ends in another; or it starts in another too, and then there is no full one.
const NEW_LEAVES: usize = 2;

/// Records with stable numbers.
#[derive(Clone, Debug)]
struct Slab<T> {
    items: Store<T>,
    spare: Store<u32>,
}

impl<T> Slab<T> {
    const fn new() -> Self {
        Self {
            items: Store::new(),
            spare: Store::new(),
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
        let missing = room - self.spare.len();
        self.spare.try_reserve_exact(missing).map_err(out)?;
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
#[derive(Clone, Copy, Debug, Default)]
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
    tags: Tags,
    root: u32,
    height: usize,
    longest: u64,
}

impl Tree {
    /// A space that is one hole; it is not empty.
    pub(super) fn new(start: u64, end: u64) -> Result<Self, SpaceError> {
        let mut leaves = Slab::new();
        leaves.reserve(1)?;
        let root = leaves.add(Leaf::of(Segment {
            start,
            end,
            hole: true,
        }));
        Ok(Self {
            inners: Slab::new(),
            leaves,
            tags: Tags::new(),
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
            + self.tags.bytes()
    }

    /// Nodes in use, inner ones and leaves.
    pub(super) fn nodes(&self) -> usize {
        self.inners.used() + self.leaves.used()
    }

    /// Makes sure that the next insertion, of a range with the number `tag`, needs no memory.
    #[inline]
    pub(super) fn reserve(&mut self, tag: u32) -> Result<(), SpaceError> {
        if !self.tags.allows(tag) {
            self.allow(tag)?;
        }
        self.leaves.reserve(NEW_LEAVES)?;
        // Also where there is room for leaves: the lists may have been refused theirs last time.
        if self.tags.is_listed() {
            self.tags.reserve(self.leaves.items.capacity())?;
        }
        self.inners.reserve(NEW_LEAVES * (self.height + 1))
    }

    #[cold]
    fn allow(&mut self, tag: u32) -> Result<(), SpaceError> {
        let only = &self.leaves.items[self.root as usize];
        if self.height == 0 && only.len() == 1 && only.is_hole(0) {
            self.tags.set_common(tag);
            return Ok(());
        }
        self.list_tags()
    }

    /// Makes sure that each segment can have its own number.
    pub(super) fn list_tags(&mut self) -> Result<(), SpaceError> {
        if self.tags.is_listed() {
            return Ok(());
        }
        let leaves = &self.leaves.items;
        self.tags.list(leaves.len(), leaves.capacity())
    }

    /// Makes sure that the next two [cuts](Self::cut), and then so many insertions, need no memory.
    pub(super) fn reserve_cuts(&mut self, insertions: usize) -> Result<(), SpaceError> {
        let leaves = 2 + NEW_LEAVES * insertions;
        self.list_tags()?;
        self.leaves.reserve(leaves)?;
        self.tags.reserve(self.leaves.items.capacity())?;
        // The first to need a node at each height may make the tree higher by one.
        self.inners.reserve(leaves * (self.height + 2) - 1)
    }

    /// Cuts the live range at `path` in two: one that ends at `start`, and one from there on that
    /// has the colour `color`. The caller has reserved.
    pub(super) fn cut(&mut self, path: &Path, start: u64, color: u32) {
        let mut path = *path;
        if !self.leaf(&path).reaches(start) {
            let tail = self.leaf_mut(&path).cut(start);
            let leaf = self.add_leaf(&path, Leaf::of(tail));
            return self.tags.set(leaf, 0, color);
        }
        if self.leaf(&path).len() == SLOTS {
            self.split_leaf(&path);
            path = self.seek(start);
        }
        let at = path.at + 1;
        self.leaf_mut(&path).open_live(at, start);
        self.tags.open(path.leaf, at, 1);
        self.tags.set(path.leaf, at, color);
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

    /// The number of the segment.
    #[inline]
    pub(super) fn tag(&self, path: &Path) -> u32 {
        self.tags.get(path.leaf, path.at)
    }

    /// Gives the segment a number, for which [`reserve`](Self::reserve) has made sure of memory.
    pub(super) fn set_tag(&mut self, path: &Path, tag: u32) {
        self.tags.set(path.leaf, path.at, tag);
    }

    /// The segment that holds `address`, which lies in the space, and its number.
    #[inline]
    pub(super) fn lookup(&self, address: u64) -> (Segment, u32) {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners.items[node as usize];
            node = inner.child(inner.rank(address));
        }
        let leaf = &self.leaves.items[node as usize];
        let at = leaf.rank(address);
        (leaf.get(at), self.tags.get(node, at))
    }

    /// The way to the segment that holds `address`, which lies in the space.
    pub(super) fn seek(&self, address: u64) -> Path {
        let mut path = Path::default();
        self.seek_into(&mut path, address);
        path
    }

    /// As [`seek`](Self::seek): the way is written where it will be read, as copies of what was
    /// just stored in pieces wait for all of them.
    #[inline]
    pub(super) fn seek_into(&self, path: &mut Path, address: u64) {
        let mut node = self.root;
        for step in &mut path.steps[..self.height] {
            let inner = &self.inners.items[node as usize];
            let at = inner.rank(address);
            *step = Step {
                node,
                at: at as u32,
            };
            node = inner.child(at);
        }
        path.leaf = node;
        path.at = self.leaves.items[node as usize].rank(address);
    }

    /// Finds the first hole of at least `size`, coming from `from`.
    #[inline]
    pub(super) fn first_hole(&self, path: &mut Path, size: u64, from: Side) -> bool {
        if self.longest < size {
            return false;
        }
        path.leaf = self.root;
        self.descend(path, 0, Wanted::new(size), from);
        true
    }

    /// Moves to the next hole of at least `size`, away from `from`.
    pub(super) fn next_hole(&self, path: &mut Path, size: u64, from: Side) -> bool {
        let beyond = |at: usize, most: usize| match from {
            Side::Low => (at + 1, most),
            Side::High => (0, at),
        };
        let rest = beyond(path.at, SLOTS);
        if let Some(at) = self.leaf(path).pick_within(rest, size, from) {
            path.at = at;
            return true;
        }
        let wanted = Wanted::new(size);
        for level in (0..self.height).rev() {
            let step = path.steps[level];
            let inner = self.inner(step);
            let rest = beyond(step.at as usize, FANOUT);
            if let Some(at) = inner.pick_within(rest, wanted, from) {
                path.steps[level].at = at as u32;
                path.leaf = inner.child(at);
                self.descend(path, level + 1, wanted, from);
                return true;
            }
        }
        false
    }

    /// Completes a path below `level`, from the node in `path.leaf`, which has a long enough hole.
    #[inline]
    fn descend(&self, path: &mut Path, level: usize, wanted: Wanted, from: Side) {
        let mut node = path.leaf;
        for step in &mut path.steps[level..self.height] {
            let inner = &self.inners.items[node as usize];
            let at = inner.pick(wanted, from).expect("the parent saw the hole");
            *step = Step {
                node,
                at: at as u32,
            };
            node = inner.child(at);
        }
        path.leaf = node;
        let leaf = &self.leaves.items[node as usize];
        path.at = leaf
            .pick(wanted.size, from)
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
                Side::High => (step.at as usize) + 1 < self.inner(step).len(),
                Side::Low => step.at > 0,
            }
        })?;
        let step = &mut path.steps[level];
        step.at = if to == Side::High {
            step.at + 1
        } else {
            step.at - 1
        };
        path.leaf = self.inners.items[step.node as usize].child(step.at as usize);
        for step in &mut path.steps[level + 1..self.height] {
            let inner = &self.inners.items[path.leaf as usize];
            let at = if to == Side::High { 0 } else { inner.len() - 1 };
            *step = Step {
                node: path.leaf,
                at: at as u32,
            };
            path.leaf = inner.child(at);
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
                self.inner(step).longest_of(step.at as usize)
            }
        }
    }

    /// Notes that the path's leaf has a hole of `len`, as far up as it is the longest.
    #[inline]
    fn raise_longest(&mut self, path: &Path, len: u64) {
        for level in (0..self.height).rev() {
            let step = path.steps[level];
            let inner = self.inner_mut(step);
            if inner.longest_of(step.at as usize) >= len {
                return;
            }
            inner.set_longest(step.at as usize, len);
        }
        self.longest = self.longest.max(len);
    }

    /// Notes the longest hole of the path's leaf, as far up as it matters.
    #[inline]
    fn set_longest(&mut self, path: &Path, value: u64) {
        self.set_longest_at(path, self.height, value);
    }

    /// The same for the path's node at `level`.
    #[inline]
    fn set_longest_at(&mut self, path: &Path, level: usize, mut value: u64) {
        for level in (0..level).rev() {
            let step = path.steps[level];
            let above = self.longest_at(path, level);
            let inner = self.inner_mut(step);
            let old = inner.longest_of(step.at as usize);
            if old == value {
                return;
            }
            let code = inner.set_longest(step.at as usize, value);
            if value < above {
                if old < above {
                    return;
                }
                value = inner.longest_with(code);
            }
        }
        self.longest = value;
    }

    /// Turns `[start, end)` of the hole at `path` into a live range. What is left of the hole in
    /// front keeps its number, what is left behind gets `rest`.
    ///
    /// The caller has made sure of memory by [`reserve`](Self::reserve).
    #[inline]
    pub(super) fn occupy(&mut self, path: &Path, (start, end): (u64, u64), tag: u32, rest: u32) {
        let hole = self.segment(path);
        let parts = (usize::from(start > hole.start), usize::from(end < hole.end));
        let leaf = self.leaf_mut(path);
        // What starts last in the leaf is the range, or what is left behind it.
        let farthest = if end < hole.end { end } else { start };
        if leaf.len() + parts.0 + parts.1 > SLOTS || !leaf.reaches(farthest) {
            return self.occupy_apart(path, (start, end), tag, rest);
        }
        if self.longest_at(path, self.height) == hole.len() {
            let left = (start - hole.start).max(hole.end - end);
            let longest = left.max(self.leaf(path).longest_but(path.at));
            self.set_longest(path, longest);
        }
        self.leaf_mut(path).occupy(path.at, (start, end), parts);
        if self.tags.is_listed() {
            self.tag_parts(path, parts, tag, rest);
        }
    }

    /// Does for the numbers what [`Leaf::occupy`] does for the segments.
    fn tag_parts(&mut self, path: &Path, (front, back): (usize, usize), tag: u32, rest: u32) {
        self.tags.open(path.leaf, path.at + 1, front + back);
        self.tags.set(path.leaf, path.at + front, tag);
        if back > 0 {
            self.tags.set(path.leaf, path.at + front + 1, rest);
        }
    }

    /// Does what [`occupy`](Self::occupy) does where the leaf has no room, or does not reach so
    /// far.
    #[cold]
    #[inline(never)]
    fn occupy_apart(&mut self, path: &Path, (start, end): (u64, u64), tag: u32, rest: u32) {
        let hole = self.segment(path);
        let leaf = self.leaf(path);
        if start > hole.start && !leaf.reaches(start) {
            self.cut_leaf(path, start);
        } else if leaf.len() + PARTS > SLOTS {
            self.split_leaf(path);
        }
        let path = self.seek(start);
        let hole = self.segment(&path);
        if end < hole.end && !self.leaf(&path).reaches(end) {
            self.cut_leaf(&path, end);
            let behind = self.seek(end);
            self.set_tag(&behind, rest);
        }
        let path = self.seek(start);
        let hole = self.segment(&path);
        let parts = (usize::from(start > hole.start), usize::from(end < hole.end));
        self.leaf_mut(&path).occupy(path.at, (start, end), parts);
        self.tag_parts(&path, parts, tag, rest);
        let longest = self.leaf(&path).longest();
        self.set_longest(&path, longest);
    }

    /// Turns the live range at `path` into a hole, joined with the holes next to it, that has
    /// the number `tag`.
    #[inline]
    pub(super) fn vacate(&mut self, path: &Path, tag: u32) {
        let at = path.at;
        let leaf = self.leaf_mut(path);
        if at == 0 || at == leaf.last() {
            return self.vacate_edge(path, tag);
        }
        let (first, by) = leaf.vacate(at);
        let (len, is_sparse) = (leaf.get(first).len(), leaf.len() < sparse(SLOTS));
        if self.tags.is_listed() {
            self.tags.close(path.leaf, first + 1, by);
            self.tags.set(path.leaf, first, tag);
        }
        self.raise_longest(path, len);
        if is_sparse {
            self.merge_leaf(path);
        }
    }

    /// Drops slot `at` of the path's leaf; the segment before it grows over it.
    fn drop_slot(&mut self, path: &Path, at: usize) {
        self.leaf_mut(path).drop_slots(at, 1);
        self.tags.close(path.leaf, at, 1);
    }

    /// Does what [`vacate`](Self::vacate) does for the first or the last range of a leaf.
    #[inline(never)]
    fn vacate_edge(&mut self, path: &Path, tag: u32) {
        let mut path = *path;
        let at = path.at;
        let leaf = self.leaf_mut(&path);
        leaf.set_hole(at);
        if at == leaf.last() {
            self.absorb_next(&path);
        } else if leaf.is_hole(at + 1) {
            self.drop_slot(&path, at + 1);
        }
        if at > 0 {
            if self.leaf(&path).is_hole(at - 1) {
                self.drop_slot(&path, at);
                path.at = at - 1;
            }
        } else if let Some(before) = self.step_leaf(path, Side::Low)
            && self.segment(&before).hole
        {
            // The hole in front takes over this one, which is the first of the next leaf.
            self.absorb_next(&before);
            path = before;
        }
        self.set_tag(&path, tag);
        let len = self.segment(&path).len();
        self.raise_longest(&path, len);
        if self.leaf(&path).len() < sparse(SLOTS) {
            self.merge_leaf(&path);
        }
        self.lower_root();
    }

    /// Takes away a root that has one child.
    fn lower_root(&mut self) {
        while self.height > 0 && self.inners.items[self.root as usize].len() == 1 {
            let only = self.inners.items[self.root as usize].child(0);
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
        self.leaf_mut(&behind).drop_first();
        self.tags.close(behind.leaf, 0, 1);
        let level = if self.leaf(&behind).len() == 0 {
            self.remove_leaf(&mut behind)
        } else {
            let longest = self.leaf(&behind).longest();
            self.set_longest(&behind, longest);
            self.height
        };
        self.set_boundary(&behind, level, taken.end);
    }

    /// Moves the boundary in front of the path's node at `level`. It is kept where the way to the
    /// node parts from the way to what lies in front.
    fn set_boundary(&mut self, path: &Path, level: usize, address: u64) {
        let parting = path.steps[..level].iter().rev().find(|step| step.at > 0);
        if let Some(&step) = parting {
            self.inner_mut(step).set_key(step.at as usize, address);
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
            if inner.len() > 0 {
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
        let cut = if path.at + 1 >= SLOTS - PARTS && edge(Side::High) {
            path.at
        } else if path.at <= 1 && edge(Side::Low) {
            path.at + 1
        } else {
            SLOTS / 2
        };
        let leaf = self.leaf_mut(path);
        let count = leaf.len() - cut;
        let upper = leaf.split(cut);
        let upper = self.add_leaf(path, upper);
        self.tags.copy((path.leaf, cut), (upper, 0), count);
    }

    /// Ends the path's leaf, and with it a hole, at `address`. What was behind becomes a hole of
    /// the next leaf, if that reaches back so far, or of a new one.
    fn cut_leaf(&mut self, path: &Path, address: u64) {
        let tail = self.leaf_mut(path).cut(address);
        let next = self.step_leaf(*path, Side::High);
        let next = next.filter(|next| self.leaf(next).can_prepend(address, PARTS));
        let Some(next) = next else {
            self.add_leaf(path, Leaf::of(tail));
            return;
        };
        let longest = self.leaf(path).longest();
        self.set_longest(path, longest);
        self.leaf_mut(&next).prepend_hole(address);
        self.tags.open(next.leaf, 0, 1);
        self.set_boundary(&next, self.height, address);
        self.raise_longest(&next, tail.len());
    }

    /// Adds what was taken from the end of the path's leaf as a leaf of its own. Returns its
    /// number.
    fn add_leaf(&mut self, path: &Path, upper: Leaf) -> u32 {
        let lower_longest = self.leaf(path).longest();
        let (upper_longest, key) = (upper.longest(), upper.start());
        let child = self.leaves.add(upper);
        self.tags.add_leaf(child);
        if let Some(level) = self.height.checked_sub(1) {
            let step = path.steps[level];
            self.inner_mut(step)
                .set_longest(step.at as usize, lower_longest);
        }
        self.add_child(
            path,
            self.height,
            (key, upper_longest, child),
            lower_longest,
        );
        child
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
            self.longest = lower_longest.max(longest);
            return;
        };
        let step = path.steps[above];
        let inner = self.inner_mut(step);
        let at = step.at as usize + 1;
        if inner.len() < FANOUT {
            inner.open(at, key, longest, child);
            let longest = inner.longest();
            return self.set_longest_at(path, above, longest);
        }
        let (upper_key, mut upper) = inner.split(FANOUT / 2);
        match at.checked_sub(FANOUT / 2) {
            Some(at) if at > 0 => upper.open(at, key, longest, child),
            _ => inner.open(at, key, longest, child),
        }
        let (lower_longest, upper_longest) = (inner.longest(), upper.longest());
        let new = self.inners.add(upper);
        if let Some(level) = above.checked_sub(1) {
            let step = path.steps[level];
            self.inner_mut(step)
                .set_longest(step.at as usize, lower_longest);
        }
        self.add_child(path, above, (upper_key, upper_longest, new), lower_longest);
    }

    /// Joins a sparse leaf with a neighbour under the same parent, and sparse parents likewise.
    #[cold]
    fn merge_leaf(&mut self, path: &Path) {
        let Some(level) = self.height.checked_sub(1) else {
            return;
        };
        let step = path.steps[level];
        let inner = self.inner(step);
        let leaf = |at: usize| &self.leaves.items[inner.child(at) as usize];
        let fits = |lower: usize| leaf(lower).can_append(leaf(lower + 1), roomy(SLOTS));
        let Some(lower) = pair_to_merge(step.at as usize, inner.len(), fits) else {
            return;
        };
        let (left, right) = (inner.child(lower), inner.child(lower + 1));
        let upper = self.leaves.items[right as usize].clone();
        let lower_leaf = &mut self.leaves.items[left as usize];
        let len = lower_leaf.len();
        lower_leaf.append(&upper);
        self.tags.copy((right, 0), (left, len), upper.len());
        self.leaves.release(right);
        self.drop_upper(step, lower);
        if self.inner(step).len() < sparse(FANOUT) {
            self.merge_inner(path, level);
        }
        self.lower_root();
    }

    /// Drops the child behind `lower`, which took it over.
    fn drop_upper(&mut self, step: Step, lower: usize) {
        let inner = self.inner_mut(step);
        let longest = inner.longest_of(lower).max(inner.longest_of(lower + 1));
        inner.set_longest(lower, longest);
        inner.close(lower + 1);
    }

    fn merge_inner(&mut self, path: &Path, level: usize) {
        let Some(above) = level.checked_sub(1) else {
            return;
        };
        let step = path.steps[above];
        let inner = self.inner(step);
        let len = |at: usize| self.inners.items[inner.child(at) as usize].len();
        let fits = |lower: usize| len(lower) + len(lower + 1) <= roomy(FANOUT);
        let Some(lower) = pair_to_merge(step.at as usize, inner.len(), fits) else {
            return;
        };
        let (left, right) = (inner.child(lower), inner.child(lower + 1));
        let key = inner.key(lower + 1);
        let upper = self.inners.items[right as usize].clone();
        self.inners.items[left as usize].append(key, &upper);
        self.inners.release(right);
        self.drop_upper(step, lower);
        if self.inner(step).len() < sparse(FANOUT) {
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
            leaf.check();
            assert_eq!(leaf.start(), *at, "leaves tile the space");
            *at = leaf.end();
            return leaf.longest();
        }
        let inner = &self.inners.items[node as usize];
        inner.check();
        for child in 0..inner.len() {
            assert!(
                child == 0 || inner.key(child) == *at,
                "a key is where its child begins"
            );
            let longest = self.check_node(inner.child(child), level + 1, at);
            assert_eq!(
                longest,
                inner.longest_of(child),
                "longest hole under a child"
            );
        }
        inner.longest()
    }
}

/// The lower of two neighbouring children, one of them `at`, that fit into one node.
fn pair_to_merge(at: usize, count: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let right = (at + 1 < count).then_some(at);
    let left = at.checked_sub(1);
    right.into_iter().chain(left).find(|&lower| fits(lower))
}
