//! OpenVINO's core: its devices and plug-ins, with their properties.

use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::Error;
use conch_backend_sdk::engine::{c_path, c_string};

use super::compiled::CompiledModel;
use super::model::Model;
use super::runtime::Runtime;
use super::table::OvCore;

/// A core, for one model.
pub struct Core {
    runtime: Arc<Runtime>,
    raw: NonNull<OvCore>,
}

// SAFETY: a core may be used from any thread, by OpenVINO's documentation.
unsafe impl Send for Core {}

impl Core {
    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn new(runtime: &Arc<Runtime>) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable.
        let status = unsafe { (runtime.functions.core_create)(&raw mut raw) };
        runtime.check(status, "creating core")?;
        Ok(Core {
            runtime: Arc::clone(runtime),
            raw: NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO gave no core"))?,
        })
    }

    /// Loads a library of custom operators.
    ///
    /// # Errors
    /// `Unsupported` if OpenVINO is too old; `Internal` with OpenVINO's own words.
    pub fn add_extension(&self, path: &str) -> Result<(), Error> {
        let path = c_string(path)?;
        let add = self.runtime.functions.core_add_extension.ok_or_else(|| {
            Error::unsupported(format!(
                "{:?} loads no extensions: it is too old",
                self.runtime
            ))
        })?;
        // SAFETY: the core is live, the path NUL-terminated; the operator names the library to be
        // run in the process.
        let status = unsafe { add(self.raw.as_ptr(), path.as_ptr()) };
        self.runtime.check(status, " loading custom CPU extensions")
    }

    /// Whether a device has a property; `true` where it does not say.
    pub fn supports(&self, device: &str, key: &str) -> bool {
        let Ok(device) = c_string(device) else {
            return true;
        };
        let mut value = ptr::null_mut();
        // SAFETY: the core is live, the texts are NUL-terminated, the result is writable.
        let status = unsafe {
            (self.runtime.functions.core_get_property)(
                self.raw.as_ptr(),
                device.as_ptr(),
                c"SUPPORTED_PROPERTIES".as_ptr(),
                &raw mut value,
            )
        };
        if status != 0 {
            return true;
        }
        let names = self.runtime.owned_text(value);
        let mut words = names.split(|letter: char| !(letter == '_' || letter.is_alphanumeric()));
        words.any(|word| word == key)
    }

    /// Sets a property of a device.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn set_property(&self, device: &str, key: &str, value: &str) -> Result<(), Error> {
        let (device, key, value) = (c_string(device)?, c_string(key)?, c_string(value)?);
        // SAFETY: the core is live; the function reads one key and one value, both NUL-terminated.
        let status = unsafe {
            (self.runtime.functions.core_set_property)(
                self.raw.as_ptr(),
                device.as_ptr(),
                key.as_ptr(),
                value.as_ptr(),
            )
        };
        self.runtime.check(status, "configuring openvino core")
    }

    /// Reads a model's file, or folder.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn read_model(&self, path: &Path) -> Result<Model, Error> {
        let path = c_path(path)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the core is live, the path NUL-terminated, the result writable. Null: weights are
        // where the format says.
        let status = unsafe {
            (self.runtime.functions.core_read_model)(
                self.raw.as_ptr(),
                path.as_ptr(),
                ptr::null(),
                &raw mut raw,
            )
        };
        self.runtime.check(status, "reading model")?;
        // SAFETY: made for us.
        unsafe { Model::own(&self.runtime, raw) }
    }

    /// Compiles a model for a device, with one property.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn compile(
        &self,
        model: &Model,
        device: &str,
        (key, value): (&str, &str),
    ) -> Result<CompiledModel, Error> {
        let (device, key, value) = (c_string(device)?, c_string(key)?, c_string(value)?);
        let mut raw = ptr::null_mut();
        // SAFETY: core and model are live, the texts NUL-terminated, the result writable; as many
        // further arguments follow as said.
        let status = unsafe {
            (self.runtime.functions.core_compile_model)(
                self.raw.as_ptr(),
                model.as_ptr(),
                device.as_ptr(),
                2,
                &raw mut raw,
                key.as_ptr(),
                value.as_ptr(),
            )
        };
        self.runtime.check(status, "loading model")?;
        // SAFETY: made for us.
        unsafe { CompiledModel::own(&self.runtime, raw) }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: ours. Models hold what they need of it.
        unsafe { (self.runtime.functions.core_free)(self.raw.as_ptr()) };
    }
}
