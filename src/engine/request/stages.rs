//! When a request reached its stages, for who asked to tell where a slow one spent its time.
//!
//! Made by the caller, who keeps it, and set as a feature of the request; the engine and the C
//! boundary write it from whatever thread is at work, without a lock. A request without it pays for
//! one `Option` per stage. The figures of a request that is executed several times are those of the
//! last time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::error::Code;
use crate::request::timestamps::Timestamps;

/// Steps of one ensemble's request that are kept.
const STEPS_MAX: usize = 64;

/// What a request reaches, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RequestStage {
    /// It was submitted.
    Start,
    /// It entered its model's inbox.
    Queued,
    /// A core took it out of the inbox, and waits for a batch and an instance.
    Accepted,
    /// An instance has it.
    Executing,
    /// The backend has read its inputs.
    ComputeStart,
    ComputeEnd,
    /// The backend has made its outputs.
    Executed,
}

const STAGE_COUNT: usize = RequestStage::Executed as usize + 1;

/// See the module.
#[derive(Debug, Default)]
pub struct StageTimes {
    /// Monotonic ns; 0: not reached.
    reached_ns: [AtomicU64; STAGE_COUNT],
    /// 0: it was not executed.
    batch_size: AtomicU32,
    /// The first that executed it.
    instance: OnceLock<Box<str>>,
    /// Of its first error.
    failure: OnceLock<Code>,
    steps: Mutex<Vec<StepStages>>,
}

/// A step of an ensemble.
#[derive(Clone, Debug)]
pub struct StepStages {
    pub model: Arc<str>,
    pub times: Arc<StageTimes>,
}

impl StageTimes {
    /// Monotonic ns; 0: not reached.
    pub fn at(&self, stage: RequestStage) -> u64 {
        self.reached_ns[stage as usize].load(Ordering::Relaxed)
    }

    pub fn reach(&self, stage: RequestStage, now_ns: u64) {
        self.reached_ns[stage as usize].store(now_ns, Ordering::Relaxed);
    }

    pub(crate) fn note_admission(&self, timestamps: &Timestamps) {
        self.reach(RequestStage::Start, timestamps.request_start_ns);
        self.reach(RequestStage::Queued, timestamps.queue_start_ns);
    }

    /// An error is on its way to who asked.
    pub(crate) fn note_failure(&self, code: Code) {
        // Only the first counts.
        let _ = self.failure.set(code);
    }

    /// `batch_size` inferences go to that instance together.
    pub(crate) fn note_execution(&self, instance: &str, batch_size: u32, now_ns: u64) {
        self.reach(RequestStage::Executing, now_ns);
        self.batch_size.store(batch_size, Ordering::Relaxed);
        self.instance.get_or_init(|| instance.into());
    }

    /// The times of a step's request to `model`, if they are kept.
    pub(crate) fn step(&self, model: &Arc<str>) -> Option<Arc<StageTimes>> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.len() >= STEPS_MAX {
            return None;
        }
        let times = Arc::<StageTimes>::default();
        steps.push(StepStages {
            model: Arc::clone(model),
            times: Arc::clone(&times),
        });
        Some(times)
    }

    /// How many inferences were executed together; 0: it was not executed.
    pub fn batch_size(&self) -> u32 {
        self.batch_size.load(Ordering::Relaxed)
    }

    pub fn instance(&self) -> Option<&str> {
        self.instance.get().map(|name| &**name)
    }

    pub fn failure(&self) -> Option<Code> {
        self.failure.get().copied()
    }

    /// Those of an ensemble's request, in the order in which they began.
    pub fn steps(&self) -> Vec<StepStages> {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_kept_up_to_a_bound() {
        let times = StageTimes::default();
        for index in 0..STEPS_MAX + 1 {
            let step = times.step(&format!("step {index}").into());
            assert_eq!(step.is_some(), index < STEPS_MAX);
        }
        assert_eq!(times.steps().len(), STEPS_MAX);
        assert_eq!(&*times.steps()[1].model, "step 1");
    }
}
