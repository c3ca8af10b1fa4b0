//! The batches that an instance has on its stream, from their copies in to their answers.

use std::collections::VecDeque;

use conch_cuda::CudaError;

use super::copies::{Copies, CopiesInFlight, StageMarks};
use super::staging::Staging;
use super::stream::DeviceStream;
use super::timeline::{BatchTimeline, DeviceClock};
use crate::clock::monotonic_ns;
use crate::{Batch, DetachedBatch, Error, Request, Response};

/// Batches whose outputs are copies of their inputs, in flight on the stream of an instance: what a
/// [`StreamInstance`](crate::StreamInstance) needs beside its own settings. Dropped, it waits for
/// its stream and answers what was in flight with an error.
pub struct StreamBatches {
    stream: DeviceStream,
    clock: DeviceClock,
    depth_max: usize,
    in_flight: VecDeque<InFlightBatch>,
    /// Of earlier batches.
    spare: Vec<BatchMemory>,
}

/// What a batch holds while it is in flight; kept for the next ones.
struct BatchMemory {
    staging: Staging,
    marks: StageMarks,
}

struct InFlightBatch {
    batch: DetachedBatch,
    /// Dropped without an end only once the stream was waited for.
    copies: CopiesInFlight,
    /// None if nothing of it is on the device.
    memory: Option<BatchMemory>,
    enqueued_ns: u64,
    /// Not finished before, for the sake of tests.
    due_ns: u64,
}

impl StreamBatches {
    /// `depth_max` batches may be in flight. Blocks for a moment, until the device has told its
    /// time.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn new(stream: DeviceStream, depth_max: usize) -> Result<StreamBatches, Error> {
        let clock = DeviceClock::new(&stream.stream).map_err(|error| stream.refusal(&error))?;
        Ok(StreamBatches {
            stream,
            clock,
            depth_max,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    pub fn depth_max(&self) -> usize {
        self.depth_max
    }

    /// The stream, for a batch that is executed to its end in one call.
    pub fn stream(&mut self) -> &mut DeviceStream {
        &mut self.stream
    }

    /// Takes over a batch and enqueues its copies; does not wait for them. `respond` begins the
    /// response of a request; `plan` gets its number, adds the outputs, and plans the copies into
    /// them. A request for which either fails is answered with that error, the others go on. The
    /// batch is finished `delay` after the one before it at the earliest.
    pub fn enqueue(
        &mut self,
        mut batch: DetachedBatch,
        delay: std::time::Duration,
        mut respond: impl for<'b> FnMut(Request<'b>) -> Result<Response<'b>, Error>,
        mut plan: impl for<'m> FnMut(
            usize,
            Request<'m>,
            &'m Response<'_>,
            &mut Copies<'m>,
        ) -> Result<(), Error>,
    ) {
        let enqueued_ns = monotonic_ns();
        let (stream, spare) = (&mut self.stream, &mut self.spare);
        let (copies, memory) = batch.with(|batch| {
            let answers: Vec<Answer<'_>> = batch
                .requests()
                .map(|request| Answer {
                    request,
                    response: respond(request),
                })
                .collect();
            let mut copies = stream.copies();
            let mut failures = Vec::new();
            for (owner, Answer { request, response }) in answers.iter().enumerate() {
                let planned = match response {
                    Ok(response) => plan(owner, *request, response, &mut copies),
                    Err(error) => Err(error.clone()),
                };
                failures.extend(planned.err().map(|error| (owner, error)));
            }
            let memory = match copies.has_device_work() {
                true => match spare.pop() {
                    Some(memory) => Ok(Some(memory)),
                    None => BatchMemory::new(copies.stream()).map(Some),
                },
                false => Ok(None),
            };
            let (mut in_flight, memory) = match memory {
                // SAFETY: sources and targets belong to the requests and to the responses, which
                // are kept below: both stay with the batch, in a value that is finished once its
                // last mark is reached, or dropped once the stream was waited for. So does the
                // memory. Nothing in between unwinds.
                Ok(Some(mut memory)) => unsafe {
                    let in_flight = copies.enqueue(&mut memory.staging, &memory.marks);
                    (in_flight, Some(memory))
                },
                Ok(None) => (CopiesInFlight::ended(copies.run()), None),
                Err(error) => {
                    let all = (0..answers.len()).map(|owner| (owner, error.clone()));
                    (CopiesInFlight::ended(all.collect()), None)
                }
            };
            in_flight.fail(failures);
            for response in answers
                .into_iter()
                .filter_map(|answer| answer.response.ok())
            {
                response.keep();
            }
            (in_flight, memory)
        });
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let before_ns = self.in_flight.back().map_or(0, |front| front.due_ns);
        let due_ns = match delay_ns {
            0 => 0,
            delay_ns => before_ns.max(enqueued_ns).saturating_add(delay_ns),
        };
        self.in_flight.push_back(InFlightBatch {
            batch,
            copies,
            memory,
            enqueued_ns,
            due_ns,
        });
    }

