//! A model with what the run keeps beside it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use vrampager::{Buffer, Pager, Totals};
use vrampager_models::{FileStamp, ModelFile, SwapSet};

use crate::args::SwapArgs;
use crate::exit::{Exit, Failure};
use crate::report::{ModelReport, SwapIn};
use crate::state::State;
use crate::verify::read_at;

/// One model with everything that belongs to it.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    file: ModelFile,
    /// Opened for verifying only; nothing else reads through it.
    check: File,
    set: SwapSet,
    pub(crate) state: State,
    /// Whether it has turned out not to fit in VRAM as a whole.
    pub(crate) tensor_by_tensor: bool,
    requests: u64,
    hits: u64,
    swap_in_ms: Vec<f64>,
    moved: Moved,
}

/// Bytes moved while a model's requests were served.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    file_read: u64,
    copied: u64,
    dropped_clean: u64,
}

impl Model {
    pub(crate) fn new(
        pager: &Pager,
        file: ModelFile,
        args: &SwapArgs,
        index: u64,
    ) -> Result<Self, Failure> {
        let path = file.path();
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy().into_owned();
        let check = second_handle(&file)?;
        let set = SwapSet::new(pager, &file)?;
        let seed = args.seed.wrapping_add(index << 32);
        let state = State::new(pager, &format!("{name}/state"), args.state, seed)?;
        Ok(Self {
            name,
            file,
            check,
            set,
            state,
            tensor_by_tensor: false,
            requests: 0,
            hits: 0,
            swap_in_ms: Vec::new(),
            moved: Moved::default(),
        })
    }

    /// Its tensors in order, then its state.
    pub(crate) fn buffers(&self) -> Vec<&Buffer> {
        let tensors = self.set.tensors().iter().map(|each| &each.buffer);
        tensors.chain(self.state.pieces()).collect()
    }

    /// Which of [`buffers`](Self::buffers) are its state.
    pub(crate) fn state_range(&self) -> Range<usize> {
        let tensors = self.set.tensors().len();
        tensors..tensors + self.state.pieces().len()
    }

    /// What buffer `index` of [`buffers`](Self::buffers) should hold from `offset` on.
    pub(crate) fn expected<'a>(
        &self,
        index: usize,
        offset: u64,
        into: &'a mut Vec<u8>,
        len: usize,
    ) -> Result<&'a [u8], Failure> {
        let Some(each) = self.set.tensors().get(index) else {
            let piece = (index - self.state_range().start) as u64;
            return Ok(self.state.expected(piece, offset, into, len));
        };
        read_at(&self.check, each.tensor.offset + offset, into, len)
            .with_context(|| format!("{}: reading to verify", self.file.path().display()))
            .map_err(|error| Failure::new(Exit::Failed, error))
    }

    /// Whether all tensors are in VRAM.
    pub(crate) fn is_resident(&self) -> bool {
        self.set.is_resident()
    }

    /// Fails when the file is not the one that was opened, which explains whatever else is wrong.
    pub(crate) fn unchanged(&self) -> Result<(), Failure> {
        let checked = self.file.check();
        checked.map_err(|error| Failure::new(Exit::Failed, error))
    }

    /// Accounts for one request; `swap_in` is `None` for a hit.
    pub(crate) fn served(&mut self, swap_in: Option<Duration>, before: &Totals, after: &Totals) {
        self.requests += 1;
        match swap_in {
            Some(time) => self.swap_in_ms.push(time.as_secs_f64() * 1e3),
            None => self.hits += 1,
        }
        let copied = |totals: &Totals| totals.host_to_device + totals.device_to_host;
        self.moved.file_read += after.file_read - before.file_read;
        self.moved.copied += copied(after) - copied(before);
        self.moved.dropped_clean += after.dropped_clean - before.dropped_clean;
    }

    pub(crate) fn report(&mut self) -> ModelReport {
        ModelReport {
            name: self.name.clone(),
            path: self.file.path().display().to_string(),
            format: format!("{:?}", self.file.format()).to_lowercase(),
            bytes: self.file.tensor_bytes(),
            tensors: self.file.tensors().len(),
            requests: self.requests,
            hits: self.hits,
            tensor_by_tensor: self.tensor_by_tensor,
            file_read: self.moved.file_read,
            copied: self.moved.copied,
            dropped_clean: self.moved.dropped_clean,
            swap_in_ms: SwapIn::of(&mut self.swap_in_ms),
        }
    }
}

fn second_handle(model: &ModelFile) -> Result<File, Failure> {
    let path: &Path = model.path();
    let open = || -> io::Result<(File, FileStamp)> {
        let file = File::open(path)?;
        let stamp = FileStamp::of(&file.metadata()?);
        Ok((file, stamp))
    };
    let context = || format!("{}: cannot be opened for verifying", path.display());
    let (file, stamp) = open()
        .with_context(context)
        .map_err(|error| Failure::new(Exit::Failed, error))?;
    if stamp != model.stamp() {
        let message = format!("{}: changed since it was opened", path.display());
        return Err(Failure::because(Exit::Failed, message));
    }
    Ok(file)
}
