//! Server reflection: what the server's `.proto` files define, for tools that know none of them.
//! Upstream has none.
//!
//! Both versions of the service have the same messages, so one implementation serves them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use bytes::{Buf, Bytes};
use conch_memory::Budget;
use conch_proto::catalog::{self, File};
use conch_proto::reflection as proto;
use conch_proto::reflection::server_reflection_request::MessageRequest as Question;
use conch_proto::reflection::server_reflection_response::MessageResponse as Answer;
use smallvec::smallvec;

use super::body::{CallFailure, framed, send_pieces};
use super::compression::{InflatedLimit, MessageInflater};
use super::control::decode;
use super::frame::MessagePrefix;
use super::peer_timeout::PeerTimeout;
use super::reply;
use super::status::{GrpcCode, GrpcStatus};
use super::transport::{CallBody, Responder};
use crate::coding::ContentCoding;
use crate::shard::{Shard, Timer, yield_now};

/// A question holds one name.
const QUESTION_BYTES_MAX: usize = 64 << 10;
/// Questions answered before other tasks get their turn: each answer may copy some 50 KB.
const QUESTIONS_PER_TURN: usize = 8;

/// Answers questions until the client has no more, leaves, or the shard drains.
pub(super) async fn serve(
    shard: &Rc<Shard>,
    budget: &Budget,
    body: CallBody,
    coding: Option<ContentCoding>,
    deadline_ns: Option<u64>,
    respond: &mut Responder,
) -> Result<(), CallFailure> {
    reply::send_head(respond, None)?;
    let mut questions = ReflectionRequests {
        body,
        coding,
        rest: Bytes::new(),
        prefix: MessagePrefix::default(),
        wanted: None,
        message: Vec::new(),
    };
    let mut deadline = deadline_ns.map(Timer::at);
    let mut peer_timeout = PeerTimeout::new(deadline_ns);
    let mut count = 0;
    let outcome = loop {
        let next = {
            let mut next = pin!(questions.next());
            let mut drained = pin!(shard.drained());
            std::future::poll_fn(|context| {
                if let Poll::Ready(next) = next.as_mut().poll(context) {
                    return Poll::Ready(next);
                }
                if drained.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Err(GrpcStatus::shutting_down().into()));
                }
                match &mut deadline {
                    Some(timer) => Pin::new(timer)
                        .poll(context)
                        .map(|()| Err(GrpcStatus::deadline_exceeded().into())),
                    None => Poll::Pending,
                }
            })
            .await
        };
        let sent = match next {
            Ok(Some(question)) => {
                let pieces = smallvec![framed(&answer(question))];
                send_pieces(respond, budget, pieces, &mut peer_timeout).await
            }
            Ok(None) => break Ok(()),
            Err(failure) => Err(failure),
        };
        if let Err(failure) = sent {
            break Err(failure);
        }
        count += 1;
        if count == QUESTIONS_PER_TURN {
            count = 0;
            yield_now().await;
        }
    };
    match outcome {
        Ok(()) => reply::send_ok(respond)?,
        Err(CallFailure::Status(status)) => reply::send_error(respond, &status)?,
        Err(failure @ CallFailure::Gone) => return Err(failure),
    }
    Ok(())
}

/// Cuts the call's bytes into questions.
struct ReflectionRequests {
    body: CallBody,
    coding: Option<ContentCoding>,
    /// What is left of the last frame.
    rest: Bytes,
    prefix: MessagePrefix,
    wanted: Option<usize>,
    message: Vec<u8>,
}

impl ReflectionRequests {
    /// The next question; none when the client has asked its last. A client may take its time: it
    /// holds up nobody.
    async fn next(&mut self) -> Result<Option<proto::ServerReflectionRequest>, CallFailure> {
        loop {
            if let Some(question) = self.cut()? {
                return Ok(Some(question));
            }
            let is_between = self.wanted.is_none() && self.prefix.is_empty();
            let frame = std::future::poll_fn(|context| self.body.poll_next(context)).await;
            match frame {
                Some(Ok(frame)) => self.rest = frame,
                Some(Err(failure)) => return Err(failure.into()),
                None if is_between => return Ok(None),
                None => return Err(GrpcStatus::unparsable().into()),
            }
        }
    }

    fn cut(&mut self) -> Result<Option<proto::ServerReflectionRequest>, GrpcStatus> {
        if self.wanted.is_none() {
            let taken = self
                .prefix
                .take(&self.rest, QUESTION_BYTES_MAX, self.coding)?;
            let used_bytes = self.rest.len() - taken.1.len();
            self.wanted = taken.0;
            self.rest.advance(used_bytes);
        }
        let Some(wanted) = self.wanted else {
            return Ok(None);
        };
        let missing = wanted.saturating_sub(self.message.len());
        let own = self.rest.split_to(self.rest.len().min(missing));
        self.message.extend_from_slice(&own);
        if self.message.len() < wanted {
            return Ok(None);
        }
        self.wanted = None;
        let prefix = std::mem::take(&mut self.prefix);
        let mut message = std::mem::take(&mut self.message);
        if let Some(coding) = prefix.packed() {
            let pieces = vec![Bytes::from(message)];
            message = MessageInflater::new(
                pieces,
                coding,
                InflatedLimit::fixed(QUESTION_BYTES_MAX),
                Vec::new(),
            )
            .finish()?;
        }
        decode(&message).map(Some)
    }
}

fn answer(question: proto::ServerReflectionRequest) -> proto::ServerReflectionResponse {
    let answer = match &question.message_request {
        Some(Question::FileByFilename(name)) => {
            files(catalog::file_by_name(name), "File not found.")
        }
        Some(Question::FileContainingSymbol(symbol)) => {
            files(catalog::file_of_symbol(symbol), "Symbol not found.")
        }
        // proto3 has none.
        Some(Question::FileContainingExtension(_)) => not_found("Extension not found."),
        Some(Question::AllExtensionNumbersOfType(name)) if catalog::is_message(name) => {
            Answer::AllExtensionNumbersResponse(proto::ExtensionNumberResponse {
                base_type_name: name.clone(),
                extension_number: Vec::new(),
            })
        }
        Some(Question::AllExtensionNumbersOfType(_)) => not_found("Type not found."),
        Some(Question::ListServices(_)) => {
            let service = catalog::SERVICES
                .iter()
                .map(|name| proto::ServiceResponse {
                    name: (*name).to_owned(),
                })
                .collect();
            Answer::ListServicesResponse(proto::ListServiceResponse { service })
        }
        None => failure(GrpcCode::InvalidArgument, "the request asks for nothing"),
    };
    proto::ServerReflectionResponse {
        valid_host: question.host.clone(),
        original_request: Some(question),
        message_response: Some(answer),
    }
}

fn files(file: Option<&'static File>, otherwise: &str) -> Answer {
    let Some(file) = file else {
        return not_found(otherwise);
    };
    let file_descriptor_proto = file
        .closure()
        .iter()
        .map(|file| file.descriptor.to_vec())
        .collect();
    Answer::FileDescriptorResponse(proto::FileDescriptorResponse {
        file_descriptor_proto,
    })
}

fn not_found(message: &str) -> Answer {
    failure(GrpcCode::NotFound, message)
}

fn failure(code: GrpcCode, message: &str) -> Answer {
    Answer::ErrorResponse(proto::ErrorResponse {
        error_code: i32::from(code as u8),
        error_message: message.to_owned(),
    })
}
