//! Fake mmap offsets: a number in a file that stands for a buffer.

use alloc::collections::BTreeMap;
use core::fmt;

use vrampager_addr::{PAGE_SIZE, Span};

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
    by_object: BTreeMap<u64, Span>,
    by_start: BTreeMap<u64, u64>,
    /// Grants per object and client.
    grants: BTreeMap<(u64, u64), u64>,
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
            by_object: BTreeMap::new(),
            by_start: BTreeMap::new(),
            grants: BTreeMap::new(),
        }
    }

    /// Offsets for `size` bytes of `object`, rounded up to pages. An object that has offsets
    /// keeps them, whatever the size.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] for size 0 or beyond 64 bits, [`SpaceError::NoSpace`].
    pub fn add(&mut self, object: u64, size: u64) -> Result<Span, SpaceError> {
        if let Some(&span) = self.by_object.get(&object) {
            return Ok(span);
        }
        let invalid = SpaceError::Invalid {
            argument: "size",
            value: size,
        };
        let rounded = size.checked_next_multiple_of(PAGE_SIZE).ok_or(invalid)?;
        let span = self
            .ranges
            .insert(&RangeRequest::new(rounded).mode(Mode::Best))?;
        self.by_object.insert(object, span);
        self.by_start.insert(span.start(), object);
        Ok(span)
    }

    /// Takes the offsets of `object` away, if it has any.
    pub fn remove(&mut self, object: u64) {
        if let Some(span) = self.by_object.remove(&object) {
            self.by_start.remove(&span.start());
            self.ranges.remove(span.start());
        }
    }

    /// The offsets of `object`.
    #[must_use]
    pub fn offsets(&self, object: u64) -> Option<Span> {
        self.by_object.get(&object).copied()
    }

    /// The object whose offsets hold all `len` bytes from `start`, and those offsets.
    #[must_use]
    pub fn lookup(&self, start: u64, len: u64) -> Option<(u64, Span)> {
        let wanted = Span::new(start, len)?;
        let Range { span, .. } = self.ranges.find(start)?;
        span.covers(wanted)
            .then(|| (self.by_start[&span.start()], span))
    }

    /// As [`lookup`](Self::lookup), but only if the object's offsets begin at `start`.
    #[must_use]
    pub fn lookup_exact(&self, start: u64, len: u64) -> Option<u64> {
        self.lookup(start, len)
            .filter(|(_, span)| span.start() == start)
            .map(|(object, _)| object)
    }

    /// Grants `client` access to `object` once more: each grant needs a revocation.
    pub fn allow(&mut self, object: u64, client: u64) {
        *self.grants.entry((object, client)).or_insert(0) += 1;
    }

    /// Makes sure that `client` has access, without counting.
    pub fn allow_once(&mut self, object: u64, client: u64) {
        self.grants.entry((object, client)).or_insert(1);
    }

    /// Takes one grant back. Unknown clients have none to lose.
    pub fn revoke(&mut self, object: u64, client: u64) {
        if let Some(count) = self.grants.get_mut(&(object, client)) {
            *count -= 1;
            if *count == 0 {
                self.grants.remove(&(object, client));
            }
        }
    }

    /// Forgets every grant for `object`, as when it is destroyed.
    pub fn revoke_all(&mut self, object: u64) {
        while let Some((&key, _)) = self.grants.range((object, 0)..=(object, u64::MAX)).next() {
            self.grants.remove(&key);
        }
    }

    /// Whether `client` has a grant.
    #[must_use]
    pub fn is_allowed(&self, object: u64, client: u64) -> bool {
        self.grants.contains_key(&(object, client))
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
