//! Version-independent forms of the packets whose layout depends on the version.
//!
//! Each has `size(version)`, `decode(version, bytes)` and `encode(version, bytes)`. Encoding
//! writes only the fields named here: bytes that a version has and this form does not are left as
//! they were, so that a driver answering a packet keeps what the client wrote. Decoding a buffer
//! of another size gives `None`; encoding into one is a bug of the caller and panics.

use zerocopy::{FromBytes, IntoBytes};

use crate::{AbiVersion, Handle, Uuid, v570, v580, v610};

/// A packet in its common form and the layouts it stands for.
macro_rules! neutral {
    (
        $(#[$meta:meta])* $name:ident {
            $($field:ident: $field_ty:ty, $doc:literal;)+
        }
        $($version:ident => $raw:ty;)+
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $(#[doc = $doc] pub $field: $field_ty,)+
        }

        impl $name {
            /// Bytes of this packet in a version.
            #[must_use]
            pub const fn size(version: AbiVersion) -> usize {
                match version {
                    $(AbiVersion::$version => size_of::<$raw>(),)+
                }
            }

            /// Reads a version's packet; `None` if `bytes` has another size.
            #[must_use]
            pub fn decode(version: AbiVersion, bytes: &[u8]) -> Option<Self> {
                match version {
                    $(AbiVersion::$version => {
                        <$raw>::read_from_bytes(bytes).ok().map(|raw| Self::from(&raw))
                    })+
                }
            }

            /// Writes this packet's fields into a version's layout.
            ///
            /// # Panics
            ///
            /// If `bytes` is not [`Self::size`] long.
            pub fn encode(&self, version: AbiVersion, bytes: &mut [u8]) {
                match version {
                    $(AbiVersion::$version => {
                        let mut raw = <$raw>::read_from_bytes(bytes)
                            .expect("the caller sized the packet for this version");
                        self.store(&mut raw);
                        bytes.copy_from_slice(raw.as_bytes());
                    })+
                }
            }
        }
    };
}

/// Conversions between a common form and one layout that has all of `fields`.
macro_rules! fields {
    ($name:ident, $raw:ty, $store:ident: $($field:ident),+ $(; $default:expr)?) => {
        impl From<&$raw> for $name {
            fn from(raw: &$raw) -> Self {
                Self { $($field: raw.$field,)+ $(..$default)? }
            }
        }

        impl Store<$raw> for $name {
            fn store(&self, raw: &mut $raw) {
                $(raw.$field = self.$field;)+
            }
        }
    };
}

/// Writing a common form into a layout.
trait Store<Raw> {
    fn store(&self, raw: &mut Raw);
}

neutral! {
    /// Packet of `RM_MAP_MEMORY_DMA`.
    MapMemoryDma {
        client: Handle, "Client.";
        device: Handle, "Device or subdevice.";
        dma: Handle, "Virtual memory object.";
        memory: Handle, "Memory object.";
        offset: u64, "First byte of the memory.";
        length: u64, "Bytes.";
        flags: u32, "See `escape::os46`.";
        dma_offset: u64, "GPU address wanted; the address given on return.";
        status: u32, "Status.";
    }
    V570 => v570::MapMemoryDma;
    V580 => v580::MapMemoryDma;
    V610 => v610::MapMemoryDma;
}
fields!(MapMemoryDma, v570::MapMemoryDma, store:
    client, device, dma, memory, offset, length, flags, dma_offset, status);
fields!(MapMemoryDma, v580::MapMemoryDma, store:
    client, device, dma, memory, offset, length, flags, dma_offset, status);

neutral! {
    /// Parameters of a VA space.
    VaspaceAlloc {
        index: u32, "0: a new VA space.";
        flags: u32, "See `class::vaspace`.";
        va_size: u64, "Bytes; on return, the size given.";
        big_page_size: u32, "Big page size, or 0.";
        va_base: u64, "First address.";
    }
    V570 => v570::VaspaceAlloc;
    V580 => v580::VaspaceAlloc;
    V610 => v610::VaspaceAlloc;
}
fields!(VaspaceAlloc, v570::VaspaceAlloc, store: index, flags, va_size, big_page_size, va_base);
fields!(VaspaceAlloc, v580::VaspaceAlloc, store: index, flags, va_size, big_page_size, va_base);

