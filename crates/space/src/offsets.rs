//! Fake mmap offsets: a number in a file that stands for a buffer.

use core::fmt;

use vrampager_addr::{PAGE_SIZE, Span};

use crate::ordered::OrderedMap;
use crate::{Mode, Range, RangeAllocator, RangeRequest, SpaceError};

/// The client was not granted access to the buffer behind an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessDenied;

impl fmt::Display for AccessDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client has no grant for this offset")
    }
}

impl core::error::Error for AccessDenied {}

/// Gives each mappable object a unique range of file offsets, and remembers which clients may
/// map it.
///
/// Offsets lie above 4 GiB, so that none is mistaken for a 32-bit handle. Grants are independent
/// of whether the object has an offset. Objects and clients are the caller's numbers.
#[derive(Clone, Debug)]
pub struct FakeOffsets {
    ranges: RangeAllocator,
    /// Start and length, by object.
    by_object: OrderedMap<u64, (u64, u64)>,
    by_start: OrderedMap<u64, u64>,
    /// Grants per object and client.
    grants: OrderedMap<(u64, u64), u64>,
}

/// First page of the offset space: the first above 4 GiB.
const FIRST_PAGE: u64 = (u32::MAX as u64 / PAGE_SIZE) + 1;
const PAGES: u64 = (u32::MAX as u64 / PAGE_SIZE) * 256;

impl Default for FakeOffsets {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeOffsets {
    /// No objects, no grants.
    #[must_use]
    pub fn new() -> Self {
        let span = Span::new(FIRST_PAGE * PAGE_SIZE, PAGES * PAGE_SIZE);
        Self {
            ranges: RangeAllocator::new(span.expect("the offset space fits 64 bits")),
            by_object: OrderedMap::new(),
            by_start: OrderedMap::new(),
            grants: OrderedMap::new(),
        }
    }

    /// Offsets for `size` bytes of `object`, rounded up to pages. An object that has offsets
    /// keeps them, whatever the size.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] for size 0 or beyond all offsets, [`SpaceError::NoSpace`],
    /// [`SpaceError::MetadataExhausted`].
    pub fn add(&mut self, object: u64, size: u64) -> Result<Span, SpaceError> {
        if let Some(span) = self.offsets(object) {
            return Ok(span);
        }
        let invalid = SpaceError::Invalid {
            argument: "size",
            value: size,
        };
        let rounded = size.checked_next_multiple_of(PAGE_SIZE);
        let rounded = rounded.filter(|&bytes| bytes <= PAGES * PAGE_SIZE);
        let rounded = rounded.ok_or(invalid)?;
        self.by_object.reserve(1)?;
        self.by_start.reserve(1)?;
        let span = self
            .ranges
            .insert(&RangeRequest::new(rounded).mode(Mode::Best))?;
        self.by_object.insert(object, (span.start(), span.len()));
        self.by_start.insert(span.start(), object);
        Ok(span)
    }

    /// Takes the offsets of `object` away, if it has any.
    pub fn remove(&mut self, object: u64) {
        if let Some((start, _)) = self.by_object.remove(object) {
            self.by_start.remove(start);
            self.ranges.remove(start);
        }
    }

    /// The offsets of `object`.
    #[must_use]
    pub fn offsets(&self, object: u64) -> Option<Span> {
        let (start, len) = self.by_object.get(object)?;
        Span::new(start, len)
    }

    /// The object whose offsets hold all `len` bytes from `start`, and those offsets.
    #[must_use]
    pub fn lookup(&self, start: u64, len: u64) -> Option<(u64, Span)> {
        let wanted = Span::new(start, len)?;
        let Range { span, .. } = self.ranges.find(start)?;
        let object = self.by_start.get(span.start())?;
        span.covers(wanted).then_some((object, span))
    }

    /// As [`lookup`](Self::lookup), but only if the object's offsets begin at `start`.
    #[must_use]
    pub fn lookup_exact(&self, start: u64, len: u64) -> Option<u64> {
        self.lookup(start, len)
            .filter(|(_, span)| span.start() == start)
            .map(|(object, _)| object)
    }

    /// Grants `client` access to `object` once more: each grant needs a revocation.
    ///
    /// # Errors
    /// [`SpaceError::MetadataExhausted`], only if the client has no grant yet.
    pub fn allow(&mut self, object: u64, client: u64) -> Result<(), SpaceError> {
        if let Some(count) = self.grants.get_mut((object, client)) {
            *count += 1;
            return Ok(());
        }
        self.allow_once(object, client)
    }

    /// Makes sure that `client` has access, without counting.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub fn allow_once(&mut self, object: u64, client: u64) -> Result<(), SpaceError> {
        if !self.is_allowed(object, client) {
            self.grants.reserve(1)?;
            self.grants.insert((object, client), 1);
        }
        Ok(())
    }

    /// Takes one grant back. Unknown clients have none to lose.
    pub fn revoke(&mut self, object: u64, client: u64) {
        if let Some(count) = self.grants.get_mut((object, client)) {
            *count -= 1;
            if *count == 0 {
                self.grants.remove((object, client));
            }
        }
    }

    /// Forgets every grant for `object`, as when it is destroyed.
    pub fn revoke_all(&mut self, object: u64) {
        while let Some((key, _)) = self
            .grants
            .next((object, 0))
            .filter(|(key, _)| key.0 == object)
        {
            self.grants.remove(key);
        }
    }

    /// Forgets every grant of `client`, as when it closes its file. Takes two lookups for each
    /// object that anyone has a grant for.
    pub fn revoke_client(&mut self, client: u64) {
        let mut next = Some(0);
        while let Some(((object, _), _)) = next.and_then(|object| self.grants.next((object, 0))) {
            self.grants.remove((object, client));
            next = object.checked_add(1);
        }
    }

    /// Whether `client` has a grant.
    #[must_use]
    pub fn is_allowed(&self, object: u64, client: u64) -> bool {
        self.grants.contains((object, client))
    }

    /// Bytes of host memory held for records: at most 560 per object and 80 per object that a
    /// client has grants of, of the most that there ever were, and 16 KiB.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.ranges.metadata_bytes()
            + self.by_object.bytes()
            + self.by_start.bytes()
            + self.grants.bytes()
    }

    /// Compares all records with one another; for tests, O(n log n).
    ///
    /// # Panics
    /// When they disagree.
    pub fn check(&self) {
        self.ranges.check();
        let objects = [self.by_object.len(), self.by_start.len()];
        assert_eq!(objects, [self.ranges.len(); 2], "one range per object");
        for (object, (start, len)) in self.by_object.iter() {
            assert_eq!(self.by_start.get(start), Some(object));
            let range = self.ranges.find(start).map(|range| range.span);
            assert_eq!(range, Span::new(start, len), "offsets of {object}");
        }
        assert!(self.grants.iter().all(|(_, count)| count > 0));
    }

    /// [`is_allowed`](Self::is_allowed) as a result, for the path of an mmap call.
    ///
    /// # Errors
    /// [`AccessDenied`].
    pub fn verify(&self, object: u64, client: u64) -> Result<(), AccessDenied> {
        if self.is_allowed(object, client) {
            Ok(())
        } else {
            Err(AccessDenied)
        }
    }
}

#[cfg(test)]
mod tests;
