//! The state of one request of an ensemble: its dataflow, and the requests of its steps.

use conch_scheduler::ensemble_graph::{Dataflow, DataflowProgress, StepStart};
use std::sync::Arc;

use crate::Error;
use crate::ensemble::inline::InlineSteps;
use crate::ensemble::tensor::{StepSequence, TensorData};
use crate::flow_control::decoupled_step::FlowControl;
use crate::model::version::Pin;
use crate::request::context::{OwnedRequest, RequestHandle, WeakRequestHandle};

/// Locked by [`Execution`](crate::ensemble::run::Execution).
#[derive(Default)]
pub(super) struct ExecutionState {
    pub(super) live: Option<OwnedRequest>,
    /// Ensembles that it is inside of.
    pub(super) depth: u32,
    pub(super) started_ns: u64,
    /// None until it begins, and once it is over.
    pub(super) dataflow: Option<Dataflow<TensorData>>,
    pub(super) pins: Box<[Pin]>,
    pub(super) sequence: StepSequence,
    pub(super) steps: Vec<Option<StepRun>>,
    free_slots: Vec<u32>,
    /// Requests in flight or waiting, by step; empty unless a step is decoupled.
    pub(super) counts: Vec<u64>,
    /// Steps that wait for a place, by names of their own.
    pub(super) waiting: Vec<(u64, StepStart<TensorData>)>,
    pub(super) waiting_count: u64,
    /// Of decoupled steps that run, or did.
    pub(super) decoupled_steps: Vec<DecoupledStep>,
    pub(super) failure: Option<Error>,
    /// Steps' requests that are not wanted any more, until they are told so.
    pub(super) withdrawn: Vec<RequestHandle>,
    /// The submitter has offered to execute.
    pub(super) is_offered: bool,
    /// Of the submitter, from the beginning until it executes.
    pub(super) inline_steps: Option<InlineSteps>,
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

    pub(super) fn count(&mut self, progress: &DataflowProgress<TensorData>) {
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
