//! What a binding holds.

use std::ffi::CString;

use crate::real::Raw;

/// What an output is bound to.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Memory of a value that the caller made.
    Value(Raw),
    /// A device; the run makes a value there.
    Device(i32),
    Host,
}

#[derive(Debug)]
pub struct Binding {
    pub session: Raw,
    pub inputs: Vec<(CString, Raw)>,
    pub outputs: Vec<(CString, Goal)>,
    /// Values of the above that lay on a device when they were bound.
    pub on_device: Vec<Raw>,
    /// Values of the last run, which the caller has not taken.
    pub made: Vec<Raw>,
}

// SAFETY: plain addresses, used as the caller uses the binding.
unsafe impl Send for Binding {}
