//! How a request of an ensemble is answered, given up and counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use conch_log as log;
use smallvec::SmallVec;

use crate::clock::monotonic_ns;
use crate::ensemble::run::Execution;
use crate::ensemble::tensor::TensorData;
use crate::model::stats::{ExecutionSpan, FailureReason};
use crate::request::messages::RequestIdPrefix;
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::request::trace::TraceActivity;
use crate::{Code, Error, Response, ResponseParts};

impl Execution {
    /// The final delivery, after the request has been given up if nothing refers to it any more.
    pub(super) fn end(&self, last: Option<Result<Response, Error>>, has_answered: bool) {
        let origin = self.handle.shared();
        let mut state = self.state();
        let outcome = match (state.failure.clone(), last) {
            (Some(error), _) => Some(Err(error)),
            (None, Some(answer)) => Some(answer),
            (None, None) if has_answered || origin.model.config.is_decoupled => None,
            (None, None) => Some(Err(self.deadlock())),
        };
        if let (Some(Err(error)), None) = (&outcome, &state.failure) {
            state.failure = Some(error.clone());
        }
        drop(state);
        let is_given_up = self.close_one();
        self.deliver_outcome(outcome, true);
        if is_given_up {
            origin.model.free();
        }
    }

    fn deadlock(&self) -> Error {
        let origin = self.handle.shared();
        Error::invalid(format!(
            "in ensemble '{}', {}unexpected deadlock, at least one output is not set while no more \
             ensemble steps can be made",
            origin.model.name,
            RequestIdPrefix(&origin.id)
        ))
    }

    pub(super) fn deliver_outcome(&self, outcome: Option<Result<Response, Error>>, is_final: bool) {
        let origin = self.handle.shared();
        if let (Some(credits), Some(Ok(response)), false) =
            (&origin.features.credits, &outcome, is_final)
        {
            credits.charge(response.byte_size());
        }
        origin
            .completion
            .deliver(origin.delivery(outcome, is_final));
    }

    /// The ensemble's response from the values of its wanted outputs.
    ///
    /// # Errors
    /// Without memory for what has to be copied.
    pub(super) fn response(&self, values: SmallVec<[TensorData; 1]>) -> Result<Response, Error> {
        let origin = self.handle.shared();
        let (model, budget) = (&origin.model, origin.features.budget.as_ref());
        let config = &model.config;
        let state = self.state();
        let trace = state
            .live
            .as_ref()
            .and_then(|live| live.observer()?.trace());
        let wanted = state.live.as_ref().map(|live| &live.requested_outputs);
        let is_batching = state.live.as_ref().is_some_and(|live| live.batch_size > 0);
        let mut parameters = Vec::new();
        let mut outputs = SmallVec::new();
        for (position, value) in values.into_iter().enumerate() {
            let index = match wanted {
                Some(wanted) if !wanted.is_empty() => wanted.get(position).map(|i| usize::from(*i)),
                _ => Some(position),
            };
            let spec = index.and_then(|index| config.outputs.get(index));
            let (Some(spec), Some(tensor)) = (spec, value.tensor) else {
                if let Some(spec) = spec {
                    log::verbose!(1, "Composing models did not output tensor {}", spec.name);
                }
                continue;
            };
            outputs.push(tensor.into_output(spec, is_batching, budget)?);
            if let Some(sequence) = value.sequence
                && parameters.is_empty()
            {
                parameters = sequence.parameters();
            }
        }
        drop(state);
        if let Some(trace) = trace {
            trace.show_outputs(TraceActivity::TensorBackendOutput, &outputs, budget);
        }
        Ok(Response::from(ResponseParts {
            model: Arc::clone(model),
            outputs,
            parameters,
        }))
    }

    /// One reason less to keep the request. The last gives it up and counts it; returns whether
    /// this was the last. Its place is then to be freed, although something may still refer to a
    /// step.
    pub(super) fn close_one(&self) -> bool {
        // AcqRel: who gives it up sees what the others noted.
        if self.open_count.fetch_sub(1, Ordering::AcqRel) > 1 {
            return false;
        }
        let (live, started_ns, failure) = {
            let mut state = self.state();
            let Some(live) = state.live.take() else {
                return true;
            };
            (live, state.started_ns, state.failure.clone())
        };
        let statistics = &self.handle.shared().model.statistics;
        if let Some(error) = failure {
            let duration_ns = monotonic_ns().saturating_sub(live.timestamps.request_start_ns);
            if error.code == Code::Cancelled && self.handle.was_cancelled() {
                statistics.report_failure(FailureReason::Canceled, duration_ns);
            } else {
                // Upstream counts the ensemble's request and once more its failed step, both for
                // the ensemble (L0_model_queue).
                statistics.report_failure(FailureReason::Other, duration_ns);
                statistics.report_failure(FailureReason::Other, duration_ns);
            }
        } else {
            let [input_ns, infer_ns, output_ns] =
                [0, 1, 2].map(|part| self.spans_ns[part].load(Ordering::Relaxed));
            // The sums of the steps, one after the other.
            let span = ExecutionSpan {
                exec_start_ns: started_ns,
                compute_start_ns: after(started_ns, &[input_ns]),
                compute_end_ns: after(started_ns, &[input_ns, infer_ns]),
                exec_end_ns: after(started_ns, &[input_ns, infer_ns, output_ns]),
            };
            let count = u64::from(live.batch_count());
            statistics.report_request(None, true, &live.timestamps, count, &span);
            statistics.report_batch(None, count, &span);
        }
        let id = &self.handle.shared().id;
        request_log::log_change(id, RequestState::Executing, RequestState::Released);
        if self.is_abandoned.load(Ordering::Relaxed) {
            live.abandon();
            // Its inputs stay: a device may still read them.
            std::mem::forget(live);
        } else {
            drop(live);
        }
        true
    }
}

/// The parts are backends' word.
fn after(start_ns: u64, parts_ns: &[u64]) -> u64 {
    parts_ns
        .iter()
        .fold(start_ns, |sum, part| sum.saturating_add(*part))
}
