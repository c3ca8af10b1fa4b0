//! Tensors between the batch and the engine that runs the model.

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use crate::{Buffer, DataType, TensorBytes};

/// An input or output as the model file declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// What configurations and clients call it.
    pub name: CString,
    /// The type of its elements.
    pub data_type: DataType,
    /// All dimensions, that of the batch too; -1 is variable.
    pub dims: Vec<i64>,
}

impl TensorInfo {
    /// The name as text; "" if it is not UTF-8, which no configuration can name.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }
}

/// What a model takes and makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// What every run needs, in the model's order.
    pub inputs: Vec<TensorInfo>,
    /// What a run can make, in the model's order.
    pub outputs: Vec<TensorInfo>,
    /// Weights that a request may replace; none in most engines.
    pub initializers: Vec<TensorInfo>,
}

impl Signature {
    /// An input, or a weight that may be given as one.
    pub fn input(&self, name: &CStr) -> Option<&TensorInfo> {
        let mut inputs = self.inputs.iter().chain(&self.initializers);
        inputs.find(|info| *info.name == *name)
    }

    /// An output.
    pub fn output(&self, name: &CStr) -> Option<&TensorInfo> {
        self.outputs.iter().find(|info| *info.name == *name)
    }
}

/// An input for one run.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The name that the [`Signature`] has for it.
    pub name: &'a CStr,
    /// As the requests say, which the server checked against the configuration.
    pub data_type: DataType,
    /// As the model wants it: rows of all requests first, where the model batches; empty for a
    /// scalar.
    pub shape: &'a [i64],
    /// In row order; BYTES elements each behind their length. Not necessarily aligned, and possibly
    /// memory that a client changes meanwhile.
    pub bytes: TensorBytes<'a>,
}

/// An output wanted of one run.
pub struct Target<'a, 'r> {
    /// What the [`Signature`] says of it.
    pub info: &'a TensorInfo,
    /// Where the output shall be written; `None`: the engine allocates. Never there unless the
    /// session [writes in place](super::Session::writes_in_place).
    pub memory: Option<Memory<'r>>,
}

/// Memory of the right size for an output whose shape is known before the run.
pub struct Memory<'r> {
    /// What the output's shape must be.
    pub shape: Vec<i64>,
    /// In the response; as many bytes as type and shape make.
    pub buffer: Buffer<'r>,
}

/// An output's tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents<'o> {
    /// The type of its elements.
    pub data_type: DataType,
    /// All dimensions; empty for a scalar.
    pub shape: Vec<i64>,
    /// As on Triton's wire: in row order, BYTES elements each behind their length.
    pub bytes: Cow<'o, [u8]>,
}
