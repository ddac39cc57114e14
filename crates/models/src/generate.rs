//! Valid model files with known contents, for demonstrations and tests.
//!
//! Files are written beside their destination and moved there when complete: a destination is
//! absent, old or whole, never half. An existing file is replaced.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use protobuf::CodedOutputStream;
use protobuf::rt::WireType;

use crate::error::{At, ModelError};
use crate::model::{Format, ModelFile, Tensor};
use crate::rng::SplitMix64;

const GGUF_ALIGNMENT: u64 = 32;
/// A multiple of every element size.
const CHUNK_BYTES: usize = 64 << 10;

/// Writes a file of tensors `tensor.0`, `tensor.1`, ... of the given sizes in bytes, in this order.
/// They hold [`payload`]s; a size divisible by four makes a vector of 32-bit floats, another one a
/// vector of bytes.
///
/// # Errors
/// [`ModelError::Io`]; the destination is then as it was.
pub fn write(format: Format, path: &Path, sizes: &[u64], seed: u64) -> Result<(), ModelError> {
    replace(path, |out| {
        match format {
            Format::Safetensors => write_safetensors(out, sizes, seed),
            Format::Onnx => write_onnx(out, sizes, seed),
            Format::Gguf => write_gguf(out, sizes, seed),
        }
        .map_err(|source| ModelError::Io {
            file: path.to_owned(),
            source,
        })
    })
}

/// The endless bytes that fill tensor `index` of a generated file. Taken as 32-bit floats they are
/// finite.
#[must_use]
pub fn payload(seed: u64, index: u64) -> impl Read {
    let start = SplitMix64::new(seed ^ index.rotate_left(32)).next_u64();
    Payload {
        rng: SplitMix64::new(start),
        word: [0; 8],
        used: 8,
    }
}

struct Payload {
    rng: SplitMix64,
    word: [u8; 8],
    used: usize,
}

impl Read for Payload {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for byte in buffer.iter_mut() {
            if self.used == self.word.len() {
                // Without the exponent's top bit both halves are below 2 in magnitude.
                self.word = (self.rng.next_u64() & 0xBFFF_FFFF_BFFF_FFFF).to_le_bytes();
                self.used = 0;
            }
            *byte = self.word[self.used];
            self.used += 1;
        }
        Ok(buffer.len())
    }
}

/// Writes to `destination` a safetensors file with the header of `source` and other values: the
/// lowest mantissa bits of every floating-point number are changed, as a function of `seed`, so
/// that each number differs and finite ones stay finite. Other tensors are copied.
///
/// # Errors
/// Any [`ModelError`] about `source`, [`ModelError::Malformed`] if it is not a safetensors file,
/// and [`ModelError::Io`]; `destination` is then as it was.
pub fn fine_tune(source: &Path, destination: &Path, seed: u64) -> Result<(), ModelError> {
    let model = ModelFile::open(source)?;
    if model.format() != Format::Safetensors {
        let at = At {
            file: source.to_owned(),
            tensor: None,
            offset: 0,
        };
        return Err(ModelError::Malformed {
            at,
            what: "not a safetensors file",
        });
    }
    let mut rng = SplitMix64::new(seed);
    replace(destination, |out| {
        let len = model.stamp().len;
        let header_len = model.tensors().first().map_or(len, |tensor| tensor.offset);
        copy(&model, (0, header_len), destination, out, |_| {})?;
        for tensor in model.tensors() {
            let range = (tensor.offset, tensor.len);
            copy(&model, range, destination, out, |chunk| {
                perturb(tensor, chunk, &mut rng)
            })?;
        }
        model.check()
    })
}

/// Changes each floating-point number of a chunk that starts at a whole element.
fn perturb(tensor: &Tensor, chunk: &mut [u8], rng: &mut SplitMix64) {
    // Element size, and the low mantissa bits in the first byte of a little-endian element.
    let (size, mantissa_bits) = match tensor.dtype.as_str() {
        "F64" => (8, 0xff),
        "F32" => (4, 0xff),
        "F16" | "BF16" => (2, 0x03),
        _ => return,
    };
    for element in chunk.chunks_exact_mut(size) {
        let [random, ..] = rng.next_u64().to_le_bytes();
        // One bit is always flipped, so that the number differs.
        element[0] ^= (random | 1) & mantissa_bits;
    }
}

/// Copies `(offset, length)` of a model's file through `change`, chunk by chunk.
fn copy(
    model: &ModelFile,
    (mut offset, mut rest): (u64, u64),
    destination: &Path,
    out: &mut impl Write,
    mut change: impl FnMut(&mut [u8]),
) -> Result<(), ModelError> {
    let mut buffer = vec![0; CHUNK_BYTES];
    while rest > 0 {
        let len = usize::try_from(rest).map_or(CHUNK_BYTES, |rest| rest.min(CHUNK_BYTES));
        let chunk = &mut buffer[..len];
        let io = |file: &Path| {
            let file = file.to_owned();
            |source| ModelError::Io { file, source }
        };
        model
            .file()
            .read_exact_at(chunk, offset)
            .map_err(io(model.path()))?;
        change(chunk);
        out.write_all(chunk).map_err(io(destination))?;
        let len = wide(len);
        offset += len;
        rest -= len;
    }
    Ok(())
}

