//! Quick lists: ranges that were freed lately and are joined to nothing yet.
//!
//! A program that frees a range soon wants another like it. What is on a list is handed out again
//! as it is, which saves the joining and the cutting: quick fit (Weinstock 1976), or deferred
//! coalescing (Wilson et al. 1995). Lists are short, so that they keep little apart.

/// Ranges on a list. With their count they are half a cache line.
const MOST: usize = 7;
/// No start, and none that can be on a list.
const NONE: u32 = u32::MAX;

/// The starts of ranges that can stand in for one another, the oldest first.
///
/// # Invariants
/// `count` starts, the others are [`NONE`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct List {
    starts: [u32; MOST],
    count: u32,
}

impl List {
    const EMPTY: Self = Self {
        starts: [NONE; MOST],
        count: 0,
    };

    #[inline]
    fn contains(&self, start: u32) -> bool {
        self.starts.contains(&start)
    }

    #[inline]
    fn push(&mut self, start: u32) -> Option<u32> {
        if let Some(slot) = self.starts.get_mut(self.count as usize) {
            *slot = start;
            self.count += 1;
            return None;
        }
        let oldest = self.starts[0];
        self.starts.copy_within(1.., 0);
        self.starts[MOST - 1] = start;
        Some(oldest)
    }

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        let count = self.count.checked_sub(1)?;
        let newest = self.starts.get_mut(count as usize)?;
        self.count = count;
        Some(core::mem::replace(newest, NONE))
    }

    fn take(&mut self, is: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.starts().iter().rposition(|&start| is(start))?;
        let start = self.starts[at];
        self.starts.copy_within(at + 1.., at);
        self.starts[MOST - 1] = NONE;
        self.count -= 1;
        Some(start)
    }

    fn starts(&self) -> &[u32] {
        &self.starts[..self.count as usize]
    }
}

/// Numbered lists. What is on one, and how long it is, is for the owner to say.
#[derive(Clone, Debug)]
pub(crate) struct QuickLists<const LISTS: usize>([List; LISTS]);

impl<const LISTS: usize> QuickLists<LISTS> {
    pub(crate) const fn new() -> Self {
        Self([List::EMPTY; LISTS])
    }

    #[inline]
    pub(crate) fn contains(&self, list: usize, start: u32) -> bool {
        self.0[list].contains(start)
    }

    #[inline]
    pub(crate) fn is_full(&self, list: usize) -> bool {
        self.0[list].count as usize == MOST
    }

    /// Adds a start below `u32::MAX`. Returns the oldest when there is no room for it any more.
    #[inline]
    pub(crate) fn push(&mut self, list: usize, start: u32) -> Option<u32> {
        self.0[list].push(start)
    }

    /// Takes the newest start; there is none on a list that does not exist.
    #[inline]
    pub(crate) fn pop(&mut self, list: usize) -> Option<u32> {
        self.0.get_mut(list)?.pop()
    }

    /// Takes the newest start of those that `is` accepts.
    pub(crate) fn take(&mut self, list: usize, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.0[list].take(is)
    }

    /// Takes any start. Returns its list, too.
    pub(crate) fn pop_any(&mut self) -> Option<(usize, u32)> {
        let mut lists = self.0.iter_mut().enumerate();
        lists.find_map(|(at, list)| Some((at, list.pop()?)))
    }

    /// Every start, after the number of its list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let lists = self.0.iter().enumerate();
        lists.flat_map(|(at, list)| list.starts().iter().map(move |&start| (at, start)))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|list| list.count as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::vec::Vec;

    use super::*;
    use crate::testing::Rng;

    #[test]
    fn a_list_keeps_the_newest_seven_and_gives_them_back_newest_first() {
        for seed in 0..20 {
            let mut rng = Rng(seed);
            let (mut ours, mut model) = (QuickLists::<2>::new(), VecDeque::new());
            for start in 0..1000 {
                match rng.below(5) {
                    0 | 1 => {
                        model.push_back(start);
                        let oldest = (model.len() > MOST).then(|| model.pop_front().unwrap());
                        assert_eq!(ours.push(1, start), oldest);
                    }
                    2 => assert_eq!(ours.pop(1), model.pop_back()),
                    3 => {
                        let is = |start: u32| start.is_multiple_of(3);
                        let at = model.iter().rposition(|&start| is(start));
                        assert_eq!(ours.take(1, is), at.and_then(|at| model.remove(at)));
                    }
                    _ => {
                        let some = u32::try_from(rng.below(1000)).unwrap();
                        assert_eq!(ours.contains(1, some), model.contains(&some));
                    }
                }
                let starts: Vec<_> = model.iter().map(|&start| (1, start)).collect();
                assert_eq!((ours.iter().collect(), ours.len()), (starts, model.len()));
            }
            assert_eq!(ours.pop_any(), model.pop_back().map(|start| (1, start)));
            assert_eq!((ours.pop(0), ours.pop(2)), (None, None));
        }
    }
}
