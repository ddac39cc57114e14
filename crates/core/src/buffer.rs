//! Buffer objects and the resources behind them.

use std::sync::Arc;

use slotmap::new_key_type;
use vrampager_addr::Span;
use vrampager_hal::Access;

use crate::effect::{EffectError, FileId};
use crate::fence::FenceSet;
use crate::lru::{Position, Priority};
use crate::placement::{MemType, Placement};
use crate::task::TaskId;

new_key_type! {
    /// A buffer of one device; generations make the id of a released buffer invalid for ever.
    pub struct BufferId;
}

/// What to create.
#[derive(Clone, Debug)]
pub struct BufferDesc {
    /// For reports.
    pub name: Arc<str>,
    /// Bytes; not zero. Rounded up to pages inside.
    pub len: u64,
    /// Where GPU use needs it.
    pub placement: Placement,
    /// Eviction priority.
    pub priority: Priority,
    /// What it contains at first.
    pub content: Source,
}

/// Content that can be produced again, so that a buffer holding it may be dropped instead of
/// copied (mission row E1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Zeros.
    Zero,
    /// Bytes of a file from `offset` on.
    File {
        /// The file.
        file: FileId,
        /// First byte.
        offset: u64,
    },
}

/// Whether the present content can be produced again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Equals its source.
    Clean(Source),
    /// Has been written; exists nowhere else.
    Dirty,
}

/// Space held in one domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Resource {
    pub(crate) mem_type: MemType,
    pub(crate) extents: Vec<Span>,
}

/// A buffer's page vector (the kernel's `ttm_tt`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// Not populated.
    Absent,
    /// Host pages, as spans of the host object.
    Populated(Vec<Span>),
    /// Written to this part of the swap file.
    Swapped(Span),
}

/// One buffer object.
///
/// # Invariants
/// * `resource` in a domain that owns its memory (VRAM): pages absent.
/// * `resource` in GTT: pages populated. In SYSTEM: populated or swapped.
/// * No resource: pages absent and content clean.
/// * `position` is set exactly while there is a resource.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) name: Arc<str>,
    pub(crate) len: u64,
    pub(crate) va: Span,
    pub(crate) placement: Placement,
    pub(crate) priority: Priority,
    pub(crate) state: State,
    pub(crate) resource: Option<Resource>,
    pub(crate) pages: Pages,
    /// Whether `va` maps the present resource.
    pub(crate) mapped: bool,
    /// The device would not take a mapping of `va` back and may still reach the resource: the
    /// buffer stays where it is for good.
    pub(crate) stuck: Option<EffectError>,
    pub(crate) fences: FenceSet,
    pub(crate) pins: u32,
    /// The task that has it reserved.
    pub(crate) holder: Option<TaskId>,
    /// Released by its owner while a task had it reserved.
    pub(crate) deleted: bool,
    pub(crate) position: Option<Position>,
}

impl Buffer {
    /// Bytes it occupies wherever it is.
    pub(crate) fn size(&self) -> u64 {
        self.va.len()
    }

    pub(crate) fn mem_type(&self) -> Option<MemType> {
        self.resource.as_ref().map(|resource| resource.mem_type)
    }

    pub(crate) fn is_swapped(&self) -> bool {
        matches!(self.pages, Pages::Swapped(_))
    }
}

/// How a request uses one buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    /// The buffer.
    pub buffer: BufferId,
    /// Direction; a write makes it dirty.
    pub access: Access,
    /// Where it has to be.
    pub target: Target,
}

/// Where a use needs the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// In the buffer's own placement, mapped at its GPU address.
    Gpu,
    /// Wherever they are, but not in the swap file.
    Cpu,
    /// In these places, mapped for the GPU when the device reaches them.
    Places(Placement),
}
