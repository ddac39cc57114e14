//! Words a channel reads from memory: ring entries, control page, method headers, methods.
//!
//! From `clc56f.h` (host) and `clc7b5.h` (copy engine); offsets are the same from Ampere to
//! Blackwell.

/// Bytes of one ring entry.
pub const GP_ENTRY_BYTES: u64 = 8;
/// Addresses of rings, pushbuffers and semaphores are below this.
pub const CHANNEL_VA_LIMIT: u64 = 1 << 40;

/// Offsets in the channel's control page (USERD).
pub mod userd {
    /// Ring entries consumed, modulo their number.
    pub const GP_GET: u64 = 0x88;
    /// Ring entries produced, modulo their number.
    pub const GP_PUT: u64 = 0x8C;
    /// Bytes of the page.
    pub const SIZE: u64 = 512;
}

/// Offset of the doorbell in the usermode window: a channel's token is written here.
pub const DOORBELL: u64 = 0x90;
/// Bytes of the usermode window.
pub const USERMODE_SIZE: u64 = 0x1_0000;

/// A ring entry: a pushbuffer segment to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpEntry {
    /// GPU address of the segment: a multiple of 4 below [`CHANNEL_VA_LIMIT`].
    pub address: u64,
    /// Its length in 32-bit words; 0 makes a control entry.
    pub words: u32,
}

impl GpEntry {
    const WORDS_SHIFT: u32 = 42;
    const LEVEL_SUBROUTINE: u64 = 1 << 41;

    /// The entry's 64 bits.
    ///
    /// # Panics
    ///
    /// If the address is misaligned or beyond what an entry can hold, or the length is: at most
    /// 2^21 - 1 words.
    #[must_use]
    pub const fn encode(self) -> u64 {
        assert!(self.address & 3 == 0 && self.address < CHANNEL_VA_LIMIT);
        assert!(self.words < 1 << 21);
        self.address | Self::LEVEL_SUBROUTINE | (self.words as u64) << Self::WORDS_SHIFT
    }

    /// Reads an entry.
    #[must_use]
    pub const fn decode(bits: u64) -> Self {
        let words = (bits >> Self::WORDS_SHIFT & 0x1F_FFFF) as u32;
        Self {
            address: bits & (CHANNEL_VA_LIMIT - 1) & !3,
            words,
        }
    }
}

/// What a method header says about the words after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// No operation: an all-zero word.
    Nop,
    /// `count` words for consecutive methods.
    Increasing(Methods),
    /// `count` words for one method.
    NonIncreasing(Methods),
    /// First word for the method, the others for the next one.
    OneIncreasing(Methods),
    /// The data is in the header's count field.
    Immediate(Methods),
    /// The segment ends here.
    EndSegment,
    /// No such opcode.
    Unknown,
}

/// Where the words of a header go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Methods {
    /// Subchannel: which bound object.
    pub subchannel: u32,
    /// First method, as a byte offset.
    pub method: u32,
    /// Words that follow; for an immediate header, the data itself.
    pub count: u32,
}

impl Header {
    /// Reads a header word.
    #[must_use]
    pub const fn decode(word: u32) -> Self {
        if word == 0 {
            return Self::Nop;
        }
        let methods = Methods {
            subchannel: word >> 13 & 7,
            method: (word & 0xFFF) << 2,
            count: word >> 16 & 0x1FFF,
        };
        match word >> 29 {
            0 | 1 => Self::Increasing(methods),
            2 | 3 => Self::NonIncreasing(methods),
            4 => Self::Immediate(methods),
            5 => Self::OneIncreasing(methods),
            7 => Self::EndSegment,
            _ => Self::Unknown,
        }
    }

    /// The header of `count` words for consecutive methods.
    ///
    /// # Panics
    ///
    /// If a field does not fit: 8 subchannels, methods below 0x4000, counts below 0x2000.
    #[must_use]
    pub const fn increasing(subchannel: u32, method: u32, count: u32) -> u32 {
        assert!(subchannel < 8 && method < 0x4000 && method & 3 == 0 && count < 0x2000);
        1 << 29 | count << 16 | subchannel << 13 | method >> 2
    }
}

/// Subchannels as clients commonly bind them.
pub mod subchannel {
    /// Host methods may use any; this one is the custom.
    pub const HOST: u32 = 0;
    /// Compute.
    pub const COMPUTE: u32 = 1;
    /// Copy.
    pub const COPY: u32 = 4;
}

