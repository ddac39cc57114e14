//! The safetensors header. Element types and the JSON of one entry are the `safetensors` crate's;
//! the rules between entries are checked here, so that an error can name the tensor and a
//! duplicate key is noticed, which a map would swallow.

use std::collections::BTreeMap;
use std::fmt;

use ::safetensors::SafeTensorError;
use ::safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::error::ModelError;
use crate::model::Tensor;
use crate::source::{MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS, Source};

/// The format's own limit.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: u64 = 8;
const METADATA_KEY: &str = "__metadata__";

/// The entries in the file's order, duplicates included.
struct Entries(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA_KEY {
                if metadata
                    .replace(map.next_value::<BTreeMap<String, String>>()?)
                    .is_some()
                {
                    return Err(A::Error::duplicate_field(METADATA_KEY));
                }
                continue;
            }
            entries.push((name, map.next_value()?));
        }
        Ok(Entries(entries))
    }
}

pub(crate) fn read(source: &mut Source<'_>) -> Result<Vec<Tensor>, ModelError> {
    source.require(0, LENGTH_BYTES, source.len())?;
    let length = source.vec(0, LENGTH_BYTES, ("header length field", LENGTH_BYTES))?;
    let length = length.try_into().expect("exactly eight bytes were read");
    let header_len = u64::from_le_bytes(length);
    let header = source.vec(
        LENGTH_BYTES,
        header_len,
        ("header length", MAX_HEADER_BYTES),
    )?;
    let Entries(mut entries) = parse(&header).map_err(|error| ModelError::Header {
        at: source.at(LENGTH_BYTES),
        source: error,
    })?;
    let count = u64::try_from(entries.len()).expect("a length fits 64 bits");
    source.limit(LENGTH_BYTES, "number of tensors", count, MAX_TENSORS)?;
    entries.sort_by_key(|(_, info)| info.data_offsets);

    let data_start = LENGTH_BYTES + header_len;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, info) in entries {
        tensors.push(tensor(source, data_start, name, &info)?);
    }
    covers_file(source, data_start, &tensors)?;
    Ok(tensors)
}

fn parse(header: &[u8]) -> Result<Entries, SafeTensorError> {
    let text = std::str::from_utf8(header).map_err(SafeTensorError::InvalidHeader)?;
    serde_json::from_str(text).map_err(SafeTensorError::InvalidHeaderDeserialization)
}

/// One entry as a range. Its place among the others is [`covers_file`]'s and the shared checks'.
fn tensor(
    source: &Source<'_>,
    data_start: u64,
    name: String,
    info: &TensorInfo,
) -> Result<Tensor, ModelError> {
    let wide = |value: usize| u64::try_from(value).expect("addresses have at most 64 bits");
    let (begin, end) = info.data_offsets;
    let offset = data_start.saturating_add(wide(begin));
    let name_len = wide(name.len());
    // A name over the limit is not repeated in the error.
    source.limit(LENGTH_BYTES, "name length", name_len, MAX_NAME_BYTES)?;
    source.limit(
        LENGTH_BYTES,
        "number of dimensions",
        wide(info.shape.len()),
        MAX_RANK,
    )?;
    let malformed = |what| ModelError::Malformed {
        at: source.at_tensor(&name, offset),
        what,
    };
    let len = wide(end)
        .checked_sub(wide(begin))
        .ok_or_else(|| malformed("data_offsets end before they begin"))?;
    let bits = info
        .shape
        .iter()
        .try_fold(info.dtype.bitsize(), |bits, &extent| {
            bits.checked_mul(extent)
        })
        .ok_or_else(|| malformed("the size of the shape overflows"))?;
    if !bits.is_multiple_of(8) {
        return Err(malformed("the shape does not fill whole bytes"));
    }
    let expected = wide(bits / 8);
    if expected != len {
        let at = source.at_tensor(&name, offset);
        return Err(ModelError::LengthMismatch {
            at,
            expected,
            found: len,
        });
    }
    let shape = info.shape.iter().map(|&extent| wide(extent)).collect();
    Ok(Tensor {
        name,
        dtype: info.dtype.to_string(),
        shape,
        offset,
        len,
    })
}

/// The format wants the data section covered from its start to the end of the file, without gaps
/// or overlaps; not even an empty tensor may lie inside another one.
fn covers_file(source: &Source<'_>, data_start: u64, tensors: &[Tensor]) -> Result<(), ModelError> {
    let mut end = data_start;
    let mut last = "";
    for tensor in tensors {
        let at = |offset| source.at_tensor(&tensor.name, offset);
        if tensor.offset > end {
            return Err(ModelError::Uncovered {
                at: at(end),
                bytes: tensor.offset - end,
            });
        }
        if tensor.offset < end {
            let (at, other) = (at(tensor.offset), last.to_owned());
            return Err(ModelError::Overlap {
                at,
                other,
                other_end: end,
            });
        }
        end = tensor.offset.saturating_add(tensor.len);
        last = &tensor.name;
    }
    let rest = source.len().saturating_sub(end);
    if rest > 0 {
        return Err(ModelError::Uncovered {
            at: source.at(end),
            bytes: rest,
        });
    }
    Ok(())
}
