//! An ordered map whose memory is asked for in advance, and may be refused.
//!
//! The maps of the standard library abort when the host is out of memory, and may ask for some at
//! any insertion. Here [`reserve`](OrderedMap::reserve) asks, and nothing else does: whoever has
//! reserved may insert, and removing never needs anything.

use crate::SpaceError;
use crate::store::Store;

/// No node. Its record exists as soon as any does, and keeps level 0.
const NIL: u32 = 0;

#[derive(Clone, Copy, Debug, Default)]
struct Node<K, V> {
    key: K,
    value: V,
    left: u32,
    right: u32,
    level: u32,
}

/// An AA tree in a vector: balanced with one number per node, so that recursion is at most twice
/// as deep as the logarithm of its size.
///
/// # Invariants
/// A left child is one level below its node, a right child none or one, and a right grandchild at
/// least one; nodes without children have level 1. Unused records are chained by `left`.
#[derive(Clone, Debug)]
pub(crate) struct OrderedMap<K, V> {
    nodes: Store<Node<K, V>>,
    root: u32,
    spare: u32,
    len: usize,
}

impl<K: Copy + Default + Ord, V: Copy + Default> OrderedMap<K, V> {
    pub(crate) const fn new() -> Self {
        Self {
            nodes: Store::new(),
            root: NIL,
            spare: NIL,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of host memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<K, V>>()
    }

    /// Makes sure that `count` more keys need no memory.
    pub(crate) fn reserve(&mut self, count: usize) -> Result<(), SpaceError> {
        let wanted = self.len.checked_add(count).and_then(|n| n.checked_add(1));
        let missing = wanted
            .ok_or(SpaceError::MetadataExhausted)?
            .saturating_sub(self.nodes.len());
        self.nodes
            .try_reserve(missing)
            .map_err(|_| SpaceError::MetadataExhausted)?;
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        Ok(())
    }

    pub(crate) fn get(&self, key: K) -> Option<V> {
        self.find(key).map(|at| self.node(at).value)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = self.find(key)?;
        Some(&mut self.nodes[at as usize].value)
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.find(key).is_some()
    }

    /// The entry with the smallest key at or above `from`.
    pub(crate) fn next(&self, from: K) -> Option<(K, V)> {
        self.first_where(|key| key >= from)
    }

    /// The entry with the smallest key above `key`.
    pub(crate) fn after(&self, key: K) -> Option<(K, V)> {
        self.first_where(|other| other > key)
    }

    /// The entry with the greatest key at or below `from`.
    pub(crate) fn prev(&self, from: K) -> Option<(K, V)> {
        let (mut at, mut found) = (self.root, None);
        while at != NIL {
            let node = self.node(at);
            if node.key <= from {
                found = Some((node.key, node.value));
                at = node.right;
            } else {
                at = node.left;
            }
        }
        found
    }

    /// All entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, V)> + '_ {
        core::iter::successors(self.first_where(|_| true), |&(key, _)| self.after(key))
    }

