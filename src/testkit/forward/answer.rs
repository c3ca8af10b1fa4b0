//! The responses of the other model, as answers to the request that was forwarded.

use std::ffi::CString;

use conch_backend_sdk as sdk;
use sdk::{
    Error, Outgoing, Parameter, ParameterValue, ResponseFactory, ServerCall, ServerDelivery,
    ServerResponse,
};

use crate::counts::CountedCall;

/// Hears of the responses of one call.
pub(crate) struct Receiver {
    /// None if the request is answered already.
    answer: Option<Answer>,
    counted: CountedCall,
    cancel_after: Option<u64>,
    response_count: u64,
}

impl Receiver {
    pub(crate) fn new(
        answer: Option<Answer>,
        counted: CountedCall,
        cancel_after: Option<u64>,
    ) -> Self {
        Receiver {
            answer,
            counted,
            cancel_after,
            response_count: 0,
        }
    }

    pub(crate) fn receive(&mut self, call: &ServerCall, delivery: ServerDelivery) {
        if let Some(Ok(response)) = &delivery.response {
            self.response_count += 1;
            log_failure("count a response", self.count(response));
            if self.cancel_after == Some(self.response_count) {
                log_failure("cancel a call", call.cancel());
            }
        }
        self.answer = self.answer.take().and_then(|answer| answer.go_on(delivery));
    }

    fn count(&self, response: &ServerResponse) -> Result<(), Error> {
        let byte_count = response
            .outputs
            .iter()
            .map(|output| output.memory.len())
            .sum();
        self.counted.count(self.response_count, byte_count)
    }
}

/// The answers to one request.
pub(crate) struct Answer {
    factory: ResponseFactory,
    is_decoupled: bool,
    /// Parameters for the first response.
    notes: Vec<(CString, ParameterValue)>,
}

impl Answer {
    pub(crate) fn new(
        factory: ResponseFactory,
        is_decoupled: bool,
        notes: Vec<(CString, ParameterValue)>,
    ) -> Self {
        Answer {
            factory,
            is_decoupled,
            notes,
        }
    }

    /// Answers with what came; none when the request is answered for good.
    fn go_on(mut self, delivery: ServerDelivery) -> Option<Answer> {
        let notes = std::mem::take(&mut self.notes);
        match delivery.response {
            Some(Err(error)) if delivery.is_final || !self.is_decoupled => {
                self.factory.fail(error);
                None
            }
            Some(Ok(response)) if delivery.is_final || !self.is_decoupled => {
                let sent = self
                    .factory
                    .finish_with(|outgoing| fill(outgoing, &response, &notes));
                log_failure("answer", sent);
                None
            }
            None if self.is_decoupled => {
                log_failure("end the answers", self.factory.finish());
                None
            }
            None => {
                self.factory
                    .fail(Error::internal("the model answered nothing"));
                None
            }
            Some(outcome) => {
                log_failure("answer", self.send_partial(outcome, &notes));
                Some(self)
            }
        }
    }

    fn send_partial(
        &self,
        outcome: Result<ServerResponse, Error>,
        notes: &[(CString, ParameterValue)],
    ) -> Result<(), Error> {
        let mut response = self.factory.respond()?;
        let made = outcome.and_then(|outcome| fill(&mut response, &outcome, notes));
        match made {
            Ok(()) => response.send(),
            Err(error) => {
                response.fail(error);
                Ok(())
            }
        }
    }
}

/// Copies a response.
fn fill(
    outgoing: &mut Outgoing,
    response: &ServerResponse,
    notes: &[(CString, ParameterValue)],
) -> Result<(), Error> {
    for output in &response.outputs {
        let bytes = output.memory.bytes();
        let bytes = bytes.ok_or_else(|| Error::unsupported("an output lies on a device"))?;
        let (name, data_type) = (&output.name, output.data_type);
        let mut buffer = outgoing.output(name, data_type, &output.shape, bytes.len())?;
        buffer.write(bytes)?;
    }
    let version = response.model_version;
    outgoing.set_text(
        c"answered_by",
        &format!("{} {version}", response.model_name),
    )?;
    outgoing.set_text(c"answered_id", &response.id.to_string_lossy())?;
    for (name, value) in response.parameters.iter().chain(notes) {
        match value.borrow() {
            Parameter::Text(text) => outgoing.set_text(name, &text.to_string_lossy())?,
            Parameter::Integer(value) => outgoing.set_integer(name, value)?,
            Parameter::Boolean(value) => outgoing.set_boolean(name, value)?,
            Parameter::Number(value) => outgoing.set_double_if_known(name, value)?,
        }
    }
    Ok(())
}

/// Nobody is left to be told of a failure while a response is received, except the log.
fn log_failure(what: &str, result: Result<(), Error>) {
    if let Err(error) = result {
        sdk::error!("failed to {what}: {error}");
    }
}
