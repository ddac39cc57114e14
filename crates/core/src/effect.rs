//! What has to happen outside the state machine.

use std::sync::Arc;

use thiserror::Error;
use vrampager_addr::{Span, Va};
use vrampager_hal::{Fence, GpuMap, HalError, Op, StorageError};

/// A file that clean buffers can be read from again. Registered by the caller of core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// Where stored bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// In the swap file.
    Swap,
    /// In a file that backs clean buffers.
    File(FileId),
}

/// One step with consequences outside core. Host memory is named by spans of the host object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Wait until all fences are reached.
    Wait(Vec<Fence>),
    /// Reserve GPU addresses.
    ReserveVa(Span),
    /// Give them back.
    ReleaseVa(Span),
    /// Map for the GPU.
    Map(GpuMap),
    /// Unmap from the GPU.
    Unmap(Span),
    /// Run operations on the move channel; yields a fence.
    Copy(Vec<Op>),
    /// Clear host pages.
    Clear(Vec<Span>),
    /// Read stored bytes into host pages.
    Load {
        /// From which file.
        from: Stored,
        /// First byte in it.
        offset: u64,
        /// Bytes to read; host memory behind them up to the end of the spans is cleared.
        len: u64,
        /// Host pages, in order.
        to: Vec<Span>,
    },
    /// Read stored bytes and copy them to GPU addresses through staging; yields a fence.
    Upload {
        /// From which file.
        from: Stored,
        /// First byte in it.
        offset: u64,
        /// Bytes to read; what follows up to the end of the spans is cleared.
        len: u64,
        /// GPU addresses, in order.
        to: Vec<Span>,
    },
    /// Write host pages to the swap file.
    Store {
        /// Host pages, in order.
        from: Vec<Span>,
        /// First byte in the swap file.
        offset: u64,
    },
}

/// Effects to perform in order, stopping at the first that fails.
pub type Effects = Arc<[Effect]>;

/// What came of performing effects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Performed {
    /// Fence of the last [`Effect::Copy`] or [`Effect::Upload`], if there was one.
    pub fence: Option<Fence>,
    /// The effect that failed, and why; those behind it were not tried.
    pub failed: Option<(usize, EffectError)>,
}

/// Why an effect failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EffectError {
    /// The device.
    #[error(transparent)]
    Hal(#[from] HalError),
    /// A file.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Pairs two lists of spans of equal total length into copy operations.
pub(crate) fn copies(src: &[Span], dst: &[Span]) -> Vec<Op> {
    let mut ops = Vec::new();
    let (mut from, mut to) = (src.iter().copied(), dst.iter().copied());
    let (mut a, mut b) = (from.next(), to.next());
    while let (Some(s), Some(d)) = (a, b) {
        let len = s.len().min(d.len());
        ops.push(Op::Copy {
            src: Va(s.start()),
            dst: Va(d.start()),
            len,
        });
        a = rest(s, len).or_else(|| from.next());
        b = rest(d, len).or_else(|| to.next());
    }
    assert!(
        a.is_none() && b.is_none(),
        "both sides of a move have the same size"
    );
    ops
}

fn rest(span: Span, taken: u64) -> Option<Span> {
    span.slice(taken, span.len() - taken)
        .filter(|left| !left.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, len: u64) -> Span {
        Span::new(start, len).unwrap()
    }

    #[test]
    fn differently_cut_sides_are_paired_byte_for_byte() {
        let ops = copies(&[span(0, 3), span(10, 2)], &[span(100, 1), span(200, 4)]);
        let copy = |src, dst, len| Op::Copy {
            src: Va(src),
            dst: Va(dst),
            len,
        };
        assert_eq!(ops, [copy(0, 100, 1), copy(1, 200, 2), copy(10, 202, 2)]);
    }
}
