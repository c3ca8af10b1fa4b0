//! One request of an ensemble, from its first step to its answer.
//!
//! ```text
//!            ┌── a step answers, ends or is refused ◄─┐
//! begin ──► course ──► steps are admitted, submitted ─┘
//!            └──► the ensemble answers, and ends when nothing is in flight
//! ```
//!
//! Events arrive from any thread and wait in an outbox; whichever thread finds nobody else at it
//! takes them, one by one. The first error wins: nothing more starts, what still waits is
//! withdrawn, and the request is answered when the last step is over. The request itself (its
//! inputs, and what its observer is told) is given up when the ensemble has answered and no step's
//! request is left that may refer to it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conch_log as log;
use conch_scheduler::ensemble_graph::{Dataflow, DataflowProgress, StepStart};
use conch_sync::ClaimReason;
use smallvec::SmallVec;

use crate::admission::cancel::cancel;
use crate::clock::monotonic_ns;
use crate::ensemble::run_queue::QueuedRun;
use crate::ensemble::tensor::{StepSequence, TensorData};
use crate::ensemble::{Ensemble, run_queue, tensor};
use crate::flow_control::decoupled_step::FlowControl;
use crate::model::stats::{ExecutionSpan, FailureReason};
use crate::model::version::Pin;
use crate::request::context::{OwnedRequest, RequestHandle, WeakRequestHandle};
use crate::request::ensemble_run::{EnsembleRun, StepGuard};
use crate::request::messages::RequestIdPrefix;
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::request::trace::TraceActivity;
use crate::{Code, Completion, Delivery, Error, Response};

/// One request that runs through an ensemble.
pub(crate) struct Execution {
    pub(super) ensemble: Arc<Ensemble>,
    pub(super) handle: RequestHandle,
    own: Weak<Execution>,
    outbox: Mutex<ResponseOutbox>,
    /// Locked by the thread that attends, and at the end: uncontended.
    state: Mutex<ExecutionState>,
    /// Reasons why the request cannot be given up yet: the course, and each step's request.
    open_count: AtomicU32,
    /// What the steps' executions took: input, inference, output.
    spans_ns: [AtomicU64; 3],
}

#[derive(Default)]
struct ResponseOutbox {
    arrivals: VecDeque<StepEvent>,
    is_attended: bool,
}

// As large as what it nearly always is.
#[expect(clippy::large_enum_variant)]
pub(super) enum StepEvent {
    Begin,
    /// Steps that may start and were too many for one turn.
    Starts(Vec<StepStart<TensorData>>),
    /// From a step; the slot tells which.
    Delivery(Delivery),
    /// A place for a step that waited for one.
    Place {
        step: usize,
        name: u64,
    },
    /// The request is not wanted any more.
    Cancel,
}

#[derive(Default)]
pub(super) struct ExecutionState {
    pub(super) live: Option<OwnedRequest>,
    /// Ensembles that it is inside of.
    depth: u32,
    started_ns: u64,
    /// None until it begins, and once it is over.
    pub(super) dataflow: Option<Dataflow<TensorData>>,
    pub(super) pins: Box<[Pin]>,
    pub(super) sequence: StepSequence,
    steps: Vec<Option<StepRun>>,
    free_slots: Vec<u32>,
    /// Requests in flight or waiting, by step; empty unless a step is decoupled.
    pub(super) counts: Vec<u64>,
    /// Steps that wait for a place, by names of their own.
    pub(super) waiting: Vec<(u64, StepStart<TensorData>)>,
    pub(super) waiting_count: u64,
    /// Of decoupled steps that run, or did.
    pub(super) paces: Vec<DecoupledStep>,
    pub(super) failure: Option<Error>,
    /// Steps' requests that are not wanted any more, until they are told so.
    withdrawn: Vec<RequestHandle>,
}

/// A decoupled step and who sets its pace.
pub(super) struct DecoupledStep {
    pub(super) step: usize,
    /// The steps that wait for it; none if one of them runs the same model, as that must not wait
    /// for itself.
    pub(super) followers: Vec<usize>,
    pub(super) flow: Arc<FlowControl>,
}

/// A step's request that is under way.
pub(super) struct StepRun {
    pub(super) step: usize,
    pub(super) iteration: u64,
    pub(super) is_decoupled: bool,
    pub(super) batch_size: u32,
    pub(super) sequence: StepSequence,
    pub(super) handle: WeakRequestHandle,
}

