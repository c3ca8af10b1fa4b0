//! Metrics that a plug-in adds to those of the server.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;

use crate::Error;
use crate::error::c_string;
use crate::parameter::RawParameter;
use crate::symbol::ServerFunction;

type RawError = *mut abi::TRITONSERVER_Error;
type RawArguments = *mut abi::TRITONSERVER_MetricArgs;
type NewArguments = unsafe extern "C" fn(*mut RawArguments) -> RawError;
type SetBuckets = unsafe extern "C" fn(RawArguments, *const f64, u64) -> RawError;
type DeleteArguments = unsafe extern "C" fn(RawArguments) -> RawError;
type NewMetric = unsafe extern "C" fn(
    *mut *mut abi::TRITONSERVER_Metric,
    *mut abi::TRITONSERVER_MetricFamily,
    *mut *const abi::TRITONSERVER_Parameter,
    u64,
    *const abi::TRITONSERVER_MetricArgs,
) -> RawError;
type Observe = unsafe extern "C" fn(*mut abi::TRITONSERVER_Metric, f64) -> RawError;

// Servers without histograms lack these.
// SAFETY: the type is that of the header.
static NEW_ARGUMENTS: ServerFunction<NewArguments> =
    unsafe { ServerFunction::new(c"TRITONSERVER_MetricArgsNew") };
// SAFETY: the type is that of the header.
static SET_BUCKETS: ServerFunction<SetBuckets> =
    unsafe { ServerFunction::new(c"TRITONSERVER_MetricArgsSetHistogram") };
// SAFETY: the type is that of the header.
static DELETE_ARGUMENTS: ServerFunction<DeleteArguments> =
    unsafe { ServerFunction::new(c"TRITONSERVER_MetricArgsDelete") };
// SAFETY: the type is that of the header.
static NEW_METRIC: ServerFunction<NewMetric> =
    unsafe { ServerFunction::new(c"TRITONSERVER_MetricNewWithArgs") };
// SAFETY: the type is that of the header.
static OBSERVE: ServerFunction<Observe> =
    unsafe { ServerFunction::new(c"TRITONSERVER_MetricObserve") };

/// What a metric's value may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It grows.
    Counter,
    /// It is set, and grows and falls.
    Gauge,
    /// It counts observed values by buckets.
    Histogram,
}

impl MetricKind {
    fn to_raw(self) -> abi::TRITONSERVER_MetricKind {
        match self {
            MetricKind::Counter => abi::TRITONSERVER_METRIC_KIND_COUNTER,
            MetricKind::Gauge => abi::TRITONSERVER_METRIC_KIND_GAUGE,
            MetricKind::Histogram => abi::TRITONSERVER_METRIC_KIND_HISTOGRAM,
        }
    }
}

/// A family of metrics of one kind: one name in the server's metrics, one metric per set of labels.
/// Clones are the same family, which leaves the server with the last of them and of their metrics.
/// Any thread may use it; nothing blocks for long.
#[derive(Clone)]
pub struct MetricFamily {
    raw: Arc<FamilyHandle>,
    kind: MetricKind,
}

impl MetricFamily {
    /// `name` as in Prometheus' text format; `description` is its help text. Where the process
    /// already has a family of this name and kind, it is shared.
    ///
    /// # Errors
    /// Whatever the server reports: for one, that the name belongs to a family of another kind, or
    /// that it knows no such kind.
    pub fn new(kind: MetricKind, name: &str, description: &str) -> Result<Self, Error> {
        let (name, description) = (c_string(name), c_string(description));
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable, the texts are NUL-terminated and copied.
        unsafe {
            Error::check(abi::TRITONSERVER_MetricFamilyNew(
                &raw mut raw,
                kind.to_raw(),
                name.as_ptr(),
                description.as_ptr(),
            ))?;
        }
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null metric family"))?;
        Ok(MetricFamily {
            raw: Arc::new(FamilyHandle(raw)),
            kind,
        })
    }

    /// A family of counters: see [`new`](Self::new).
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn counter(name: &str, description: &str) -> Result<Self, Error> {
        MetricFamily::new(MetricKind::Counter, name, description)
    }

    /// A family of gauges: see [`new`](Self::new).
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn gauge(name: &str, description: &str) -> Result<Self, Error> {
        MetricFamily::new(MetricKind::Gauge, name, description)
    }

    /// A family of histograms: see [`new`](Self::new).
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn histogram(name: &str, description: &str) -> Result<Self, Error> {
        MetricFamily::new(MetricKind::Histogram, name, description)
    }

    pub fn kind(&self) -> MetricKind {
        self.kind
    }

    /// The counter or gauge with these labels, each a name and a value; it begins at 0. Metrics of
    /// equal labels share their value.
    ///
    /// # Errors
    /// Whatever the server reports: for one, that a label's name is none, or that a histogram needs
    /// buckets.
    pub fn metric(&self, labels: &[(&str, &str)]) -> Result<Metric, Error> {
        self.make(labels, |raw, labels, count| {
            // SAFETY: the family lives as long as `self`; the result is writable; the labels live
            // during the call and are copied.
            unsafe { abi::TRITONSERVER_MetricNew(raw, self.raw.0.as_ptr(), labels, count) }
        })
    }

