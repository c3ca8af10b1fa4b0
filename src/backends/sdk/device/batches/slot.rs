//! Streams, events and memory of a batch in flight, kept for the next.

use conch_cuda::{CudaError, Event};
use conch_memory::MemoryPlace;

use crate::Error;
use crate::device::allocator::DeviceAllocator;
use crate::device::plan::PlannedCopy;
use crate::device::refusal::refusal;
use crate::device::staging::Staging;
use crate::device::stream::{DeviceStream, StreamHandle};
use crate::device::timeline::StageMarks;
use crate::device::workspace::Workspace;

/// The streams of one batch, which may be the same. Batches with streams of their own overlap on
/// the device; those that share one follow each other on it.
#[derive(Clone, Debug)]
pub struct BatchStreams {
    /// Copies of inputs.
    pub copy_in: StreamHandle,
    pub compute: StreamHandle,
    /// Copies of outputs.
    pub copy_out: StreamHandle,
}

impl BatchStreams {
    /// Everything on one stream.
    pub fn one(stream: &DeviceStream) -> Self {
        BatchStreams {
            copy_in: stream.handle(),
            compute: stream.handle(),
            copy_out: stream.handle(),
        }
    }

    pub(super) fn are_of(&self, place: MemoryPlace) -> bool {
        let all = [&self.copy_in, &self.compute, &self.copy_out];
        all.iter().all(|stream| stream.place() == place)
    }

    /// Waits until nothing is on any of them.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        let mut waited = Ok(());
        for stream in [&self.copy_in, &self.compute, &self.copy_out] {
            // All, whatever one says.
            waited = waited.and(stream.stream().synchronize());
        }
        waited
    }

    pub(super) fn refusal(&self, error: &CudaError) -> Error {
        refusal(self.compute.stream().device(), error)
    }
}

/// What the work of one batch is enqueued with.
pub(super) struct BatchSlot {
    pub(super) streams: BatchStreams,
    pub(super) marks: BatchMarks,
    pub(super) memory: BatchMemory,
}

pub(super) struct BatchMarks {
    pub(super) stages: StageMarks,
    /// Behind the copies of inputs, where they have a stream of their own.
    pub(super) inputs_ready: Event,
}

pub(super) struct BatchMemory {
    pub(super) staging: Staging,
    pub(super) workspace: Workspace,
    /// Of an earlier plan.
    pub(super) planned: Vec<PlannedCopy>,
}

impl BatchSlot {
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub(super) fn new(streams: BatchStreams, allocator: &DeviceAllocator) -> Result<Self, Error> {
        let place = streams.compute.place();
        let device = streams.compute.stream().device();
        let events = StageMarks::new(device).and_then(|stages| Ok((stages, Event::new(device)?)));
        let (stages, inputs_ready) = events.map_err(|error| streams.refusal(&error))?;
        Ok(BatchSlot {
            streams,
            marks: BatchMarks {
                stages,
                inputs_ready,
            },
            memory: BatchMemory {
                staging: Staging::new(allocator.clone()),
                workspace: Workspace::new(allocator.clone(), place),
                planned: Vec::new(),
            },
        })
    }

    /// How the work of a batch ended whose marks were recorded; none if it did not yet.
    pub(super) fn poll(&self) -> Option<Result<(), Error>> {
        match self.is_done() {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(self.abandon(&error))),
        }
    }

    /// As [`poll`](Self::poll), after its end.
    pub(super) fn wait(&self) -> Result<(), Error> {
        let waited = self
            .marks
            .stages
            .staged_out
            .wait()
            .and_then(|()| self.is_done());
        waited.map(drop).map_err(|error| self.abandon(&error))
    }

    fn is_done(&self) -> Result<bool, CudaError> {
        if !self.marks.stages.staged_out.is_reached()? {
            return Ok(false);
        }
        // Marks of other streams tell what failed before them.
        if !self.streams.copy_in.is_same(&self.streams.compute) {
            self.marks.inputs_ready.is_reached()?;
        }
        if !self.streams.compute.is_same(&self.streams.copy_out) {
            self.marks.stages.computed.is_reached()?;
        }
        Ok(true)
    }

    /// An event could not be asked. It need not be an error of the work's: the device must be done
    /// all the same. A context that is gone does nothing more.
    fn abandon(&self, error: &CudaError) -> Error {
        let _ = self.streams.synchronize();
        self.streams.refusal(error)
    }

    /// The batch is done: its memory is the next one's.
    pub(super) fn reset(&mut self) {
        self.memory.staging.reset();
    }
}
