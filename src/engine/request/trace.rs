//! Traces of requests: times of their stages, and their tensors.
//!
//! A [`Trace`] is made by whoever asks (an embedder, a backend, a frontend) with a [`TraceSink`]
//! that takes the reports. It travels with the request; reports come from the thread that reaches
//! the station, several at once if the backend answers from several. A request without a trace pays
//! for one `Option`.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conch_config::DataType;
use conch_memory::{Budget, ByteView};

use crate::clock::monotonic_ns;
use crate::private_copy::{join, to_private};
use crate::tensor::Input;

/// A station of a request, numbered as in Triton's C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum TraceActivity {
    RequestStart = 0,
    QueueStart = 1,
    ComputeStart = 2,
    ComputeInputEnd = 3,
    ComputeOutputStart = 4,
    ComputeEnd = 5,
    RequestEnd = 6,
    TensorQueueInput = 7,
    TensorBackendInput = 8,
    TensorBackendOutput = 9,
    Custom = 10,
}

/// A tensor as a trace shows it. The bytes may be looked at during the report only.
#[derive(Debug)]
pub struct TracedTensor<'a> {
    pub name: &'a str,
    pub data_type: DataType,
    pub shape: &'a [i64],
    pub data: &'a ByteView,
}

/// Takes the reports of a trace. Called from any thread, without any lock held; must be quick.
pub trait TraceSink: Any + Send + Sync {
    /// The request reached a station at `timestamp_ns` (monotonic).
    fn reached(&self, activity: TraceActivity, timestamp_ns: u64);

    /// An activity of a backend's own, with a name that it chose.
    fn reported(&self, _name: &str, _timestamp_ns: u64) {}

    /// The number that its maker gave it; 0: none.
    fn id(&self) -> u64 {
        0
    }

    /// What carries the trace on to other systems that work on behalf of its request: a JSON object
    /// of the headers of W3C Trace Context. None: it goes no further.
    fn context(&self) -> Option<String> {
        None
    }

    /// Whether [`TraceSink::showed`] wants to be called at all.
    fn wants_tensors(&self) -> bool;

    /// A trace of what is done on behalf of this one's request: of a step's request to `model`.
    /// None: that is not traced.
    fn spawn(&self, _model: &Arc<str>, _version: i64, _request_id: &str) -> Option<Trace> {
        None
    }

    /// A tensor at one of the `Tensor…` stations.
    fn showed(&self, activity: TraceActivity, tensor: &TracedTensor<'_>);
}

/// The trace of one request. Dropping the last reference drops the sink, which is how its maker
/// learns of the end.
#[derive(Clone)]
pub struct Trace {
    sink: Arc<dyn TraceSink>,
}

impl Trace {
    pub fn new(sink: Arc<dyn TraceSink>) -> Trace {
        Trace { sink }
    }

    pub fn sink(&self) -> &Arc<dyn TraceSink> {
        &self.sink
    }

    pub fn reach(&self, activity: TraceActivity, timestamp_ns: u64) {
        self.sink.reached(activity, timestamp_ns);
    }

    pub fn reach_now(&self, activity: TraceActivity) {
        self.sink.reached(activity, monotonic_ns());
    }

    /// Shows inputs; those in several pieces are put together for it, on the host. What is copied
    /// for it is charged to `budget`.
    ///
    /// Those on a GPU are copied to the host, which blocks. A shard shows inputs that are queued
    /// and must not wait for a device, so they are shown at that station when the backend gets
    /// them, on its core: a client leaves them alone until it has its answer.
    pub fn show_inputs(
        &self,
        activity: TraceActivity,
        inputs: &[Input],
        budget: Option<&Arc<Budget>>,
    ) {
        if !self.sink.wants_tensors() {
            return;
        }
        for input in inputs {
            let is_host = input.chunks.iter().all(|chunk| chunk.place().is_host());
            let activities: &[TraceActivity] = match activity {
                _ if is_host => &[activity],
                TraceActivity::TensorBackendInput => &[TraceActivity::TensorQueueInput, activity],
                _ => &[],
            };
            // Without memory for it, or when the device fails, a tensor is not shown.
            if activities.is_empty() || input.chunks.is_empty() {
                continue;
            }
            // What a backend finds in shared memory may be different.
            let Ok(data) = join(&input.chunks, budget) else {
                continue;
            };
            for activity in activities {
                self.show(*activity, &input.name, input.data_type, &input.shape, &data);
            }
        }
    }

    /// Shows outputs, on a thread that may wait for the copy of those on a GPU. What is copied for
    /// it is charged to `budget`.
    pub fn show_outputs(
        &self,
        activity: TraceActivity,
        outputs: &[crate::Output],
        budget: Option<&Arc<Budget>>,
    ) {
        if !self.sink.wants_tensors() {
            return;
        }
        for output in outputs {
            if let Ok(data) = to_private(&output.data, budget) {
                self.show(
                    activity,
                    &output.name,
                    output.data_type,
                    &output.shape,
                    &data,
                );
            }
        }
    }

    fn show(
        &self,
        activity: TraceActivity,
        name: &str,
        data_type: DataType,
        shape: &[i64],
        data: &ByteView,
    ) {
        let tensor = TracedTensor {
            name,
            data_type,
            shape,
            data,
        };
        self.sink.showed(activity, &tensor);
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trace")
    }
}

/// The next trace's number: unique in the process, from 1, as 0 means "no parent".
pub fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
