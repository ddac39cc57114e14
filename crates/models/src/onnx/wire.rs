//! The fields of a protobuf message, with their places in the file. The `protobuf` crate decodes
//! keys and varints.

use protobuf::CodedInputStream;
use protobuf::rt::WireType;

use crate::error::ModelError;
use crate::source::Source;

/// Longest varint.
pub(super) const MAX_VARINT_BYTES: u64 = 10;
/// Longest encoding of a key and a length or value: two varints.
const MAX_FIELD_HEAD: usize = 20;

/// A range of the file that holds a message, a string or a payload.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Message {
    pub(super) fn len(self) -> u64 {
        self.end - self.start
    }
}

pub(super) enum Value {
    Varint(u64),
    Bytes(Message),
    Fixed,
}

pub(super) struct Field {
    pub(super) at: u64,
    pub(super) number: u32,
    pub(super) value: Value,
}

impl Field {
    pub(super) fn message(&self, source: &Source<'_>) -> Result<Message, ModelError> {
        match self.value {
            Value::Bytes(message) => Ok(message),
            Value::Varint(_) | Value::Fixed => {
                Err(source.malformed(self.at, "a protobuf field has the wrong wire type"))
            }
        }
    }

    pub(super) fn varint(&self, source: &Source<'_>) -> Result<u64, ModelError> {
        match self.value {
            Value::Varint(value) => Ok(value),
            Value::Bytes(_) | Value::Fixed => {
                Err(source.malformed(self.at, "a protobuf field has the wrong wire type"))
            }
        }
    }
}

/// The fields of one message, in the file's order. Payloads are stepped over, not read.
pub(super) struct Fields {
    pos: u64,
    end: u64,
}

impl Fields {
    pub(super) fn of(message: Message) -> Self {
        Self {
            pos: message.start,
            end: message.end,
        }
    }

    pub(super) fn next(&mut self, source: &mut Source<'_>) -> Result<Option<Field>, ModelError> {
        let at = self.pos;
        if at == self.end {
            return Ok(None);
        }
        let Some((number, wire_type, value)) = self.head(source)? else {
            return Err(source.malformed(at, "not a protobuf field"));
        };
        let len = match wire_type {
            WireType::Varint => {
                return Ok(Some(Field {
                    at,
                    number,
                    value: Value::Varint(value),
                }));
            }
            WireType::LengthDelimited => value,
            WireType::Fixed32 => 4,
            WireType::Fixed64 => 8,
            WireType::StartGroup | WireType::EndGroup => {
                return Err(source.malformed(at, "a protobuf group"));
            }
        };
        source.require(self.pos, len, self.end)?;
        let payload = Message {
            start: self.pos,
            end: self.pos + len,
        };
        self.pos = payload.end;
        let value = match wire_type {
            WireType::LengthDelimited => Value::Bytes(payload),
            WireType::Varint
            | WireType::Fixed32
            | WireType::Fixed64
            | WireType::StartGroup
            | WireType::EndGroup => Value::Fixed,
        };
        Ok(Some(Field { at, number, value }))
    }

    /// Number, wire type, and the value or length, if the wire type has one; `None` if that is not
    /// what the bytes are. Moves behind them.
    fn head(
        &mut self,
        source: &mut Source<'_>,
    ) -> Result<Option<(u32, WireType, u64)>, ModelError> {
        let rest = usize::try_from(self.end - self.pos).unwrap_or(usize::MAX);
        let window = source.up_to(self.pos, rest.min(MAX_FIELD_HEAD))?;
        let mut stream = CodedInputStream::from_bytes(window);
        let Ok(Some(key)) = stream.read_raw_tag_or_eof() else {
            return Ok(None);
        };
        let (number, Some(wire_type)) = (key >> 3, WireType::new(key & 7)) else {
            return Ok(None);
        };
        let value = match wire_type {
            WireType::Varint | WireType::LengthDelimited => stream.read_raw_varint64().ok(),
            WireType::Fixed32 | WireType::Fixed64 => Some(0),
            WireType::StartGroup | WireType::EndGroup => Some(0),
        };
        self.pos += stream.pos();
        Ok(value
            .filter(|_| number != 0)
            .map(|value| (number, wire_type, value)))
    }
}

/// The varint at the start of a range that is not empty; moves the range's start behind it.
pub(super) fn varint(source: &mut Source<'_>, range: &mut Message) -> Result<u64, ModelError> {
    let want = usize::try_from(range.len().min(MAX_VARINT_BYTES)).expect("at most ten");
    let mut stream = CodedInputStream::from_bytes(source.up_to(range.start, want)?);
    let value = stream.read_raw_varint64();
    let len = stream.pos();
    drop(stream);
    let value = value.map_err(|_| source.malformed(range.start, "not a protobuf varint"))?;
    range.start += len;
    Ok(value)
}
