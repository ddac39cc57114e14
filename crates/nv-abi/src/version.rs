//! Which layouts a driver speaks.

/// An interface version, named after the first release branch that speaks it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AbiVersion {
    /// Releases 570 to 579.
    V570,
    /// Releases 580 to 594.
    V580,
    /// Releases 595 to 610.
    V610,
}

impl AbiVersion {
    /// Every version, oldest first.
    pub const ALL: [Self; 3] = [Self::V570, Self::V580, Self::V610];

    /// The version a driver of this release speaks; `None` for releases before 570 and after 610,
    /// and for text that is no release number. Layouts changed with branches before, and with the
    /// wrong ones a status is read from another field: a later branch is unknown until its headers
    /// have been read.
    ///
    /// ```
    /// use vrampager_nv_abi::AbiVersion;
    ///
    /// assert_eq!(AbiVersion::of_release("570.144"), Some(AbiVersion::V570));
    /// assert_eq!(AbiVersion::of_release("550.90.07"), None);
    /// ```
    #[must_use]
    pub fn of_release(release: &str) -> Option<Self> {
        let major: u32 = release.split('.').next()?.parse().ok()?;
        match major {
            570..580 => Some(Self::V570),
            580..595 => Some(Self::V580),
            595..=610 => Some(Self::V610),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_number_alone_chooses_the_version() {
        let expected = [
            ("570.0", Some(AbiVersion::V570)),
            ("579.99.1", Some(AbiVersion::V570)),
            ("580.82.07", Some(AbiVersion::V580)),
            ("594.1", Some(AbiVersion::V580)),
            ("595.45.04", Some(AbiVersion::V610)),
            ("610.10", Some(AbiVersion::V610)),
            ("565.77", None),
            ("611.1", None),
            ("999.1", None),
            ("", None),
            ("five", None),
        ];
        for (release, version) in expected {
            assert_eq!(AbiVersion::of_release(release), version, "{release}");
        }
    }
}
