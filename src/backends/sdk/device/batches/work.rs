//! The work of one batch, as it is enqueued: inputs are copied, kernels or an engine compute,
//! outputs are copied. Nothing here waits for the device.

use std::mem;
use std::time::Duration;

use conch_cuda::{CudaError, Event};
use conch_memory::MemoryPlace;

use super::in_flight::EnqueuedWork;
use super::ranges::Ranges;
use super::slot::{BatchMarks, BatchMemory, BatchSlot, BatchStreams};
use crate::device::copies::CopyPlan;
use crate::device::pending::PendingWork;
use crate::device::plan::{PlannedCopy, Stage};
use crate::device::stream::StreamHandle;
use crate::{Batch, Error, Request, Response};

/// What is to be enqueued for a batch, and then what was. Copies are planned, and enqueued with the
/// stage that they belong to: those of inputs before anything computes, those of outputs at the
/// end. What they read and write belongs to the batch or to its slot, and stays until the device is
/// done. Dropped with work on a stream that nobody took over, it waits for it.
pub struct DeviceWork<'m> {
    pub(super) streams: &'m BatchStreams,
    marks: &'m BatchMarks,
    pub(super) memory: &'m mut BatchMemory,
    batch: &'m Batch<'m>,
    responses: &'m [Option<Response<'m>>],
    pub(super) copies: CopyPlan<'m>,
    pub(super) ranges: Ranges,
    pub(super) enqueued: EnqueuedWork,
    /// The first mark was recorded, and the last one was not.
    is_open: bool,
    /// What the driver refused of a mark: the marks do not tell when the device is done.
    unmarked: Option<CudaError>,
}

