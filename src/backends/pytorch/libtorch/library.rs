//! Libraries of torch, and its version.

use std::fmt;
use std::path::Path;

use conch_backend_sdk::engine::{Binding, Library};
use conch_backend_sdk::{Error, opaque_types};

opaque_types! {
    /// A tensor of torch's, `AtenTensorHandle`.
    RawTensor
}

/// A version of torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u8,
    pub minor: u8,
    pub patch: u8,
}

impl Version {
    /// As `aoti_torch_abi_version` packs it: a byte each, from the highest on.
    pub fn unpack(packed: u64) -> Self {
        let [major, minor, patch, ..] = packed.to_be_bytes();
        Version {
            major,
            minor,
            patch,
        }
    }

    /// `2.15.0`, with anything behind it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(|character: char| !character.is_ascii_digit());
        let mut number = || parts.next()?.parse().ok();
        Some(Version {
            major: number()?,
            minor: number()?,
            patch: number()?,
        })
    }

    /// Whether C++ compiled for one works with the other.
    pub fn is_compatible(self, other: Self) -> bool {
        (self.major, self.minor) == (other.major, other.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Opens a library for good.
///
/// # Safety
/// Its initialisers run; it must be what the caller takes it for.
pub(super) unsafe fn open(path: &Path) -> Result<&'static Library, Error> {
    // All functions are looked up now: one that is missing is an error here, and would end the
    // process at its first call.
    // SAFETY: by this function's contract.
    match unsafe { Library::open(path, Binding::Now) } {
        Ok(library) => Ok(library.keep_open()),
        Err(why) => {
            let path = path.display();
            Err(Error::unavailable(format!("cannot open {path}: {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let version = |major, minor, patch| Version {
            major,
            minor,
            patch,
        };
        assert_eq!(Version::unpack(0x020f_0100_0000_0000), version(2, 15, 1));
        for (text, expected) in [
            ("2.15.0", Some(version(2, 15, 0))),
            ("2.10.0+cu128", Some(version(2, 10, 0))),
            ("2.12.0a0", Some(version(2, 12, 0))),
            ("2.15", None),
            ("300.1.1", None),
            ("", None),
        ] {
            assert_eq!(Version::parse(text), expected, "{text}");
        }
        assert!(version(2, 15, 0).is_compatible(version(2, 15, 3)));
        assert!(!version(2, 15, 0).is_compatible(version(2, 14, 0)));
        assert!(version(2, 9, 1) < version(2, 10, 0));
    }
}
