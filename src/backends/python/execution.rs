//! One execution of a batch: the requests go to the stub in one message, and are answered by its
//! reply.
//!
//! ```text
//!              send                 take
//! (new) ──────────────► waits ──────────────► (answered)
//!   ▲                   │   ▲
//!   └── process ended ──┘   └── goes on later, on the instance's own thread
//! ```

use std::sync::Arc;
use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::{Batch, Code, Error, Request};

use crate::decode::{Lender, OutputPlaces, ResponseMessage, ResponseRow, reply_rows};
use crate::device_inputs::DeviceInputs;
use crate::encode::ExecuteMessage;
use crate::host::StubHost;
use crate::in_flight::InFlightRequest;
use crate::process::{NoReply, Reply, SentCommand, StubProcess};
use crate::shared_tensor;

/// Replies with more bytes of outputs are left to the instance's own thread, as they are copied.
const COPIED_BYTES_MAX: u64 = 64 << 10;

/// A batch that a process of the instance executes, or is about to.
pub(crate) struct Execution {
    process: Arc<StubProcess>,
    device: Option<u32>,
    /// By request of the batch: the stub's number; none for one that was refused.
    numbers: Vec<Option<u64>>,
    sent: Option<SentMessage>,
}

/// What was begun on a thread that must not wait for it.
pub(crate) enum OpenExecution {
    /// It is to be executed from the beginning.
    Unsent,
    Sent(Execution),
}

/// A message at the stub, with its tensors.
#[derive(Clone, Copy)]
struct SentMessage {
    command: SentCommand,
    /// In our segment.
    tensors_at: u64,
    tensor_bytes: u64,
}

/// Why an execution failed.
enum ExecuteFailure {
    /// The process ended, and has seen nothing of the requests.
    NotTaken,
    Failed(Error),
}

impl From<Error> for ExecuteFailure {
    fn from(error: Error) -> ExecuteFailure {
        ExecuteFailure::Failed(error)
    }
}

