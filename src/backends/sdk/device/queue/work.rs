//! What is to be done with a batch on a device.

use std::ffi::{CStr, CString, c_void};

use conch_memory::MemoryPlace;

use super::block::EngineBlock;
use super::engine_stream::EngineGraph;
use super::enqueue::enqueue;
use super::flight::StagedState;
use super::{DeviceQueue, EngineStream};
use crate::device::memory::{MemorySource, MemoryTarget};
use crate::device::plan::{PlannedCopy, StagedOutput};
use crate::{Batch, DataType, Error, Response};

/// The work of one batch, as it is enqueued: inputs are copied, the engine computes, outputs are
/// copied. Copies are planned, and enqueued with the next step; what they read and write stays
/// until the device is done, as it belongs to the batch.
pub struct EngineWork<'w> {
    queue: &'w mut DeviceQueue,
    batch: &'w Batch<'w>,
    responses: &'w [Response<'w>],
    planned: Vec<PlannedCopy>,
    parts: FlightParts,
    /// Something was enqueued that nothing marks the end of.
    is_open: bool,
}

/// What outlives the enqueueing.
#[derive(Default)]
pub(super) struct FlightParts {
    pub(super) staged: Vec<StagedOutput>,
    pub(super) states: Vec<StagedState>,
    pub(super) failures: Vec<(usize, Error)>,
    pub(super) blocks: Vec<EngineBlock>,
    /// Host memory that copies read.
    pub(super) bytes: Vec<Vec<u8>>,
    pub(super) has_copied_inputs: bool,
}

