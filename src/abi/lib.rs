//! Triton's C ABI as Rust declarations: types, constants, callback types, entry-point types, and
//! the 281 functions that a server exports (`exports.txt` lists their names, one per line), and
//! conch's own beyond them (`extensions.txt`). No
//! bodies: `ffi::export` defines the functions, a plug-in finds them in the process that loads it.
//!
//! Contracts of the functions are those of the headers; `unsafe` is theirs. C enumerations are
//! plain `u32` here, because a foreign caller may pass any number. Names are the headers' own.

#![allow(non_camel_case_types, non_snake_case)]

mod extension;
mod tritonbackend;
mod tritoncache;
mod tritonrepoagent;
mod tritonserver;

pub use extension::*;
pub use tritonbackend::*;
pub use tritoncache::*;
pub use tritonrepoagent::*;
pub use tritonserver::*;

/// Makes a foreign handle type unconstructible, `!Send`, `!Sync` and `!Unpin`: only pointers to it
/// have a meaning.
#[repr(C)]
struct Opaque {
    _bytes: [u8; 0],
    _marker: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
}

/// How many functions of Triton's C API a server exports.
pub const EXPORT_COUNT: usize = 281;

/// How many functions of conch's own a server exports.
pub const EXTENSION_COUNT: usize = 4;

/// The names of all functions that a server exports, in the order of the headers.
pub fn export_names() -> impl Iterator<Item = &'static str> {
    include_str!("exports.txt").lines()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_every_export_once() {
        let mut names: Vec<_> = export_names().collect();
        assert_eq!(names.len(), EXPORT_COUNT);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXPORT_COUNT);
        for (prefix, count) in [
            ("TRITONSERVER_", 172),
            ("TRITONBACKEND_", 91),
            ("TRITONCACHE_", 6),
            ("TRITONREPOAGENT_", 12),
        ] {
            let found = names.iter().filter(|name| name.starts_with(prefix)).count();
            assert_eq!(found, count, "{prefix}");
        }
    }
}
