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
use conch_memory::ByteView;

use crate::clock::monotonic_ns;
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

    /// Shows inputs; those in several pieces are put together for it, on the host.
    pub fn show_inputs(&self, activity: TraceActivity, inputs: &[Input]) {
        if !self.sink.wants_tensors() {
            return;
        }
        for input in inputs {
            let whole;
            let data = match input.chunks.as_slice() {
                [] => continue,
                // A shard may be here, and must not wait for a device.
                [only] if !only.place().is_host() => continue,
                // Shown as it is now; what the backend finds there may be different.
                [only] if only.is_shared() => {
                    // Without memory for it a tensor is not shown.
                    let Ok(copy) = only.try_to_private() else {
                        continue;
                    };
                    whole = copy;
                    &whole
                }
                [only] => only,
                chunks if chunks.iter().all(|chunk| chunk.place().is_host()) => {
                    let Ok(joined) = ByteView::try_join(chunks) else {
                        continue;
                    };
                    whole = joined;
                    &whole
                }
                _ => continue,
            };
            self.sink.showed(
                activity,
                &TracedTensor {
                    name: &input.name,
                    data_type: input.data_type,
                    shape: &input.shape,
                    data,
                },
            );
        }
    }

    pub fn show_outputs(&self, activity: TraceActivity, outputs: &[crate::Output]) {
        if !self.sink.wants_tensors() {
            return;
        }
        for output in outputs
            .iter()
            .filter(|output| output.data.place().is_host())
        {
            let Ok(data) = output.data.try_to_private() else {
                continue;
            };
            self.sink.showed(
                activity,
                &TracedTensor {
                    name: &output.name,
                    data_type: output.data_type,
                    shape: &output.shape,
                    data: &data,
                },
            );
        }
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
