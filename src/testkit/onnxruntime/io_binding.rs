//! The tensors that a binding holds.

use std::ffi::CString;

use crate::real::Raw;

/// The memory that an output is bound to.
#[derive(Clone, Copy, Debug)]
pub enum OutputBinding {
    /// Memory of a value that the caller made.
    Value(Raw),
    /// A device; the run makes a value there.
    Device(i32),
    Host,
}

#[derive(Debug)]
pub struct IoBinding {
    pub session: Raw,
    pub inputs: Vec<(CString, Raw)>,
    pub outputs: Vec<(CString, OutputBinding)>,
    /// Values of the above that lay on a device when they were bound.
    pub on_device: Vec<Raw>,
    /// Values of the last run, which the caller has not taken.
    pub made: Vec<Raw>,
}
