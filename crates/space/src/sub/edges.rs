//! Where holes begin and end: a hash table from boundary addresses to holes.

use alloc::vec::Vec;

use super::bins::Bins;
use super::bytes;
use crate::SpaceError;

/// Which boundary of a hole an address is. Two holes never touch, so an address is one boundary
/// of one hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Start = 0,
    End = 1,
}

/// One boundary of one hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edge(u32);

impl Edge {
    #[inline]
    pub(super) fn new(hole: u32, side: Side) -> Self {
        Self(hole << 1 | side as u32)
    }

    #[inline]
    pub(super) fn hole(self) -> u32 {
        self.0 >> 1
    }

    #[inline]
    pub(super) fn side(self) -> Side {
        if self.0 & 1 == 0 {
            Side::Start
        } else {
            Side::End
        }
    }
}

/// Edges that a bucket holds, and how many buckets have on average when there are as many holes as
/// there is memory for.
const SLOTS: usize = 12;
const LOAD: usize = 11;
/// A count of strays, or a reach, that says no more than "many".
const MANY: u16 = u16::MAX;

/// One cache line.
///
/// # Invariants
/// A tag is 0 for a free slot, else a hash of the address of the slot's edge. What would be tags
/// 12 to 15 is the [`Strays`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u8; 16],
    edges: [Edge; SLOTS],
}

/// How many edges belong to a bucket and are elsewhere, and within how many steps of its probe
/// sequence they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Strays {
    count: u16,
    reach: u16,
}

/// Slots of a bucket, one bit each.
#[derive(Clone, Copy)]
struct Slots(u32);

impl Iterator for Slots {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

impl Bucket {
    const EMPTY: Self = Self {
        tags: [0; 16],
        edges: [Edge(0); SLOTS],
    };

    /// The slots with a tag; 0 finds the free ones.
    #[inline]
    fn tagged(&self, tag: u8) -> Slots {
        Slots(bytes::equal(&self.tags, tag) & ((1 << SLOTS) - 1))
    }

    #[inline]
    fn strays(&self) -> Strays {
        let [.., a, b, c, d] = self.tags;
        Strays {
            count: u16::from_le_bytes([a, b]),
            reach: u16::from_le_bytes([c, d]),
        }
    }

    fn set_strays(&mut self, strays: Strays) {
        self.tags[12..14].copy_from_slice(&strays.count.to_le_bytes());
        self.tags[14..].copy_from_slice(&strays.reach.to_le_bytes());
    }

    fn used(&self) -> Slots {
        Slots(self.tagged(0).0 ^ ((1 << SLOTS) - 1))
    }

    #[inline]
    fn edge(&self, slot: u32) -> Edge {
        self.edges[slot as usize]
    }

    #[inline]
    fn fill(&mut self, slot: u32, tag: u8, edge: Edge) {
        self.tags[slot as usize] = tag;
        self.edges[slot as usize] = edge;
    }

    #[cold]
    fn forget_stray(&mut self) {
        // What was not counted can't be counted down: only the next split finds out.
        let Strays { count, reach } = self.strays();
        if count != MANY {
            let reach = if count == 1 { 0 } else { reach };
            self.set_strays(Strays {
                count: count - 1,
                reach,
            });
        }
    }
}

/// Where an address belongs, until the table is made anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    bucket: usize,
    tag: u8,
}

/// What a home's bucket says of an address.
#[derive(Clone, Copy)]
pub(super) struct Hints {
    slots: Slots,
    strays: u16,
}

impl Hints {
    /// Whether the address is the edge of no hole.
    #[inline]
    pub(super) fn is_nothing(self) -> bool {
        self.slots.0 | u32::from(self.strays) == 0
    }
}

/// A hash table of a size that only [`reserve`](Self::reserve) changes. The address of an edge is
/// not stored: it is that of the hole.
///
/// An edge whose bucket is full goes to the next one that is not.
///
/// # Invariants
/// There are more slots than edges.
#[derive(Clone, Debug)]
pub(super) struct Edges {
    buckets: Vec<Bucket>,
    used: usize,
}

/// Bits of an address that choose the bucket, the highest first.
#[cfg(test)]
pub(super) fn bucket_bits(address: u32) -> u32 {
    hash(address)
}

#[inline]
fn hash(address: u32) -> u32 {
    // Fibonacci hashing: neighbouring addresses land far apart.
    let product = u64::from(address).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> 32) as u32
}

/// The tag of an address by its hash, never 0: the bits that decide least of the bucket.
#[inline]
fn tag_of(hash: u32) -> u8 {
    let [tag, ..] = hash.to_le_bytes();
    tag + u8::from(tag == 0)
}

impl Edges {
    /// An empty table. Nothing can be put in before [`reserve`](Self::reserve).
    pub(super) const fn new() -> Self {
        Self {
            buckets: Vec::new(),
            used: 0,
        }
    }

    /// Makes sure that `edges` can be in the table without further memory.
    pub(super) fn reserve(&mut self, edges: usize, bins: &Bins) -> Result<(), SpaceError> {
        let count = edges.div_ceil(LOAD).max(1);
        if u32::try_from(edges).is_err() {
            // An edge has 31 bits for the number of its hole.
            return Err(SpaceError::MetadataExhausted);
        }
        if count <= self.buckets.len() {
            return Ok(());
        }
        let mut buckets = Vec::new();
        buckets
            .try_reserve_exact(count)
            .map_err(|_| SpaceError::MetadataExhausted)?;
        buckets.resize(count, Bucket::EMPTY);
        let old = core::mem::replace(&mut self.buckets, buckets);
        self.used = 0;
        for bucket in &old {
            for slot in bucket.used() {
                let edge = bucket.edge(slot);
                self.insert(self.home(bins.address(edge)), edge);
            }
        }
        Ok(())
    }

