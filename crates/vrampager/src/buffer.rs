//! Buffers and pins.

use std::fmt;
use std::sync::Arc;

use vrampager_addr::Va;
use vrampager_core::{
    BufferDesc, BufferId, Bytes, Done, Grant, Keep, MemType, Placement, Priority, Source, Target,
    TaskId, Use,
};
use vrampager_hal::Access;

use crate::error::Error;
use crate::file::FileBacking;
use crate::pager::Pager;
use crate::shell::{Outcome, Shell};

/// How to create a [`Buffer`].
#[derive(Debug)]
pub struct BufferBuilder<'a> {
    pager: &'a Pager,
    desc: BufferDesc,
    backing: Option<Arc<FileBacking>>,
}

impl<'a> BufferBuilder<'a> {
    pub(crate) fn new(pager: &'a Pager, name: &str, len: u64) -> Self {
        let desc = BufferDesc {
            name: name.into(),
            len,
            placement: Placement::vram(),
            priority: Priority::default(),
            content: Source::Zero,
        };
        Self {
            pager,
            desc,
            backing: None,
        }
    }

    /// Where work on the device needs it; [`Placement::vram`] unless told.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.desc.placement = placement;
        self
    }

    /// Its eviction priority; lowest unless told.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.desc.priority = priority;
        self
    }

    /// Its first content: bytes of `file` from `offset` on, instead of zeros. Until it is
    /// written, the buffer is dropped instead of copied when others need its place, and read
    /// again when it is used.
    #[must_use]
    pub fn backed_by(mut self, file: &Arc<FileBacking>, offset: u64) -> Self {
        self.desc.content = Source::File {
            file: file.id,
            offset,
        };
        self.backing = Some(file.clone());
        self
    }

    /// Creates the buffer. It has addresses; memory it takes on first use.
    ///
    /// # Errors
    /// [`Error::Manager`] for an empty buffer or when addresses are used up, [`Error::Range`]
    /// when it leaves its file.
    pub fn create(self) -> Result<Buffer, Error> {
        let len = self.desc.len;
        if let (Some(file), Source::File { offset, .. }) = (&self.backing, self.desc.content) {
            let what = || file.path.display().to_string();
            check_range(what, file.len, offset, len)?;
        }
        let shell = self.pager.shell.clone();
        let task = shell.lock().create(&self.desc)?;
        match shell.drive(task)? {
            Outcome::Done(Done::Created(id)) => Ok(Buffer {
                shell,
                id,
                name: self.desc.name,
                len,
                _backing: self.backing,
            }),
            Outcome::Done(_) | Outcome::Granted(_) => unreachable!("creating ends in a buffer"),
        }
    }
}

/// Memory that is wherever there is room for it.
///
/// Dropping it never blocks: memory and addresses come back once the device is done with them.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) shell: Arc<Shell>,
    pub(crate) id: BufferId,
    name: Arc<str>,
    len: u64,
    /// Keeps the file known while the buffer may be read from it.
    _backing: Option<Arc<FileBacking>>,
}

impl Buffer {
    /// Bytes as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: an empty buffer cannot be created.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Name for reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its bytes are at this moment; `None` while they are only in its file, or zeros.
    #[must_use]
    pub fn residency(&self) -> Option<MemType> {
        self.shell
            .lock()
            .residency(self.id)
            .expect("alive while this handle is")
    }

