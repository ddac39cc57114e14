//! Launch descriptors of the compute engine (QMD): the part that orders work.
//!
//! A descriptor says what to run and, when it is done, which semaphores to release and which
//! descriptor to start next. Only the latter is here; `clc6c0qmd.h` and `clcec0qmd.h` define it.

/// Layout generation of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QmdVersion {
    /// Version 3: Ampere and Ada, 256 bytes.
    V3,
    /// Version 5: Blackwell, 384 bytes.
    V5,
}

/// A semaphore to release at the end of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// GPU address.
    pub address: u64,
    /// Value.
    pub payload: u64,
}

impl QmdVersion {
    /// Bytes of a descriptor.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::V3 => 256,
            Self::V5 => 384,
        }
    }

    /// The bits above an address belong to other fields.
    const fn address_mask(self) -> u64 {
        match self {
            Self::V3 => (1 << 40) - 1,
            Self::V5 => (1 << 57) - 1,
        }
    }

    /// The semaphores that the descriptor releases.
    #[must_use]
    pub fn releases(self, qmd: &[u8]) -> Vec<Release> {
        let sites: &[(usize, usize, usize)] = match self {
            Self::V3 => &[(823, 0x60, 0x68), (951, 0x70, 0x78)],
            Self::V5 => &[(288, 0x3C, 0x44), (304, 0x60, 0x68), (320, 0x70, 0x78)],
        };
        sites
            .iter()
            .filter(|(enable, _, _)| bit(qmd, *enable))
            .map(|&(_, address, payload)| Release {
                address: qword(qmd, address) & self.address_mask(),
                payload: qword(qmd, payload),
            })
            .collect()
    }

    /// Address of the descriptor to schedule when this one is done.
    #[must_use]
    pub fn dependent(self, qmd: &[u8]) -> Option<u64> {
        const SCHEDULE: u32 = 1;
        let (enable, pointer) = match self {
            Self::V3 => (512, 0x3C),
            Self::V5 => (336, 0x30),
        };
        let action = word(qmd, enable / 8) >> (enable % 8 + 1) & 7;
        (bit(qmd, enable) && action == SCHEDULE).then(|| u64::from(word(qmd, pointer)) << 8)
    }
}

fn bit(qmd: &[u8], index: usize) -> bool {
    qmd.get(index / 8)
        .is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

fn word(qmd: &[u8], offset: usize) -> u32 {
    let bytes = qmd
        .get(offset..offset + 4)
        .and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn qword(qmd: &[u8], offset: usize) -> u64 {
    u64::from(word(qmd, offset)) | u64::from(word(qmd, offset + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_enabled_releases_are_seen_and_addresses_lose_foreign_bits() {
        let mut qmd = vec![0; QmdVersion::V3.size()];
        qmd[0x60..0x68].copy_from_slice(&0xAB12_3456_7890_u64.to_le_bytes());
        qmd[0x68..0x70].copy_from_slice(&7_u64.to_le_bytes());
        assert_eq!(QmdVersion::V3.releases(&qmd), []);
        qmd[823 / 8] |= 1 << (823 % 8);
        let release = Release {
            address: 0x12_3456_7890,
            payload: 7,
        };
        assert_eq!(QmdVersion::V3.releases(&qmd), [release]);
    }

    #[test]
    fn a_dependent_descriptor_needs_both_the_enable_bit_and_the_schedule_action() {
        let mut qmd = vec![0; QmdVersion::V3.size()];
        qmd[0x3C..0x40].copy_from_slice(&0x1234_u32.to_le_bytes());
        qmd[64] = 1;
        assert_eq!(QmdVersion::V3.dependent(&qmd), None);
        qmd[64] = 1 | 1 << 1;
        assert_eq!(QmdVersion::V3.dependent(&qmd), Some(0x12_3400));
    }
}
