//! Bindings of a session: each tensor of a run on a GPU is bound to the memory that it lies in.

use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::Error;

use super::run_options::RawRunOptions;
use super::runtime::Runtime;
use super::table::{OrtIoBinding, OrtMemoryInfo, OrtSession};
use super::value::Value;

/// The bindings of one session, kept between runs.
pub(super) struct IoBinding {
    runtime: Arc<Runtime>,
    session: NonNull<OrtSession>,
    raw: NonNull<OrtIoBinding>,
}

impl IoBinding {
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
        Ok(IoBinding {
            runtime: Arc::clone(runtime),
            session,
            raw: raw.ok_or_else(|| Error::internal("ONNX Runtime gave no binding"))?,
        })
    }

    /// Begins the bindings of a run.
    pub(super) fn begin(&mut self) -> BindingGuard<'_, '_> {
        BindingGuard {
            binding: self,
            values: Vec::new(),
            output_count: 0,
        }
    }
}

impl Drop for IoBinding {
    fn drop(&mut self) {
        // SAFETY: ours, and no run is going on.
        unsafe { (self.runtime.table.release_binding)(self.raw.as_ptr()) };
    }
}

/// The bindings of one run, which are cleared when this is dropped.
pub(super) struct BindingGuard<'b, 'm> {
    binding: &'b mut IoBinding,
    /// The tensors that are bound, whose memory the run uses.
    values: Vec<Value<'m>>,
    output_count: usize,
}

impl<'m> BindingGuard<'_, 'm> {
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn input(&mut self, name: &CStr, value: Value<'m>) -> Result<(), Error> {
        let (table, raw) = (&self.binding.runtime.table, self.binding.raw.as_ptr());
        // SAFETY: both are live, the value as long as it is bound; the name is copied.
        unsafe { table.check((table.bind_input)(raw, name.as_ptr(), value.as_ptr()))? };
        self.values.push(value);
        Ok(())
    }

    /// Has an output written into `value`.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn output(&mut self, name: &CStr, value: Value<'m>) -> Result<(), Error> {
        let (table, raw) = (&self.binding.runtime.table, self.binding.raw.as_ptr());
        // SAFETY: as above.
        unsafe { table.check((table.bind_output)(raw, name.as_ptr(), value.as_ptr()))? };
        self.values.push(value);
        self.output_count += 1;
        Ok(())
    }

    /// Has an output made in the memory that `memory_info` describes.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn output_in(
        &mut self,
        name: &CStr,
        memory_info: NonNull<OrtMemoryInfo>,
    ) -> Result<(), Error> {
        let (table, raw) = (&self.binding.runtime.table, self.binding.raw.as_ptr());
        let memory_info = memory_info.as_ptr();
        // SAFETY: both are live; name and description are copied.
        unsafe {
            table.check((table.bind_output_to_device)(
                raw,
                name.as_ptr(),
                memory_info,
            ))?
        };
        self.output_count += 1;
        Ok(())
    }

    /// Runs the session on what is bound. Returns a value for each output, in the order in which
    /// they were bound.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn run(&mut self, options: &RawRunOptions) -> Result<Vec<Value<'static>>, Error> {
        let IoBinding {
            runtime,
            session,
            raw,
        } = &*self.binding;
        let table = &runtime.table;
        let allocator = runtime.allocator.as_ptr();
        let (mut array, mut count) = (ptr::null_mut(), 0);
        // SAFETY: session, options, binding and allocator are live, the results writable. The
        // memory of what is bound lives, since its values are here.
        unsafe {
            let raw = raw.as_ptr();
            table.check((table.run_with_binding)(
                session.as_ptr(),
                options.as_ptr(),
                raw,
            ))?;
            let values =
                (table.bound_output_values)(raw, allocator, &raw mut array, &raw mut count);
            table.check(values)?;
        }
        let mut owned = Vec::with_capacity(count);
        if !array.is_null() {
            // SAFETY: an array of that many values, all ours, which is freed after they were taken.
            unsafe {
                let values = std::slice::from_raw_parts(array, count);
                let values = values.iter().filter_map(|&value| NonNull::new(value));
                owned.extend(values.map(|value| Value::own(runtime, value)));
                table.check((table.allocator_free)(allocator, array.cast()))?;
            }
        }
        match owned.len() == self.output_count {
            true => Ok(owned),
            false => Err(Error::internal(
                "Retrieved output count is not equal to expected count.",
            )),
        }
    }
}

impl Drop for BindingGuard<'_, '_> {
    fn drop(&mut self) {
        let (table, raw) = (&self.binding.runtime.table, self.binding.raw.as_ptr());
        // SAFETY: live, and no run is going on.
        unsafe {
            (table.clear_bound_inputs)(raw);
            (table.clear_bound_outputs)(raw);
        }
    }
}