impl Execution {
    /// Runs the request behind `handle`, unless somebody has claimed it.
    pub(super) fn begin(ensemble: &Arc<Ensemble>, handle: RequestHandle) {
        let run = Arc::new_cyclic(|own| Execution {
            ensemble: Arc::clone(ensemble),
            handle,
            own: Weak::clone(own),
            outbox: Mutex::default(),
            state: Mutex::default(),
            open_count: AtomicU32::new(1),
            spans_ns: Default::default(),
        });
        // Before the claim, so that a canceller that comes too late to take the request out finds
        // the run.
        let origin = run.handle.shared();
        origin
            .run
            .get_or_init(|| Arc::downgrade(&run) as Weak<dyn EnsembleRun>);
        let Some(mut live) = run.handle.claim(ClaimReason::Execute, None) else {
            return;
        };
        // It waits for nothing of its own.
        live.place = None;
        request_log::note(&origin.id, RequestState::Pending, RequestState::Executing);
        let depth = live.step.as_ref().map_or(0, StepGuard::depth_inside);
        {
            let mut state = run.state();
            state.depth = depth;
            state.live = Some(live);
        }
        run.arrive(StepEvent::Begin);
        run_queue::attend(run);
    }

    /// A guard for the request of one more step.
    pub(super) fn step_guard(self: &Arc<Self>) -> StepGuard {
        // Relaxed: the caller holds a reason already.
        self.open_count.fetch_add(1, Ordering::Relaxed);
        StepGuard::new(Arc::clone(self) as Arc<dyn EnsembleRun>)
    }

    /// Starts at most so many steps; returns how many.
    fn take(&self, arrival: StepEvent, starts_max: usize) -> usize {
        let mut progress = DataflowProgress::default();
        let mut state = self.state();
        match arrival {
            StepEvent::Begin => match self.set_out(&mut state) {
                Ok(first) => progress = first,
                Err(error) => self.fail(&mut state, error),
            },
            StepEvent::Starts(starts) => progress.starts = starts.into(),
            StepEvent::Delivery(delivery) => progress = self.book(&mut state, delivery),
            StepEvent::Place { step, name } => {
                let known = state.waiting.iter().position(|(known, _)| *known == name);
                match known {
                    Some(place) => {
                        let (_, start) = state.waiting.remove(place);
                        drop(state);
                        self.start_in_place(start);
                    }
                    // It was withdrawn meanwhile.
                    None => {
                        drop(state);
                        self.give_back_place(step);
                    }
                }
                self.go_on(progress);
                return 1;
            }
            StepEvent::Cancel => {
                if state.dataflow.is_some() {
                    self.fail(&mut state, Error::new(Code::Cancelled, ""));
                }
            }
        }
        if !progress.starts.is_empty() && self.handle.is_cancelled() {
            // Upstream marks the next steps as cancelled, which comes to the same.
            for start in progress.starts.drain(..) {
                state.end_run(start.step);
            }
            self.fail(&mut state, Error::new(Code::Cancelled, ""));
        }
        drop(state);
        if progress.starts.len() > starts_max {
            let rest = progress.starts.drain(starts_max..).collect();
            self.outbox().arrivals.push_front(StepEvent::Starts(rest));
        }
        let started_count = progress.starts.len();
        self.go_on(progress);
        started_count
    }

    /// Makes the course of the request and takes its first steps.
    fn set_out(&self, state: &mut ExecutionState) -> Result<DataflowProgress<TensorData>, Error> {
        let Some(live) = &state.live else {
            return Ok(DataflowProgress::default());
        };
        let graph = &self.ensemble.graph;
        let origin = self.handle.shared();
        let wanted: SmallVec<[usize; 4]> = match &*live.requested_outputs {
            [] => (0..graph.outputs.len()).collect(),
            some => some.iter().map(|index| usize::from(*index)).collect(),
        };
        state.sequence = StepSequence {
            id: live.correlation_id.clone(),
            flags: live.sequence_flags,
        };
        state.started_ns = monotonic_ns();
        let inputs = tensor::of_request(live, &origin.model.config);
        let dataflow = state.dataflow.insert(Dataflow::new(graph, wanted));
        if state.depth >= NESTING_MAX {
            return Err(Error::invalid(format!(
                "{}ensembles are nested more than {NESTING_MAX} deep",
                RequestIdPrefix(&origin.id)
            )));
        }
        state.pins = self.ensemble.pin(&origin.id)?;
        let progress = dataflow.begin(graph, inputs);
        if state.pins.iter().any(|pin| pin.config.is_decoupled) {
            state.counts = vec![0; graph.steps.len()];
        }
        state.count(&progress);
        Ok(progress)
    }

