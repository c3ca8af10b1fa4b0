//! A place for one batch in flight on a device.

use super::copies::StageMarks;
use super::memory::copy_on_host;
use super::plan::StagedOutput;
use super::room::Room;
use super::stream::DeviceStream;
use super::timeline::{BatchTimeline, DeviceClock};
use super::work::DeviceWork;
use crate::clock::monotonic_ns;
use crate::{Batch, DetachedBatch, Error};

/// A stream of a device, room in its memory and staging memory, for one batch after the other. An
/// instance with several of them keeps as many batches in flight: copies of one overlap with the
/// kernels of another.
pub struct DeviceSlot {
    /// First, as it is waited for before the rest goes.
    flight: Option<Flight>,
    room: Room,
    marks: StageMarks,
    clock: DeviceClock,
    stream: DeviceStream,
}

/// A batch whose work is enqueued.
struct Flight {
    batch: DetachedBatch,
    /// What the CPU copies when the device is done.
    outs: Vec<StagedOutput>,
    /// The batch fails when the device is done with what was enqueued of it.
    failure: Option<Error>,
    enqueued_ns: u64,
}

impl DeviceSlot {
    /// A slot with a stream of its own, which nothing else uses. Blocks for a moment, until the
    /// device has told its time.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn new(stream: DeviceStream) -> Result<Self, Error> {
        let clock = DeviceClock::new(&stream.stream).map_err(|error| stream.refused(error))?;
        Ok(DeviceSlot {
            flight: None,
            room: Room::new(&stream),
            marks: StageMarks::new(&stream)?,
            clock,
            stream,
        })
    }

    pub fn is_free(&self) -> bool {
        self.flight.is_none()
    }

    /// Has `enqueue` put the work of a batch on the stream: it answers requests that fail at once,
    /// and [keeps](crate::Response::keep) the responses of the others, which are sent when the
    /// device is done. Its error fails all requests that are not answered. Does not wait for the
    /// device.
    ///
    /// # Safety
    /// `enqueue` leaves the responses whose outputs are in the work kept with their requests.
    ///
    /// # Panics
    /// If the slot is not free.
    pub unsafe fn begin(
        &mut self,
        mut batch: DetachedBatch,
        enqueue: impl for<'m> FnOnce(&'m Batch<'m>, &mut DeviceWork<'m>) -> Result<(), Error>,
    ) {
        assert!(self.flight.is_none(), "the slot has a batch in flight");
        let enqueued_ns = monotonic_ns();
        let (stream, marks, room) = (&self.stream, &self.marks, &mut self.room);
        let (outs, is_enqueued, failure) = batch.with(|batch| {
            let mut work = DeviceWork::new(stream, marks, room);
            let outcome = enqueue(batch, &mut work).and_then(|()| work.scatter());
            let (outs, is_enqueued) = work.take_over();
            (outs, is_enqueued, outcome.err())
        });
        let mut flight = Flight {
            batch,
            outs,
            failure,
            enqueued_ns,
        };
        if !is_enqueued {
            flight.finish(None);
            return;
        }
        if let Err(error) = self.stream.stream.record(&self.marks.staged_out) {
            // Nothing tells when the work is done, but its end. Only a driver that is broken gets
            // here, and answers at once.
            let _ = self.stream.stream.synchronize();
            flight.failure.get_or_insert(self.stream.refused(error));
            flight.finish(None);
            return;
        }
        self.flight = Some(flight);
    }

    /// Finishes the batch if the device is done with it. Returns whether the slot is free. Does not
    /// wait.
    pub fn poll(&mut self) -> bool {
        if self.flight.is_none() {
            return true;
        }
        let outcome = match self.marks.staged_out.is_reached() {
            Ok(false) => return false,
            Ok(true) => Ok(()),
            Err(error) => Err(self.stream.refused(error)),
        };
        if let Some(mut flight) = self.flight.take() {
            if let Err(error) = outcome {
                flight.failure.get_or_insert(error);
            }
            // All marks are recorded, unless something failed.
            let timeline = flight.failure.is_none().then(|| {
                self.clock
                    .read(&mut self.marks, flight.enqueued_ns, monotonic_ns())
            });
            flight.finish(timeline);
        }
        true
    }
}

impl Flight {
    /// Answers, when nothing of the batch is on the device any more.
    fn finish(self, timeline: Option<BatchTimeline>) {
        let Flight {
            batch,
            outs,
            failure,
            enqueued_ns,
        } = self;
        let timeline =
            timeline.unwrap_or_else(|| BatchTimeline::unknown(enqueued_ns, monotonic_ns()));
        batch.finish(|batch| {
            batch.set_compute_times(timeline.staged_in_ns, timeline.computed_ns);
            if let Some(error) = failure {
                for request in batch.requests() {
                    if let Some(response) = request.take_kept() {
                        response.fail(error.clone());
                    }
                }
                return Err(error);
            }
            for out in outs {
                // SAFETY: the staging block is as long and this batch's; the target is writable
                // host memory of a response that is kept.
                unsafe { copy_on_host(out.target, out.source, out.len) };
            }
            for request in batch.requests() {
                timeline.report(request);
                if let Some(response) = request.take_kept()
                    && let Err(error) = response.send()
                {
                    crate::error!("failed to send a response: {error}");
                }
            }
            Ok(())
        });
    }
}

impl Drop for DeviceSlot {
    fn drop(&mut self) {
        if let Some(mut flight) = self.flight.take() {
            // Its memory must outlive the work.
            if let Err(error) = self.marks.staged_out.wait() {
                flight.failure.get_or_insert(self.stream.refused(error));
            }
            flight.finish(None);
        }
    }
}
