//! A model as it was read.

use std::ffi::{CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::{DataType, Error};

use super::runtime::Runtime;
use super::table::{Dimension, OvModel, OvPort, OvPreprocessor, PartialShape, Status};

/// Any size, in a dimension.
const OPEN: Dimension = Dimension { min: -1, max: -1 };

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: CString,
    /// `None`: text, or another type that Triton has not.
    pub data_type: Option<DataType>,
    /// -1 is variable.
    pub dims: Vec<i64>,
}

/// A model that can still be changed.
pub struct Model {
    runtime: Arc<Runtime>,
    raw: NonNull<OvModel>,
}

// SAFETY: a model may be used from any thread, one at a time.
unsafe impl Send for Model {}

/// What preprocessing has for inputs, and again for outputs: for a port's description, and for the
/// description of its tensor.
struct Side<I, T> {
    name: &'static str,
    info: unsafe extern "C" fn(*const OvPreprocessor, usize, *mut *mut I) -> Status,
    tensor: unsafe extern "C" fn(*const I, *mut *mut T) -> Status,
    set_element_type: unsafe extern "C" fn(*mut T, c_int) -> Status,
    free_tensor: unsafe extern "C" fn(*mut T),
    free_info: unsafe extern "C" fn(*mut I),
}

type PortAt = unsafe extern "C" fn(*const OvModel, usize, *mut *mut OvPort) -> Status;

impl Model {
    /// # Safety
    /// `raw` is null or a model that the caller gives away.
    pub(super) unsafe fn own(runtime: &Arc<Runtime>, raw: *mut OvModel) -> Result<Self, Error> {
        Ok(Model {
            runtime: Arc::clone(runtime),
            raw: NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO gave no model"))?,
        })
    }

    pub(super) fn as_ptr(&self) -> *const OvModel {
        self.raw.as_ptr()
    }

    /// # Errors
    /// `Internal` with OpenVINO's own words; `Unsupported` if one has any number of dimensions.
    pub fn inputs(&self) -> Result<Vec<Port>, Error> {
        let functions = &self.runtime.functions;
        let mut count = 0;
        // SAFETY: the model is live, the result writable.
        let status = unsafe { (functions.model_inputs_size)(self.as_ptr(), &raw mut count) };
        self.runtime.check(status, "getting input infos")?;
        self.ports(count, functions.model_const_input_by_index, "input")
    }

    /// # Errors
    /// As [`inputs`](Self::inputs).
    pub fn outputs(&self) -> Result<Vec<Port>, Error> {
        let functions = &self.runtime.functions;
        let mut count = 0;
        // SAFETY: the model is live, the result writable.
        let status = unsafe { (functions.model_outputs_size)(self.as_ptr(), &raw mut count) };
        self.runtime.check(status, "getting output infos")?;
        self.ports(count, functions.model_const_output_by_index, "output")
    }

    /// Whether something that its operators make has a shape that is known only as it runs.
    pub fn is_dynamic(&self) -> bool {
        // SAFETY: the model is live.
        unsafe { (self.runtime.functions.model_is_dynamic)(self.as_ptr()) }
    }

    /// Gives inputs other shapes; -1 is variable. Where that is an error, they keep theirs.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words, if the model cannot have them.
    pub fn reshape(&self, shapes: &[(&CString, Vec<i64>)]) -> Result<(), Error> {
        let mut names: Vec<_> = shapes.iter().map(|(name, _)| name.as_ptr()).collect();
        let mut dims: Vec<Vec<_>> = shapes
            .iter()
            .map(|(_, dims)| dims.iter().map(|&dim| dimension(dim)).collect())
            .collect();
        let partial: Vec<_> = dims
            .iter_mut()
            .map(|dims| {
                let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
                PartialShape {
                    rank: Dimension {
                        min: rank,
                        max: rank,
                    },
                    dims: dims.as_mut_ptr(),
                }
            })
            .collect();
        // SAFETY: the model is live; names and shapes are as many as said, the names are
        // NUL-terminated, each shape has as many dimensions as its rank; all are copied.
        let status = unsafe {
            (self.runtime.functions.model_reshape)(
                self.as_ptr(),
                names.as_mut_ptr(),
                partial.as_ptr(),
                partial.len(),
            )
        };
        self.runtime.check(status, "reshaping the model")
    }

