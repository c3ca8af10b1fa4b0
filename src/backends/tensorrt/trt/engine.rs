//! Engines, and what they say of themselves.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::text_at;

use super::runtime::Runtime;
use super::shim::{RawEngine, RawShape, RawTensor, Shim};
use crate::facts::{Bounds, Facts, Format, Tensor, data_type_of};

/// A plan that TensorRT has read, on one device.
pub struct Engine {
    pub(super) raw: NonNull<RawEngine>,
    pub(super) runtime: Runtime,
    facts: Facts,
}

// SAFETY: TensorRT lets any thread use an engine.
unsafe impl Send for Engine {}
// SAFETY: all that is called through shared references is const in TensorRT, or makes contexts,
// which it allows at the same time.
unsafe impl Sync for Engine {}

impl Engine {
    /// Reads a plan, on the device that is current.
    ///
    /// # Errors
    /// `Internal`, in upstream's words, with what TensorRT says of the plan.
    pub fn read(runtime: Runtime, plan: &[u8]) -> Result<Self, Error> {
        runtime.log.clear();
        // SAFETY: the runtime lives, the plan is as long as said, and is copied.
        let raw = unsafe {
            (runtime.library.shim.engine_new)(
                runtime.raw.as_ptr(),
                plan.as_ptr().cast(),
                plan.len(),
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let why = runtime.log.errors();
            Error::internal(format!("unable to create TensorRT engine: {why}"))
        })?;
        let mut engine = Engine {
            raw,
            runtime,
            facts: Facts::default(),
        };
        engine.facts = engine.read_facts()?;
        Ok(engine)
    }

    /// What it takes and makes.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) fn shim(&self) -> &Shim {
        &self.runtime.library.shim
    }

    fn read_facts(&self) -> Result<Facts, Error> {
        // SAFETY: the engine lives.
        let (tensor_count, profile_count) = unsafe {
            (
                (self.shim().tensor_count)(self.raw.as_ptr()),
                (self.shim().profile_count)(self.raw.as_ptr()),
            )
        };
        let tensors = (0..tensor_count)
            .map(|index| self.tensor(index))
            .collect::<Result<Vec<_>, Error>>()?;
        let profiles = (0..profile_count.max(1))
            .map(|profile| {
                let bounds = |tensor: &Tensor| match tensor.is_input {
                    true => self.bounds(tensor, profile).map(Some),
                    false => Ok(None),
                };
                tensors.iter().map(bounds).collect()
            })
            .collect::<Result<Vec<Vec<_>>, Error>>()?;
        for tensor in &tensors {
            let (name, format) = (tensor.name(), &tensor.format);
            if !format.is_linear {
                sdk::verbose!("Detected {name} using IO format {}", format.text);
            }
            if tensor.is_shape {
                sdk::verbose!("Detected {name} as shape binding");
            }
        }
        Ok(Facts { tensors, profiles })
    }

    fn tensor(&self, index: i32) -> Result<Tensor, Error> {
        let unreadable = || Error::internal(format!("tensor {index} of the engine is unreadable"));
        let mut tensor = MaybeUninit::<RawTensor>::zeroed();
        // SAFETY: the engine lives, the result is writable.
        let found =
            unsafe { (self.shim().describe)(self.raw.as_ptr(), index, tensor.as_mut_ptr()) };
        if found == 0 {
            return Err(unreadable());
        }
        // SAFETY: zeroes are a value of it, and the shim filled it.
        let tensor = unsafe { tensor.assume_init() };
        // SAFETY: texts of the engine are NUL-terminated, and live as long.
        let (name, format_text) = unsafe {
            (
                CStr::from_ptr(tensor.name).to_owned(),
                text_at(tensor.format_text),
            )
        };
        let components = usize::try_from(tensor.components).unwrap_or(1).max(1);
        Ok(Tensor {
            name,
            data_type: data_type_of(tensor.data_type),
            dims: tensor.shape.dims().ok_or_else(unreadable)?,
            is_input: tensor.is_input != 0,
            is_shape: tensor.is_shape != 0,
            format: Format {
                is_linear: tensor.format == 0,
                text: format_text,
                filled: usize::try_from(tensor.vectorized_dim)
                    .ok()
                    .map(|dim| (dim, components)),
            },
        })
    }

    /// What an input may be in a profile.
    fn bounds(&self, tensor: &Tensor, profile: i32) -> Result<Bounds, Error> {
        let shape = |which| {
            let mut shape = RawShape {
                count: -1,
                ..RawShape::default()
            };
            // SAFETY: the engine lives, the name is NUL-terminated, the result writable.
            unsafe {
                (self.shim().profile_shape)(
                    self.raw.as_ptr(),
                    tensor.name.as_ptr(),
                    profile,
                    which,
                    &raw mut shape,
                );
            }
            // An engine whose shapes are all fixed may have none.
            shape.dims().unwrap_or_else(|| tensor.dims.clone())
        };
        let (min, best, max) = (shape(0), shape(1), shape(2));
        let values = match tensor.is_shape {
            true => Some(self.values(tensor, profile, &max)?),
            false => None,
        };
        Ok(Bounds {
            min,
            best,
            max,
            values,
        })
    }

    fn values(&self, tensor: &Tensor, profile: i32, shape: &[i64]) -> Result<[Vec<i64>; 3], Error> {
        // A shape tensor has no or one dimension.
        let count = shape.first().copied().unwrap_or(1);
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= super::shim::DIMS_MAX * 8)
            .ok_or_else(|| {
                let name = tensor.name.to_string_lossy();
                Error::invalid(format!("shape tensor '{name}' has {count} values"))
            })?;
        let values = |which| {
            let mut values = vec![0_i64; count];
            // SAFETY: as above; there is room for as many values as are asked for, and the shape of
            // the profile says that there are as many.
            let found = unsafe {
                (self.shim().profile_values)(
                    self.raw.as_ptr(),
                    tensor.name.as_ptr(),
                    profile,
                    which,
                    values.as_mut_ptr(),
                    count,
                )
            };
            match found {
                0 => Err(Error::internal(format!(
                    "profile {profile} has no values for shape tensor '{}'",
                    tensor.name.to_string_lossy()
                ))),
                _ => Ok(values),
            }
        };
        Ok([values(0)?, values(1)?, values(2)?])
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: made by the runtime, which is dropped after it; its contexts keep it.
        unsafe { (self.shim().engine_delete)(self.raw.as_ptr()) };
    }
}