impl<'m> DeviceWork<'m> {
    pub(super) fn new(
        slot: &'m mut BatchSlot,
        batch: &'m Batch<'m>,
        responses: &'m [Option<Response<'m>>],
        pending: PendingWork,
    ) -> Self {
        let BatchSlot {
            streams,
            marks,
            memory,
            ..
        } = slot;
        let planned = mem::take(&mut memory.planned);
        DeviceWork {
            copies: CopyPlan::new(streams.compute.place(), planned),
            streams,
            marks,
            memory,
            batch,
            responses,
            ranges: Ranges::default(),
            enqueued: EnqueuedWork {
                pending,
                ..EnqueuedWork::default()
            },
            is_open: false,
            unmarked: None,
        }
    }

    pub fn batch(&self) -> &'m Batch<'m> {
        self.batch
    }

    /// The requests that have a response, which is sent when the device is done, and their numbers.
    pub fn requests(
        &self,
    ) -> impl Iterator<Item = (usize, Request<'m>, &'m Response<'m>)> + use<'m> {
        let requests = self.batch.requests().zip(self.responses).enumerate();
        requests.filter_map(|(index, (request, response))| {
            response.as_ref().map(|response| (index, request, response))
        })
    }

    /// The response of the request of a number; none if it could not be begun.
    pub fn response(&self, index: usize) -> Option<&'m Response<'m>> {
        self.responses.get(index)?.as_ref()
    }

    /// The memory of the device: where inputs and outputs are best asked for.
    pub fn place(&self) -> MemoryPlace {
        self.copies.place()
    }

    /// Answers the request of a number with an error, when the batch is done.
    pub fn fail(&mut self, index: usize, error: Error) {
        self.enqueued.pending.fail(index, error);
    }

    /// Has the batch end so long after the one before it at the earliest.
    pub fn delay(&mut self, delay: Duration) {
        self.enqueued.delay = delay;
    }

    /// Copies whose stage follows from where their memory lies: for batches that are only copied.
    /// One that the driver refuses fails its owner alone.
    pub fn copies(&mut self) -> &mut CopyPlan<'m> {
        &mut self.copies
    }

    /// Enqueues the copies of inputs; from here on all requests share what the device does.
    ///
    /// # Errors
    /// What the driver refused: what computes reads all inputs together.
    pub(super) fn begin_compute(&mut self) -> Result<(), Error> {
        if self.is_open {
            return Ok(());
        }
        let failed_before = self.enqueued.pending.failures().len();
        self.stage_in();
        self.enqueued.pending.own_all(self.batch.len());
        if let Some(error) = &self.unmarked {
            return Err(self.streams.refusal(error));
        }
        match self.enqueued.pending.failures().get(failed_before) {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn stage_in(&mut self) {
        self.is_open = true;
        let (streams, marks) = (self.streams, self.marks);
        let is_input = |copy: &PlannedCopy| copy.stage == Stage::In && copy.is_for_device();
        let has_inputs = self.copies.planned.iter().any(is_input);
        let from = match has_inputs {
            true => &streams.copy_in,
            false => &streams.compute,
        };
        self.mark(from, &marks.stages.begin);
        self.send(from, Stage::In);
        if !streams.copy_in.is_same(&streams.compute) {
            self.hand_over(from, &streams.compute, &marks.inputs_ready);
        }
        self.enqueued.marked.staged_in = has_inputs;
        if has_inputs {
            self.mark(&streams.compute, &marks.stages.staged_in);
        }
    }

    /// Enqueues what is planned still, and the last mark.
    fn stage_out(&mut self) {
        let (streams, marks) = (self.streams, self.marks);
        let has_device_work = self.copies.planned.iter().any(PlannedCopy::is_for_device);
        if !self.is_open && has_device_work {
            self.stage_in();
        }
        // Inputs that were planned late, and those of a batch that stays on the host.
        self.send(&streams.compute, Stage::In);
        self.send(&streams.compute, Stage::Within);
        if !self.is_open {
            return;
        }
        // What is left is outputs.
        let has_outputs = self.copies.planned.iter().any(PlannedCopy::is_for_device);
        self.enqueued.marked.computed = has_outputs;
        let last = match has_outputs {
            true => {
                self.hand_over(&streams.compute, &streams.copy_out, &marks.stages.computed);
                &streams.copy_out
            }
            false => &streams.compute,
        };
        self.send(last, Stage::Out);
        self.mark(last, &marks.stages.staged_out);
    }

    /// Fails all requests. The last mark is behind what was enqueued of them.
    fn abort(&mut self, error: &Error) {
        for index in 0..self.batch.len() {
            self.fail(index, error.clone());
        }
        if self.is_open {
            let (marks, last) = (self.marks, &self.streams.copy_out);
            let (copy_in, compute) = (&self.streams.copy_in, &self.streams.compute);
            if !copy_in.is_same(last) {
                self.hand_over(copy_in, last, &marks.inputs_ready);
            }
            self.enqueued.marked.computed = true;
            self.hand_over(compute, last, &marks.stages.computed);
            self.mark(last, &marks.stages.staged_out);
        }
    }

    /// Ends the enqueueing. `planned` fails all requests with its error.
    pub(super) fn end(mut self, planned: Result<(), Error>) -> EnqueuedWork {
        match planned {
            Ok(()) => self.stage_out(),
            Err(error) => self.abort(&error),
        }
        let mut enqueued = mem::take(&mut self.enqueued);
        enqueued.is_marked = self.is_open && self.unmarked.is_none();
        if self.unmarked.is_some()
            && let Err(error) = self.streams.synchronize()
        {
            enqueued.pending.fail_owners(&self.streams.refusal(&error));
        }
        // Taken over, or waited for.
        self.is_open = false;
        self.memory.planned = mem::take(&mut self.copies.planned);
        enqueued
    }

    /// Enqueues the copies of a stage.
    fn send(&mut self, stream: &StreamHandle, stage: Stage) {
        let of_stage = |copy: &&PlannedCopy| copy.stage == stage;
        let planned = self.copies.planned.iter().filter(of_stage);
        let pending = &mut self.enqueued.pending;
        // SAFETY: sources and targets are borrowed for `'m`: they belong to the requests, to
        // responses that are kept with these, to states of the requests, or to the slot's own
        // state and memory. Nobody changes these before the batch is finished, which is once its
        // last mark is reached or the streams were waited for; work that unwinds waits for them.
        unsafe { pending.enqueue(stream.stream(), planned, &mut self.memory.staging) };
        self.copies.planned.retain(|copy| copy.stage != stage);
    }

    fn mark(&mut self, stream: &StreamHandle, event: &Event) {
        let recorded = stream.stream().record(event);
        self.unmarked = self.unmarked.take().or(recorded.err());
    }

    /// Has `to` wait for what is on `from` so far, of which `event` is the mark.
    fn hand_over(&mut self, from: &StreamHandle, to: &StreamHandle, event: &Event) {
        self.mark(from, event);
        if from.is_same(to) {
            return;
        }
        let waits = match &self.unmarked {
            None => to.stream().wait_for(event),
            Some(error) => Err(*error),
        };
        if let Err(error) = waits {
            // `to` does not wait.
            let _ = from.stream().synchronize();
            self.unmarked.get_or_insert(error);
        }
    }
}

impl Drop for DeviceWork<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // A stream that cannot be waited for is one whose context is gone, and its work with
            // it.
            let _ = self.streams.synchronize();
        }
    }
}
