//! What a run on a GPU reads and writes: each tensor bound to the memory that it lies in.

use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::Error;

use super::runtime::Runtime;
use super::table::{OrtIoBinding, OrtMemoryInfo, OrtSession};
use super::value::Value;

/// Bindings of one session, kept between runs.
pub(super) struct Binding {
    runtime: Arc<Runtime>,
    raw: NonNull<OrtIoBinding>,
}

// SAFETY: used by the thread that uses its session.
unsafe impl Send for Binding {}

impl Binding {
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    ///
    /// # Safety
    /// `session` is live, and outlives the binding.
    pub(super) unsafe fn new(
        runtime: &Arc<Runtime>,
        session: NonNull<OrtSession>,
    ) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the session is live, the result writable; the wrapper releases it.
        unsafe { table.check((table.create_binding)(session.as_ptr(), &raw mut raw))? };
        let raw = NonNull::new(raw);
        Ok(Binding {
            runtime: Arc::clone(runtime),
            raw: raw.ok_or_else(|| Error::internal("ONNX Runtime gave no binding"))?,
        })
    }

    /// Begins the bindings of a run. They are gone when what this returns is.
    pub(super) fn begin(&mut self) -> Bound<'_> {
        Bound(self)
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: ours, and no run is going on.
        unsafe { (self.runtime.table.release_binding)(self.raw.as_ptr()) };
    }
}

/// The bindings of one run.
pub(super) struct Bound<'b>(&'b mut Binding);

impl Bound<'_> {
    pub(super) fn as_ptr(&self) -> *const OrtIoBinding {
        self.0.raw.as_ptr()
    }

    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn input(&mut self, name: &CStr, value: &Value<'_>) -> Result<(), Error> {
        let (table, raw) = (&self.0.runtime.table, self.0.raw.as_ptr());
        // SAFETY: both are live; the binding holds the value by a reference of its own.
        unsafe { table.check((table.bind_input)(raw, name.as_ptr(), value.as_ptr())) }
    }

    /// Has an output written into `value`.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn output(&mut self, name: &CStr, value: &Value<'_>) -> Result<(), Error> {
        let (table, raw) = (&self.0.runtime.table, self.0.raw.as_ptr());
        // SAFETY: as above.
        unsafe { table.check((table.bind_output)(raw, name.as_ptr(), value.as_ptr())) }
    }

    /// Has an output made in the memory that `place` describes.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn output_in(
        &mut self,
        name: &CStr,
        place: NonNull<OrtMemoryInfo>,
    ) -> Result<(), Error> {
        let (table, raw) = (&self.0.runtime.table, self.0.raw.as_ptr());
        let place = place.as_ptr();
        // SAFETY: both are live; the description is copied.
        unsafe { table.check((table.bind_output_to_device)(raw, name.as_ptr(), place)) }
    }

    /// What a run has made, in the order in which outputs were bound.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn outputs(&self) -> Result<Vec<Value<'static>>, Error> {
        let runtime = &self.0.runtime;
        let table = &runtime.table;
        let allocator = runtime.allocator.as_ptr();
        let (mut array, mut count) = (ptr::null_mut(), 0);
        // SAFETY: binding and allocator are live, the results writable.
        unsafe {
            let raw = self.0.raw.as_ptr();
            let status =
                (table.bound_output_values)(raw, allocator, &raw mut array, &raw mut count);
            table.check(status)?;
        }
        if array.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: an array of that many values, all ours, which is freed after they were taken.
        unsafe {
            let values = std::slice::from_raw_parts(array, count);
            let owned = values
                .iter()
                .filter_map(|&value| NonNull::new(value))
                .map(|value| Value::own(runtime, value))
                .collect();
            table.check((table.allocator_free)(allocator, array.cast()))?;
            Ok(owned)
        }
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let (table, raw) = (&self.0.runtime.table, self.0.raw.as_ptr());
        // SAFETY: live, and no run is going on.
        unsafe {
            (table.clear_bound_inputs)(raw);
            (table.clear_bound_outputs)(raw);
        }
    }
}