    /// Adds an entry, for which the caller has reserved; replaces one with the same key.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let Some(old) = self.get_mut(key) {
            *old = value;
            return;
        }
        let mut new = self.spare;
        let node = Node {
            key,
            value,
            left: NIL,
            right: NIL,
            level: 1,
        };
        if new == NIL {
            debug_assert!(self.nodes.len() < self.nodes.capacity(), "not reserved");
            new = u32::try_from(self.nodes.len()).expect("fewer entries than u32 can number");
            self.nodes.push(node);
        } else {
            self.spare = self.node(new).left;
            self.nodes[new as usize] = node;
        }
        self.len += 1;
        self.root = self.insert_below(self.root, new);
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let value = self.get(key)?;
        self.root = self.remove_below(self.root, key);
        self.len -= 1;
        Some(value)
    }

    fn node(&self, at: u32) -> &Node<K, V> {
        #[cfg(test)]
        crate::testing::step();
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node<K, V> {
        &mut self.nodes[at as usize]
    }

    fn find(&self, key: K) -> Option<u32> {
        let mut at = self.root;
        while at != NIL {
            let node = self.node(at);
            at = match key.cmp(&node.key) {
                core::cmp::Ordering::Less => node.left,
                core::cmp::Ordering::Equal => return Some(at),
                core::cmp::Ordering::Greater => node.right,
            };
        }
        None
    }

    /// The first entry of those, at the end of the order, whose keys `is_in`.
    fn first_where(&self, is_in: impl Fn(K) -> bool) -> Option<(K, V)> {
        let (mut at, mut found) = (self.root, None);
        while at != NIL {
            let node = self.node(at);
            if is_in(node.key) {
                found = Some((node.key, node.value));
                at = node.left;
            } else {
                at = node.right;
            }
        }
        found
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NIL {
            return new;
        }
        if self.node(new).key < self.node(at).key {
            self.node_mut(at).left = self.insert_below(self.node(at).left, new);
        } else {
            self.node_mut(at).right = self.insert_below(self.node(at).right, new);
        }
        let at = self.skew(at);
        self.split(at)
    }

    fn remove_below(&mut self, at: u32, key: K) -> u32 {
        if at == NIL {
            return NIL;
        }
        let Node { left, right, .. } = *self.node(at);
        match key.cmp(&self.node(at).key) {
            core::cmp::Ordering::Less => self.node_mut(at).left = self.remove_below(left, key),
            core::cmp::Ordering::Greater => self.node_mut(at).right = self.remove_below(right, key),
            core::cmp::Ordering::Equal if left == NIL && right == NIL => {
                self.node_mut(at).left = self.spare;
                self.spare = at;
                return NIL;
            }
            core::cmp::Ordering::Equal => self.replace_by_neighbour(at, left, right),
        }
        self.rebalance(at)
    }

    /// Puts the next or previous entry in the place of one that goes, and takes it out below.
    fn replace_by_neighbour(&mut self, at: u32, left: u32, right: u32) {
        let (mut other, down) = if left == NIL {
            (right, true)
        } else {
            (left, false)
        };
        loop {
            let node = self.node(other);
            match if down { node.left } else { node.right } {
                NIL => break,
                next => other = next,
            }
        }
        let Node { key, value, .. } = *self.node(other);
        if down {
            self.node_mut(at).right = self.remove_below(right, key);
        } else {
            self.node_mut(at).left = self.remove_below(left, key);
        }
        let node = self.node_mut(at);
        (node.key, node.value) = (key, value);
    }

    /// Restores the levels of a node below which an entry went.
    fn rebalance(&mut self, at: u32) -> u32 {
        let Node { left, right, .. } = *self.node(at);
        let level = self.node(left).level.min(self.node(right).level) + 1;
        if level < self.node(at).level {
            self.node_mut(at).level = level;
            if level < self.node(right).level {
                self.node_mut(right).level = level;
            }
        }
        let at = self.skew(at);
        let right = self.skew(self.node(at).right);
        self.node_mut(at).right = right;
        if right != NIL {
            self.node_mut(right).right = self.skew(self.node(right).right);
        }
        let at = self.split(at);
        self.node_mut(at).right = self.split(self.node(at).right);
        at
    }

    /// Turns a left child on the node's own level into its parent.
    fn skew(&mut self, at: u32) -> u32 {
        let Node { left, level, .. } = *self.node(at);
        if at == NIL || self.node(left).level != level {
            return at;
        }
        self.node_mut(at).left = self.node(left).right;
        self.node_mut(left).right = at;
        left
    }

    /// Lifts the middle of three nodes on one level.
    fn split(&mut self, at: u32) -> u32 {
        let Node { right, level, .. } = *self.node(at);
        if at == NIL || self.node(self.node(right).right).level != level {
            return at;
        }
        self.node_mut(at).right = self.node(right).left;
        let node = self.node_mut(right);
        node.left = at;
        node.level += 1;
        right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::Rng;

    impl<K: Copy + Default + Ord + core::fmt::Debug, V: Copy + Default> OrderedMap<K, V> {
        /// Number of nodes below, after comparing each with its children.
        fn check(&self, at: u32) -> usize {
            if at == NIL {
                return 0;
            }
            let node = self.node(at);
            let (left, right) = (self.node(node.left), self.node(node.right));
            assert_eq!(left.level + 1, node.level);
            assert!(right.level == node.level || right.level + 1 == node.level);
            assert!(node.right == NIL || self.node(right.right).level < node.level);
            self.check(node.left) + self.check(node.right) + 1
        }
    }

    #[test]
    fn it_answers_as_the_standard_map_and_stays_balanced() {
        for seed in 0..20 {
            let mut rng = Rng(seed);
            let (mut ours, mut theirs) = (OrderedMap::new(), BTreeMap::new());
            for step in 0..2000_u64 {
                let key = rng.below(200);
                // Phases of growth and decay.
                if rng.below(10) < if step / 250 % 2 == 0 { 8 } else { 2 } {
                    ours.reserve(1).unwrap();
                    ours.insert(key, step);
                    theirs.insert(key, step);
                } else {
                    assert_eq!(ours.remove(key), theirs.remove(&key));
                }
                assert_eq!(ours.len(), theirs.len());
                let entry = |(&key, &value): (&u64, &u64)| (key, value);
                assert_eq!(ours.get(key), theirs.get(&key).copied());
                assert_eq!(ours.next(key), theirs.range(key..).next().map(entry));
                assert_eq!(ours.after(key), theirs.range(key + 1..).next().map(entry));
                let prev = theirs.range(..=key).next_back().map(entry);
                assert_eq!(ours.prev(key), prev);
                if step % 50 == 0 {
                    assert_eq!(ours.check(ours.root), theirs.len());
                    assert!(ours.iter().eq(theirs.iter().map(entry)));
                }
            }
        }
    }

    #[test]
    fn records_of_removed_entries_serve_again() {
        let mut map = OrderedMap::new();
        map.reserve(100).unwrap();
        let bytes = map.bytes();
        for round in 0..50_u64 {
            (0..100).for_each(|key| map.insert(key * 7 % 100, round));
            map.reserve(0).unwrap();
            (0..100).for_each(|key| assert_eq!(map.remove(key), Some(round)));
        }
        assert_eq!((map.bytes(), map.len()), (bytes, 0));
    }
}
