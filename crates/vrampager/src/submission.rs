//! Work for the device that names the buffers it uses.

use std::sync::Arc;

use vrampager_addr::Va;
use vrampager_core::{BufferId, Keep, Target, Use, View};
use vrampager_hal::{Access, Fence, Op};

use crate::buffer::{Buffer, Granted, check_range};
use crate::error::Error;
use crate::import::Import;
use crate::pager::Pager;
use crate::shell::Shell;

/// One batch of work. All its buffers are brought to their placements together and stay there
/// until the work is over.
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct Submission<'a> {
    pager: &'a Pager,
    uses: Vec<Use>,
    imports: Vec<Import>,
    commands: Vec<Command>,
}

/// Memory that work can name.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A buffer, which is brought into place.
    Buffer(&'a Buffer),
    /// Memory of the caller, which stays where it is.
    Import(&'a Import),
}

impl<'a> From<&'a Buffer> for Operand<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl<'a> From<&'a Import> for Operand<'a> {
    fn from(import: &'a Import) -> Self {
        Self::Import(import)
    }
}

impl Operand<'_> {
    fn len(self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Import(import) => import.len(),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Buffer(buffer) => buffer.name().to_owned(),
            Self::Import(import) => import.name(),
        }
    }

    fn belongs_to(self, shell: &Arc<Shell>) -> bool {
        match self {
            Self::Buffer(buffer) => buffer.belongs_to(shell),
            Self::Import(import) => import.belongs_to(shell),
        }
    }

    fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::Buffer(one), Self::Buffer(other)) => one.id == other.id,
            (Self::Import(one), Self::Import(other)) => one.gpu_address() == other.gpu_address(),
            (Self::Buffer(_), Self::Import(_)) | (Self::Import(_), Self::Buffer(_)) => false,
        }
    }

    fn at(self, offset: u64) -> At {
        match self {
            Self::Buffer(buffer) => At::Buffer(buffer.id, offset),
            Self::Import(import) => At::Fixed(import.gpu_address().offset(offset)),
        }
    }
}

/// A place in memory that work names.
#[derive(Clone, Copy, Debug)]
enum At {
    Buffer(BufferId, u64),
    Fixed(Va),
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Fill { dst: At, len: u64, byte: u8 },
    Copy { src: At, dst: At, len: u64 },
}

impl<'a> Submission<'a> {
    pub(crate) fn new(pager: &'a Pager) -> Self {
        Self {
            pager,
            uses: Vec::new(),
            imports: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// Names memory that the work reads.
    ///
    /// # Errors
    /// [`Error::Foreign`].
    pub fn read<'m>(&mut self, memory: impl Into<Operand<'m>>) -> Result<&mut Self, Error> {
        self.name(memory.into(), Access::Read)
    }

    /// Names memory that the work writes.
    ///
    /// # Errors
    /// [`Error::Foreign`].
    pub fn write<'m>(&mut self, memory: impl Into<Operand<'m>>) -> Result<&mut Self, Error> {
        self.name(memory.into(), Access::Write)
    }

    fn name(&mut self, memory: Operand<'_>, access: Access) -> Result<&mut Self, Error> {
        if !memory.belongs_to(&self.pager.shell) {
            return Err(Error::Foreign {
                buffer: memory.name(),
            });
        }
        match memory {
            Operand::Buffer(buffer) => self.uses.push(Use {
                buffer: buffer.id,
                access,
                target: Target::Gpu,
            }),
            Operand::Import(import) => self.imports.push(import.clone()),
        }
        Ok(self)
    }

