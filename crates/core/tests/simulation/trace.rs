//! A hash over everything that happens, to compare two runs of one seed.

use vrampager_addr::Span;
use vrampager_core::Effect;

/// FNV-1a.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trace(u64);

impl Trace {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn fold(&mut self, words: &[u64]) {
        for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// What is to be performed; the device's own hash has the addresses of each operation.
    pub(crate) fn effects(&mut self, effects: &[Effect]) {
        self.fold(&[6, effects.len() as u64]);
        for effect in effects {
            match effect {
                Effect::Wait(fences) => {
                    for fence in fences {
                        self.fold(&[10, fence.timeline.0.into(), fence.value]);
                    }
                }
                Effect::ReserveVa(span) => self.spans(11, &[*span]),
                Effect::ReleaseVa(span) => self.spans(12, &[*span]),
                Effect::Map(map) => self.fold(&[13, map.va.0, map.offset, map.len]),
                Effect::Unmap(span) => self.spans(14, &[*span]),
                Effect::Copy(ops) => self.fold(&[15, ops.len() as u64]),
                Effect::Clear(to) => self.spans(16, to),
                Effect::Load { offset, to, .. } => self.spans(17 + (offset << 8), to),
                Effect::Upload { offset, to, .. } => self.spans(18 + (offset << 8), to),
                Effect::Store { from, offset } => self.spans(19 + (offset << 8), from),
            }
        }
    }

    fn spans(&mut self, kind: u64, spans: &[Span]) {
        for span in spans {
            self.fold(&[kind, span.start(), span.len()]);
        }
    }
}