/// Host methods: below 0x100, on any subchannel.
pub mod host {
    /// Binds a class to the subchannel.
    pub const SET_OBJECT: u32 = 0x0;
    /// Interrupt.
    pub const NON_STALL_INTERRUPT: u32 = 0x20;
    /// Memory operation, word A of four; D is the one that acts.
    pub const MEM_OP_A: u32 = 0x28;
    /// Memory operation, word D.
    pub const MEM_OP_D: u32 = 0x34;
    /// Semaphore address, low word.
    pub const SEM_ADDR_LO: u32 = 0x5C;
    /// Semaphore address, bits 39:32.
    pub const SEM_ADDR_HI: u32 = 0x60;
    /// Semaphore payload, low word.
    pub const SEM_PAYLOAD_LO: u32 = 0x64;
    /// Semaphore payload, high word.
    pub const SEM_PAYLOAD_HI: u32 = 0x68;
    /// Acts on the semaphore.
    pub const SEM_EXECUTE: u32 = 0x6C;
    /// Waits for the engine.
    pub const WFI: u32 = 0x78;
    /// Lets another channel run.
    pub const YIELD: u32 = 0x80;
    /// Methods from here on belong to the bound object.
    pub const LIMIT: u32 = 0x100;
}

/// Fields of [`host::SEM_EXECUTE`].
pub mod sem {
    /// Bits 2:0: operation.
    pub const OPERATION_MASK: u32 = 7;
    /// Wait until equal.
    pub const ACQUIRE: u32 = 0;
    /// Write the payload.
    pub const RELEASE: u32 = 1;
    /// Wait until at least, unsigned.
    pub const ACQ_STRICT_GEQ: u32 = 2;
    /// Wait until at least, modulo wrap-around.
    pub const ACQ_CIRC_GEQ: u32 = 3;
    /// Wait until a masked bit is set.
    pub const ACQ_AND: u32 = 4;
    /// Wait until a bit outside the mask is clear.
    pub const ACQ_NOR: u32 = 5;
    /// Combine the payload into memory.
    pub const REDUCTION: u32 = 6;
    /// Bit 12: a channel that waits lets other groups run.
    pub const ACQUIRE_SWITCH_TSG: u32 = 1 << 12;
    /// Bit 20: a release waits for the engine first.
    pub const RELEASE_WFI: u32 = 1 << 20;
    /// Bit 24: the payload is 64 bits wide.
    pub const PAYLOAD_64BIT: u32 = 1 << 24;
    /// Bit 25: a release also writes the time.
    pub const RELEASE_TIMESTAMP: u32 = 1 << 25;
    /// Bits 30:27: how a reduction combines.
    pub const REDUCTION_SHIFT: u32 = 27;
    /// Bit 31: a reduction is unsigned.
    pub const REDUCTION_UNSIGNED: u32 = 1 << 31;
    /// Offset of the time in a semaphore of 16 bytes.
    pub const TIMESTAMP_OFFSET: u64 = 8;
}

/// Reductions of a semaphore (`SEM_EXECUTE_REDUCTION_*`).
pub mod reduction {
    /// Minimum.
    pub const MIN: u32 = 0;
    /// Maximum.
    pub const MAX: u32 = 1;
    /// Exclusive or.
    pub const XOR: u32 = 2;
    /// And.
    pub const AND: u32 = 3;
    /// Or.
    pub const OR: u32 = 4;
    /// Sum.
    pub const ADD: u32 = 5;
    /// Plus one, to zero after the payload.
    pub const INC: u32 = 6;
    /// Minus one, to the payload after zero.
    pub const DEC: u32 = 7;
}

/// Methods of the copy engine.
pub mod copy {
    /// Semaphore address, upper bits.
    pub const SET_SEMAPHORE_A: u32 = 0x240;
    /// Semaphore address, low word.
    pub const SET_SEMAPHORE_B: u32 = 0x244;
    /// Semaphore payload.
    pub const SET_SEMAPHORE_PAYLOAD: u32 = 0x248;
    /// Starts; see [`launch`](super::launch).
    pub const LAUNCH_DMA: u32 = 0x300;
    /// Source address, upper bits.
    pub const OFFSET_IN_UPPER: u32 = 0x400;
    /// Source address, low word.
    pub const OFFSET_IN_LOWER: u32 = 0x404;
    /// Destination address, upper bits.
    pub const OFFSET_OUT_UPPER: u32 = 0x408;
    /// Destination address, low word.
    pub const OFFSET_OUT_LOWER: u32 = 0x40C;
    /// Bytes from one source line to the next.
    pub const PITCH_IN: u32 = 0x410;
    /// Bytes from one destination line to the next.
    pub const PITCH_OUT: u32 = 0x414;
    /// Elements of a line: bytes, or pixels when remapping.
    pub const LINE_LENGTH_IN: u32 = 0x418;
    /// Lines.
    pub const LINE_COUNT: u32 = 0x41C;
    /// First constant.
    pub const SET_REMAP_CONST_A: u32 = 0x700;
    /// Second constant.
    pub const SET_REMAP_CONST_B: u32 = 0x704;
    /// How destination components are made; see [`remap`](super::remap).
    pub const SET_REMAP_COMPONENTS: u32 = 0x708;
}

