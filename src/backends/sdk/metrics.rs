//! Metrics that a plug-in adds to those of the server.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;

use crate::Error;
use crate::error::c_string;

/// A family of counters: one name in the server's metrics, one value per set of labels. Clones are
/// the same family, which leaves the server with the last of them and of their counters. Any thread
/// may use it; nothing blocks for long.
#[derive(Clone)]
pub struct CounterFamily {
    raw: Arc<FamilyHandle>,
}

impl CounterFamily {
    /// `name` as in Prometheus' text format; `description` is its help text. Where the process
    /// already has a counter family of this name, it is shared.
    ///
    /// # Errors
    /// Whatever the server reports: for one, that the name belongs to a family of another kind.
    pub fn new(name: &str, description: &str) -> Result<Self, Error> {
        let (name, description) = (c_string(name), c_string(description));
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable, the texts are NUL-terminated and copied.
        unsafe {
            Error::check(abi::TRITONSERVER_MetricFamilyNew(
                &raw mut raw,
                abi::TRITONSERVER_METRIC_KIND_COUNTER,
                name.as_ptr(),
                description.as_ptr(),
            ))?;
        }
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null metric family"))?;
        Ok(CounterFamily {
            raw: Arc::new(FamilyHandle(raw)),
        })
    }

    /// The counter with these labels, each a name and a value; it begins at 0. Counters of equal
    /// labels share their value.
    ///
    /// # Errors
    /// Whatever the server reports: for one, that a label's name is none.
    pub fn counter(&self, labels: &[(&str, &str)]) -> Result<Counter, Error> {
        let parameters = labels
            .iter()
            .map(|(name, value)| Label::new(name, value))
            .collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<*const abi::TRITONSERVER_Parameter> = parameters
            .iter()
            .map(|label| label.0.as_ptr().cast_const())
            .collect();
        let mut raw = ptr::null_mut();
        // SAFETY: the family lives as long as `self`; the labels live until the end of this
        // function and are copied.
        unsafe {
            Error::check(abi::TRITONSERVER_MetricNew(
                &raw mut raw,
                self.raw.0.as_ptr(),
                pointers.as_mut_ptr(),
                pointers.len() as u64,
            ))?;
        }
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null metric"))?;
        Ok(Counter {
            raw,
            _family: self.clone(),
        })
    }
}

/// One value of a [`CounterFamily`].
pub struct Counter {
    raw: NonNull<abi::TRITONSERVER_Metric>,
    /// The server wants a family to live longer than its metrics.
    _family: CounterFamily,
}

// SAFETY: the server's functions on metrics may be called from any thread, at the same time too.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

impl Counter {
    /// Adds `value`, which must not be negative.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn add(&self, value: f64) -> Result<(), Error> {
        // SAFETY: live until this value is dropped.
        unsafe { Error::check(abi::TRITONSERVER_MetricIncrement(self.raw.as_ptr(), value)) }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody afterwards. Nobody is left to hear of an error.
        let _ = unsafe { Error::check(abi::TRITONSERVER_MetricDelete(self.raw.as_ptr())) };
    }
}

struct FamilyHandle(NonNull<abi::TRITONSERVER_MetricFamily>);

// SAFETY: as of `Counter`.
unsafe impl Send for FamilyHandle {}
// SAFETY: as above.
unsafe impl Sync for FamilyHandle {}

impl Drop for FamilyHandle {
    fn drop(&mut self) {
        // SAFETY: ours; every counter holds the family, so none is left.
        let _ = unsafe { Error::check(abi::TRITONSERVER_MetricFamilyDelete(self.0.as_ptr())) };
    }
}

/// A parameter object of the server's that names a label and its value.
struct Label(NonNull<abi::TRITONSERVER_Parameter>);

impl Label {
    fn new(name: &str, value: &str) -> Result<Self, Error> {
        let (name, value) = (c_string(name), c_string(value));
        // SAFETY: both texts are NUL-terminated and copied.
        let raw = unsafe {
            abi::TRITONSERVER_ParameterNew(
                name.as_ptr(),
                abi::TRITONSERVER_PARAMETER_STRING,
                value.as_ptr().cast::<c_void>(),
            )
        };
        NonNull::new(raw)
            .map(Label)
            .ok_or_else(|| Error::internal("null parameter"))
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody afterwards.
        unsafe { abi::TRITONSERVER_ParameterDelete(self.0.as_ptr()) };
    }
}
