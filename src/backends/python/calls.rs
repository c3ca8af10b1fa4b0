//! What a stub posts: responses of its requests, log lines, and calls to the server that a thread
//! of the stub waits for.

use std::sync::Arc;

use conch_backend_sdk as sdk;
use conch_python_ipc::{OffsetRing, wire};
use sdk::{Code, Error};
use serde_json::json;

use crate::call_text::{CallText, answer};
use crate::children::Children;
use crate::control::Controls;
use crate::decode::{Lender, OutputPlaces, ResponseMessage, SendMessage};
use crate::in_flight::{InFlight, InFlightRequest};
use crate::metrics::Metrics;
use crate::process::StubProcess;
use crate::readiness::Readiness;

/// Handles the messages of one process, on the instance's thread.
pub(crate) struct Calls<'h> {
    instance: Option<InstanceCalls<'h>>,
    metrics: Metrics,
    children: Children,
    controls: Controls,
}

/// What only an instance's stub posts about.
#[derive(Clone, Copy)]
pub(crate) struct InstanceCalls<'h> {
    pub(crate) in_flight: &'h InFlight,
    pub(crate) readiness: &'h Readiness,
}

const COMPLETE_FINAL: u32 = 1;

impl<'h> Calls<'h> {
    pub(crate) fn new(instance: InstanceCalls<'h>, server: &sdk::Server) -> Calls<'h> {
        Calls {
            instance: Some(instance),
            metrics: Metrics::default(),
            children: Children::new(server),
            controls: Controls::new(server),
        }
    }

    /// For a process that completes a configuration: there are no requests.
    pub(crate) fn without_requests(server: &sdk::Server) -> Calls<'static> {
        Calls {
            instance: None,
            metrics: Metrics::default(),
            children: Children::new(server),
            controls: Controls::new(server),
        }
    }

    /// Handles messages until `is_over`, or the process ended, and all that it posted before is
    /// handled.
    pub(crate) fn serve(&self, process: &Arc<StubProcess>, is_over: impl Fn() -> bool) {
        let ring = OffsetRing::of(&process.responses);
        let is_over = || process.is_dead() || is_over();
        // As many as can have been posted before the end was seen: a stub that goes on to post, or
        // a process of its own that has its memory, holds nothing up.
        let mut left = OffsetRing::CAPACITY;
        loop {
            // Looked at before the ring: what was posted before the end is in it.
            let is_last = is_over();
            match ring.pop() {
                Ok(Some(offset)) => {
                    self.handle(process, offset);
                    left -= u32::from(is_last);
                    if left == 0 {
                        return;
                    }
                }
                Ok(None) if is_last => return,
                Ok(None) => ring.wait(None, is_over),
                Err(_) => {
                    sdk::error!("a Python stub wrote over its queue and is ended");
                    process.kill();
                    return;
                }
            }
        }
    }

    /// Gives up what the process asked for and will not fetch.
    pub(crate) fn close(&self) {
        self.children.close();
        self.metrics.close();
    }