    /// Notes what a step has delivered.
    fn book(&self, state: &mut ExecutionState, delivery: Delivery) -> DataflowProgress<TensorData> {
        let Delivery {
            slot,
            outcome,
            is_final,
        } = delivery;
        let mut progress = DataflowProgress::default();
        let place = usize::try_from(slot).unwrap_or(usize::MAX);
        let known = state.steps.get_mut(place).and_then(Option::take);
        let Some(step_run) = known else {
            return progress;
        };
        match outcome {
            None => {}
            Some(Err(error)) => self.fail(state, error),
            Some(Ok(response)) => match self.pass_on(state, &step_run, response) {
                Ok(next) => {
                    state.count(&next);
                    progress = next;
                }
                Err(error) => self.fail(state, error),
            },
        }
        if is_final {
            state.free(slot);
            state.end_run(step_run.step);
            self.give_back_place(step_run.step);
        } else {
            state.put(slot, step_run);
        }
        progress
    }

    fn pass_on(
        &self,
        state: &mut ExecutionState,
        step_run: &StepRun,
        response: Response,
    ) -> Result<DataflowProgress<TensorData>, Error> {
        let Some(dataflow) = state
            .dataflow
            .as_mut()
            .filter(|dataflow| !dataflow.is_failed())
        else {
            return Ok(DataflowProgress::default());
        };
        let graph = &self.ensemble.graph;
        let StepRun {
            step,
            iteration,
            is_decoupled,
            batch_size,
            ref sequence,
            ..
        } = *step_run;
        let names = graph.steps[step].outputs.iter().map(|(name, _)| &**name);
        let outputs = tensor::of_response(response, names, batch_size, sequence)?;
        Ok(dataflow.respond(graph, step, iteration, is_decoupled, outputs))
    }

    /// The first error is the answer, once nothing is in flight.
    pub(super) fn fail(&self, state: &mut ExecutionState, error: Error) {
        if state.failure.is_some() {
            return;
        }
        let name = &self.handle.shared().model.name;
        state.failure = Some(Error::new(
            error.code,
            format!("in ensemble '{name}', {}", error.message),
        ));
        if let Some(dataflow) = &mut state.dataflow {
            dataflow.fail();
        }
        for (_, start) in std::mem::take(&mut state.waiting) {
            state.end_run(start.step);
        }
        for decoupled in &state.paces {
            decoupled.flow.close();
        }
        let under_way = state.steps.iter().flatten();
        state.withdrawn = under_way.filter_map(|run| run.handle.upgrade()).collect();
    }

    /// Answers, starts what is to start, and ends if that was all.
    fn go_on(&self, progress: DataflowProgress<TensorData>) {
        let DataflowProgress { starts, answers } = progress;
        let mut answers: SmallVec<[Result<Response, Error>; 1]> = answers
            .into_iter()
            .map(|answer| self.response(answer))
            .collect();
        for start in starts {
            self.start(start);
        }
        let mut state = self.state();
        self.set_paces(&state);
        let withdrawn = std::mem::take(&mut state.withdrawn);
        let (is_over, has_answered) = match &state.dataflow {
            Some(dataflow) => (dataflow.is_over(), dataflow.has_answered()),
            None => return,
        };
        let last = if is_over { answers.pop() } else { None };
        let origin = self.handle.shared();
        if is_over {
            state.dataflow = None;
            state.pins = Box::default();
            state.paces = Vec::new();
        }
        drop(state);
        // What it was is delivered to this run, which is being attended: it comes to that later.
        for handle in &withdrawn {
            cancel(handle).deliver();
        }
        let has_news = !answers.is_empty();
        for answer in answers {
            self.deliver_outcome(Some(answer), false);
        }
        if is_over {
            self.end(last, has_answered);
        }
        if has_news || is_over {
            origin.completion.wake();
        }
    }

    /// The final delivery, after the request has been given up if nothing refers to it any more.
    fn end(&self, last: Option<Result<Response, Error>>, has_answered: bool) {
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
            "in ensemble '{}', {}unexpected deadlock, at least one output is not set while no more ensemble steps can be made",
            origin.model.name,
            RequestIdPrefix(&origin.id)
        ))
    }

    fn deliver_outcome(&self, outcome: Option<Result<Response, Error>>, is_final: bool) {
        let origin = self.handle.shared();
        if let (Some(credits), Some(Ok(response)), false) = (&origin.credits, &outcome, is_final) {
            credits.charge(response.byte_size());
        }
        origin.completion.deliver(Delivery {
            slot: origin.slot,
            outcome,
            is_final,
        });
    }

    /// The ensemble's response from the values of its wanted outputs.
    ///
    /// # Errors
    /// Without memory for what has to be copied.
    fn response(&self, values: SmallVec<[TensorData; 2]>) -> Result<Response, Error> {
        let model = &self.handle.shared().model;
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
            outputs.push(tensor.into_output(spec, is_batching)?);
            if let Some(sequence) = value.sequence
                && parameters.is_empty()
            {
                parameters = sequence.parameters();
            }
        }
        drop(state);
        if let Some(trace) = trace {
            trace.show_outputs(TraceActivity::TensorBackendOutput, &outputs);
        }
        Ok(Response {
            model: Arc::clone(model),
            outputs,
            parameters,
        })
    }

    /// One reason less to keep the request. The last gives it up and counts it; returns whether
    /// this was the last. Its place is then to be freed, although something may still refer to a
    /// step.
    fn close_one(&self) -> bool {
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
            statistics.report_request(true, &live.timestamps, count, &span);
            statistics.report_batch(count, &span);
        }
        let id = &self.handle.shared().id;
        request_log::note(id, RequestState::Executing, RequestState::Released);
        drop(live);
        true
    }

    /// Itself; whoever calls it has it by such a reference.
    pub(super) fn own(&self) -> Arc<Execution> {
        self.own.upgrade().expect("it is in use")
    }

    pub(super) fn arrive(&self, arrival: StepEvent) {
        self.outbox().arrivals.push_back(arrival);
    }

    fn outbox(&self) -> MutexGuard<'_, ResponseOutbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ExecutionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts are backends' word.
