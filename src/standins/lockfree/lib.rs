//! An empty crate in place of the registry's `lockfree` 0.5.1, by `[patch.crates-io]` in the root
//! manifest.
//!
//! glommio 0.9.0 depends on `lockfree` and uses nothing of it. The registry's crate is unsound and
//! unmaintained, and brings `owned-alloc`, which is unmaintained too. A glommio that did use it
//! would fail to compile here.

#![forbid(unsafe_code)]
