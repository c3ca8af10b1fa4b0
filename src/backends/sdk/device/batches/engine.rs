//! Work of an engine that enqueues by itself, on the stream of its batch, with blocks of the slot.

use std::ffi::{CStr, c_void};

use conch_cuda::CudaGraph;
use conch_memory::MemoryPlace;

use super::work::DeviceWork;
use crate::device::block::DeviceBlock;
use crate::device::memory::{MemorySource, MemoryTarget};
use crate::device::plan::Stage;
use crate::{DataType, Error, Request};

impl<'m> DeviceWork<'m> {
    /// Copies an input of the request `owner` into a block, from a byte on.
    ///
    /// # Errors
    /// `Internal` if it does not fit.
    pub fn copy_in(
        &mut self,
        owner: usize,
        source: MemorySource<'m>,
        block: &'m DeviceBlock,
        start: usize,
    ) -> Result<(), Error> {
        let target = (block.range(start, source.len())?, self.place());
        let from = Some((source.address(), source.place()));
        self.copies
            .push(Stage::In, owner, target, from, source.len());
        Ok(())
    }

    /// Copies bytes of the caller's own, for all requests, into a block.
    ///
    /// # Errors
    /// As [`copy_in`](Self::copy_in).
    pub fn write_in(&mut self, bytes: Vec<u8>, block: &'m DeviceBlock) -> Result<(), Error> {
        let target = (block.range(0, bytes.len())?, self.place());
        let from = (bytes.as_ptr().expose_provenance() as u64, MemoryPlace::CPU);
        self.copies
            .push(Stage::In, 0, target, Some(from), bytes.len());
        self.enqueued.bytes.push(bytes);
        Ok(())
    }

    /// Copies what the engine made behind what `target`, of the request `owner`, is filled with.
    ///
    /// # Errors
    /// `Internal` if it does not fit.
    pub fn copy_out(
        &mut self,
        owner: usize,
        source: MemorySource<'m>,
        target: &mut MemoryTarget<'m>,
    ) -> Result<(), Error> {
        self.copies.add_to_stage(Stage::Out, owner, source, target)
    }

    /// Makes `source`, which the engine made, the next value of a state of `request`, the one of
    /// number `owner`, once the batch is done and this request has not failed.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn keep_state(
        &mut self,
        owner: usize,
        request: Request<'m>,
        (name, data_type, shape): (&CStr, DataType, &[i64]),
        source: MemorySource<'m>,
    ) -> Result<(), Error> {
        let mut state = request.state(name, data_type, shape)?;
        let mut target = state.buffer_in(source.len(), self.place())?;
        let to = (target.take(source.len())?, target.place());
        let from = Some((source.address(), source.place()));
        self.copies.push(Stage::Out, owner, to, from, source.len());
        self.enqueued.updates.push((owner, state.defer()));
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
        self.begin_compute()?;
        let compute = &self.streams.compute;
        let _current = compute.current()?;
        engine(compute.raw())
    }

    /// As [`compute`](Self::compute), with work that was captured.
    ///
    /// # Safety
    /// What the graph was captured with stays as the graph does, and no other work uses it before
    /// this batch is done.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub unsafe fn launch_graph(&mut self, graph: &'m CudaGraph) -> Result<(), Error> {
        self.begin_compute()?;
        let compute = self.streams.compute.stream();
        // SAFETY: by this function's contract; the graph is borrowed until the batch is done.
        let launched = unsafe { compute.launch_graph(graph) };
        launched.map_err(|error| self.streams.refusal(&error))
    }
}