    /// Adds: write `byte` over `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Foreign`].
    pub fn fill<'m>(
        &mut self,
        memory: impl Into<Operand<'m>>,
        offset: u64,
        len: u64,
        byte: u8,
    ) -> Result<&mut Self, Error> {
        let memory = memory.into();
        check_range(|| memory.name(), memory.len(), offset, len)?;
        self.name(memory, Access::Write)?;
        self.commands.push(Command::Fill {
            dst: memory.at(offset),
            len,
            byte,
        });
        Ok(self)
    }

    /// Adds: copy `len` bytes from one memory to another, each from its offset on.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Foreign`], [`Error::Overlap`].
    pub fn copy<'s, 'd>(
        &mut self,
        (src, src_offset): (impl Into<Operand<'s>>, u64),
        (dst, dst_offset): (impl Into<Operand<'d>>, u64),
        len: u64,
    ) -> Result<&mut Self, Error> {
        let (src, dst) = (src.into(), dst.into());
        check_range(|| src.name(), src.len(), src_offset, len)?;
        check_range(|| dst.name(), dst.len(), dst_offset, len)?;
        if src.is(dst) && src_offset.abs_diff(dst_offset) < len {
            let buffer = src.name();
            return Err(Error::Overlap { buffer, len });
        }
        self.name(src, Access::Read)?;
        self.name(dst, Access::Write)?;
        let (src, dst) = (src.at(src_offset), dst.at(dst_offset));
        self.commands.push(Command::Copy { src, dst, len });
        Ok(self)
    }

    /// Brings every named buffer into place and hands the work to the device.
    ///
    /// # Errors
    /// [`Error::Manager`] when the buffers do not fit together or one cannot be filled: nothing
    /// was submitted, and each buffer holds what it held. [`Error::Device`] when the device does
    /// not take the work.
    pub fn submit(&self) -> Result<Submitted, Error> {
        let shell = &self.pager.shell;
        let granted = Granted::obtain(shell, &self.uses)?;
        let ops = self.operations(&granted.grant.views);
        let fence = shell
            .runner
            .submit(self.pager.stream, &granted.grant.waits, &ops)?;
        for import in &self.imports {
            import.used_by(fence);
        }
        granted.finish(Some(fence), Keep::Evictable);
        Ok(Submitted::new(shell, fence))
    }

    fn operations(&self, views: &[View]) -> Vec<Op> {
        let mut addresses = std::collections::BTreeMap::new();
        let mut distinct = views.iter();
        for each in &self.uses {
            addresses
                .entry(each.buffer)
                .or_insert_with(|| distinct.next().expect("one view for each buffer").va);
        }
        let at = |at: At| match at {
            At::Buffer(buffer, offset) => addresses[&buffer].offset(offset),
            At::Fixed(va) => va,
        };
        let command = |command: &Command| match *command {
            Command::Fill { dst, len, byte } => Op::Fill {
                dst: at(dst),
                len,
                byte,
            },
            Command::Copy { src, dst, len } => Op::Copy {
                src: at(src),
                dst: at(dst),
                len,
            },
        };
        let empty = |op: &Op| matches!(op, Op::Fill { len: 0, .. } | Op::Copy { len: 0, .. });
        self.commands
            .iter()
            .map(command)
            .filter(|op| !empty(op))
            .collect()
    }
}

/// Work in the device's hands.
///
/// Kept beyond a pager that was dropped, it keeps the device open: what buffers that were dropped
/// held then comes back only when the last of these, and of the buffers and imports, is gone. Keep
/// none for long, or use [`Pager::close`], which brings everything back at once.
#[derive(Clone, Debug)]
pub struct Submitted {
    shell: Arc<Shell>,
    fence: Fence,
}

impl Submitted {
    pub(crate) fn new(shell: &Arc<Shell>, fence: Fence) -> Self {
        Self {
            shell: Arc::clone(shell),
            fence,
        }
    }

    /// Waits until the work is over.
    ///
    /// # Errors
    /// [`Error::Fault`] when it ran into a fault; what it was to write is then undefined.
    /// [`Error::Device`] when 15 seconds were not enough or the device is lost.
    pub fn wait(&self) -> Result<(), Error> {
        self.shell.runner.wait(self.fence)?;
        self.shell
            .runner
            .failure(self.fence)
            .map_or(Ok(()), |fault| Err(Error::Fault(fault)))
    }
}