impl Execution {
    /// Takes the requests in; those that cannot be are answered.
    pub(crate) fn new(
        host: &StubHost,
        process: Arc<StubProcess>,
        device: Option<u32>,
        batch: &Batch<'_>,
    ) -> Execution {
        let insert = |request: Request<'_>| {
            let in_flight = InFlightRequest {
                factory: request.spare_factory()?,
                trace: request.trace_parent()?,
            };
            Ok(host.in_flight.insert(in_flight))
        };
        let numbers = batch.requests().map(|request| match insert(request) {
            Ok(number) => Some(number),
            Err(error) => {
                request.fail(error);
                None
            }
        });
        Execution {
            process,
            device,
            numbers: numbers.collect(),
            sent: None,
        }
    }

    /// Executes to the end; blocks as long as the model does.
    pub(crate) fn finish(mut self, host: &StubHost, batch: &Batch<'_>) {
        let requests = self.requests(batch);
        if requests.is_empty() {
            return;
        }
        let mut outcome = self.execute(host, batch, &requests);
        // The process ended before it took them: the next one executes them. A process that ends
        // again and again is given up (stub-restart-limit).
        while let Err(ExecuteFailure::NotTaken) = outcome {
            self.sent = None;
            outcome = match host.process_after(&self.process) {
                Ok(next) => {
                    self.process = next;
                    for executing in &requests {
                        host.in_flight.begin_again(executing.number);
                    }
                    self.execute(host, batch, &requests)
                }
                Err(error) => Err(error.into()),
            };
        }
        if let Err(ExecuteFailure::Failed(error)) = outcome {
            fail_all(host, &requests, &error);
        }
    }

    /// Executes to the end if that needs no more than `limit`, and no large copies; otherwise the
    /// execution that is open. For main memory only.
    pub(crate) fn try_finish(
        mut self,
        host: &StubHost,
        batch: &Batch<'_>,
        limit: Duration,
    ) -> Option<OpenExecution> {
        let requests = self.requests(batch);
        if requests.is_empty() {
            return None;
        }
        match self.try_execute(host, batch, &requests, limit) {
            Ok(true) => return None,
            Ok(false) => {}
            Err(ExecuteFailure::NotTaken) => {
                // A new process is waited for where it can be.
                self.sent = None;
            }
            Err(ExecuteFailure::Failed(error)) => {
                fail_all(host, &requests, &error);
                return None;
            }
        }
        drop(requests);
        Some(OpenExecution::Sent(self))
    }

    /// The requests that the stub is to answer.
    fn requests<'b>(&self, batch: &'b Batch<'_>) -> Vec<Executing<'b>> {
        let both = batch.requests().zip(&self.numbers);
        both.filter_map(|(request, &number)| {
            Some(Executing {
                request,
                number: number?,
            })
        })
        .collect()
    }

    /// Sends the requests, unless they are sent, and answers those that the stub answers at once.
    fn execute(
        &mut self,
        host: &StubHost,
        batch: &Batch<'_>,
        requests: &[Executing<'_>],
    ) -> Result<(), ExecuteFailure> {
        let (message, sent) = match self.sent {
            Some(sent) => (None, sent),
            None => {
                let message = self.message(requests)?;
                let sent = self.send(&message, batch)?;
                // The reply ends the use of its inputs on GPUs.
                (Some(message), sent)
            }
        };
        self.process.pass_offer();
        let reply = self.process.reply(sent.command, None);
        drop(message);
        self.take(host, batch, requests, sent, reply)
    }

    /// As [`Execution::execute`]; false if the reply needs more time.
    fn try_execute(
        &mut self,
        host: &StubHost,
        batch: &Batch<'_>,
        requests: &[Executing<'_>],
        limit: Duration,
    ) -> Result<bool, ExecuteFailure> {
        let sent = self.send(&self.message(requests)?, batch)?;
        self.sent = Some(sent);
        let is_small = self.process.look_at_reply(sent.command, limit, |text| {
            output_bytes(text, requests.len())
        });
        let reply = match is_small {
            Err(NoReply::TimedOut) => return Ok(false),
            Ok(Some(bytes)) if bytes > COPIED_BYTES_MAX => return Ok(false),
            Ok(_) => self.process.reply(sent.command, None),
            Err(failure) => Err(failure),
        };
        self.take(host, batch, requests, sent, reply).map(|()| true)
    }

    fn message<'p, 'b>(
        &'p self,
        requests: &[Executing<'b>],
    ) -> Result<ExecuteMessage<'p, 'b>, ExecuteFailure> {
        let devices = DeviceInputs::new(&self.process.devices, self.device);
        let requests = requests
            .iter()
            .map(|executing| (executing.request, executing.number));
        Ok(ExecuteMessage::new(requests, devices)?)
    }

    /// Sends the requests and their inputs.
    fn send(
        &self,
        message: &ExecuteMessage<'_, '_>,
        batch: &Batch<'_>,
    ) -> Result<SentMessage, ExecuteFailure> {
        let process = &self.process;
        let room = process.write(message.writer.bytes(), message.tensor_bytes);
        let (offset, tensors_at) = room.ok_or_else(|| {
            Error::new(
                Code::Unavailable,
                format!(
                    "the shared memory of the model has no room for {} bytes of inputs: the model \
                     keeps others, or they are too large (shm-max-byte-size)",
                    message.tensor_bytes
                ),
            )
        })?;
        let copied = message.inputs.iter().try_for_each(|(input, at)| {
            shared_tensor::copy_in(input, process.blocks.segment(), tensors_at + at)
        });
        if let Err(error) = copied.and_then(|()| message.device_inputs.copy()) {
            process.blocks.give_back(offset);
            return Err(error.into());
        }
        batch.begin_compute();
        Ok(SentMessage {
            command: process.send(offset),
            tensors_at,
            tensor_bytes: message.tensor_bytes,
        })
    }

    /// Answers the requests as the reply says.
    fn take(
        &self,
        host: &StubHost,
        batch: &Batch<'_>,
        requests: &[Executing<'_>],
        sent: SentMessage,
        reply: Result<Reply<'_>, NoReply>,
    ) -> Result<(), ExecuteFailure> {
        batch.end_compute();
        let process = &self.process;
        let reply = reply.map_err(|failure| match failure {
            NoReply::NotTaken => ExecuteFailure::NotTaken,
            NoReply::Ended | NoReply::TimedOut => host.unhealthy().into(),
            NoReply::Malformed => {
                process.kill();
                host.unhealthy().into()
            }
        })?;
        host.note_execution();
        let rows = reply_rows(&reply.text, requests.len())?;
        let is_awaited = rows.iter().any(ResponseRow::is_awaited);
        let end = sent.tensors_at.saturating_add(sent.tensor_bytes);
        let places = OutputPlaces {
            segment: &process.responses,
            tensors_at: reply.tensors_at,
            inputs: Some((process.blocks.segment(), sent.tensors_at..end)),
            lender: (!is_awaited).then_some(Lender {
                process,
                reply: &reply,
            }),
            devices: Some(&process.devices),
        };
        for (executing, row) in requests.iter().zip(rows) {
            executing.answer(host, row, &places);
        }
        Ok(())
    }
}

/// Bytes of all outputs in a reply; none of one that is malformed.
fn output_bytes(text: &[u8], count: usize) -> u64 {
    let rows = reply_rows(text, count).unwrap_or_default();
    rows.iter()
        .map(ResponseRow::output_bytes)
        .fold(0, u64::saturating_add)
}

fn fail_all(host: &StubHost, requests: &[Executing<'_>], error: &Error) {
    for executing in requests {
        executing.fail(host, error.clone());
    }
}

/// A request of the batch that is being executed.
struct Executing<'b> {
    request: Request<'b>,
    number: u64,
}

impl Executing<'_> {
    fn answer(&self, host: &StubHost, row: ResponseRow<'_>, places: &OutputPlaces<'_>) {
        match row {
            // Its sender answers it, or did already.
            ResponseRow::Later => self.leave(host),
            ResponseRow::Again => self.run_again(host),
            ResponseRow::Response(ResponseMessage::Error(error)) => self.fail(host, error),
            ResponseRow::Response(message) => {
                self.respond(host, |outgoing| message.fill(outgoing, places));
            }
        }
    }

    /// Leaves the request to its sender.
    fn leave(&self, host: &StubHost) {
        self.request.hand_over();
        host.in_flight.leave(self.number);
    }

    /// Answers the request here, unless its sender has it, or has answered it for good.
    fn take_back(&self, host: &StubHost, in_flight: Option<InFlightRequest>) -> bool {
        match in_flight {
            Some(in_flight) => {
                in_flight.factory.discard();
                true
            }
            None => {
                self.leave(host);
                false
            }
        }
    }

    fn fail(&self, host: &StubHost, error: Error) {
        let in_flight = host.in_flight.remove_to_fail(self.number, &error);
        if self.take_back(host, in_flight) {
            self.request.fail(error);
        }
    }

    fn respond(&self, host: &StubHost, fill: impl FnOnce(&mut sdk::Outgoing) -> Result<(), Error>) {
        let in_flight = host.in_flight.remove(self.number);
        if !self.take_back(host, in_flight) {
            return;
        }
        let made = self.request.respond().and_then(|mut response| {
            fill(&mut response)?;
            response.send()
        });
        if let Err(error) = made {
            self.request.fail(error);
        }
    }

    fn run_again(&self, host: &StubHost) {
        let in_flight = host.in_flight.remove(self.number);
        if self.take_back(host, in_flight)
            && let Err(error) = self.request.run_again()
        {
            self.request.fail(error);
        }
    }
}
