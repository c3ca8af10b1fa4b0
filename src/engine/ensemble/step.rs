//! The steps of a run: their places and their pace, and the requests that they are.

use std::sync::{Arc, Mutex, PoisonError};

use conch_config::ResolvedConfig;
use conch_scheduler::ensemble_graph::StepStart;

use crate::admission::engine::{RequestTarget, enter_step};
use crate::admission::submit;
use crate::clock::monotonic_ns;
use crate::ensemble::execution_state::{DecoupledStep, ExecutionState, StepRun};
use crate::ensemble::run::{Execution, StepEvent};
use crate::ensemble::tensor::{StepSequence, TensorData};
use crate::ensemble::{inline, run_queue};
use crate::flow_control::decoupled_step::FlowControl;
use crate::gpus::GpuHost;
use crate::request::context::RequestHandle;
use crate::request::draft::{Draft, DraftInput, DraftInputs};
use crate::request::features::DeviceOutputs;
use crate::request::inline::InlineOffer;
use crate::request::messages::RequestIdPrefix;
use crate::request::timestamps::Timestamps;
use crate::request::trace::Trace;
use crate::{Completion, Credits, Error, InFlightPermit, ModelVersion, RequestObserver};

impl Execution {
    /// Starts a step, or lets it wait for its place.
    pub(super) fn start(&self, start: StepStart<TensorData>) {
        let mut state = self.state();
        if state.failure.is_some() {
            state.end_run(start.step);
            return;
        }
        if let Some(limit) = self.ensemble.limits.get(start.step) {
            let name = state.waiting_count;
            state.waiting_count += 1;
            if !limit.enter(|| self.shared(), name) {
                state.waiting.push((name, start));
                return;
            }
        }
        drop(state);
        self.start_in_place(start);
    }

    /// Gives back the place of a step's request that is over, to the next in line.
    pub(super) fn release_place(&self, step: usize) {
        let Some(limit) = self.ensemble.limits.get(step) else {
            return;
        };
        if let Some((next, name)) = limit.release() {
            next.arrive(StepEvent::Place { step, name });
            run_queue::drive(next);
        }
    }

    /// Admits and submits a step's request. What keeps it from that fails the ensemble.
    pub(super) fn start_in_place(&self, start: StepStart<TensorData>) {
        let step = start.step;
        let submitted = self.admit(start).and_then(|handle| {
            let slot = handle.shared().slot;
            let model = Arc::clone(&handle.shared().model);
            // A decoupled step may have to wait for those behind it.
            let mut offer = match model.config.is_decoupled || !self.state().is_offered {
                true => InlineOffer::none(),
                false => inline::step_offer(),
            };
            let submitted = model.submit(handle, &mut offer);
            if let Some(turn) = offer.into_turn() {
                inline::owe(turn);
            }
            submitted.inspect_err(|_| self.state().free(slot))
        });
        if let Err(error) = submitted {
            let mut state = self.state();
            state.end_run(step);
            self.fail(&mut state, error);
            drop(state);
            self.release_place(step);
        }
    }