    /// Finishes the batches whose copies are done, in order; returns how many are in flight. Does
    /// not wait.
    pub fn poll(&mut self) -> usize {
        while let Some(front) = self.in_flight.front() {
            let now_ns = monotonic_ns();
            let outcome = match front.is_done() {
                Ok(true) if now_ns >= front.due_ns => Ok(()),
                Ok(_) => break,
                Err(error) => {
                    // It need not be an error of the stream's: the device must be done all the
                    // same. A context that is gone does nothing more.
                    let _ = self.stream.stream.synchronize();
                    Err(self.stream.refusal(&error))
                }
            };
            if let Some(done) = self.in_flight.pop_front() {
                self.finish(done, now_ns, outcome);
            }
        }
        self.in_flight.len()
    }

    fn finish(&mut self, done: InFlightBatch, now_ns: u64, outcome: Result<(), Error>) {
        let InFlightBatch {
            batch,
            copies,
            mut memory,
            enqueued_ns,
            due_ns,
        } = done;
        let mut timeline = match (&outcome, &mut memory) {
            (Ok(()), Some(memory)) if copies.is_marked => {
                self.clock.read(&mut memory.marks, enqueued_ns, now_ns)
            }
            _ => BatchTimeline::unknown(enqueued_ns, now_ns),
        };
        if due_ns > 0 {
            timeline.extend_compute(now_ns);
        }
        // SAFETY: the last mark is reached, or the stream was waited for. The requests and
        // responses, whose memory is copied to, are still with the batch.
        let failures = unsafe { copies.finish(outcome) };
        self.spare.extend(memory);
        batch.finish(|batch| answer(batch, &failures, &timeline));
    }
}

impl BatchMemory {
    fn new(stream: &DeviceStream) -> Result<BatchMemory, Error> {
        Ok(BatchMemory {
            staging: Staging::new(stream.allocator.clone()),
            marks: StageMarks::new(stream)?,
        })
    }
}

/// A request, and the response that it gets if its copies succeed.
struct Answer<'b> {
    request: Request<'b>,
    response: Result<Response<'b>, Error>,
}

impl InFlightBatch {
    fn is_done(&self) -> Result<bool, CudaError> {
        match &self.memory {
            Some(memory) if self.copies.is_marked => memory.marks.staged_out.is_reached(),
            _ => Ok(true),
        }
    }
}

/// Answers the requests of a batch whose copies are done.
fn answer(
    batch: &Batch<'_>,
    failures: &[(usize, Error)],
    timeline: &BatchTimeline,
) -> Result<(), Error> {
    batch.set_compute_times(timeline.staged_in_ns, timeline.computed_ns);
    for (owner, request) in batch.requests().enumerate() {
        timeline.report(request);
        let failure = failures.iter().find(|(failed, _)| *failed == owner);
        let sent = match (failure, request.take_kept()) {
            (Some((_, error)), _) => Err(error.clone()),
            (None, Some(response)) => response.send(),
            (None, None) => Err(Error::internal("the request has no response")),
        };
        if let Err(error) = sent {
            request.fail(error);
        }
    }
    Ok(())
}

impl Drop for StreamBatches {
    fn drop(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        if self.stream.stream.synchronize().is_err() {
            crate::error!("a stream failed while batches were on it");
        }
        // A context that is gone does nothing more.
        while let Some(done) = self.in_flight.pop_front() {
            let now_ns = monotonic_ns();
            let error = Error::unavailable("the instance ended before the request did");
            self.finish(done, now_ns, Err(error));
        }
    }
}