    fn handle(&self, process: &Arc<StubProcess>, offset: u64) {
        let Some(message) = process.message(offset) else {
            sdk::error!("a Python stub posted what is no message and is ended");
            return process.kill();
        };
        match message.text.first() {
            Some(&wire::SEND) => match (SendMessage::read(&message.text), self.instance) {
                (Ok(sent), Some(instance)) => {
                    let response = sent.response.as_ref();
                    let is_awaited = response.is_some_and(ResponseMessage::is_awaited);
                    let places = OutputPlaces {
                        segment: &process.responses,
                        tensors_at: message.tensors_at,
                        inputs: None,
                        lender: (!is_awaited).then_some(Lender {
                            process,
                            reply: &message,
                        }),
                        devices: Some(&process.devices),
                    };
                    return send(instance.in_flight, sent, &places);
                }
                (Ok(_), None) => return,
                (Err(error), _) => return end_malformed(process, &error),
            },
            Some(&wire::INFER) => {
                let Some(instance) = self.instance else {
                    return;
                };
                let outcome = self
                    .children
                    .infer(process, message, |number| instance.in_flight.trace(number));
                return outcome.unwrap_or_else(|error| end_malformed(process, &error));
            }
            _ => {}
        }
        let text: CallText = match serde_json::from_slice(&message.text) {
            Ok(text) => text,
            Err(error) => return end_malformed(process, &error),
        };
        match (text.kind(), self.instance) {
            ("log", _) => write_log(&text),
            ("drop_request", Some(instance)) => drop(instance.in_flight.remove(text.number)),
            ("readiness", Some(instance)) => instance.readiness.listen(process, message),
            ("is_ready_reply", Some(instance)) => {
                instance.readiness.answer(text.line, readiness_of(&text));
                answer(process, message, Ok(json!({})));
            }
            ("is_cancelled", Some(instance)) => {
                let is_cancelled = instance.in_flight.is_cancelled(text.number);
                answer(process, message, Ok(json!({ "v": is_cancelled })));
            }
            // All that the stub posted before is handled.
            ("settle", _) => answer(process, message, Ok(json!({}))),
            ("next", Some(_)) => self.children.next(process, message, text.number),
            ("cancel", Some(_)) => {
                self.children.cancel(text.number);
                answer(process, message, Ok(json!({})));
            }
            ("drop_call", Some(_)) => self.children.drop_call(text.number),
            ("load" | "unload" | "is_ready", _) => {
                self.controls.handle(process, message, &text);
            }
            ("family" | "new_metric" | "metric", _) => {
                answer(process, message, self.metrics.handle(text.kind(), &text));
            }
            ("drop_device", _) => process.devices.buffers.is_done(text.number),
            ("drop_device_mapping", _) => process.devices.buffers.is_unmapped(text.number),
            ("drop_family", _) => self.metrics.drop_family(text.number),
            (kind, _) => {
                let unknown = Error::invalid(format!("the server knows no call '{kind}'"));
                answer(process, message, Err(unknown));
            }
        }
    }
}

fn readiness_of(text: &CallText) -> Result<(), Error> {
    match (text.value.as_bool(), text.text.is_empty()) {
        (Some(true), _) => Ok(()),
        (_, true) => Err(Error::new(Code::Unavailable, "the model is not ready")),
        (_, false) => Err(Error::internal(text.text.clone())),
    }
}

fn write_log(text: &CallText) {
    let level = match text.level {
        1 => sdk::log::Level::Warning,
        2 => sdk::log::Level::Error,
        3 => sdk::log::Level::Verbose,
        _ => sdk::log::Level::Info,
    };
    if sdk::log::is_enabled(level) {
        let file = text.flags().as_str().unwrap_or("model.py");
        let line = u32::try_from(text.line).unwrap_or(0);
        sdk::log::write(level, file, line, &text.text);
    }
}

fn end_malformed(process: &StubProcess, error: &dyn std::fmt::Display) {
    sdk::error!("a Python stub posted a malformed message and is ended: {error}");
    process.kill();
}

/// Sends a response of a request, or its end.
fn send(in_flight: &InFlight, sent: SendMessage<'_>, places: &OutputPlaces<'_>) {
    let is_final = sent.flags == COMPLETE_FINAL;
    let request = match is_final {
        true => in_flight.remove(sent.number),
        false => in_flight.lend(sent.number),
    };
    // What was given up, or is answered, has no factory any more.
    let Some(InFlightRequest { factory, trace }) = request else {
        return;
    };
    let restore = |factory| {
        let request = InFlightRequest { factory, trace };
        in_flight.restore(sent.number, request);
    };
    let is_error = matches!(sent.response, Some(ResponseMessage::Error(_)));
    let outcome = match (sent.response, is_final) {
        (None, true) => factory.finish(),
        (None, false) => {
            restore(factory);
            Ok(())
        }
        (Some(response), true) => factory.finish_with(|outgoing| response.fill(outgoing, places)),
        (Some(response), false) => {
            let outcome =
                factory
                    .respond()
                    .and_then(|mut made| match response.fill(&mut made, places) {
                        Ok(()) => made.send(),
                        Err(error) => {
                            made.fail(error);
                            Ok(())
                        }
                    });
            restore(factory);
            outcome
        }
    };
    if let Err(error) = outcome
        && !is_error
    {
        sdk::error!("a response of a Python model was not sent: {error}");
    }
}
