//! Libraries of torch, its version, and the texts that come out of C.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::Path;

use conch_backend_sdk::Error;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// A tensor of torch's, `AtenTensorHandle`.
#[repr(C)]
pub struct RawTensor {
    opaque: [u8; 0],
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
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    match library {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(Error::unavailable(format!(
            "cannot open {}: {error}",
            path.display()
        ))),
    }
}

/// The text at an address.
///
/// # Safety
/// Null, or NUL-terminated and not changed during the call.
pub(super) unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().trim_end().to_owned()
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
