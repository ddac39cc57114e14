//! One way to write a C layout down: fields with their offsets, checked by the compiler.

/// Defines a `repr(C)` struct without padding whose size and field offsets are asserted.
///
/// `name: type = offset, "meaning";` for each field. Holes of the C layout are written as fields
/// too, so that every byte handed to a driver has a defined value.
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident, $size:literal {
        $($field:ident: $ty:ty = $offset:literal, $doc:literal;)+
    }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Debug,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $name {
            $(#[doc = $doc] pub $field: $ty,)+
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)+
        };
    };
}
