//! Tensors between the batch and whichever engine runs the model.

use std::ffi::{CStr, CString};

use conch_backend_sdk::{Buffer, DataType, TensorBytes};

/// An input or output as the model file declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: CString,
    pub data_type: DataType,
    /// All dimensions; -1 is variable.
    pub dims: Vec<i64>,
}

impl TensorInfo {
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }
}

/// What a model takes and makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    pub inputs: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    /// Weights that a request may replace.
    pub initializers: Vec<TensorInfo>,
}

impl Signature {
    /// An input, or a weight that may be given as one.
    pub fn input(&self, name: &CStr) -> Option<&TensorInfo> {
        let mut inputs = self.inputs.iter().chain(&self.initializers);
        inputs.find(|info| *info.name == *name)
    }

    pub fn output(&self, name: &CStr) -> Option<&TensorInfo> {
        self.outputs.iter().find(|info| *info.name == *name)
    }
}

/// An input for one run.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    pub name: &'a CStr,
    pub data_type: DataType,
    pub shape: &'a [i64],
    /// In row order; BYTES elements each behind their length.
    pub bytes: TensorBytes<'a>,
}

/// An output wanted of one run.
pub struct Target<'a, 'r> {
    pub info: &'a TensorInfo,
    /// Where the output shall be written; `None`: the engine allocates.
    pub memory: Option<Memory<'r>>,
}

/// Memory of the right size for an output whose shape is known before the run.
pub struct Memory<'r> {
    pub shape: Vec<i64>,
    pub buffer: Buffer<'r>,
}
