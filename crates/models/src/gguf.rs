//! GGUF versions 2 and 3, little endian: a header, key-value pairs, tensor descriptions, padding,
//! and data. Source: `docs/gguf.md` of the ggml project.

use crate::error::ModelError;
use crate::model::Tensor;
use crate::source::{MAX_TENSORS, Source};

const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 30;
/// `GGML_MAX_DIMS`.
const MAX_DIMS: u64 = 4;
/// Deepest nesting of arrays in a value. Files in the wild have one level.
const MAX_NESTING: u64 = 4;

// Value types.
const UINT32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

// The smallest encodings, which bound a count before anything is looped over.
const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;
const MIN_STRING_BYTES: u64 = 8;
const MIN_ARRAY_BYTES: u64 = 4 + 8;

/// Bytes of a value type of fixed size.
fn fixed_bytes(value_type: u32) -> Option<u64> {
    match value_type {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        UINT32 | 5 | 6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Name, elements per block and bytes per block of a ggml tensor type. `Q8_1` and `Q8_K` exist
/// only during computation, and their layout has changed over time: no file has them.
fn block_of(ggml_type: u32) -> Option<(&'static str, u64, u64)> {
    Some(match ggml_type {
        0 => ("F32", 1, 4),
        1 => ("F16", 1, 2),
        2 => ("Q4_0", 32, 18),
        3 => ("Q4_1", 32, 20),
        6 => ("Q5_0", 32, 22),
        7 => ("Q5_1", 32, 24),
        8 => ("Q8_0", 32, 34),
        10 => ("Q2_K", 256, 84),
        11 => ("Q3_K", 256, 110),
        12 => ("Q4_K", 256, 144),
        13 => ("Q5_K", 256, 176),
        14 => ("Q6_K", 256, 210),
        16 => ("IQ2_XXS", 256, 66),
        17 => ("IQ2_XS", 256, 74),
        18 => ("IQ3_XXS", 256, 98),
        19 => ("IQ1_S", 256, 50),
        20 => ("IQ4_NL", 32, 18),
        21 => ("IQ3_S", 256, 110),
        22 => ("IQ2_S", 256, 82),
        23 => ("IQ4_XS", 256, 136),
        24 => ("I8", 1, 1),
        25 => ("I16", 1, 2),
        26 => ("I32", 1, 4),
        27 => ("I64", 1, 8),
        28 => ("F64", 1, 8),
        29 => ("IQ1_M", 256, 56),
        30 => ("BF16", 1, 2),
        34 => ("TQ1_0", 256, 54),
        35 => ("TQ2_0", 256, 66),
        39 => ("MXFP4", 32, 17),
        40 => ("NVFP4", 64, 36),
        41 => ("Q1_0", 128, 18),
        _ => return None,
    })
}

pub(crate) fn read(source: &mut Source<'_>) -> Result<Vec<Tensor>, ModelError> {
    let mut reader = Reader { source, pos: 0 };
    if &reader.array::<4>()? != b"GGUF" {
        return Err(reader.source.malformed(0, "the GGUF magic is missing"));
    }
    let version = reader.u32()?;
    if !matches!(version, 2 | 3) {
        return Err(reader.unsupported(4, "GGUF version", version));
    }
    let tensor_count = reader.u64()?;
    let pair_count = reader.u64()?;
    reader
        .source
        .limit(8, "number of tensors", tensor_count, MAX_TENSORS)?;

    let alignment = reader.pairs(pair_count)?;
    reader.require_items(tensor_count, MIN_TENSOR_BYTES)?;
    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        tensors.push(reader.tensor(alignment)?);
    }
    // Offsets count from the padded end of the descriptions.
    let data_start = reader.pos.next_multiple_of(alignment);
    for tensor in &mut tensors {
        let relative = tensor.offset;
        tensor.offset = data_start
            .checked_add(relative)
            .ok_or_else(|| ModelError::Truncated {
                at: reader.source.at_tensor(&tensor.name, relative),
                needed: tensor.len,
                available: 0,
            })?;
    }
    Ok(tensors)
}

/// Reads forward through the header.
struct Reader<'s, 'f> {
    source: &'s mut Source<'f>,
    /// At most the file's length.
    pos: u64,
}

impl Reader<'_, '_> {
    fn unsupported(&self, offset: u64, what: &'static str, value: u32) -> ModelError {
        ModelError::Unsupported {
            at: self.source.at(offset),
            what,
            value: value.into(),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ModelError> {
        let at = self.pos;
        self.skip(u64::try_from(N).expect("field sizes are small"))?;
        let bytes = self.source.up_to(at, N)?;
        Ok(bytes
            .try_into()
            .expect("skip has checked that the bytes are there"))
    }

    fn u32(&mut self) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn name(&mut self) -> Result<String, ModelError> {
        let len = self.u64()?;
        let name = self.source.name(self.pos, len)?;
        self.skip(len)?;
        Ok(name)
    }

    fn skip(&mut self, len: u64) -> Result<(), ModelError> {
        self.source.require(self.pos, len, self.source.len())?;
        self.pos += len;
        Ok(())
    }

    /// Fails unless `count` items of at least `min_bytes` each can follow.
    fn require_items(&self, count: u64, min_bytes: u64) -> Result<(), ModelError> {
        self.source
            .require(self.pos, count.saturating_mul(min_bytes), self.source.len())
    }

    /// Skips the key-value pairs, except that it returns the alignment.
    fn pairs(&mut self, count: u64) -> Result<u64, ModelError> {
        self.require_items(count, MIN_PAIR_BYTES)?;
        let mut alignment = None;
        for _ in 0..count {
            let at = self.pos;
            let key = self.name()?;
            let value_type = self.u32()?;
            if key != ALIGNMENT_KEY {
                self.skip_value(value_type, 0)?;
                continue;
            }
            if value_type != UINT32 {
                return Err(self.unsupported(at, "type of general.alignment", value_type));
            }
            let value = u64::from(self.u32()?);
            if !value.is_power_of_two() {
                return Err(self
                    .source
                    .malformed(at, "general.alignment is no power of two"));
            }
            self.source.limit(at, ALIGNMENT_KEY, value, MAX_ALIGNMENT)?;
            if alignment.replace(value).is_some() {
                return Err(self
                    .source
                    .malformed(at, "general.alignment is given twice"));
            }
        }
        Ok(alignment.unwrap_or(DEFAULT_ALIGNMENT))
    }

    fn skip_value(&mut self, value_type: u32, nesting: u64) -> Result<(), ModelError> {
        if let Some(bytes) = fixed_bytes(value_type) {
            return self.skip(bytes);
        }
        match value_type {
            STRING => {
                let len = self.u64()?;
                self.skip(len)
            }
            ARRAY => self.skip_array(nesting + 1),
            _ => Err(self.unsupported(self.pos, "value type", value_type)),
        }
    }

    fn skip_array(&mut self, nesting: u64) -> Result<(), ModelError> {
        let at = self.pos;
        self.source
            .limit(at, "nesting of arrays", nesting, MAX_NESTING)?;
        let value_type = self.u32()?;
        let count = self.u64()?;
        if let Some(bytes) = fixed_bytes(value_type) {
            return self.skip(count.saturating_mul(bytes));
        }
        let min_bytes = if value_type == STRING {
            MIN_STRING_BYTES
        } else {
            MIN_ARRAY_BYTES
        };
        self.require_items(count, min_bytes)?;
        for _ in 0..count {
            self.skip_value(value_type, nesting)?;
        }
        Ok(())
    }

    /// One tensor description; its offset still counts from the start of the data.
    fn tensor(&mut self, alignment: u64) -> Result<Tensor, ModelError> {
        let start = self.pos;
        let name = self.name()?;
        let rank = u64::from(self.u32()?);
        if rank > MAX_DIMS {
            return Err(ModelError::LimitExceeded {
                at: self.source.at_tensor(&name, start),
                what: "number of dimensions",
                value: rank,
                limit: MAX_DIMS,
            });
        }
        let mut shape = Vec::new();
        for _ in 0..rank {
            shape.push(self.u64()?);
        }
        let ggml_type = self.u32()?;
        let offset = self.u64()?;

        let at = || self.source.at_tensor(&name, start);
        let Some((dtype, block_elements, block_bytes)) = block_of(ggml_type) else {
            let value = ggml_type.into();
            return Err(ModelError::Unsupported {
                at: at(),
                what: "ggml tensor type",
                value,
            });
        };
        let malformed = |what| ModelError::Malformed { at: at(), what };
        if !shape.first().unwrap_or(&1).is_multiple_of(block_elements) {
            return Err(malformed("the first extent does not fill whole blocks"));
        }
        let len = shape
            .iter()
            .try_fold(1_u64, |elements, &extent| elements.checked_mul(extent))
            .and_then(|elements| (elements / block_elements).checked_mul(block_bytes))
            .ok_or_else(|| malformed("the size of the shape overflows"))?;
        if !offset.is_multiple_of(alignment) {
            return Err(ModelError::Misaligned {
                at: at(),
                alignment,
            });
        }
        Ok(Tensor {
            name,
            dtype: dtype.to_owned(),
            shape,
            offset,
            len,
        })
    }
}
