//! An empty crate in place of the registry's `bitmaps` 3.2.1, by `[patch.crates-io]` in the root
//! manifest.
//!
//! glommio 0.9.0 depends on `bitmaps` and uses nothing of it. The registry's crate is unsound and
//! unmaintained. A glommio that did use it would fail to compile here.

#![forbid(unsafe_code)]
