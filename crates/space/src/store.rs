//! Vectors whose room is a promise.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// A vector with a clone that has as much room: what is reserved for giving back is there in the
/// clone of an allocator, too.
#[derive(Debug)]
pub(crate) struct Store<T>(Vec<T>);

impl<T> Store<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> Clone for Store<T> {
    fn clone(&self) -> Self {
        let mut items = Vec::with_capacity(self.0.capacity());
        items.extend_from_slice(&self.0);
        Self(items)
    }
}

impl<T> Deref for Store<T> {
    type Target = Vec<T>;

    #[inline]
    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T> DerefMut for Store<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}
