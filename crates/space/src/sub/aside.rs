//! Short ranges that were freed lately: free, and part of no hole yet.

use crate::quick::QuickLists;

/// Shorter ranges, in units, have lists: one for each length, or rather two.
const UNITS: u32 = 128;
const LISTS: usize = 2 * UNITS as usize;
/// A place that is so many times better aligned than its length alone would make it is for requests
/// that need it: if others could have it, short ranges would soon lie wherever large alignments
/// could be.
const COARSE: u32 = 16;

/// # Invariants
/// A range is on the list of its length and place. Nothing is on the lists of length 0.
#[derive(Clone, Debug)]
pub(super) struct Aside(QuickLists<LISTS>);

/// The list of ranges of `len` units; an empty one if there is none. Not a branch, since chance
/// decides how long a range is.
#[inline]
fn list(len: u32, is_coarse: bool) -> usize {
    let len = if Aside::takes(len) { len as usize } else { 0 };
    len + if is_coarse { UNITS as usize } else { 0 }
}

#[inline]
fn is_coarse(start: u32, len: u32) -> bool {
    start & (alignment(len) * COARSE).wrapping_sub(1) == 0
}

/// The largest power of two that divides a length that has a list.
#[inline]
fn alignment(len: u32) -> u32 {
    len & len.wrapping_neg() & (UNITS - 1)
}

#[inline]
fn list_of(start: u32, len: u32) -> usize {
    list(len, is_coarse(start, len))
}

fn len_on(list: usize) -> u32 {
    u32::try_from(list).expect("few lists") % UNITS
}

impl Aside {
    pub(super) const fn new() -> Self {
        Self(QuickLists::new())
    }

    /// Whether ranges of `len` units have lists.
    #[inline]
    pub(super) fn takes(len: u32) -> bool {
        len < UNITS
    }

    /// Whether a range could be added, and is not here.
    #[inline]
    pub(super) fn has_room_for(&self, start: u32, len: u32) -> bool {
        let list = list_of(start, len);
        !self.0.is_full(list) && !self.0.contains(list, start)
    }

    pub(super) fn contains(&self, start: u32, len: u32) -> bool {
        self.0.contains(list_of(start, len), start)
    }

    /// Adds a range. Returns the start of one as long that has to go instead, if one has.
    #[inline]
    pub(super) fn push(&mut self, start: u32, len: u32) -> Option<u32> {
        self.0.push(list_of(start, len), start)
    }

    /// Takes a range of `len` units that is nowhere in particular.
    #[inline]
    pub(super) fn pop(&mut self, len: u32) -> Option<u32> {
        self.0.pop(list(len, false))
    }

    /// Takes a range of `len` units at a multiple of `align`, a power of two, and not one that is
    /// much better aligned than that.
    pub(super) fn take_aligned(&mut self, len: u32, align: u64) -> Option<u32> {
        let least = align.trailing_zeros();
        let suitable = least..least + COARSE.trailing_zeros();
        let is_suitable = |start: u32| suitable.contains(&start.trailing_zeros());
        let is_coarse = align >= u64::from(alignment(len) * COARSE);
        self.0.take(list(len, is_coarse), is_suitable)
    }

    /// Takes any range: its start and its length.
    pub(super) fn pop_any(&mut self) -> Option<(u32, u32)> {
        let (list, start) = self.0.pop_any()?;
        Some((start, len_on(list)))
    }

    /// Start and end of every range.
    pub(super) fn bounds(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0
            .iter()
            .map(|(list, start)| (start, start + len_on(list)))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// # Panics
    /// When a range is on a wrong list.
    pub(super) fn check(&self) {
        for (list, start) in self.0.iter() {
            assert_eq!(
                list,
                list_of(start, len_on(list)),
                "unit {start} is on a wrong list"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aligned_request_gets_no_place_that_is_sixteen_times_better() {
        for (start, least) in [
            (48, 16),
            (64, 16),
            (128, 16),
            (512, 64),
            (1536, 64),
            (4096, 512),
        ] {
            let mut aside = Aside::new();
            aside.push(start, 1);
            let alignments = (4..13).map(|bit| 1_u64 << bit);
            let served = alignments.filter(|&align| {
                let found = aside.take_aligned(1, align) == Some(start);
                if found {
                    aside.push(start, 1);
                }
                found
            });
            let own = 1_u64 << start.trailing_zeros();
            let expected = (4..13).map(|bit| 1 << bit);
            let expected = expected.filter(|align| (least..=own).contains(align));
            assert!(served.eq(expected), "{start}");
            assert_eq!(aside.pop(1), None, "plain requests get none");
        }
    }

    #[test]
    fn what_is_good_for_a_length_is_relative_to_the_alignment_of_the_length() {
        for (start, len, is_good) in [(16, 1, true), (8, 1, false), (64, 4, true), (32, 4, false)] {
            assert_eq!(is_coarse(start, len), is_good, "{start} {len}");
        }
        assert!(is_coarse(1024, 64) && !is_coarse(512, 64) && is_coarse(0, 64));
    }
}
