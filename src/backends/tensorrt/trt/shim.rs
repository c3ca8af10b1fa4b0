//! The shim's functions, `shim/shim.h`.

use std::ffi::{c_char, c_void};
use std::path::Path;

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::{Binding, Library, text_at};

sdk::opaque_types! {
    RawLibrary
    RawRuntime
    RawEngine
    RawContext
}

/// `CONCH_TENSORRT_INTERFACE`.
const INTERFACE: u32 = 1;
/// `CONCH_TENSORRT_DIMS_MAX`.
pub const DIMS_MAX: usize = 8;

/// `conch_tensorrt_shape`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawShape {
    pub count: i32,
    pub dims: [i64; DIMS_MAX],
}

impl RawShape {
    /// None if there are too many dimensions.
    pub fn new(dims: &[i64]) -> Option<Self> {
        let mut shape = RawShape {
            count: i32::try_from(dims.len()).ok()?,
            dims: [0; DIMS_MAX],
        };
        shape.dims.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(shape)
    }

    /// None if there is no shape.
    pub fn dims(&self) -> Option<Vec<i64>> {
        let count = usize::try_from(self.count).ok()?;
        self.dims.get(..count).map(<[i64]>::to_vec)
    }
}

/// `conch_tensorrt_tensor`.
#[repr(C)]
pub struct RawTensor {
    pub name: *const c_char,
    pub data_type: i32,
    pub format: i32,
    pub format_text: *const c_char,
    pub is_input: i32,
    pub is_shape: i32,
    pub is_on_host: i32,
    pub vectorized_dim: i32,
    pub components: i32,
    pub shape: RawShape,
}

/// `conch_tensorrt_outputs`.
#[repr(C)]
pub struct RawOutputs {
    pub owner: *mut c_void,
    pub allocate: extern "C" fn(*mut c_void, *const c_char, u64) -> *mut c_void,
    pub set_shape: extern "C" fn(*mut c_void, *const c_char, *const RawShape),
}

pub type LogFunction = extern "C" fn(*mut c_void, i32, *const c_char);

/// Null, or a text for [`Shim::check`].
type Failure = *mut c_char;

sdk::functions! {
    /// The shim's functions. Contracts are those of the header.
    pub struct Shim;

    unsafe extern "C" {
        conch_tensorrt_interface as interface() -> u32;
        conch_tensorrt_headers as headers() -> *const c_char;
        conch_tensorrt_free_text as free_text(*mut c_char);
        conch_tensorrt_open as open_library(*const c_char, *mut *mut RawLibrary) -> Failure;
        conch_tensorrt_register_plugins as register_plugins(
            *const c_char, LogFunction, *mut c_void
        ) -> Failure;
        conch_tensorrt_runtime_new as runtime_new(
            *mut RawLibrary, LogFunction, *mut c_void, *mut *mut RawRuntime
        ) -> Failure;
        conch_tensorrt_runtime_delete as runtime_delete(*mut RawRuntime);
        conch_tensorrt_allow_host_code as allow_host_code(*mut RawRuntime) -> i32;
        conch_tensorrt_dla_cores as dla_cores(*mut RawRuntime) -> i32;
        conch_tensorrt_set_dla_core as set_dla_core(*mut RawRuntime, i32);
        conch_tensorrt_engine_new as engine_new(
            *mut RawRuntime, *const c_void, usize
        ) -> *mut RawEngine;
        conch_tensorrt_engine_delete as engine_delete(*mut RawEngine);
        conch_tensorrt_tensor_count as tensor_count(*mut RawEngine) -> i32;
        conch_tensorrt_profile_count as profile_count(*mut RawEngine) -> i32;
        conch_tensorrt_describe as describe(*mut RawEngine, i32, *mut RawTensor) -> i32;
        conch_tensorrt_profile_shape as profile_shape(
            *mut RawEngine, *const c_char, i32, i32, *mut RawShape
        );
        conch_tensorrt_profile_values as profile_values(
            *mut RawEngine, *const c_char, i32, i32, *mut i64, usize
        ) -> i32;
        conch_tensorrt_context_new as context_new(*mut RawEngine, i32) -> *mut RawContext;
        conch_tensorrt_context_delete as context_delete(*mut RawContext);
        conch_tensorrt_set_profile as set_profile(*mut RawContext, i32, *mut c_void) -> i32;
        conch_tensorrt_set_shape as set_shape(
            *mut RawContext, *const c_char, *const RawShape
        ) -> i32;
        conch_tensorrt_set_address as set_address(
            *mut RawContext, *const c_char, *mut c_void
        ) -> i32;
        conch_tensorrt_set_outputs as set_outputs(
            *mut RawContext, *const c_char, *const RawOutputs
        ) -> i32;
        conch_tensorrt_infer_shapes as infer_shapes(*mut RawContext) -> i32;
        conch_tensorrt_tensor_shape as tensor_shape(*mut RawContext, *const c_char, *mut RawShape);
        conch_tensorrt_enqueue as enqueue(*mut RawContext, *mut c_void) -> i32;
    }
}

impl Shim {
    /// Opens the shim at a path.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be opened, or is of another version of its interface.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let refuse = |why: String| {
            Error::unavailable(format!(
                "the shim {}: {why}; scripts/build-tensorrt-shim makes it",
                path.display()
            ))
        };
        // SAFETY: whoever named it means it to be run in this process; its initialisers are those
        // of the C++ library.
        let library = unsafe { Library::open(path, Binding::Now) }.map_err(refuse)?;
        // SAFETY: a library with these symbols is the shim, whose functions have these types. It is
        // never closed.
        let shim = unsafe { Self::read(library.keep_open()) }
            .map_err(|symbol| refuse(format!("it has no function {symbol}")))?;
        // SAFETY: takes nothing, and has this type in all versions.
        match unsafe { (shim.interface)() } {
            INTERFACE => Ok(shim),
            other => Err(refuse(format!(
                "it has version {other} of the interface, not {INTERFACE}"
            ))),
        }
    }

    /// The version of its headers.
    pub fn version(&self) -> String {
        // SAFETY: a constant of the library.
        unsafe { text_at((self.headers)()) }
    }

    /// The text of a failure, freed.
    ///
    /// # Safety
    /// Null, or what a function of the shim returned as its failure, once.
    pub unsafe fn check(&self, failure: Failure) -> Result<(), String> {
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: by this function's contract it is a text of the shim's.
        let text = unsafe { text_at(failure) };
        // SAFETY: as above; not used again.
        unsafe { (self.free_text)(failure) };
        Err(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_a_bound() {
        let shape = RawShape::new(&[2, 3]).unwrap();
        assert_eq!(shape.dims(), Some(vec![2, 3]));
        assert_eq!(RawShape::new(&[]).unwrap().dims(), Some(Vec::new()));
        assert!(RawShape::new(&[1; 9]).is_none());
        let none = RawShape {
            count: -1,
            ..RawShape::default()
        };
        assert_eq!(none.dims(), None);
    }
}