neutral! {
    /// Parameters of a channel.
    ChannelAlloc {
        error: Handle, "Error notifier.";
        buffer: Handle, "Object with the ring.";
        gpfifo_offset: u64, "GPU address of the ring.";
        gpfifo_entries: u32, "Entries of the ring.";
        flags: u32, "Flags.";
        context_share: Handle, "Subcontext, or 0.";
        vaspace: Handle, "VA space, or 0.";
        userd: [Handle; 8], "Memory with the control page, per subdevice.";
        userd_offset: [u64; 8], "Its offset, per subdevice.";
        engine_type: u32, "Engine.";
    }
    V570 => v570::ChannelAlloc;
    V580 => v580::ChannelAlloc;
    V610 => v610::ChannelAlloc;
}
fields!(ChannelAlloc, v570::ChannelAlloc, store:
    error, buffer, gpfifo_offset, gpfifo_entries, flags, context_share, vaspace, userd,
    userd_offset, engine_type);
fields!(ChannelAlloc, v610::ChannelAlloc, store:
    error, buffer, gpfifo_offset, gpfifo_entries, flags, context_share, vaspace, userd,
    userd_offset, engine_type);

neutral! {
    /// Parameters of the two schedule controls.
    Schedule {
        enable: u8, "Schedule, or take off.";
        skip_submit: u8, "Do not submit the runlist yet.";
    }
    V570 => v570::Schedule;
    V580 => v580::Schedule;
    V610 => v610::Schedule;
}
fields!(Schedule, v570::Schedule, store: enable, skip_submit);
fields!(Schedule, v580::Schedule, store: enable, skip_submit);

neutral! {
    /// Packet of `UVM_UNREGISTER_CHANNEL`.
    UnregisterChannel {
        uuid: Uuid, "GPU; releases from 595 do not carry it and read as zero.";
        client: Handle, "Client.";
        channel: Handle, "Channel.";
        status: u32, "Status.";
    }
    V570 => v570::UnregisterChannel;
    V580 => v580::UnregisterChannel;
    V610 => v610::UnregisterChannel;
}
fields!(UnregisterChannel, v570::UnregisterChannel, store: uuid, client, channel, status);
fields!(UnregisterChannel, v610::UnregisterChannel, store:
    client, channel, status; Self::default());

neutral! {
    /// Packet of `UVM_FREE`.
    UvmFree {
        base: u64, "Start of the range.";
        length: u64, "Its length; releases from 595 do not carry it and read as zero.";
        status: u32, "Status.";
    }
    V570 => v570::UvmFree;
    V580 => v580::UvmFree;
    V610 => v610::UvmFree;
}
fields!(UvmFree, v570::UvmFree, store: base, length, status);
fields!(UvmFree, v610::UvmFree, store: base, status; Self::default());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_comes_back_as_it_went_in_every_version() {
        let sent = MapMemoryDma {
            client: 1,
            device: 2,
            dma: 3,
            memory: 4,
            offset: 5,
            length: 6,
            flags: 7,
            dma_offset: 8,
            status: 9,
        };
        for version in AbiVersion::ALL {
            let mut bytes = vec![0; MapMemoryDma::size(version)];
            sent.encode(version, &mut bytes);
            assert_eq!(MapMemoryDma::decode(version, &bytes), Some(sent));
        }
    }

    #[test]
    fn encoding_leaves_bytes_it_does_not_name_alone() {
        let mut bytes = vec![0xAA; ChannelAlloc::size(AbiVersion::V610)];
        ChannelAlloc::default().encode(AbiVersion::V610, &mut bytes);
        assert_eq!(
            bytes[32..36],
            [0xAA; 4],
            "the VA space of the ring, unknown before 595"
        );
        assert_eq!(bytes[24..32], [0; 8]);
    }

    #[test]
    fn a_packet_of_another_version_is_refused_where_the_size_shows_it() {
        let bytes = vec![0; UvmFree::size(AbiVersion::V570)];
        assert_eq!(UvmFree::decode(AbiVersion::V610, &bytes), None);
    }

    #[test]
    fn the_status_of_the_old_free_packet_is_beyond_the_new_one() {
        let old = UvmFree {
            base: 0x1000,
            length: 0x2000,
            status: 0x1E,
        };
        let mut bytes = vec![0; UvmFree::size(AbiVersion::V580)];
        old.encode(AbiVersion::V580, &mut bytes);
        let new = UvmFree::decode(AbiVersion::V610, &bytes[..16]).unwrap();
        assert_eq!(new.status, 0x2000, "the length is taken for the status");
    }
}