    /// The histogram with these labels. `buckets` are the upper bounds of its buckets, which must
    /// grow; a last one without bound is added. Otherwise as [`metric`](Self::metric).
    ///
    /// # Errors
    /// `Unsupported` in a server without histograms; otherwise whatever the server reports: for
    /// one, that the kind has no buckets, or that they do not grow.
    pub fn metric_with_buckets(
        &self,
        labels: &[(&str, &str)],
        buckets: &[f64],
    ) -> Result<Metric, Error> {
        let new = NEW_METRIC.require()?;
        let arguments = Arguments::new(buckets)?;
        self.make(labels, |raw, labels, count| {
            // SAFETY: as in `metric`; the arguments are live and copied.
            unsafe {
                new(
                    raw,
                    self.raw.0.as_ptr(),
                    labels,
                    count,
                    arguments.raw.as_ptr(),
                )
            }
        })
    }

    fn make(
        &self,
        labels: &[(&str, &str)],
        new: impl FnOnce(
            *mut *mut abi::TRITONSERVER_Metric,
            *mut *const abi::TRITONSERVER_Parameter,
            u64,
        ) -> RawError,
    ) -> Result<Metric, Error> {
        let parameters = labels
            .iter()
            .map(|(name, value)| RawParameter::text(name, value))
            .collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<_> = parameters.iter().map(RawParameter::as_ptr).collect();
        let mut raw = ptr::null_mut();
        let error = new(&raw mut raw, pointers.as_mut_ptr(), pointers.len() as u64);
        // SAFETY: an error that the server returned is the caller's.
        unsafe { Error::check(error)? };
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null metric"))?;
        Ok(Metric {
            raw,
            _family: self.clone(),
        })
    }
}

/// One metric of a [`MetricFamily`]. Any thread may change it, several at once.
pub struct Metric {
    raw: NonNull<abi::TRITONSERVER_Metric>,
    /// The server wants a family to live longer than its metrics.
    _family: MetricFamily,
}

// SAFETY: the server's functions on metrics may be called from any thread, at the same time too.
unsafe impl Send for Metric {}
// SAFETY: as above.
unsafe impl Sync for Metric {}

impl Metric {
    /// Adds `value` to a counter, where it must not be negative, or to a gauge.
    ///
    /// # Errors
    /// Whatever the server reports: `Unsupported` for a histogram.
    pub fn increment(&self, value: f64) -> Result<(), Error> {
        // SAFETY: live until this value is dropped.
        unsafe { Error::check(abi::TRITONSERVER_MetricIncrement(self.raw.as_ptr(), value)) }
    }

    /// Sets a gauge.
    ///
    /// # Errors
    /// Whatever the server reports: `Unsupported` for other kinds.
    pub fn set(&self, value: f64) -> Result<(), Error> {
        // SAFETY: live until this value is dropped.
        unsafe { Error::check(abi::TRITONSERVER_MetricSet(self.raw.as_ptr(), value)) }
    }

    /// Counts `value` in a histogram.
    ///
    /// # Errors
    /// `Unsupported` for other kinds, and in a server without histograms.
    pub fn observe(&self, value: f64) -> Result<(), Error> {
        let observe = OBSERVE.require()?;
        // SAFETY: live until this value is dropped.
        unsafe { Error::check(observe(self.raw.as_ptr(), value)) }
    }

    /// The value of a counter or a gauge.
    ///
    /// # Errors
    /// Whatever the server reports: `Unsupported` for a histogram.
    pub fn value(&self) -> Result<f64, Error> {
        let mut value = 0.0;
        // SAFETY: live until this value is dropped; the result is writable.
        unsafe {
            Error::check(abi::TRITONSERVER_MetricValue(
                self.raw.as_ptr(),
                &raw mut value,
            ))?;
        }
        Ok(value)
    }
}

impl Drop for Metric {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody afterwards. Nobody is left to hear of an error.
        let _ = unsafe { Error::check(abi::TRITONSERVER_MetricDelete(self.raw.as_ptr())) };
    }
}

struct FamilyHandle(NonNull<abi::TRITONSERVER_MetricFamily>);

// SAFETY: as of `Metric`.
unsafe impl Send for FamilyHandle {}
// SAFETY: as above.
unsafe impl Sync for FamilyHandle {}

impl Drop for FamilyHandle {
    fn drop(&mut self) {
        // SAFETY: ours; every metric holds the family, so none is left.
        let _ = unsafe { Error::check(abi::TRITONSERVER_MetricFamilyDelete(self.0.as_ptr())) };
    }
}

/// The buckets of a histogram, as the server takes them.
struct Arguments {
    raw: NonNull<abi::TRITONSERVER_MetricArgs>,
    delete: DeleteArguments,
}

impl Arguments {
    fn new(buckets: &[f64]) -> Result<Self, Error> {
        let (new, set) = (NEW_ARGUMENTS.require()?, SET_BUCKETS.require()?);
        let delete = DELETE_ARGUMENTS.require()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable.
        unsafe { Error::check(new(&raw mut raw))? };
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null metric arguments"))?;
        let arguments = Arguments { raw, delete };
        // SAFETY: the arguments are live; the bounds are copied.
        unsafe {
            Error::check(set(raw.as_ptr(), buckets.as_ptr(), buckets.len() as u64))?;
        }
        Ok(arguments)
    }
}

impl Drop for Arguments {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody afterwards. Nobody is left to hear of an error.
        let _ = unsafe { Error::check((self.delete)(self.raw.as_ptr())) };
    }
}
