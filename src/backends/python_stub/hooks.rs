//! What this library takes from Python: classes whose objects it makes and reads, and functions
//! for what is rare.

use std::ffi::CStr;

use crate::object::{Object, Python, Raised};

/// Numbers of the server's data types are below.
const DATA_TYPES: usize = 15;

/// Given by the package of models when it is imported.
pub(crate) struct Hooks {
    pub(crate) tensor: Object,
    pub(crate) request: Object,
    pub(crate) response: Object,
    pub(crate) trace: Object,
    pub(crate) error: Object,
    pub(crate) ndarray: Object,
    /// Of a tensor that is no plain array: its number, shape, array, and array of bytes.
    pub(crate) prepare: Object,
    /// The array of a tensor that is no plain memory.
    pub(crate) as_array: Object,
    /// Raises unless a response may answer a request.
    pub(crate) check: Object,
    /// Has the server handle what was sent of a request before it is executed again.
    pub(crate) settle: Object,
    /// The tensor of an input on a GPU: of its name, number, shape, bytes, and place.
    pub(crate) received_on_device: Object,
    /// The place of a tensor on a GPU, and what keeps it until the message is done with.
    pub(crate) export_device: Object,
    /// The same tensor in main memory.
    pub(crate) to_host: Object,
    pub(crate) no_arguments: Object,
    pub(crate) names: Names,
    dtypes: [Option<Object>; DATA_TYPES],
}

macro_rules! names {
    ($($field:ident $text:literal)*) => {
        /// Attributes, by name.
        pub(crate) struct Names {
            $(pub(crate) $field: Object,)*
        }

        impl Names {
            fn new(py: Python) -> Result<Names, Raised> {
                Ok(Names { $($field: py.interned($text)?,)* })
            }
        }
    };
}

names! {
    dtype c"dtype"
    request_handle c"_request_handle"
    handle c"_handle"
    id c"_id"
    correlation_id c"_correlation_id"
    inputs c"_inputs"
    outputs c"_outputs"
    model_name c"_model_name"
    model_version c"_model_version"
    flags c"_flags"
    timeout c"_timeout"
    priority c"_priority"
    trace c"_trace"
    parameters c"_parameters"
    sender c"_sender"
    release_flags c"_release_flags"
    error c"_error"
    code c"_code"
    message c"_message"
    close c"_close"
}

impl Hooks {
    /// Reads them from a dict.
    pub(crate) fn new(py: Python, given: &Object) -> Result<Hooks, Raised> {
        let entry = |name: &CStr| py.entry(given, name);
        let given_dtypes = entry(c"dtypes")?;
        let mut dtypes = [const { None }; DATA_TYPES];
        for (index, place) in dtypes.iter_mut().enumerate() {
            *place = Some(py.item(&given_dtypes, index)?).filter(|dtype| !dtype.is_none());
        }
        Ok(Hooks {
            tensor: entry(c"Tensor")?,
            request: entry(c"InferenceRequest")?,
            response: entry(c"InferenceResponse")?,
            trace: entry(c"InferenceTrace")?,
            error: entry(c"TritonError")?,
            ndarray: entry(c"ndarray")?,
            prepare: entry(c"prepare")?,
            as_array: entry(c"as_array")?,
            check: entry(c"check")?,
            settle: entry(c"settle")?,
            received_on_device: entry(c"received_on_device")?,
            export_device: entry(c"export_device")?,
            to_host: entry(c"to_host")?,
            no_arguments: py.tuple([])?,
            names: Names::new(py)?,
            dtypes,
        })
    }

    /// Numpy's type of a number; none for those whose elements are no plain values.
    pub(crate) fn dtype(&self, data_type: u32) -> Option<&Object> {
        self.dtypes.get(data_type as usize)?.as_ref()
    }

    /// The number of numpy's type, if it is one of the usual objects.
    pub(crate) fn data_type(&self, dtype: &Object) -> Option<u32> {
        let is_it = |known: &Option<Object>| known.as_ref().is_some_and(|known| known.is(dtype));
        let index = self.dtypes.iter().position(is_it)?;
        u32::try_from(index).ok()
    }
}
