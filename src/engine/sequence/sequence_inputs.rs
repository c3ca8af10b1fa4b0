//! Prepares the batches of one core: gives each request of a sequence its controls and its
//! sequence's states, and fills the rows that have no request. On the core's own thread, outside
//! the lock: what it keeps belongs to the slots of its instances, which nobody else executes.

use std::sync::{Arc, Mutex};

use conch_config::{Scheduling, SequenceStrategy};
use conch_memory::Pool;
use conch_scheduler::SchedulerOutput;

use crate::model::states::{InitialStates, SequenceStates};
use crate::request::context::ReturnGuard;
use crate::request::synthetic::null;
use crate::sequence::controls::ControlInputs;
use crate::{Batch, ModelVersion, OwnedRequest, SequenceFlags};

/// Adds control inputs and states to the batches of one core.
pub(crate) struct SequenceInputs {
    model: Arc<ModelVersion>,
    core: usize,
    controls: ControlInputs,
    states: Option<SlotStates>,
    /// The row of a request in its batch is its slot.
    is_direct: bool,
    /// The scheduler wants to know when requests come back.
    awaits: bool,
    /// The batch that was before.
    spare: Batch,
}

/// The implicit states of the slots, by instance.
struct SlotStates {
    start: InitialStates,
    pool: Arc<Pool>,
    slots: Vec<Vec<Option<Arc<Mutex<SequenceStates>>>>>,
}

impl SequenceInputs {
    /// That of core number `core`; none if `model` has no sequences.
    pub(crate) fn new(
        model: &Arc<ModelVersion>,
        core: usize,
        instance_count: usize,
    ) -> Option<SequenceInputs> {
        let Scheduling::Sequence(settings) = &model.config.scheduling else {
            return None;
        };
        let is_direct = matches!(settings.strategy, SequenceStrategy::Direct { .. });
        let states = model.states.as_ref().map(|(start, pool)| SlotStates {
            start: start.clone(),
            pool: Arc::clone(pool),
            slots: vec![Vec::new(); instance_count],
        });
        Some(SequenceInputs {
            model: Arc::clone(model),
            core,
            controls: ControlInputs::new(settings, model.config.is_batching()),
            states,
            is_direct,
            awaits: !is_direct || settings.is_iterative,
            spare: Batch::new(),
        })
    }

    /// Makes of the requests that the scheduler gave out what the instance executes.
    pub(crate) fn prepare(&mut self, output: &mut SchedulerOutput<OwnedRequest>) {
        if self.is_direct {
            self.fill_rows(output);
        }
        let mut rows = output.rows.drain(..);
        for live in &mut output.batch {
            if live.is_null {
                self.controls.attach_to_null(live);
                if let Some(stock) = &self.states {
                    // The slot's own states are not for it.
                    live.attach_states(&stock.fresh());
                }
                continue;
            }
            let Some(row) = rows.next() else {
                debug_assert!(false, "as many rows as requests");
                break;
            };
            self.controls.attach(live);
            if let Some(stock) = &mut self.states {
                let states = stock.of(output.instance, row, live.sequence_flags);
                live.attach_states(&states);
            }
            if self.awaits {
                live.return_guard = Some(ReturnGuard::new(live.handle(), self.core));
            }
        }
    }

    /// Puts each request into the row of its slot, and null requests into the rows without one.
    fn fill_rows(&mut self, output: &mut SchedulerOutput<OwnedRequest>) {
        let is_dense = output.rows.iter().copied().eq(0..output.row_count);
        if is_dense {
            return;
        }
        let Some(template) = output.batch.first() else {
            return;
        };
        let empty_count = output.row_count.saturating_sub(output.batch.len());
        let mut nulls: Vec<OwnedRequest> = (0..empty_count)
            .map(|_| null(&self.model, template))
            .collect();
        for (live, row) in output.batch.drain(..).zip(&output.rows) {
            let missing_count = row.saturating_sub(self.spare.len());
            let kept_count = nulls.len().saturating_sub(missing_count);
            self.spare.extend(nulls.drain(kept_count..));
            self.spare.push(live);
        }
        self.spare.append(&mut nulls);
        std::mem::swap(&mut self.spare, &mut output.batch);
    }
}

impl SlotStates {
    fn fresh(&self) -> Arc<Mutex<SequenceStates>> {
        Arc::new(Mutex::new(SequenceStates::new(&self.start, &self.pool)))
    }

    /// The states for a request with these flags in this slot.
    fn of(
        &mut self,
        instance: usize,
        row: usize,
        flags: SequenceFlags,
    ) -> Arc<Mutex<SequenceStates>> {
        let slots = &mut self.slots[instance];
        if slots.len() <= row {
            slots.resize(row + 1, None);
        }
        let kept = slots[row].take().filter(|_| !flags.is_start());
        let states = kept.unwrap_or_else(|| self.fresh());
        if !flags.is_end() {
            self.slots[instance][row] = Some(Arc::clone(&states));
        }
        states
    }
}
