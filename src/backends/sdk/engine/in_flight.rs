//! Batches of a session that leaves its runs on the stream of a GPU: while one is computed, the
//! inputs of the next are brought and the outputs of the last are taken away.
//!
//! Runs follow each other on the one stream that the session has. Each batch in flight has a stream
//! of its own for copies, memory of its own for joined inputs, and keeps the outputs that the
//! session made until they are copied.

use super::device_delivery::DeviceOutputs;
use super::inputs::{JoinedInput, count_rows, gather};
use super::plan::{FeedPlan, OutputPlan, feed_plans, gather_on_device, output_plans};
use super::response_memory::{WritableMemory, device_targets};
use super::runner_parts::watched;
use super::session::{EnqueueSession, Output as _};
use super::targets::wanted_outputs;
use super::tensor::{Feed, OutputData};
use crate::{
    BatchStreams, CancellationWatch, DetachedBatch, DeviceBatches, DeviceStream, DeviceWork, Error,
    ModelConfig,
};

/// A session, and its batches in flight.
pub(super) struct InFlightRunner<S: EnqueueSession> {
    /// Dropped first: it waits for what is in flight, whose outputs the session made.
    batches: DeviceBatches<SlotState<S::Output>>,
    shared: SharedParts<S>,
    /// What the session enqueues on. It outlives the session.
    _stream: DeviceStream,
}

/// What all batches share.
struct SharedParts<S> {
    session: S,
    outputs: Vec<OutputPlan>,
    /// Where runs can be interrupted as long as they are enqueued.
    watch: Option<CancellationWatch>,
}

/// What a batch in flight has of its own.
struct SlotState<O> {
    feeds: Vec<FeedPlan>,
    /// Rows of each request of the batch.
    rows: Vec<usize>,
    /// Of the joined inputs.
    shapes: Vec<Vec<i64>>,
    /// Made by the run, and copied from there.
    outputs: Vec<Option<O>>,
}

impl<S: EnqueueSession> InFlightRunner<S> {
    /// `depth` batches may be in flight.
    ///
    /// # Errors
    /// What the configuration has wrong; what the driver refuses; `Unavailable` if the system has
    /// no thread that watches for cancellation.
    pub(super) fn new(
        config: &ModelConfig,
        session: S,
        stream: DeviceStream,
        depth: usize,
    ) -> Result<Self, Error> {
        let mut batches = DeviceBatches::new(&stream)?;
        for _ in 0..depth {
            let mut feeds = feed_plans(config, session.signature())?;
            gather_on_device(&mut feeds, &stream, &session);
            let copies = stream.another(config.stream_priority())?.handle();
            let streams = BatchStreams {
                copy_in: copies.clone(),
                compute: stream.handle(),
                copy_out: copies,
            };
            let state = SlotState {
                feeds,
                rows: Vec::new(),
                shapes: Vec::new(),
                outputs: Vec::new(),
            };
            batches.add_slot(streams, state)?;
        }
        let watch = session.interrupt().map(CancellationWatch::new);
        Ok(InFlightRunner {
            batches,
            shared: SharedParts {
                outputs: output_plans(config, session.signature())?,
                watch: watch.transpose()?,
                session,
            },
            _stream: stream,
        })
    }

    pub(super) fn depth_max(&self) -> usize {
        self.batches.depth_max()
    }

    /// Enqueues a batch, or answers that there is no room for it.
    pub(super) fn enqueue(&mut self, model_name: &str, batch: DetachedBatch) {
        let shared = &mut self.shared;
        self.batches.enqueue(
            batch,
            |request| request.respond(),
            |state, work| shared.enqueue(model_name, state, work),
        );
    }

    /// Answers the batches that the device is done with, in order; returns how many are left.
    pub(super) fn poll(&mut self) -> usize {
        self.batches.poll()
    }
}

impl<S: EnqueueSession> SharedParts<S> {
    /// Enqueues all work of a batch.
    ///
    /// # Errors
    /// What ends the whole batch.
    fn enqueue<'m>(
        &mut self,
        model_name: &str,
        state: &'m mut SlotState<S::Output>,
        work: &mut DeviceWork<'m>,
    ) -> Result<(), Error> {
        // Those of the batch that had the slot before, which is done.
        state.outputs.clear();
        let (batch, place) = (work.batch(), work.place());
        let SlotState {
            feeds,
            rows,
            shapes,
            outputs: held,
        } = state;
        let total = count_rows(model_name, batch, rows)?;
        let mut gathered = gather(feeds, model_name, batch, Some(work.copies()))?;
        shapes.clear();
        shapes.extend(gathered.iter_mut().map(JoinedInput::take_shape));
        let feeds: Vec<Feed<'m>> = gathered
            .iter()
            .zip(&*shapes)
            .map(|(input, shape)| input.with_shape(shape))
            .collect();
        let wanted = wanted_outputs(&self.outputs, batch)?;
        let single = match batch.len() {
            1 if self.session.writes_in_place() => work.response(0),
            _ => None,
        };
        let writable = WritableMemory::Device(place);
        let (mut targets, copy_targets) = device_targets(&wanted, single, batch, total, writable)?;
        if !wanted.is_empty() {
            let (session, watch) = (&mut self.session, self.watch.as_ref());
            let enqueue = || session.enqueue(work, &feeds, &mut targets);
            *held = watched(watch, batch, enqueue)?;
        }
        drop(targets);

        let held: &'m [Option<S::Output>] = held;
        let mut outputs = DeviceOutputs::new(place, rows);
        for ((plan, output), copy_target) in wanted.iter().zip(held).zip(copy_targets) {
            let Some(output) = output else { continue };
            let contents = output.read()?;
            let OutputData::Device(source) = contents.data else {
                return Err(Error::internal(format!(
                    "output '{}' of model '{model_name}' is in main memory, and its run is in \
                     flight: set the model's parameter batches_in_flight to 1",
                    plan.info.name.to_string_lossy()
                )));
            };
            let (data_type, shape) = (contents.data_type, contents.shape);
            outputs.add(plan, data_type, shape, source, copy_target);
        }
        outputs.enqueue(work)
    }
}