/// Fields of [`copy::LAUNCH_DMA`].
pub mod launch {
    /// Bits 1:0: transfer; 0 is none.
    pub const TRANSFER_MASK: u32 = 3;
    /// Transfer after all earlier ones.
    pub const NON_PIPELINED: u32 = 2;
    /// Bit 2: flush before the semaphore.
    pub const FLUSH: u32 = 1 << 2;
    /// Bits 4:3: semaphore.
    pub const SEMAPHORE_SHIFT: u32 = 3;
    /// Write a 32-bit payload.
    pub const SEMAPHORE_ONE_WORD: u32 = 1;
    /// Write payload, zero and a 64-bit time.
    pub const SEMAPHORE_FOUR_WORD: u32 = 2;
    /// Bit 7: the source is linear.
    pub const SRC_PITCH: u32 = 1 << 7;
    /// Bit 8: the destination is linear.
    pub const DST_PITCH: u32 = 1 << 8;
    /// Bit 9: several lines.
    pub const MULTI_LINE: u32 = 1 << 9;
    /// Bit 10: remap components.
    pub const REMAP: u32 = 1 << 10;
    /// Bit 12: the source address is physical.
    pub const SRC_PHYSICAL: u32 = 1 << 12;
    /// Bit 13: the destination address is physical.
    pub const DST_PHYSICAL: u32 = 1 << 13;
    /// Bit 19: the semaphore is combined, not written.
    pub const SEMAPHORE_REDUCTION: u32 = 1 << 19;
}

/// Fields of [`copy::SET_REMAP_COMPONENTS`].
pub mod remap {
    /// A destination component is one of the four source components (0 to 3) or this: constant A.
    pub const CONST_A: u32 = 4;
    /// Constant B.
    pub const CONST_B: u32 = 5;
    /// Left as it is.
    pub const NO_WRITE: u32 = 6;
    /// Bits between the selectors of two destination components.
    pub const SELECTOR_STRIDE: u32 = 4;
    /// Bits 17:16: bytes of a component, minus one.
    pub const SIZE_SHIFT: u32 = 16;
    /// Bits 21:20: source components, minus one.
    pub const SRC_COMPONENTS_SHIFT: u32 = 20;
    /// Bits 25:24: destination components, minus one.
    pub const DST_COMPONENTS_SHIFT: u32 = 24;
}

/// Methods of the compute engine that start work.
pub mod compute {
    /// Address of the launch descriptor, divided by 256.
    pub const SEND_PCAS_A: u32 = 0x2B4;
    /// Starts the descriptor.
    pub const SEND_SIGNALING_PCAS2_B: u32 = 0x2C0;
}

/// Error notifier that a channel writes when it is stopped (`NvNotification`).
pub mod notifier {
    /// Offset of the time.
    pub const TIMESTAMP: u64 = 0;
    /// Offset of the error number.
    pub const INFO32: u64 = 8;
    /// Offset of the status half-word.
    pub const STATUS: u64 = 14;
    /// Status of an error.
    pub const STATUS_ERROR: u16 = 0xFFFF;
    /// Error number: memory fault.
    pub const MMU_FAULT: u32 = 31;
    /// Error number: the pushbuffer cannot be decoded.
    pub const PBDMA_ERROR: u32 = 32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_a_known_client_submits_are_read_as_it_meant_them() {
        // A semaphore acquire, a copy and its release as tinygrad's runtime was seen to write them.
        let methods = |subchannel, method, count| {
            Header::Increasing(Methods {
                subchannel,
                method,
                count,
            })
        };
        assert_eq!(
            Header::decode(0x2005_0017),
            methods(0, host::SEM_ADDR_LO, 5)
        );
        assert_eq!(
            Header::decode(0x2004_8100),
            methods(4, copy::OFFSET_IN_UPPER, 4)
        );
        assert_eq!(
            Header::decode(0x2001_8106),
            methods(4, copy::LINE_LENGTH_IN, 1)
        );
        assert_eq!(Header::decode(0x2001_80C0), methods(4, copy::LAUNCH_DMA, 1));
        assert_eq!(
            Header::decode(0x2003_8090),
            methods(4, copy::SET_SEMAPHORE_A, 3)
        );
        assert_eq!(Header::increasing(4, copy::SET_SEMAPHORE_A, 3), 0x2003_8090);
    }

    #[test]
    fn a_ring_entry_comes_back_as_it_went_in() {
        let entry = GpEntry {
            address: 0xFF_FFFF_FFFC,
            words: 0x1F_FFFF,
        };
        assert_eq!(GpEntry::decode(entry.encode()), entry);
        assert_eq!(
            GpEntry {
                address: 0x10_0000,
                words: 3
            }
            .encode(),
            0x0000_0E00_0010_0000
        );
    }
}
