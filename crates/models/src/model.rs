use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::ModelError;
use crate::source::{MAX_TENSORS, Origin, Source};
use crate::stamp::FileStamp;
use crate::{gguf, onnx, safetensors};

/// A model file format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Format {
    /// <https://github.com/huggingface/safetensors>.
    Safetensors,
    /// <https://onnx.ai/onnx/repo-docs/IR.html>: initialisers, and tensors in node attributes.
    Onnx,
    /// <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3.
    Gguf,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Safetensors => "safetensors",
            Self::Onnx => "ONNX",
            Self::Gguf => "GGUF",
        })
    }
}

/// One tensor: a range of bytes in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Unique in its file.
    pub name: String,
    /// Element type as the safetensors format writes it (`F32`, `BF16`), or the name of the ggml
    /// block type (`Q4_K`).
    pub dtype: String,
    /// Extents in the file's order, which for GGUF is the fastest-varying first.
    pub shape: Vec<u64>,
    /// Where the bytes start, from the start of the file.
    pub offset: u64,
    /// How many bytes there are; zero is legal. ONNX may store integers as varints, and then this
    /// is the size of that encoding, not of the decoded tensor.
    pub len: u64,
}

/// What a model file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The format, found by content first.
    pub format: Format,
    /// The tensors by increasing offset. Ranges lie in the file and do not overlap; names are
    /// unique.
    pub tensors: Vec<Tensor>,
}

impl Layout {
    /// The layout of a model that is already in memory; `name` stands for it in errors.
    ///
    /// # Errors
    /// Any [`ModelError`] about the content.
    pub fn of_bytes(name: &Path, bytes: &[u8]) -> Result<Self, ModelError> {
        let len = u64::try_from(bytes.len()).expect("addresses have at most 64 bits");
        Self::read(&mut Source::new(name, Origin::Bytes(bytes), len))
    }

    fn read(source: &mut Source<'_>) -> Result<Self, ModelError> {
        let format = detect(source)?;
        let tensors = match format {
            Format::Safetensors => safetensors::read(source)?,
            Format::Onnx => onnx::read(source)?,
            Format::Gguf => gguf::read(source)?,
        };
        Ok(Self {
            format,
            tensors: checked(source, tensors)?,
        })
    }
}

/// An open model file.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    file: File,
    stamp: FileStamp,
    layout: Layout,
}

impl ModelFile {
    /// Opens `path` for reading and reads its layout.
    ///
    /// The path is opened once and without blocking, so that naming a pipe neither hangs nor
    /// races with a replacement of the path.
    ///
    /// # Errors
    /// Any [`ModelError`].
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io {
            file: path.to_owned(),
            source,
        };
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            let found = kind_of(metadata.file_type());
            return Err(ModelError::NotRegular {
                file: path.to_owned(),
                found,
            });
        }
        let stamp = FileStamp::of(&metadata);
        let layout = Layout::read(&mut Source::new(path, Origin::File(&file), stamp.len))?;
        let model = Self {
            path: path.to_owned(),
            file,
            stamp,
            layout,
        };
        model.check()?;
        Ok(model)
    }

    /// The path given to [`Self::open`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, the backing of its tensors' buffers.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The state of the file when it was opened.
    #[must_use]
    pub fn stamp(&self) -> FileStamp {
        self.stamp
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.layout.format
    }

    /// The tensors by increasing offset.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.layout.tensors
    }

    /// Sum of the tensors' lengths in bytes.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        // Ranges in one file that do not overlap: the sum is at most the file's length.
        self.layout.tensors.iter().map(|tensor| tensor.len).sum()
    }

    /// Whether both the open file and whatever its path leads to are as they were when opened.
    ///
    /// # Errors
    /// [`ModelError::Changed`] with the first differing attribute; [`ModelError::Io`] if the path
    /// leads nowhere any more. The open file stays readable either way.
    pub fn check(&self) -> Result<(), ModelError> {
        let io = |source| ModelError::Io {
            file: self.path.clone(),
            source,
        };
        for metadata in [self.file.metadata(), std::fs::metadata(&self.path)] {
            let now = FileStamp::of(&metadata.map_err(io)?);
            if let Some((field, old, new)) = self.stamp.difference(&now) {
                return Err(ModelError::Changed {
                    file: self.path.clone(),
                    field,
                    old,
                    new,
                });
            }
        }
        Ok(())
    }
}

fn kind_of(found: FileType) -> &'static str {
    if found.is_dir() {
        "directory"
    } else if found.is_fifo() {
        "pipe"
    } else if found.is_socket() {
        "socket"
    } else {
        "device"
    }
}

/// By content, then by extension. Both safetensors and ONNX lack a magic number: the former has a
/// JSON object after a plausible length, the latter starts with its `ir_version` field.
fn detect(source: &mut Source<'_>) -> Result<Format, ModelError> {
    let first = source.up_to(0, 9)?.to_vec();
    if first.starts_with(b"GGUF") {
        return Ok(Format::Gguf);
    }
    if let [length @ .., b'{'] = first.as_slice()
        && let Ok(length) = <[u8; 8]>::try_from(length)
        && u64::from_le_bytes(length) <= safetensors::MAX_HEADER_BYTES
    {
        return Ok(Format::Safetensors);
    }
    if let [onnx::IR_VERSION_TAG, 1..=0x7f, next, ..] = first.as_slice()
        && onnx::is_model_tag(*next)
    {
        return Ok(Format::Onnx);
    }
    let extension = source
        .path()
        .extension()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    match extension.as_str() {
        "safetensors" => Ok(Format::Safetensors),
        "onnx" => Ok(Format::Onnx),
        "gguf" => Ok(Format::Gguf),
        _ => Err(ModelError::UnknownFormat {
            file: source.path().to_owned(),
            first_bytes: first.into_iter().take(8).collect(),
            extension,
        }),
    }
}

/// The rules that all formats share: unique names, ranges in the file, no byte claimed twice.
fn checked(source: &Source<'_>, mut tensors: Vec<Tensor>) -> Result<Vec<Tensor>, ModelError> {
    let count = u64::try_from(tensors.len()).expect("a length fits 64 bits");
    source.limit(0, "number of tensors", count, MAX_TENSORS)?;
    let mut names = BTreeSet::new();
    for tensor in &tensors {
        let at = || source.at_tensor(&tensor.name, tensor.offset);
        if !names.insert(tensor.name.as_str()) {
            return Err(ModelError::DuplicateName { at: at() });
        }
        let available = source.len().saturating_sub(tensor.offset);
        if tensor.len > available || tensor.offset > source.len() {
            return Err(ModelError::Truncated {
                at: at(),
                needed: tensor.len,
                available,
            });
        }
    }
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.len));
    let mut last: Option<&Tensor> = None;
    for tensor in tensors.iter().filter(|tensor| tensor.len > 0) {
        if let Some(other) = last
            && other.offset + other.len > tensor.offset
        {
            return Err(ModelError::Overlap {
                at: source.at_tensor(&tensor.name, tensor.offset),
                other: other.name.clone(),
                other_end: other.offset + other.len,
            });
        }
        last = Some(tensor);
    }
    Ok(tensors)
}
