//! Status codes: the second of the two error levels, inside the packet.

use core::fmt;

/// What a driver puts in a packet's status field; the system call itself may have succeeded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident = $value:literal, $doc:literal;)+) => {
        impl Status {
            $(#[doc = $doc] pub const $name: Self = Self($value);)+

            /// The name in `nvstatuscodes.h` without its prefix, for codes known here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    OK = 0x0, "Done.";
    BUSY_RETRY = 0x3, "Another initialisation is in progress.";
    GPU_UUID_NOT_FOUND = 0x12, "No GPU has this UUID.";
    ILLEGAL_ACTION = 0x16, "The file is not initialised, or the object tree would be too deep.";
    IN_USE = 0x17, "The file already serves another purpose.";
    INSERT_DUPLICATE_NAME = 0x19, "The handle is taken.";
    INSUFFICIENT_RESOURCES = 0x1A, "A table of the kernel side is full.";
    INSUFFICIENT_PERMISSIONS = 0x1B, "The client may not do this.";
    INVALID_ADDRESS = 0x1E, "A range is misaligned, unknown or not mapped.";
    INVALID_ARGUMENT = 0x1F, "An argument is out of its domain.";
    INVALID_BASE = 0x20, "A mapping starts outside its object.";
    INVALID_CHANNEL = 0x21, "No such channel, or it is registered already.";
    INVALID_CLASS = 0x22, "No such class.";
    INVALID_CLIENT = 0x23, "No such client.";
    INVALID_COMMAND = 0x24, "No such command.";
    INVALID_DEVICE = 0x26, "The GPU is not registered, or registered already.";
    INVALID_FLAGS = 0x29, "The flags contradict one another or the object.";
    INVALID_LIMIT = 0x2E, "A length is zero or leaves its object.";
    INVALID_OBJECT = 0x31, "The object is of another kind.";
    INVALID_OBJECT_HANDLE = 0x33, "The handle may not be chosen.";
    INVALID_OBJECT_PARENT = 0x36, "The class does not go under this parent.";
    INVALID_OFFSET = 0x37, "An offset leaves its object.";
    INVALID_OWNER = 0x39, "The owner field names nobody.";
    INVALID_STATE = 0x40, "Not possible in this state.";
    NO_MEMORY = 0x51, "Device memory or an address space is exhausted.";
    NOT_READY = 0x55, "Not ready yet.";
    NOT_SUPPORTED = 0x56, "Not supported by this object or GPU.";
    OBJECT_NOT_FOUND = 0x57, "No such object.";
    OUT_OF_RANGE = 0x5B, "An address is beyond what the hardware can reach.";
    PAGE_TABLE_NOT_AVAIL = 0x5D, "The address space's process is gone.";
    RC_ERROR = 0x60, "The channel was stopped after an error.";
    STATE_IN_USE = 0x63, "The slot is taken: one instance, one mapping context.";
    TIMEOUT = 0x65, "Took too long.";
    UVM_ADDRESS_IN_USE = 0x68, "The range overlaps another.";
    WARN_NOTHING_TO_DO = 0x1_0006, "Nothing to do.";
    GENERIC = 0xFFFF, "Unspecified failure.";
}

impl Status {
    /// Whether this is [`Status::OK`].
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == Self::OK.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x})", self.0),
            None => write!(f, "status {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_shown_by_name_and_number_and_an_unknown_one_by_number() {
        assert_eq!(Status::NO_MEMORY.to_string(), "NO_MEMORY (0x51)");
        assert_eq!(Status(0x7777).to_string(), "status 0x7777");
        assert!(Status::OK.is_ok() && !Status::WARN_NOTHING_TO_DO.is_ok());
    }
}
