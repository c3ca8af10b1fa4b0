//! The optional features of a request, beside what it says: most requests have none of them.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use conch_memory::Budget;

use crate::Credits;
use crate::clock::monotonic_ns;
use crate::request::ensemble_run::EnsembleRun;
use crate::request::response_turn::ResponseTurn;
use crate::request::stages::StageTimes;
use crate::request::timestamps::Timestamps;
use crate::shared_memory::RequestRegions;

/// Set by the caller in a [`crate::Draft`], completed by admission, and read by the feature's own
/// code through the request's [`crate::RequestContext`].
#[derive(Default)]
pub struct RequestFeatures {
    /// What each response but the final one is paid with: bounds the responses on their way, where
    /// the model may send many and a slow reader may read them.
    pub credits: Option<Arc<Credits>>,
    /// If a one-to-one model sends several responses, the first is the answer and the others are
    /// dropped; else they are an error. Set for requests of streams.
    pub takes_first: bool,
    /// The registered memory that inputs lie in and outputs are wanted in, until the final response
    /// has left.
    pub regions: Option<Arc<RequestRegions>>,
    /// The receiver takes outputs that may change until they are sent: it only passes them to the
    /// kernel.
    pub takes_lent: bool,
    /// What its responses are charged to; none: the process.
    pub budget: Option<Arc<Budget>>,
    /// Where its stages are noted, if anybody wants to know.
    pub stages: Option<Arc<StageTimes>>,
    /// Of an ensemble's step: the names of outputs that a step on a GPU reads. They stay on the
    /// device that they are made on.
    pub(crate) device_outputs: Option<Box<DeviceOutputs>>,
    /// In front of the receiver, under preserve-ordering.
    pub(crate) turn: Option<Arc<dyn ResponseTurn>>,
    /// The same object as the request's completion, if the model has a cache.
    pub(crate) deposit: Option<Arc<dyn Any + Send + Sync>>,
    /// What the time to its first response is measured by.
    pub(crate) first_response: FirstResponse,
    /// What became of it, if its model is an ensemble.
    pub(crate) run: OnceLock<Weak<dyn EnsembleRun>>,
}

/// When a request began, until its first response is sent; 0 then, and where nobody wants to know.
#[derive(Default)]
pub(crate) struct FirstResponse(AtomicU64);

impl FirstResponse {
    /// For a request that began then.
    pub(crate) fn new(start_ns: u64) -> FirstResponse {
        FirstResponse(AtomicU64::new(start_ns))
    }

    /// A response is sent. How long it took, if it is the first.
    #[inline]
    pub(crate) fn note(&self) -> Option<u64> {
        // The load first: nearly always nobody wants to know.
        if self.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // Relaxed: only who finds the start goes on.
        let start_ns = self.0.swap(0, Ordering::Relaxed);
        (start_ns != 0).then(|| monotonic_ns().saturating_sub(start_ns))
    }
}

/// Names of outputs that may stay on a device.
pub(crate) struct DeviceOutputs {
    pub(crate) names: Box<[Arc<str>]>,
}

impl RequestFeatures {
    /// The request is admitted.
    #[inline]
    pub(crate) fn begin(&mut self, first_response: FirstResponse, timestamps: &Timestamps) {
        self.first_response = first_response;
        if let Some(stages) = &self.stages {
            stages.note_admission(timestamps);
        }
    }

    /// Whether outputs may lie in memory that the plug-in lends.
    pub fn takes_lent(&self) -> bool {
        // A cache keeps outputs, and those of regions are copied there.
        self.takes_lent && self.deposit.is_none() && self.regions.is_none()
    }

    /// Whether an output's reader takes it where it is, on a GPU as well.
    #[inline]
    pub fn takes_on_device(&self, output: &str) -> bool {
        let Some(outputs) = &self.device_outputs else {
            return false;
        };
        // What a cache keeps lies in host memory.
        self.deposit.is_none() && outputs.names.iter().any(|name| **name == *output)
    }
}

impl fmt::Debug for RequestFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFeatures")
            .field("takes_first", &self.takes_first)
            .finish_non_exhaustive()
    }
}
