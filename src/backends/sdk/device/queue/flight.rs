//! A batch between its enqueueing and its answer.

use std::ffi::CString;

use super::DeviceQueue;
use super::enqueue::copy_on_host;
use super::work::{EngineWork, FlightParts};
use crate::{Batch, DataType, DetachedBatch, Error, Request, Response};

/// A batch that the device works on, and what keeps its memory.
pub(super) struct Flight {
    batch: DetachedBatch,
    parts: FlightParts,
}

/// A state's next value, in host memory.
pub(super) struct StagedState {
    pub(super) request: usize,
    pub(super) name: CString,
    pub(super) data_type: DataType,
    pub(super) shape: Vec<i64>,
    pub(super) bytes: Vec<u8>,
}

impl Flight {
    pub(super) fn new(batch: DetachedBatch) -> Self {
        Flight {
            batch,
            parts: FlightParts::default(),
        }
    }

    /// Has `work` enqueue what is to be done. The responses that it fills are kept.
    ///
    /// # Errors
    /// Those of `work`, and of the driver. Parts may be in flight then.
    pub(super) fn begin(
        &mut self,
        queue: &mut DeviceQueue,
        work: impl for<'w> FnOnce(&mut EngineWork<'w>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let parts = &mut self.parts;
        self.batch.with(|batch| {
            let responses = batch
                .requests()
                .map(Request::respond)
                .collect::<Result<Vec<_>, Error>>()?;
            let mut device_work = EngineWork::new(queue, batch, &responses);
            let outcome = work(&mut device_work).and_then(|()| device_work.end());
            // Waits for what failed.
            drop(device_work);
            // In every case: copies may be on their way into them.
            for response in responses {
                response.keep();
            }
            *parts = outcome?;
            Ok(())
        })
    }

    /// Whether inputs were copied by the queue's own stream.
    pub(super) fn has_copied_inputs(&self) -> bool {
        self.parts.has_copied_inputs
    }

    /// Answers the batch: the device is done.
    pub(super) fn finish(self) {
        let Flight { batch, parts } = self;
        for staged in &parts.staged {
            // SAFETY: staging memory is this batch's until now, and as long; the target is host
            // memory of a response or a state, which are kept until now.
            unsafe { copy_on_host(staged.target, staged.source, staged.len) };
        }
        for block in &parts.blocks {
            block.forget_old();
        }
        batch.finish(|batch| {
            batch.end_compute();
            answer(batch, parts);
            Ok(())
        });
    }

    /// Answers all requests with an error. Nothing is in flight.
    pub(super) fn fail(self, error: Error) {
        for block in &self.parts.blocks {
            block.forget_old();
        }
        self.batch.finish(|batch| {
            for request in batch.requests() {
                drop(request.take_kept());
            }
            Err(error)
        });
    }
}

fn answer(batch: &Batch<'_>, parts: FlightParts) {
    let mut failures = parts.failures;
    for state in parts.states {
        let updated = batch.requests().nth(state.request).map(|request| {
            let mut next = request.state(&state.name, state.data_type, &state.shape)?;
            next.buffer(state.bytes.len())?.write(&state.bytes[..])?;
            next.update()
        });
        if let Some(Err(error)) = updated {
            failures.push((state.request, error));
        }
    }
    for (index, request) in batch.requests().enumerate() {
        let Some(response) = request.take_kept() else {
            continue;
        };
        let failed = failures.iter().position(|(number, _)| *number == index);
        send(response, failed.map(|at| failures.swap_remove(at).1));
    }
}

fn send(response: Response<'_>, failure: Option<Error>) {
    match failure {
        Some(error) => response.fail(error),
        None => {
            if let Err(error) = response.send() {
                crate::error!("failed to send a response: {error}");
            }
        }
    }
}