    /// Copies bytes from `offset` on into `into`, waiting for work on the device that writes them.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Manager`] when the bytes have to come back from swap or their
    /// file and cannot; [`Error::Access`] when the device fails. `into` is then undefined.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.access(Access::Read, offset, into.len() as u64, |shell, bytes| {
            match bytes {
                Bytes::Host(spans) => shell.runner.read_host(spans, offset, into),
                Bytes::Device(window) => shell.runner.read_device(window, offset, into)?,
            }
            Ok(())
        })
    }

    /// Copies `from` to the bytes from `offset` on, waiting for work on the device that uses the
    /// buffer. It is dirty from then on.
    ///
    /// # Errors
    /// As for [`read`](Self::read); when the device fails the written range is undefined.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.access(Access::Write, offset, from.len() as u64, |shell, bytes| {
            match bytes {
                Bytes::Host(spans) => shell.runner.write_host(spans, offset, from),
                Bytes::Device(window) => shell.runner.write_device(window, offset, from)?,
            }
            Ok(())
        })
    }

    fn access(
        &self,
        access: Access,
        offset: u64,
        len: u64,
        body: impl FnOnce(&Shell, &Bytes) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check_range(offset, len)?;
        let target = Target::Cpu;
        let granted = Granted::obtain(
            &self.shell,
            &[Use {
                buffer: self.id,
                access,
                target,
            }],
        )?;
        for &fence in &granted.grant.waits {
            self.shell.runner.wait(fence)?;
        }
        body(&self.shell, &granted.grant.views[0].bytes)
    }

    /// Moves the bytes to one of `placement`'s places now; later use moves them again.
    ///
    /// # Errors
    /// [`Error::Manager`]; the buffer is then where it was, or at a hop on the way.
    pub fn move_to(&self, placement: Placement) -> Result<(), Error> {
        let target = Target::Places(placement);
        let each = Use {
            buffer: self.id,
            access: Access::Read,
            target,
        };
        Granted::obtain(&self.shell, &[each]).map(drop)
    }

    /// Brings it to its placement and keeps it there while the guard lives.
    ///
    /// # Errors
    /// [`Error::Manager`].
    pub fn pin(&self) -> Result<Pinned<'_>, Error> {
        let va = self.pin_for(Access::Read)?;
        Ok(Pinned { buffer: self, va })
    }

    /// Pins it for an access that may begin when this returns.
    pub(crate) fn pin_for(&self, access: Access) -> Result<Va, Error> {
        let each = Use {
            buffer: self.id,
            access,
            target: Target::Gpu,
        };
        let granted = Granted::obtain(&self.shell, &[each])?;
        for &fence in &granted.grant.waits {
            self.shell.runner.wait(fence)?;
        }
        let va = granted.grant.views[0].va;
        granted.finish(None, Keep::Pinned);
        Ok(va)
    }

    /// Undoes one pin.
    pub(crate) fn unpin(&self) {
        if let Some(mut device) = self.shell.lock_to_drop() {
            device.unpin(self.id).expect("pinned once for each call");
        }
        self.shell.announce();
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        check_range(|| self.name.to_string(), self.len, offset, len)
    }

    pub(crate) fn belongs_to(&self, shell: &Arc<Shell>) -> bool {
        Arc::ptr_eq(&self.shell, shell)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(mut device) = self.shell.lock_to_drop() {
            let released = device.release(self.id);
            released.expect("released once, by its only handle");
        }
        self.shell.announce();
    }
}

pub(crate) fn check_range(
    what: impl Fn() -> String,
    size: u64,
    offset: u64,
    len: u64,
) -> Result<(), Error> {
    let inside = offset.checked_add(len).is_some_and(|end| end <= size);
    if inside {
        Ok(())
    } else {
        Err(Error::Range {
            what: what(),
            offset,
            len,
            size,
        })
    }
}

/// A buffer that stays in place, at an address for the device.
#[must_use = "the buffer is unpinned when the guard goes"]
pub struct Pinned<'a> {
    buffer: &'a Buffer,
    va: Va,
}

impl Pinned<'_> {
    /// Where the device sees it.
    #[must_use]
    pub fn gpu_address(&self) -> Va {
        self.va
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} at {})", self.buffer.name, self.va)
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.buffer.unpin();
    }
}

/// A granted request; given up unless finished.
pub(crate) struct Granted<'a> {
    shell: &'a Shell,
    /// None once finished.
    task: Option<TaskId>,
    pub(crate) grant: Grant,
}

impl<'a> Granted<'a> {
    pub(crate) fn obtain(shell: &'a Shell, uses: &[Use]) -> Result<Self, Error> {
        let task = shell.lock().exec(uses)?;
        match shell.drive(task)? {
            Outcome::Granted(grant) => Ok(Self {
                shell,
                task: Some(task),
                grant,
            }),
            Outcome::Done(_) => unreachable!("a request for buffers ends in a grant"),
        }
    }

    pub(crate) fn finish(mut self, fence: Option<vrampager_hal::Fence>, keep: Keep) {
        let task = self.task.take().expect("finished once");
        self.shell.lock().finish(task, fence, keep);
        self.shell.announce();
    }
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        if let (Some(task), Some(mut device)) = (self.task, self.shell.lock_to_drop()) {
            device.abort(task);
        }
        self.shell.announce();
    }
}