    /// The pace of a decoupled step in this request.
    fn flow(&self, state: &mut ExecutionState, step: usize) -> Arc<FlowControl> {
        let ExecutionState {
            decoupled_steps,
            pins,
            ..
        } = state;
        if let Some(known) = decoupled_steps.iter().find(|known| known.step == step) {
            return Arc::clone(&known.flow);
        }
        let mut followers = self.ensemble.graph.followers(step);
        let runs_same = |other: &usize| match (pins.get(step), pins.get(*other)) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        };
        let (patience, mut window) = (self.ensemble.patience(), self.ensemble.window());
        if followers.iter().any(runs_same) {
            followers.clear();
        }
        if followers.is_empty() {
            // The reader alone sets the pace.
            window = u64::MAX;
        }
        let reader = self.handle.shared().features.credits.clone();
        let flow = FlowControl::new(window, patience, reader);
        decoupled_steps.push(DecoupledStep {
            step,
            followers,
            flow: Arc::clone(&flow),
        });
        flow
    }

    /// Lets decoupled steps answer as far as the steps behind them have come.
    pub(super) fn limit_decoupled_steps(&self, state: &ExecutionState) {
        let Some(dataflow) = state
            .dataflow
            .as_ref()
            .filter(|dataflow| !dataflow.is_failed())
        else {
            return;
        };
        let graph = &self.ensemble.graph;
        for decoupled in state
            .decoupled_steps
            .iter()
            .filter(|decoupled| !decoupled.followers.is_empty())
        {
            let behind = decoupled
                .followers
                .iter()
                .filter_map(|step| state.counts.get(*step));
            let held = dataflow.held_count(graph) as u64;
            let behind = behind.copied().max().unwrap_or(0).max(held);
            let room = self.ensemble.window().saturating_sub(behind);
            decoupled
                .flow
                .allow(dataflow.response_count(decoupled.step) + room);
        }
    }

    /// Makes the step's request. Observers are told of it, so this happens outside of the lock.
    fn admit(&self, start: StepStart<TensorData>) -> Result<RequestHandle, Error> {
        let StepStart {
            step,
            iteration,
            inputs: values,
        } = start;
        let mut state = self.state();
        let (permit, sequence) = self.enter(&state, step, &values)?;
        let config = Arc::clone(&permit.config);
        let (mut draft, timestamps) = self.draft(&state, step, &sequence)?;
        let observer = state
            .live
            .as_ref()
            .and_then(|live| live.observer().cloned());
        if config.is_decoupled {
            let flow = self.flow(&mut state, step);
            draft.features.credits = Some(Arc::new(Credits::of_step(flow)));
        }
        let slot = state.reserve();
        drop(state);
        draft.inputs = self.inputs(step, &values, &config);
        draft.observer = observer.and_then(|observer| self.traced(&*observer, &permit));
        let stages = &self.handle.shared().features.stages;
        draft.features.stages = stages.as_ref().and_then(|stages| stages.step(&permit.name));
        let own = self.shared();
        let completion = Arc::clone(&own) as Arc<dyn Completion>;
        let guard = own.step_guard();
        let admitted = submit::admit_step(permit, &mut draft, &completion, slot, timestamps, guard);
        let mut state = self.state();
        match &admitted {
            Ok(handle) => {
                let batch_count = handle.shared().facts.batch_count;
                state.put(
                    slot,
                    StepRun {
                        step,
                        iteration,
                        is_decoupled: config.is_decoupled,
                        batch_size: if config.is_batching() { batch_count } else { 0 },
                        sequence,
                        handle: Arc::downgrade(handle),
                    },
                );
            }
            Err(_) => state.free(slot),
        }
        admitted
    }

    /// The permit of the step's request, and the sequence that it is part of.
    fn enter(
        &self,
        state: &ExecutionState,
        step: usize,
        values: &[TensorData],
    ) -> Result<(InFlightPermit, StepSequence), Error> {
        let pin = state
            .pins
            .get(step)
            .ok_or_else(|| Error::internal("the step has no model"))?;
        let sequence = self.sequence_of(values, &state.sequence, &pin.name);
        let permit = enter_step(
            pin,
            RequestTarget {
                model: pin,
                version: self.ensemble.version_of(step),
                id: &self.handle.shared().id,
                tenant: None,
                correlation_id: &sequence.id,
                sequence_flags: sequence.flags,
                keeps_kind: true,
            },
        )?;
        Ok((permit, sequence))
    }

    /// What the step's request takes over from the ensemble's: all but inputs and observer.
    fn draft(
        &self,
        state: &ExecutionState,
        step: usize,
        sequence: &StepSequence,
    ) -> Result<(Draft<'_>, Timestamps), Error> {
        let origin = self.handle.shared();
        let live = state
            .live
            .as_ref()
            .ok_or_else(|| Error::internal("the request is gone"))?;
        let outputs = &self.ensemble.graph.steps[step].outputs;
        let mut draft = Draft {
            id: &origin.id,
            correlation_id: sequence.id.clone(),
            sequence_flags: sequence.flags,
            priority: live.priority,
            timeout_us: live.timeout_us,
            parameters: live.parameters.clone(),
            requested_outputs: outputs.iter().map(|(name, _)| &**name).collect(),
            ..Draft::default()
        };
        draft.features.budget = origin.features.budget.clone();
        if GpuHost::is_in_use() {
            draft.features.device_outputs = Some(Box::new(self.device_outputs(state, step)));
        }
        let timestamps = Timestamps {
            request_start_ns: monotonic_ns(),
            queue_start_ns: 0,
            deadline_ns: live.timestamps.deadline_ns,
        };
        Ok((draft, timestamps))
    }

    /// Those of a step's outputs that the model of another step may read on a GPU.
    fn device_outputs(&self, state: &ExecutionState, step: usize) -> DeviceOutputs {
        let graph = &self.ensemble.graph;
        let is_on_gpu = |step: &usize| {
            let pin = state.pins.get(*step);
            pin.is_some_and(|pin| pin.config.uses_gpus())
        };
        let outputs = graph.steps[step].outputs.iter();
        let read = outputs.filter(|(_, tensor)| graph.readers(*tensor).iter().any(is_on_gpu));
        let names = read.map(|(name, _)| Arc::clone(name)).collect();
        DeviceOutputs { names }
    }

    /// The values that there are, as inputs of the step's model.
    fn inputs(
        &self,
        step: usize,
        values: &[TensorData],
        config: &ResolvedConfig,
    ) -> DraftInputs<'_> {
        let inputs = &self.ensemble.graph.steps[step].inputs;
        let named = inputs.iter().zip(values).filter_map(|((name, _), value)| {
            let tensor = value.tensor.as_ref()?;
            let dims = config.input(name).map_or(&[][..], |(_, spec)| &spec.dims);
            Some(DraftInput {
                name,
                data_type: tensor.data_type,
                shape: tensor.shape_for(dims, config.is_batching()),
                chunks: tensor.chunks.clone(),
            })
        });
        named.collect()
    }

    /// The observer of the step's request, if the ensemble's is traced.
    fn traced(
        &self,
        observer: &dyn RequestObserver,
        model: &ModelVersion,
    ) -> Option<Arc<dyn RequestObserver>> {
        let id = &self.handle.shared().id;
        let trace = observer.trace()?;
        let child = trace.sink().spawn(&model.name, model.version, id)?;
        Some(Arc::new(StepTraceObserver(Mutex::new(Some(child)))))
    }

    /// The sequence that a step's request is part of: that of the runs that made its inputs, else
    /// the ensemble's own.
    fn sequence_of(&self, values: &[TensorData], own: &StepSequence, model: &str) -> StepSequence {
        let mut told = values.iter().filter_map(|value| value.sequence.as_ref());
        let Some(first) = told.next() else {
            return own.clone();
        };
        if told.any(|other| other != first) {
            // In upstream's words.
            conch_log::error!(
                "{}Different set of response parameters are set for '{model}'. Parameter \
                 correlation ID {:?}, flags {} is used.",
                RequestIdPrefix(&self.handle.shared().id),
                first.id,
                first.flags
            );
        }
        first.clone()
    }
}

/// The observer of a step whose request is traced.
struct StepTraceObserver(Mutex<Option<Trace>>);

impl RequestObserver for StepTraceObserver {
    fn trace(&self) -> Option<Trace> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn released(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