    pub(super) fn room(&self) -> usize {
        self.buckets.len() * LOAD
    }

    #[inline]
    pub(super) fn home(&self, address: u32) -> Home {
        let hash = hash(address);
        let scaled = u64::from(hash) * self.buckets.len() as u64;
        Home {
            bucket: (scaled >> 32) as usize,
            tag: tag_of(hash),
        }
    }

    /// Where the edge of a home's address may be.
    #[inline]
    pub(super) fn hints(&self, home: Home) -> Hints {
        let bucket = &self.buckets[home.bucket];
        Hints {
            slots: bucket.tagged(home.tag),
            strays: bucket.strays().count,
        }
    }

    /// The edge that `is` recognises, by what [`hints`](Self::hints) says of its home.
    #[inline]
    pub(super) fn find(&self, home: Home, hints: Hints, is: impl Fn(Edge) -> bool) -> Option<Edge> {
        let bucket = &self.buckets[home.bucket];
        for slot in hints.slots {
            let edge = bucket.edge(slot);
            if is(edge) {
                return Some(edge);
            }
        }
        if hints.strays > 0 {
            let (at, slot) = self.find_stray(home, &is)?;
            return Some(self.buckets[at].edge(slot));
        }
        None
    }

    /// The bucket and the slot of a stray.
    #[cold]
    fn find_stray(&self, home: Home, is: &dyn Fn(Edge) -> bool) -> Option<(usize, u32)> {
        (1..self.steps(home.bucket)).find_map(|step| {
            let at = self.probe(home.bucket, step);
            let bucket = &self.buckets[at];
            let mut found = bucket.tagged(home.tag);
            let slot = found.find(|&slot| is(bucket.edge(slot)))?;
            Some((at, slot))
        })
    }

    /// The bucket that is so many steps behind another.
    fn probe(&self, home: usize, step: usize) -> usize {
        #[cfg(test)]
        crate::testing::step();
        let at = home + step;
        at.checked_sub(self.buckets.len()).unwrap_or(at)
    }

    /// The steps behind a bucket that may lead to its strays, step 0 included.
    fn steps(&self, home: usize) -> usize {
        match self.buckets[home].strays().reach {
            MANY => self.buckets.len(),
            reach => (usize::from(reach) + 1).min(self.buckets.len()),
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, home: Home, edge: Edge) {
        #[cfg(test)]
        crate::testing::step();
        self.used += 1;
        let bucket = &mut self.buckets[home.bucket];
        match bucket.tagged(0).next() {
            Some(slot) => bucket.fill(slot, home.tag, edge),
            None => self.insert_stray(home, edge),
        }
    }

    #[cold]
    fn insert_stray(&mut self, home: Home, edge: Edge) {
        let free = (1..self.buckets.len()).find_map(|step| {
            let bucket = self.probe(home.bucket, step);
            let slot = self.buckets[bucket].tagged(0).next()?;
            Some((step, bucket, slot))
        });
        let (step, at, slot) = free.expect("there are more slots than edges");
        self.buckets[at].fill(slot, home.tag, edge);
        let owner = &mut self.buckets[home.bucket];
        let Strays { count, reach } = owner.strays();
        owner.set_strays(Strays {
            count: count.saturating_add(1),
            reach: reach.max(u16::try_from(step).unwrap_or(MANY)),
        });
    }

    /// Removes the edge of an address.
    #[inline]
    pub(super) fn remove(&mut self, address: u32, edge: Edge) {
        self.used -= 1;
        let home = self.home(address);
        let bucket = &mut self.buckets[home.bucket];
        let mut slots = bucket.tagged(home.tag);
        match slots.find(|&slot| bucket.edge(slot) == edge) {
            Some(slot) => bucket.tags[slot as usize] = 0,
            None => self.remove_stray(home, edge),
        }
    }

    #[cold]
    fn remove_stray(&mut self, home: Home, edge: Edge) {
        let found = self.find_stray(home, &|found| found == edge);
        let (at, slot) = found.expect("every hole has its edges in the table");
        self.buckets[at].tags[slot as usize] = 0;
        self.buckets[home.bucket].forget_stray();
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// For tests.
    ///
    /// # Panics
    /// When strays are miscounted, or there are more or fewer edges than are counted.
    pub(super) fn check(&self, bins: &Bins) {
        let mut strays = alloc::vec![0_usize; self.buckets.len()];
        for (at, bucket) in self.buckets.iter().enumerate() {
            for slot in bucket.used() {
                let home = self.home(bins.address(bucket.edge(slot))).bucket;
                strays[home] += usize::from(home != at);
                let found = (0..self.steps(home)).any(|step| self.probe(home, step) == at);
                assert!(found, "a stray of bucket {home} is out of its reach");
            }
        }
        for (home, (bucket, count)) in self.buckets.iter().zip(strays).enumerate() {
            let noted = bucket.strays().count;
            assert!(
                usize::from(noted) == count || noted == MANY,
                "bucket {home} counts {noted} strays of {count}"
            );
        }
        let edges: usize = self
            .buckets
            .iter()
            .map(|bucket| bucket.used().count())
            .sum();
        assert_eq!(edges, self.used);
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }
}
