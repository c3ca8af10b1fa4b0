//! `libtritonserver.so`: the C API as a library for embedders. A second final link of the same
//! crates as the executable.
#![forbid(unsafe_code)]

pub use conch_ffi::export::*;
