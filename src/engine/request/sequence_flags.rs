//! Where a request stands in its sequence.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The flags of a request, as `TRITONSERVER_REQUEST_FLAG_*` has them. Bits that mean nothing yet
/// are kept: backends may ask for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceFlags(u32);

impl SequenceFlags {
    /// The request goes on with its sequence, or has none.
    pub const NONE: SequenceFlags = SequenceFlags(0);
    /// The first request of its sequence.
    pub const START: SequenceFlags = SequenceFlags(1);
    /// The last request of its sequence.
    pub const END: SequenceFlags = SequenceFlags(2);

    pub const fn from_bits(bits: u32) -> SequenceFlags {
        SequenceFlags(bits)
    }

    pub const fn bits(self) -> u32 {
        self.0
    }

    pub const fn is_start(self) -> bool {
        self.contains(SequenceFlags::START)
    }

    pub const fn is_end(self) -> bool {
        self.contains(SequenceFlags::END)
    }

    pub const fn contains(self, flags: SequenceFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags if `is_set`, else none.
    #[must_use]
    pub const fn when(self, is_set: bool) -> SequenceFlags {
        if is_set { self } else { SequenceFlags::NONE }
    }
}

impl BitOr for SequenceFlags {
    type Output = SequenceFlags;

    fn bitor(self, other: SequenceFlags) -> SequenceFlags {
        SequenceFlags(self.0 | other.0)
    }
}

impl BitOrAssign for SequenceFlags {
    fn bitor_assign(&mut self, other: SequenceFlags) {
        self.0 |= other.0;
    }
}

/// The bits, as upstream's messages show them.
impl fmt::Display for SequenceFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::LowerHex for SequenceFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back_as_they_were_given() {
        let both = SequenceFlags::START | SequenceFlags::END;
        for (flags, expected) in [
            (SequenceFlags::NONE, (0, false, false)),
            (SequenceFlags::START, (1, true, false)),
            (SequenceFlags::END.when(true), (2, false, true)),
            (SequenceFlags::END.when(false), (0, false, false)),
            (both, (3, true, true)),
            (SequenceFlags::from_bits(12), (12, false, false)),
        ] {
            assert_eq!((flags.bits(), flags.is_start(), flags.is_end()), expected);
        }
        assert_eq!(format!("{both} 0x{both:x}"), "3 0x3");
    }
}
