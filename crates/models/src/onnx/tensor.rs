//! One `TensorProto`: what it promises, and where its payload lies.

use super::wire::{Field, Fields, MAX_VARINT_BYTES, Message, Value, varint};
use crate::error::ModelError;
use crate::model::Tensor;
use crate::source::{MAX_RANK, Source};

/// `TensorProto.DataLocation.EXTERNAL`.
const EXTERNAL: u64 = 1;

/// `TensorProto.name`.
pub(super) const NAME: u32 = 8;

mod tensor_proto {
    pub(super) const DIMS: u32 = 1;
    pub(super) const DATA_TYPE: u32 = 2;
    pub(super) const SEGMENT: u32 = 3;
    pub(super) const FLOAT_DATA: u32 = 4;
    pub(super) const INT32_DATA: u32 = 5;
    pub(super) const STRING_DATA: u32 = 6;
    pub(super) const INT64_DATA: u32 = 7;
    pub(super) const RAW_DATA: u32 = 9;
    pub(super) const DOUBLE_DATA: u32 = 10;
    pub(super) const UINT64_DATA: u32 = 11;
    pub(super) const EXTERNAL_DATA: u32 = 13;
    pub(super) const DATA_LOCATION: u32 = 14;
}

/// Name and bits per element of a `TensorProto.DataType`.
fn data_type(number: u64) -> Option<(&'static str, u64)> {
    Some(match number {
        1 => ("F32", 32),
        2 => ("U8", 8),
        3 => ("I8", 8),
        4 => ("U16", 16),
        5 => ("I16", 16),
        6 => ("I32", 32),
        7 => ("I64", 64),
        9 => ("BOOL", 8),
        10 => ("F16", 16),
        11 => ("F64", 64),
        12 => ("U32", 32),
        13 => ("U64", 64),
        14 => ("C64", 64),
        15 => ("C128", 128),
        16 => ("BF16", 16),
        17 => ("F8_E4M3", 8),
        18 => ("F8_E4M3FNUZ", 8),
        19 => ("F8_E5M2", 8),
        20 => ("F8_E5M2FNUZ", 8),
        21 => ("U4", 4),
        22 => ("I4", 4),
        23 => ("F4", 4),
        24 => ("F8_E8M0", 8),
        25 => ("U2", 2),
        26 => ("I2", 2),
        _ => return None,
    })
}

/// How a payload encodes its elements.
#[derive(Clone, Copy)]
enum Encoding {
    /// As in memory, little endian.
    Raw,
    /// `float_data`: 32 bits for each real number.
    Floats,
    /// `double_data`: 64 bits for each real number.
    Doubles,
    /// The integer fields.
    Varints,
}

/// The fields of a `TensorProto` that matter.
#[derive(Default)]
pub(super) struct TensorParts {
    shape: Vec<u64>,
    data_type: u64,
    payload: Option<(Encoding, Message)>,
}

impl TensorParts {
    pub(super) fn read(
        source: &mut Source<'_>,
        message: Message,
        name: &str,
    ) -> Result<Self, ModelError> {
        let mut parts = Self::default();
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next(source)? {
            let refuse = |what, value: u32| {
                let at = source.at_tensor(name, field.at);
                Err(ModelError::Unsupported {
                    at,
                    what,
                    value: value.into(),
                })
            };
            let encoding = match field.number {
                tensor_proto::DIMS => {
                    parts.dims(source, &field, name)?;
                    continue;
                }
                tensor_proto::DATA_TYPE => {
                    parts.data_type = field.varint(source)?;
                    continue;
                }
                tensor_proto::DATA_LOCATION if field.varint(source)? != EXTERNAL => continue,
                tensor_proto::EXTERNAL_DATA | tensor_proto::DATA_LOCATION => {
                    return refuse("data in another file, field", field.number);
                }
                tensor_proto::SEGMENT => {
                    return refuse("a segment of a tensor, field", field.number);
                }
                tensor_proto::STRING_DATA => {
                    return refuse("a tensor of strings, field", field.number);
                }
                tensor_proto::RAW_DATA => Encoding::Raw,
                tensor_proto::FLOAT_DATA => Encoding::Floats,
                tensor_proto::DOUBLE_DATA => Encoding::Doubles,
                tensor_proto::INT32_DATA | tensor_proto::INT64_DATA | tensor_proto::UINT64_DATA => {
                    Encoding::Varints
                }
                _ => continue,
            };
            let Value::Bytes(payload) = field.value else {
                return refuse("data that is not packed, field", field.number);
            };
            if parts.payload.replace((encoding, payload)).is_some() {
                return refuse("data in several pieces, field", field.number);
            }
        }
        Ok(parts)
    }

    fn dims(
        &mut self,
        source: &mut Source<'_>,
        field: &Field,
        name: &str,
    ) -> Result<(), ModelError> {
        let mut packed = match field.value {
            Value::Varint(extent) => return self.push_dim(source, field.at, extent, name),
            Value::Bytes(packed) => packed,
            Value::Fixed => return field.varint(source).map(|_| ()),
        };
        while packed.len() > 0 {
            let extent = varint(source, &mut packed)?;
            self.push_dim(source, field.at, extent, name)?;
        }
        Ok(())
    }

    fn push_dim(
        &mut self,
        source: &Source<'_>,
        at: u64,
        extent: u64,
        name: &str,
    ) -> Result<(), ModelError> {
        // An extent is a signed number in the format.
        if i64::try_from(extent).is_err() {
            let at = source.at_tensor(name, at);
            return Err(ModelError::Malformed {
                at,
                what: "a negative extent",
            });
        }
        self.shape.push(extent);
        let rank = u64::try_from(self.shape.len()).expect("a length fits 64 bits");
        source.limit(at, "number of dimensions", rank, MAX_RANK)
    }

    pub(super) fn finish(
        self,
        source: &Source<'_>,
        message: Message,
        name: String,
    ) -> Result<Tensor, ModelError> {
        let at = || source.at_tensor(&name, message.start);
        let Some((dtype, bits)) = data_type(self.data_type) else {
            let (what, value) = ("ONNX data type", self.data_type);
            return Err(ModelError::Unsupported {
                at: at(),
                what,
                value,
            });
        };
        let elements = self
            .shape
            .iter()
            .try_fold(1_u64, |all, &extent| all.checked_mul(extent));
        let Some(expected) = elements.and_then(|all| all.checked_mul(bits)) else {
            return Err(ModelError::Malformed {
                at: at(),
                what: "the size of the shape overflows",
            });
        };
        let expected = expected.div_ceil(8);
        let start = message.start;
        let (encoding, payload) = self
            .payload
            .unwrap_or((Encoding::Raw, Message { start, end: start }));
        let found = payload.len();
        // Each varint holds one element, or a byte's worth of smaller ones.
        let varints = if bits < 8 {
            expected
        } else {
            expected / (bits / 8)
        };
        let fits = match encoding {
            Encoding::Raw => found == expected,
            Encoding::Floats => matches!(bits, 32 | 64) && found == expected,
            Encoding::Doubles => matches!(bits, 64 | 128) && found == expected,
            Encoding::Varints => {
                (varints..=varints.saturating_mul(MAX_VARINT_BYTES)).contains(&found)
            }
        };
        if !fits {
            let at = source.at_tensor(&name, payload.start);
            return Err(ModelError::LengthMismatch {
                at,
                expected,
                found,
            });
        }
        Ok(Tensor {
            name,
            dtype: dtype.to_owned(),
            shape: self.shape,
            offset: payload.start,
            len: found,
        })
    }
}
