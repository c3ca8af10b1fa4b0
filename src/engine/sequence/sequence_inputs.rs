//! Prepares the batches of one core: gives each request of a sequence its controls and its
//! sequence's states, and fills the rows that have no request. On the core's own thread, outside
//! the lock: what it keeps belongs to the slots of its instances, which nobody else executes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_config::{Scheduling, SequenceStrategy};
use conch_memory::Pool;
use conch_scheduler::SchedulerOutput;

use crate::model::states::{InitialStates, SequenceStates};
use crate::model::stats::FailureReason;
use crate::request::context::ReturnGuard;
use crate::request::refusal::refuse;
use crate::request::synthetic::null;
use crate::sequence::controls::ControlInputs;
use crate::sequence::growable_slots::{GrowableSlots, SlotPlace};
use crate::{Batch, Error, ModelVersion, OwnedRequest, PendingResponses, SequenceFlags};

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
    slots: Vec<Vec<Option<HeldStates>>>,
    /// Present if some of them lie in memory of the core's GPU.
    on_device: Option<DeviceStates>,
}

/// What a slot keeps of its sequence: its states, or why it could not begin.
type HeldStates = Result<Arc<Mutex<SequenceStates>>, Error>;

/// What states in a GPU's memory take beside.
struct DeviceStates {
    core: usize,
    device_id: i32,
    /// Gives their memory up when their sequence ends without a request.
    table: Arc<GrowableSlots>,
    /// For null requests.
    idle: Vec<Arc<Mutex<SequenceStates>>>,
}

impl SequenceInputs {
    /// That of core number `core`, whose instances are all of one device; none if `model` has no
    /// sequences. `table` is the model's.
    pub(crate) fn new(
        model: &Arc<ModelVersion>,
        core: usize,
        instance_count: usize,
        device_id: i32,
        table: &Arc<GrowableSlots>,
    ) -> Option<SequenceInputs> {
        let Scheduling::Sequence(settings) = &model.config.scheduling else {
            return None;
        };
        let is_direct = matches!(settings.strategy, SequenceStrategy::Direct { .. });
        let states = model.states.as_ref().map(|(start, pool)| SlotStates {
            start: start.clone(),
            pool: Arc::clone(pool),
            slots: (0..instance_count).map(|_| Vec::new()).collect(),
            on_device: start.are_on_device().then(|| DeviceStates {
                core,
                device_id,
                table: Arc::clone(table),
                idle: Vec::new(),
            }),
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

    /// Makes of the requests that the scheduler gave out what the instance executes. One whose
    /// states find no memory is answered by way of `pending`: a direct batch has a null request in
    /// its row then.
    pub(crate) fn prepare(
        &mut self,
        output: &mut SchedulerOutput<OwnedRequest>,
        pending: &mut PendingResponses,
    ) {
        if self.is_direct {
            self.fill_rows(output);
        }
        let mut rows = output.rows.drain(..);
        let mut failed: Vec<(usize, Error)> = Vec::new();
        let mut null_count = 0;
        for (place, live) in output.batch.iter_mut().enumerate() {
            if live.is_null {
                attach_to_null(&self.controls, &mut self.states, live, null_count);
                null_count += 1;
                continue;
            }
            let Some(row) = rows.next() else {
                debug_assert!(false, "as many rows as requests");
                break;
            };
            self.controls.attach(live);
            if self.awaits {
                live.return_guard = Some(ReturnGuard::new(live.handle(), self.core));
            }
            if let Some(stock) = &mut self.states {
                match stock.of(output.instance, row, live.sequence_flags) {
                    Ok(states) => live.attach_states(&states),
                    Err(error) => failed.push((place, error)),
                }
            }
        }
        drop(rows);
        if !failed.is_empty() {
            self.refuse_rows(&mut output.batch, failed, null_count, pending);
        }
    }

    /// Answers the requests at these places of `batch`, in ascending order, which has `null_count`
    /// null requests. Nothing is left if that were all others.
    fn refuse_rows(
        &mut self,
        batch: &mut Batch,
        failed: Vec<(usize, Error)>,
        mut null_count: usize,
        pending: &mut PendingResponses,
    ) {
        let is_all = failed.len() + null_count == batch.len();
        // From the end, so that places stay right.
        for (place, error) in failed.into_iter().rev() {
            let live = batch.remove(place);
            if self.is_direct && !is_all {
                let mut stand_in = null(&self.model, &live);
                attach_to_null(&self.controls, &mut self.states, &mut stand_in, null_count);
                null_count += 1;
                batch.insert(place, stand_in);
            }
            refuse(live, FailureReason::Other, error, pending);
        }
        if is_all {
            batch.clear();
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

/// Gives the null request number `number` of a batch its controls, and states of nobody: the slot's
/// own are not for it.
fn attach_to_null(
    controls: &ControlInputs,
    states: &mut Option<SlotStates>,
    live: &mut OwnedRequest,
    number: usize,
) {
    controls.attach_to_null(live);
    if let Some(stock) = states {
        live.attach_states(&stock.for_null(number));
    }
}

impl SlotStates {
    fn on_host(&self) -> Arc<Mutex<SequenceStates>> {
        Arc::new(Mutex::new(SequenceStates::new(&self.start, &self.pool)))
    }

    /// States of nobody for null request `number` of a batch. Memory of a device is used for one
    /// after the other: what an earlier one left there stays. A device without room leaves them in
    /// host memory.
    fn for_null(&mut self, number: usize) -> Arc<Mutex<SequenceStates>> {
        let Some(device) = &mut self.on_device else {
            return self.on_host();
        };
        let is_unused = |states: &Arc<Mutex<SequenceStates>>| Arc::strong_count(states) == 1;
        if let Some(idle) = device.idle.get(number).filter(|idle| is_unused(idle)) {
            lock(idle).rewind();
            return Arc::clone(idle);
        }
        let made = SequenceStates::on_device(&self.start, &self.pool, device.device_id);
        let Ok(states) = made.map(|states| Arc::new(Mutex::new(states))) else {
            return self.on_host();
        };
        if device.idle.len() == number {
            device.idle.push(Arc::clone(&states));
        }
        states
    }

    /// The states of a sequence that begins in this slot.
    fn fresh(&self, instance: usize, row: usize) -> HeldStates {
        let Some(device) = &self.on_device else {
            return Ok(self.on_host());
        };
        let states = SequenceStates::on_device(&self.start, &self.pool, device.device_id)?;
        let states = Arc::new(Mutex::new(states));
        let place = SlotPlace {
            core: device.core,
            instance,
            row,
        };
        device.table.add(place, &states);
        Ok(states)
    }

    /// The states for a request with these flags in this slot.
    ///
    /// # Errors
    /// Why the sequence's states have no memory.
    fn of(&mut self, instance: usize, row: usize, flags: SequenceFlags) -> HeldStates {
        let slots = &mut self.slots[instance];
        if slots.len() <= row {
            slots.resize_with(row + 1, || None);
        }
        let mut kept = slots[row].take().filter(|_| !flags.is_start());
        if self.on_device.is_some() {
            // What was given up belonged to a sequence that is over.
            let is_over = |kept: &HeldStates| kept.as_ref().is_ok_and(|held| lock(held).is_over());
            kept = kept.filter(|kept| !is_over(kept));
        }
        let states = kept.unwrap_or_else(|| self.fresh(instance, row));
        if !flags.is_end() {
            self.slots[instance][row] = Some(states.clone());
        }
        states
    }
}

fn lock(states: &Mutex<SequenceStates>) -> MutexGuard<'_, SequenceStates> {
    states.lock().unwrap_or_else(PoisonError::into_inner)
}