impl<'w> EngineWork<'w> {
    pub(super) fn new(
        queue: &'w mut DeviceQueue,
        batch: &'w Batch<'w>,
        responses: &'w [Response<'w>],
    ) -> Self {
        EngineWork {
            queue,
            batch,
            responses,
            planned: Vec::new(),
            parts: FlightParts::default(),
            is_open: false,
        }
    }

    pub fn batch(&self) -> &'w Batch<'w> {
        self.batch
    }

    /// The response to the request of a number, which the queue sends.
    ///
    /// # Panics
    /// If there is no such request.
    pub fn response(&self, index: usize) -> &'w Response<'w> {
        &self.responses[index]
    }

    /// The stream that the engine computes on.
    pub fn stream(&self) -> &EngineStream {
        &self.queue.compute
    }

    /// The memory of the device.
    pub fn place(&self) -> MemoryPlace {
        self.queue.compute.place()
    }

    /// Answers the request of a number with an error, when the batch is done.
    pub fn fail(&mut self, index: usize, error: Error) {
        self.parts.failures.push((index, error));
    }

    /// Copies an input into a block, from a byte on.
    ///
    /// # Errors
    /// `Internal` if it does not fit.
    pub fn copy_in(
        &mut self,
        source: MemorySource<'w>,
        block: &EngineBlock,
        start: usize,
    ) -> Result<(), Error> {
        if !source.is_empty() {
            let target = self.range(block, start, source.len())?;
            self.plan(
                target,
                self.place(),
                source.address(),
                source.place(),
                source.len(),
            );
        }
        Ok(())
    }

    /// Copies bytes of the caller's own into a block.
    ///
    /// # Errors
    /// As [`copy_in`](Self::copy_in).
    pub fn write_in(&mut self, bytes: Vec<u8>, block: &EngineBlock) -> Result<(), Error> {
        if !bytes.is_empty() {
            let target = self.range(block, 0, bytes.len())?;
            let source = bytes.as_ptr().expose_provenance() as u64;
            self.plan(target, self.place(), source, MemoryPlace::CPU, bytes.len());
            self.parts.bytes.push(bytes);
        }
        Ok(())
    }

    /// Copies bytes of a block behind what `target` is filled with.
    ///
    /// # Errors
    /// `Internal` if they do not lie in the block, or do not fit.
    pub fn copy_out(
        &mut self,
        block: &EngineBlock,
        start: usize,
        len: usize,
        target: &mut MemoryTarget<'w>,
    ) -> Result<(), Error> {
        let address = target.take(len)?;
        if len > 0 {
            let source = self.range(block, start, len)?;
            self.plan(address, target.place(), source, self.place(), len);
        }
        Ok(())
    }

    /// Makes bytes of a block the next value of a state of the request of a number.
    ///
    /// # Errors
    /// `Internal` if they do not lie in the block; `Unavailable` without memory for them.
    pub fn keep_state(
        &mut self,
        index: usize,
        name: &CStr,
        data_type: DataType,
        shape: Vec<i64>,
        (block, start, len): (&EngineBlock, usize, usize),
    ) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(len);
        reserved.map_err(|_| Error::out_of_memory(len))?;
        bytes.resize(len, 0);
        if len > 0 {
            let source = self.range(block, start, len)?;
            let target = bytes.as_mut_ptr().expose_provenance() as u64;
            self.plan(target, MemoryPlace::CPU, source, self.place(), len);
        }
        self.parts.states.push(StagedState {
            request: index,
            name: CString::from(name),
            data_type,
            shape,
            bytes,
        });
        Ok(())
    }

    /// Enqueues the copies of inputs, then what `engine` enqueues on the stream that it is given.
    /// The device is current meanwhile.
    ///
    /// # Errors
    /// Those of `engine`; `Internal` for what the driver refuses.
    pub fn compute(
        &mut self,
        engine: impl FnOnce(*mut c_void) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.is_open = true;
        self.send_inputs()?;
        self.batch.begin_compute();
        let _current = self.queue.compute.current()?;
        engine(self.queue.compute.raw_handle())
    }

    /// As [`compute`](Self::compute), with work that was captured; its blocks are those of this
    /// queue.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn launch(&mut self, graph: &EngineGraph) -> Result<(), Error> {
        self.is_open = true;
        self.send_inputs()?;
        self.batch.begin_compute();
        let compute = &self.queue.compute;
        // SAFETY: a graph uses blocks and contexts of the engine, which an instance keeps longer
        // than its queues.
        unsafe { compute.stream().launch_graph(&graph.0) }.map_err(|error| compute.refusal(&error))
    }

    fn send_inputs(&mut self) -> Result<(), Error> {
        if self.planned.is_empty() {
            return Ok(());
        }
        self.parts.has_copied_inputs = true;
        let queue = &mut *self.queue;
        // SAFETY: inputs are the batch's and blocks this queue's, and both stay until it is done.
        let sent = unsafe { enqueue(&queue.copies, &self.planned, &mut queue.input_staging) };
        self.planned.clear();
        sent.and_then(|_| queue.copies.record(&queue.inputs_ready))
            .and_then(|()| queue.compute.stream().wait_for(&queue.inputs_ready))
            .map_err(|error| queue.compute.refusal(&error))
    }

    /// Enqueues the copies of outputs, and the mark behind all of it.
    pub(super) fn end(&mut self) -> Result<FlightParts, Error> {
        self.is_open = true;
        let queue = &mut *self.queue;
        let compute = queue.compute.stream();
        let ended = (|| {
            let stream = match queue.has_output_stream {
                true => {
                    compute.record(&queue.computed)?;
                    queue.copies.wait_for(&queue.computed)?;
                    &queue.copies
                }
                false => compute,
            };
            // SAFETY: outputs are the batch's and blocks this queue's, and both stay until it is
            // done.
            let staged = unsafe { enqueue(stream, &self.planned, &mut queue.output_staging)? };
            stream.record(&queue.done)?;
            Ok(staged)
        })();
        self.parts.staged = ended.map_err(|error| queue.compute.refusal(&error))?;
        self.is_open = false;
        Ok(std::mem::take(&mut self.parts))
    }

    fn range(&mut self, block: &EngineBlock, start: usize, len: usize) -> Result<u64, Error> {
        let address = block.range(start, len).ok_or_else(|| {
            let room = block.len();
            Error::internal(format!("{len} bytes from {start} on are not in {room}"))
        })?;
        self.parts.blocks.push(block.clone());
        Ok(address.0)
    }

    fn plan(
        &mut self,
        target: u64,
        target_place: MemoryPlace,
        source: u64,
        source_place: MemoryPlace,
        len: usize,
    ) {
        self.planned.push(PlannedCopy {
            owner: 0,
            target,
            target_place,
            source: Some((source, source_place)),
            len,
        });
    }
}

impl Drop for EngineWork<'_> {
    fn drop(&mut self) {
        // What was enqueued by work that failed, or panicked, uses memory of requests and
        // responses.
        if self.is_open {
            self.queue.drain();
        }
    }
}