fn after(start_ns: u64, parts_ns: &[u64]) -> u64 {
    parts_ns
        .iter()
        .fold(start_ns, |sum, part| sum.saturating_add(*part))
}

/// Loads refuse circles; should one arise all the same, its requests end here. Far beyond what
/// pipelines are nested.
pub const NESTING_MAX: u32 = 512;

impl ExecutionState {
    pub(super) fn reserve(&mut self) -> u64 {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.steps.push(None);
            // As many as are under way at a time.
            u32::try_from(self.steps.len() - 1).unwrap_or(u32::MAX)
        });
        u64::from(slot)
    }

    pub(super) fn put(&mut self, slot: u64, run: StepRun) {
        let place = usize::try_from(slot).ok();
        if let Some(empty) = place.and_then(|place| self.steps.get_mut(place)) {
            *empty = Some(run);
        }
    }

    pub(super) fn free(&mut self, slot: u64) {
        let Ok(slot) = u32::try_from(slot) else {
            return;
        };
        if let Some(place) = self.steps.get_mut(slot as usize) {
            *place = None;
            self.free_slots.push(slot);
        }
    }

    fn count(&mut self, progress: &DataflowProgress<TensorData>) {
        for start in &progress.starts {
            if let Some(count) = self.counts.get_mut(start.step) {
                *count += 1;
            }
        }
    }

    pub(super) fn end_run(&mut self, step: usize) {
        if let Some(count) = self.counts.get_mut(step) {
            *count -= 1;
        }
        if let Some(dataflow) = &mut self.dataflow {
            dataflow.end_run();
        }
    }
}

impl Completion for Execution {
    fn deliver(&self, delivery: Delivery) {
        self.arrive(StepEvent::Delivery(delivery));
    }

    fn wake(&self) {
        run_queue::attend(self.own());
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

impl QueuedRun for Execution {
    fn attend(&self, left: &mut usize) {
        let mut outbox = self.outbox();
        if std::mem::replace(&mut outbox.is_attended, true) {
            return;
        }
        while *left > 0 {
            let Some(arrival) = outbox.arrivals.pop_front() else {
                break;
            };
            drop(outbox);
            let started_count = self.take(arrival, *left);
            *left = left.saturating_sub(started_count.max(1));
            outbox = self.outbox();
        }
        outbox.is_attended = false;
        let is_left = !outbox.arrivals.is_empty();
        drop(outbox);
        // Neither many steps nor a model that answers faster than its answers are taken may keep
        // this thread, which may be a shard.
        if is_left {
            let (own, timer_thread) = (self.own(), &self.ensemble.timer_thread);
            timer_thread.call_at(0, move |_| run_queue::attend(own));
        }
    }

    fn collapse(&self) {
        let mut state = self.state();
        if state.dataflow.take().is_none() {
            return;
        }
        state.failure = Some(Error::internal("panic between the steps of an ensemble"));
        drop(state);
        self.end(None, false);
        self.handle.shared().completion.wake();
    }
}

impl EnsembleRun for Execution {
    fn cancel(&self) {
        self.arrive(StepEvent::Cancel);
        self.wake();
    }

    fn depth(&self) -> u32 {
        self.state().depth
    }

    fn note(&self, span: &ExecutionSpan) {
        let parts = [span.input_ns(), span.infer_ns(), span.output_ns()];
        for (sum, part) in self.spans_ns.iter().zip(parts) {
            // Relaxed: ordered by the count of reasons.
            sum.fetch_add(part, Ordering::Relaxed);
        }
    }

    fn release_step(&self) {
        if self.close_one() {
            self.handle.shared().model.free();
        }
    }
}
