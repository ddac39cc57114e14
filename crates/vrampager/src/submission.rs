//! Work for the device that names the buffers it uses.

use std::sync::Arc;

use vrampager_addr::Va;
use vrampager_core::{BufferId, Keep, Target, Use, View};
use vrampager_hal::{Access, Fence, Op};

use crate::buffer::{Buffer, Granted};
use crate::error::Error;
use crate::pager::Pager;
use crate::shell::Shell;

/// One batch of work. All its buffers are brought to their placements together and stay there
/// until the work is over.
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct Submission<'a> {
    pager: &'a Pager,
    uses: Vec<Use>,
    commands: Vec<Command>,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Fill {
        dst: (BufferId, u64),
        len: u64,
        byte: u8,
    },
    Copy {
        src: (BufferId, u64),
        dst: (BufferId, u64),
        len: u64,
    },
}

impl<'a> Submission<'a> {
    pub(crate) fn new(pager: &'a Pager) -> Self {
        Self {
            pager,
            uses: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// Names a buffer that the work reads.
    ///
    /// # Errors
    /// [`Error::Foreign`].
    pub fn read(&mut self, buffer: &Buffer) -> Result<&mut Self, Error> {
        self.name(buffer, Access::Read)
    }

    /// Names a buffer that the work writes.
    ///
    /// # Errors
    /// [`Error::Foreign`].
    pub fn write(&mut self, buffer: &Buffer) -> Result<&mut Self, Error> {
        self.name(buffer, Access::Write)
    }

    fn name(&mut self, buffer: &Buffer, access: Access) -> Result<&mut Self, Error> {
        if !buffer.belongs_to(&self.pager.shell) {
            return Err(Error::Foreign {
                buffer: buffer.name().to_owned(),
            });
        }
        self.uses.push(Use {
            buffer: buffer.id,
            access,
            target: Target::Gpu,
        });
        Ok(self)
    }

    /// Adds: write `byte` over `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Foreign`].
    pub fn fill(
        &mut self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        byte: u8,
    ) -> Result<&mut Self, Error> {
        buffer.check_range(offset, len)?;
        self.name(buffer, Access::Write)?;
        self.commands.push(Command::Fill {
            dst: (buffer.id, offset),
            len,
            byte,
        });
        Ok(self)
    }

    /// Adds: copy `len` bytes between two buffers, each from its offset on.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Foreign`], [`Error::Overlap`].
    pub fn copy(
        &mut self,
        (src, src_offset): (&Buffer, u64),
        (dst, dst_offset): (&Buffer, u64),
        len: u64,
    ) -> Result<&mut Self, Error> {
        src.check_range(src_offset, len)?;
        dst.check_range(dst_offset, len)?;
        if src.id == dst.id && src_offset.abs_diff(dst_offset) < len {
            return Err(Error::Overlap {
                buffer: src.name().to_owned(),
                len,
            });
        }
        self.name(src, Access::Read)?;
        self.name(dst, Access::Write)?;
        let (src, dst) = ((src.id, src_offset), (dst.id, dst_offset));
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
        granted.finish(Some(fence), Keep::Evictable);
        Ok(Submitted {
            shell: shell.clone(),
            fence,
        })
    }

    fn operations(&self, views: &[View]) -> Vec<Op> {
        let mut addresses = std::collections::BTreeMap::new();
        let mut distinct = views.iter();
        for each in &self.uses {
            addresses
                .entry(each.buffer)
                .or_insert_with(|| distinct.next().expect("one view for each buffer").va);
        }
        let at = |(buffer, offset): (BufferId, u64)| -> Va { addresses[&buffer].offset(offset) };
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
#[derive(Clone, Debug)]
pub struct Submitted {
    shell: Arc<Shell>,
    fence: Fence,
}

impl Submitted {
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
