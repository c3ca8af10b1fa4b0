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
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conch_scheduler::ensemble_graph::{Dataflow, DataflowProgress, StepStart};
use conch_sync::ClaimReason;
use smallvec::SmallVec;

use crate::admission::cancel::cancel;
use crate::clock::monotonic_ns;
use crate::ensemble::execution_state::{ExecutionState, StepRun};
use crate::ensemble::inline::{InlineGuard, InlineSteps};
use crate::ensemble::run_queue::QueuedRun;
use crate::ensemble::tensor::{StepSequence, TensorData};
use crate::ensemble::{Ensemble, run_queue, tensor};
use crate::model::stats::ExecutionSpan;
use crate::request::context::RequestHandle;
use crate::request::ensemble_run::{EnsembleRun, StepGuard};
use crate::request::inline::InlineOffer;
use crate::request::messages::RequestIdPrefix;
use crate::request::request_log;
use crate::request::request_log::RequestState;
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
    pub(super) open_count: AtomicU32,
    /// A device may use its inputs for good.
    pub(super) is_abandoned: AtomicBool,
    /// What the steps' executions took: input, inference, output.
    pub(super) spans_ns: [AtomicU64; 3],
}

#[derive(Default)]
struct ResponseOutbox {
    arrivals: VecDeque<StepEvent>,
    is_attended: bool,
}

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

impl Execution {
    /// Runs the request behind `handle`, unless somebody has claimed it. Takes the `offer` if its
    /// first step does.
    pub(super) fn begin(ensemble: &Arc<Ensemble>, handle: RequestHandle, offer: &mut InlineOffer) {
        let run = Arc::new_cyclic(|own| Execution {
            ensemble: Arc::clone(ensemble),
            handle,
            own: Weak::clone(own),
            outbox: Mutex::default(),
            state: Mutex::default(),
            open_count: AtomicU32::new(1),
            is_abandoned: AtomicBool::new(false),
            spans_ns: Default::default(),
        });
        // Before the claim, so that a canceller that comes too late to take the request out finds
        // the run.
        let origin = run.handle.shared();
        origin
            .features
            .run
            .get_or_init(|| Arc::downgrade(&run) as Weak<dyn EnsembleRun>);
        let Some(mut live) = run.handle.claim(ClaimReason::Execute, None) else {
            return;
        };
        // It waits for nothing of its own.
        live.place = None;
        request_log::log_change(&origin.id, RequestState::Pending, RequestState::Executing);
        let depth = live.step.as_ref().map_or(0, StepGuard::depth_inside);
        {
            let mut state = run.state();
            state.depth = depth;
            state.live = Some(live);
            state.is_offered = offer.is_open();
        }
        run.arrive(StepEvent::Begin);
        if !offer.is_open() {
            return run_queue::drive(run);
        }
        let guard = InlineGuard::open(InlineSteps::new(offer));
        // Where this thread is at another run, this one comes later, under the guard of that.
        run_queue::drive(Arc::clone(&run) as _);
        let owed = guard.close().filter(|owed| !owed.is_empty());
        if owed.is_some() {
            run.state().inline_steps = owed;
            offer.take(run);
        }
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
            StepEvent::Begin => {
                if let Err(error) = self.start_dataflow(&mut state, &mut progress) {
                    self.fail(&mut state, error);
                }
            }
            StepEvent::Starts(starts) => progress.starts = starts.into(),
            StepEvent::Delivery(delivery) => {
                self.record_delivery(&mut state, delivery, &mut progress);
            }
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
                        self.release_place(step);
                    }
                }
                self.apply_progress(&mut progress);
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
        self.apply_progress(&mut progress);
        started_count
    }

    /// Makes the course of the request and takes its first steps.
    fn start_dataflow(
        &self,
        state: &mut ExecutionState,
        progress: &mut DataflowProgress<TensorData>,
    ) -> Result<(), Error> {
        let Some(live) = &state.live else {
            return Ok(());
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
        dataflow.begin(graph, inputs, progress);
        if state.pins.iter().any(|pin| pin.config.is_decoupled) {
            state.counts = vec![0; graph.steps.len()];
        }
        state.count(progress);
        Ok(())
    }

    /// Notes what a step has delivered.
    fn record_delivery(
        &self,
        state: &mut ExecutionState,
        delivery: Delivery,
        progress: &mut DataflowProgress<TensorData>,
    ) {
        let (slot, is_final) = (delivery.slot(), delivery.is_final());
        let place = usize::try_from(slot).unwrap_or(usize::MAX);
        let known = state.steps.get_mut(place).and_then(Option::take);
        let Some(step_run) = known else {
            return;
        };
        match delivery.into_outcome() {
            None => {}
            Some(Err(error)) => self.fail(state, error),
            Some(Ok(response)) => {
                let accepted = self.accept_response(state, &step_run, response, progress);
                match accepted {
                    Ok(()) => state.count(progress),
                    Err(error) => self.fail(state, error),
                }
            }
        }
        if is_final {
            state.free(slot);
            state.end_run(step_run.step);
            self.release_place(step_run.step);
        } else {
            state.put(slot, step_run);
        }
    }

    fn accept_response(
        &self,
        state: &mut ExecutionState,
        step_run: &StepRun,
        response: Response,
        progress: &mut DataflowProgress<TensorData>,
    ) -> Result<(), Error> {
        let Some(dataflow) = state
            .dataflow
            .as_mut()
            .filter(|dataflow| !dataflow.is_failed())
        else {
            return Ok(());
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
        dataflow.respond(graph, step, iteration, is_decoupled, outputs, progress);
        Ok(())
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
        for decoupled in &state.decoupled_steps {
            decoupled.flow.close();
        }
        let under_way = state.steps.iter().flatten();
        state.withdrawn = under_way.filter_map(|run| run.handle.upgrade()).collect();
    }

    /// Answers, starts what is to start, and ends if that was all.
    fn apply_progress(&self, progress: &mut DataflowProgress<TensorData>) {
        let mut answers: SmallVec<[Result<Response, Error>; 1]> = progress
            .answers
            .drain(..)
            .map(|answer| self.response(answer))
            .collect();
        for start in progress.starts.drain(..) {
            self.start(start);
        }
        let mut state = self.state();
        self.limit_decoupled_steps(&state);
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
            state.decoupled_steps = Vec::new();
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

    /// Itself; whoever calls it has it by such a reference.
    pub(super) fn shared(&self) -> Arc<Execution> {
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

/// Loads refuse circles; should one arise all the same, its requests end here. Far beyond what
/// pipelines are nested.
pub const NESTING_MAX: u32 = 512;

impl Completion for Execution {
    fn deliver(&self, delivery: Delivery) {
        self.arrive(StepEvent::Delivery(delivery));
    }

    fn wake(&self) {
        run_queue::drive(self.shared());
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

impl QueuedRun for Execution {
    fn drive(&self, left: &mut usize) {
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
            let (own, timer_thread) = (self.shared(), &self.ensemble.timer_thread);
            timer_thread.call_at(0, move |_| run_queue::drive(own));
        }
    }

    fn abort(&self) {
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

    fn add_span(&self, span: &ExecutionSpan) {
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

    fn abandon_step(&self) {
        // Relaxed: ordered by the count of reasons.
        self.is_abandoned.store(true, Ordering::Relaxed);
        self.release_step();
    }
}