/// Lets `fill` write a new file and puts it in the place of `path` if that succeeds.
fn replace(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let io = |source| ModelError::Io {
        file: path.to_owned(),
        source,
    };
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let mut out = BufWriter::new(File::create(&part).map_err(io)?);
    let written = fill(&mut out)
        .and_then(|()| out.flush().map_err(io))
        .and_then(|()| fs::rename(&part, path).map_err(io));
    if written.is_err() {
        // The first error is the one to report.
        fs::remove_file(&part).ok();
    }
    written
}

fn write_payload(out: &mut impl Write, seed: u64, index: usize, len: u64) -> io::Result<()> {
    io::copy(&mut payload(seed, wide(index)).take(len), out).map(|_| ())
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).expect("addresses have at most 64 bits")
}

/// Whether a tensor of this size is of floats, and its number of elements.
fn elements(size: u64) -> (bool, u64) {
    let is_float = size.is_multiple_of(4);
    (is_float, if is_float { size / 4 } else { size })
}

fn write_safetensors(out: &mut impl Write, sizes: &[u64], seed: u64) -> io::Result<()> {
    let mut entries = Vec::new();
    let mut begin = 0;
    for (index, &size) in sizes.iter().enumerate() {
        let (is_float, count) = elements(size);
        let dtype = if is_float { "F32" } else { "U8" };
        let end = begin + size;
        let fields =
            format!(r#""dtype":"{dtype}","shape":[{count}],"data_offsets":[{begin},{end}]"#);
        entries.push(format!(r#""tensor.{index}":{{{fields}}}"#));
        begin = end;
    }
    let mut header = format!("{{{}}}", entries.join(","));
    // Spaces align the data to eight bytes.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    out.write_all(&wide(header.len()).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for (index, &size) in sizes.iter().enumerate() {
        write_payload(out, seed, index, size)?;
    }
    Ok(())
}

fn write_gguf(out: &mut impl Write, sizes: &[u64], seed: u64) -> io::Result<()> {
    // ggml type numbers of 32-bit floats and signed bytes.
    const F32: u32 = 0;
    const I8: u32 = 24;
    const VALUE_UINT32: u32 = 4;
    let text = |header: &mut Vec<u8>, text: &str| {
        header.extend(wide(text.len()).to_le_bytes());
        header.extend(text.as_bytes());
    };
    let mut header = b"GGUF".to_vec();
    header.extend(3_u32.to_le_bytes());
    header.extend(wide(sizes.len()).to_le_bytes());
    header.extend(1_u64.to_le_bytes());
    text(&mut header, "general.alignment");
    header.extend(VALUE_UINT32.to_le_bytes());
    header.extend(32_u32.to_le_bytes());
    let mut offset = 0_u64;
    for (index, &size) in sizes.iter().enumerate() {
        let (is_float, count) = elements(size);
        text(&mut header, &format!("tensor.{index}"));
        header.extend(1_u32.to_le_bytes());
        header.extend(count.to_le_bytes());
        header.extend(if is_float { F32 } else { I8 }.to_le_bytes());
        header.extend(offset.to_le_bytes());
        offset += size.next_multiple_of(GGUF_ALIGNMENT);
    }
    out.write_all(&header)?;
    pad(out, wide(header.len()))?;
    for (index, &size) in sizes.iter().enumerate() {
        write_payload(out, seed, index, size)?;
        pad(out, size)?;
    }
    Ok(())
}

fn pad(out: &mut impl Write, written: u64) -> io::Result<()> {
    let missing = written.next_multiple_of(GGUF_ALIGNMENT) - written;
    io::copy(&mut io::repeat(0).take(missing), out).map(|_| ())
}

/// Field numbers are from `onnx/onnx.proto`.
fn write_onnx(out: &mut impl Write, sizes: &[u64], seed: u64) -> io::Result<()> {
    const FLOAT: u64 = 1;
    const UINT8: u64 = 2;
    let encode = |fill: &dyn Fn(&mut CodedOutputStream<'_>) -> protobuf::Result<()>| {
        let mut bytes = Vec::new();
        let mut stream = CodedOutputStream::vec(&mut bytes);
        fill(&mut stream)?;
        stream.flush()?;
        drop(stream);
        io::Result::Ok(bytes)
    };
    // Everything of an initialiser before its payload, and the bytes of the graph.
    let mut heads = Vec::new();
    let name = encode(&|graph| graph.write_string(2, "generated"))?;
    let mut graph_len = wide(name.len());
    for (index, &size) in sizes.iter().enumerate() {
        let (is_float, count) = elements(size);
        let tensor = encode(&|tensor| {
            tensor.write_uint64(1, count)?;
            tensor.write_uint64(2, if is_float { FLOAT } else { UINT8 })?;
            tensor.write_string(8, &format!("tensor.{index}"))?;
            tensor.write_tag(9, WireType::LengthDelimited)?;
            tensor.write_raw_varint64(size)
        })?;
        let mut head = encode(&|graph| {
            graph.write_tag(5, WireType::LengthDelimited)?;
            graph.write_raw_varint64(wide(tensor.len()) + size)
        })?;
        head.extend(tensor);
        graph_len += wide(head.len()) + size;
        heads.push(head);
    }
    let opset = encode(&|opset| opset.write_uint64(2, 20))?;
    out.write_all(&encode(&|model| {
        model.write_uint64(1, 9)?;
        model.write_bytes(8, &opset)?;
        model.write_tag(7, WireType::LengthDelimited)?;
        model.write_raw_varint64(graph_len)
    })?)?;
    out.write_all(&name)?;
    for (index, (head, &size)) in heads.iter().zip(sizes).enumerate() {
        out.write_all(head)?;
        write_payload(out, seed, index, size)?;
    }
    Ok(())
}
