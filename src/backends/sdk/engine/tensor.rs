//! Tensors between the batch and the engine that runs the model.

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use crate::{Buffer, DataType, Error, MemorySource, MemoryTarget, TensorBytes};

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
    /// In row order; BYTES elements each behind their length.
    pub data: FeedData<'a>,
}

impl<'a> Feed<'a> {
    /// The bytes of a feed in main memory.
    ///
    /// # Errors
    /// `Internal` if it lies on a GPU, where only sessions that compute there get any.
    pub fn host(&self) -> Result<TensorBytes<'a>, Error> {
        match self.data {
            FeedData::Host(bytes) => Ok(bytes),
            FeedData::Device(_) => Err(Error::internal(format!(
                "input '{}' is in GPU memory, which this engine cannot read",
                self.name.to_string_lossy()
            ))),
        }
    }
}

/// The bytes of an input for one run.
#[derive(Clone, Copy, Debug)]
pub enum FeedData<'a> {
    /// In main memory. Not necessarily aligned, and possibly memory that a client changes
    /// meanwhile. All feeds of a session without a device; else BYTES, and inputs that describe the
    /// batch.
    Host(TensorBytes<'a>),
    /// On the GPU of the session, there when its stream gets to the run. The address is a multiple
    /// of [`DEVICE_ALIGNMENT`](crate::DEVICE_ALIGNMENT).
    Device(MemorySource<'a>),
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
    pub buffer: OutputBuffer<'r>,
}

/// Memory that the session writes an output to.
pub enum OutputBuffer<'r> {
    /// In main memory.
    Host(Buffer<'r>),
    /// On the GPU of the session. The address is a multiple of
    /// [`DEVICE_ALIGNMENT`](crate::DEVICE_ALIGNMENT).
    Device(MemoryTarget<'r>),
}

/// An output's tensor.
#[derive(Clone, Debug)]
pub struct Contents<'o> {
    /// The type of its elements.
    pub data_type: DataType,
    /// All dimensions; empty for a scalar.
    pub shape: Vec<i64>,
    /// As on Triton's wire: in row order, BYTES elements each behind their length.
    pub data: OutputData<'o>,
}

/// The bytes of an output.
#[derive(Clone, Debug)]
pub enum OutputData<'o> {
    /// In main memory.
    Host(Cow<'o, [u8]>),
    /// On the GPU of the session, there when its stream gets to what is enqueued next.
    Device(MemorySource<'o>),
}

impl<'o> From<&'o [u8]> for OutputData<'o> {
    fn from(bytes: &'o [u8]) -> Self {
        OutputData::Host(Cow::Borrowed(bytes))
    }
}

impl From<Vec<u8>> for OutputData<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        OutputData::Host(Cow::Owned(bytes))
    }
}
