//! Model files as lists of tensor byte ranges, and the request sources that swap them.
//!
//! [`ModelFile::open`] reads the header of a safetensors, ONNX or GGUF file and says where each
//! tensor's bytes lie. Payloads are never read: a pager backs one buffer per tensor with the file
//! region itself. The file stays open, and [`ModelFile::check`] says whether it changed since.
//!
//! Everything read from a file is hostile until checked. A range that [`ModelFile::tensors`]
//! returns lies inside the file and overlaps no other; whatever does not fit is a [`ModelError`]
//! that names the file, the tensor and the offset.
//!
//! [`SwapSet`] makes the tensors of a file buffers of a pager, so that one call swaps a model in.
//!
//! [`ZipfRequests`] and [`TraceRequests`] say which model is wanted when; [`generate`] writes
//! valid files with known contents, for demonstrations and tests.
//!
//! # Examples
//! ```
//! use vrampager_models::{Format, ModelFile, generate};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("tiny.gguf");
//! generate::write(Format::Gguf, &path, &[4096, 64], 7)?;
//!
//! let model = ModelFile::open(&path)?;
//! assert_eq!(model.format(), Format::Gguf);
//! assert_eq!(model.tensors()[1].len, 64);
//! model.check()?;
//!
//! // A file cut short is refused with its name, the tensor and the offset.
//! std::fs::OpenOptions::new().write(true).open(&path)?.set_len(1000)?;
//! let error = ModelFile::open(&path).unwrap_err().to_string();
//! assert!(error.contains("tiny.gguf: tensor \"tensor.0\" at byte 160: "), "{error}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod error;
pub mod generate;
mod gguf;
mod model;
mod onnx;
mod requests;
mod rng;
mod safetensors;
mod set;
mod source;
mod stamp;
mod trace;

pub use error::{At, ModelError};
pub use model::{Format, Layout, ModelFile, Tensor};
pub use requests::{Request, RequestError, ZipfRequests};
pub use set::{SwapSet, SwapTensor};
pub use stamp::{FileStamp, StampField};
pub use trace::TraceRequests;
