//! Times of a request.

/// Monotonic clock readings, ns; 0 until reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timestamps {
    /// The request was admitted.
    pub request_start_ns: u64,
    /// It entered the model's queue.
    pub queue_start_ns: u64,
    /// Absolute client deadline, 0 for none.
    pub deadline_ns: u64,
}