    /// The same model with other element types at its inputs and outputs, by index: values are
    /// converted on their way in and out.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn converted(
        &self,
        inputs: &[(usize, DataType)],
        outputs: &[(usize, DataType)],
    ) -> Result<Model, Error> {
        let functions = &self.runtime.functions;
        let input_side = Side {
            name: "input",
            info: functions.preprocessor_input,
            tensor: functions.input_info_tensor,
            set_element_type: functions.input_tensor_set_element_type,
            free_tensor: functions.input_tensor_free,
            free_info: functions.input_info_free,
        };
        let output_side = Side {
            name: "output",
            info: functions.preprocessor_output,
            tensor: functions.output_info_tensor,
            set_element_type: functions.output_tensor_set_element_type,
            free_tensor: functions.output_tensor_free,
            free_info: functions.output_info_free,
        };
        let mut steps = ptr::null_mut();
        // SAFETY: the model is live, the result writable.
        let status = unsafe { (functions.preprocessor_create)(self.as_ptr(), &raw mut steps) };
        self.runtime.check(status, "model preprocessing")?;
        let all_set = (|| {
            for &(index, data_type) in inputs {
                self.convert(steps, index, data_type, &input_side)?;
            }
            for &(index, data_type) in outputs {
                self.convert(steps, index, data_type, &output_side)?;
            }
            Ok(())
        })();
        let mut raw = ptr::null_mut();
        // SAFETY: the steps are live until they are freed, the result is writable.
        let built = all_set.and_then(|()| unsafe {
            let status = (functions.preprocessor_build)(steps, &raw mut raw);
            self.runtime.check(status, "apply model preprocessing")
        });
        // SAFETY: ours, and not used any more.
        unsafe { (functions.preprocessor_free)(steps) };
        built?;
        // SAFETY: made for us.
        unsafe { Model::own(&self.runtime, raw) }
    }

    /// Sets the element type of one input or output among the steps.
    fn convert<I, T>(
        &self,
        steps: *mut OvPreprocessor,
        index: usize,
        data_type: DataType,
        side: &Side<I, T>,
    ) -> Result<(), Error> {
        let element = self
            .runtime
            .element_types
            .number(data_type)
            .ok_or_else(|| {
                Error::unsupported(format!("unsupported datatype {}", data_type.config_name()))
            })?;
        let (mut info, mut tensor) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the steps are live, the results writable; what was made is ours and freed once,
        // the inner first.
        let status = unsafe {
            let mut status = (side.info)(steps, index, &raw mut info);
            if status == 0 {
                status = (side.tensor)(info, &raw mut tensor);
                if status == 0 {
                    status = (side.set_element_type)(tensor, element);
                    (side.free_tensor)(tensor);
                }
                (side.free_info)(info);
            }
            status
        };
        let doing = format!("setting precision of an {}", side.name);
        self.runtime.check(status, &doing)
    }

    fn ports(&self, count: usize, at: PortAt, role: &str) -> Result<Vec<Port>, Error> {
        (0..count)
            .map(|index| {
                let mut raw = ptr::null_mut();
                // SAFETY: the model is live, the index in range, the result writable.
                let status = unsafe { at(self.as_ptr(), index, &raw mut raw) };
                self.runtime
                    .check(status, &format!("getting {role} {index}"))?;
                let port = self.port(raw, role, index);
                // SAFETY: made for us, and not used any more.
                unsafe { (self.runtime.functions.output_const_port_free)(raw) };
                port
            })
            .collect()
    }

    /// Reads a live port.
    fn port(&self, raw: *const OvPort, role: &str, index: usize) -> Result<Port, Error> {
        let functions = &self.runtime.functions;
        let mut name: *mut c_char = ptr::null_mut();
        let mut element = 0;
        let mut shape = PartialShape {
            rank: OPEN,
            dims: ptr::null_mut(),
        };
        // SAFETY: the port is live, the results are writable.
        unsafe {
            let status = (functions.port_get_any_name)(raw, &raw mut name);
            self.runtime
                .check(status, &format!("reading the name of {role} {index}"))?;
        }
        let name = self.runtime.owned_c_string(name);
        let of = || format!("{role} '{}'", name.to_string_lossy());
        // SAFETY: as above.
        unsafe {
            let status = (functions.port_get_element_type)(raw, &raw mut element);
            self.runtime
                .check(status, &format!("reading the element type of {}", of()))?;
            let status = (functions.port_get_partial_shape)(raw, &raw mut shape);
            self.runtime
                .check(status, &format!("retrieving original shapes from {}", of()))?;
        }
        let is_fixed = shape.rank.min == shape.rank.max;
        let rank = usize::try_from(shape.rank.max).ok().filter(|_| is_fixed);
        let dims = rank.map(|rank| match shape.dims.is_null() {
            true => Vec::new(),
            // SAFETY: as many dimensions as the rank says, live until they are freed.
            false => unsafe { std::slice::from_raw_parts(shape.dims, rank) }
                .iter()
                .map(|dim| match dim.min == dim.max {
                    true => dim.min,
                    false => -1,
                })
                .collect(),
        });
        // SAFETY: made for us, and copied.
        unsafe { (functions.partial_shape_free)(&raw mut shape) };
        let dims = dims
            .ok_or_else(|| Error::unsupported(format!("{} has any number of dimensions", of())))?;
        Ok(Port {
            data_type: self.runtime.element_types.data_type(element),
            name,
            dims,
        })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { (self.runtime.functions.model_free)(self.raw.as_ptr()) };
    }
}

fn dimension(dim: i64) -> Dimension {
    match dim < 0 {
        true => OPEN,
        false => Dimension { min: dim, max: dim },
    }
}
