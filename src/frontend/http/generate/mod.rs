//! The generate extension: a flat JSON object in, flat JSON objects out; one of them (`generate`),
//! or any number as server-sent events (`generate_stream`).
//!
//! [`decode`] makes a draft of the request, [`encode`] an object of a response, [`events`] the
//! answer of a stream. What is wrong with the request is answered in plain JSON. After that the
//! first response decides on the status, as it does upstream, for either kind.

mod decode;
mod encode;
mod events;
mod load_metrics;

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::admission::refuse_over_limit;
use conch_engine::{Code, Credits, Error, ModelVersion, RequestPermits, Response, Tenant};
use conch_memory::{Budget, ByteView};

use super::answer::{ContentType, HttpResponse, status_of};
use super::connection::{ConnectionClosed, HttpConnection};
use super::deadline;
use super::head::RequestHead;
use super::infer::decode::{JsonLimits, OFFLOAD_FROM_BYTES as DECODE_ASIDE_FROM_BYTES};
use super::infer::encode::OFFLOAD_FROM_BYTES as ENCODE_ASIDE_FROM_BYTES;
use crate::api;
use crate::shard::{
    AcquireError, AcquireOutcome, AcquireTarget, HeldPermit, ResponseQueue, Shard, StreamRequest,
    SubmitOptions,
};
use crate::trace::{ActiveTrace, RemoteContext};
use decode::GenerateRequest;
use events::EventStream;
use load_metrics::LoadFormat;

/// What upstream answers when a model does not send exactly one response.
const NOT_ONE_RESPONSE: &str = "generate expects model to produce exactly 1 response, use generate \
                                stream for model that generates various number of responses";

/// One request whose head is known.
pub(crate) struct GenerateCall {
    model: Arc<ModelVersion>,
    /// The version that was asked for.
    version: Option<i64>,
    is_stream: bool,
    deadline_ns: Option<u64>,
    load_metrics: Option<LoadFormat>,
    tenant: Option<Tenant>,
    permit: HeldPermit,
    traced: Option<Arc<ActiveTrace>>,
}

impl GenerateCall {
    /// Decides from the head alone.
    ///
    /// # Errors
    /// In upstream's words, all of them as JSON.
    pub(crate) fn plan(
        shard: &Rc<Shard>,
        head: &RequestHead<'_>,
        name: &str,
        version: Option<&str>,
        is_stream: bool,
    ) -> Result<GenerateCall, Error> {
        let version = api::parse_version(version.unwrap_or(""))?;
        shard.server.check_serving()?;
        let model = shard.find(name, version)?;
        if !matches!(head.content_encoding, None | Some("" | "identity")) {
            return Err(Error::invalid(
                "Unsupported content-encoding, only 'identity' is supported.",
            ));
        }
        let remote = || RemoteContext::read(head.trace_parent, || head.find("tracestate"));
        let traced = shard.tracing.sample(name, remote);
        if let Some(traced) = &traced {
            traced.reach("HTTP_RECV_START");
        }
        let timeout_header = shard.options.http_timeout_header.as_deref();
        Ok(GenerateCall {
            model,
            version,
            is_stream,
            deadline_ns: deadline::deadline_of(head, timeout_header)?,
            load_metrics: head
                .find(load_metrics::WISH)
                .and_then(LoadFormat::from_name),
            tenant: shard.tenant(|name| head.find(name)),
            permit: None,
            traced,
        })
    }

    /// Keeps the model until the request is submitted.
    pub(crate) fn attach_permit(&mut self, permit: HeldPermit) {
        self.permit = permit;
    }

    /// Answers, or begins to: the rest of a stream is the answer's source.
    pub(crate) async fn run(
        mut self,
        body: ByteView,
        connection: &mut HttpConnection,
    ) -> Result<HttpResponse, ConnectionClosed> {
        let shard = Rc::clone(&connection.shard);
        if let Some(traced) = &self.traced {
            traced.reach("HTTP_RECV_END");
        }
        let responses = Rc::new(ResponseQueue::default());
        let refused = |error| Ok(HttpResponse::error(&error, ContentType::Json));
        let decoded = match self.decode(&shard, body).await {
            Ok(decoded) => decoded,
            Err(error) => return refused(error),
        };
        connection.note_id(decoded.id());
        let held = self.permit.take();
        let room = match shard.acquire(self.acquire_target(), held) {
            Ok(AcquireOutcome::Acquired(permits)) => Ok(permits),
            Ok(AcquireOutcome::Waiting(room)) => {
                decoded.mark_complete();
                connection.await_reply(room).await?
            }
            Err(limit) => Err(AcquireError::Limit(limit)),
        };
        let permits = match room {
            Ok(permits) => permits,
            Err(refusal) => return Ok(self.error(decoded.id(), refusal)),
        };
        let submitted = self.submit(&shard, connection.budget(), (decoded, permits), &responses);
        let (flight, id) = match submitted {
            Ok(submitted) => submitted,
            Err(error) => return refused(error),
        };
        let deadline_ns = self.deadline_ns;
        let mut answer = if self.is_stream {
            let mut events = EventStream::new(&shard, responses, flight, id);
            let begun = deadline::within(deadline_ns, events.begin());
            let Some(code) = connection.await_reply(begun).await? else {
                return Ok(deadline::exceeded());
            };
            // What is sent first is what a trace shows of the sending.
            if let Some(traced) = self.traced {
                connection.note_traced(traced);
            }
            connection.stream_from(events.until(deadline_ns));
            HttpResponse::new(code.map_or(200, status_of), ContentType::Events, Vec::new())
        } else {
            let whole = deadline::within(deadline_ns, WholeResponse::collect(flight, &responses));
            match connection.await_reply(whole).await? {
                Some(whole) => {
                    if let Some(traced) = self.traced {
                        connection.note_traced(traced);
                    }
                    whole.answer(&shard, id).await
                }
                None => return Ok(deadline::exceeded()),
            }
        };
        if let Some(format) = self.load_metrics {
            let value = load_metrics::header(&shard, format).await;
            answer.more_headers =
                value.map(|value| format!("\r\nendpoint-load-metrics: {value}").into());
        }
        Ok(answer)
    }

    fn acquire_target(&self) -> AcquireTarget<'_> {
        AcquireTarget {
            model: &self.model,
            version: self.version,
            tenant: self.tenant,
            deadline_ns: self.deadline_ns,
        }
    }

    /// The answer to request `id`, which is not let in.
    #[cold]
    fn error(&self, id: &str, refusal: AcquireError) -> HttpResponse {
        let error = match refusal {
            AcquireError::DeadlineExceeded => return deadline::exceeded(),
            AcquireError::Limit(limit) => refuse_over_limit(&self.model, id, limit),
            AcquireError::Gone(error) => error,
        };
        api::note_refusal(id, &error.message);
        HttpResponse::error(&error, ContentType::Json)
    }

    async fn decode(
        &self,
        shard: &Rc<Shard>,
        body: ByteView,
    ) -> Result<Box<GenerateRequest>, Error> {
        let limits = JsonLimits::of(&shard.options);
        let config = Arc::clone(&self.model.config);
        let length = body.len();
        let decoded = if length < DECODE_ASIDE_FROM_BYTES {
            decode::decode(body, &config, limits)
        } else {
            shard
                .offload(length as u64, move || decode::decode(body, &config, limits))
                .await
        };
        decoded.inspect_err(|error| api::note_refusal("", &error.message))
    }

    fn submit(
        &self,
        shard: &Rc<Shard>,
        budget: &Arc<Budget>,
        (mut decoded, permits): (Box<GenerateRequest>, RequestPermits),
        responses: &Rc<ResponseQueue>,
    ) -> Result<(StreamRequest, Box<str>), Error> {
        let mut draft = decoded.draft();
        if self.model.config.is_decoupled {
            draft.features.credits = Some(Arc::new(Credits::new(shard.server.backlog(), budget)));
        }
        if let Some(traced) = &self.traced {
            traced.attach(&mut draft, &self.model);
        }
        draft.features.budget = Some(Arc::clone(budget));
        let options = SubmitOptions {
            version: self.version,
            tenant: self.tenant,
            permits,
            deadline_ns: self.deadline_ns,
        };
        let submitted = shard.infer_into(responses, &self.model, &mut draft, options);
        let submitted = submitted.inspect_err(|error| api::note_refusal(draft.id, &error.message));
        drop(draft);
        Ok((submitted?, decoded.into_id()))
    }
}

/// All that comes of a request that is to have one response.
struct WholeResponse {
    /// What came first, be it nothing but the end.
    first: Option<Result<Response, Error>>,
    /// It was a response that came first.
    begins_with_response: bool,
    response_count: u64,
}

impl WholeResponse {
    async fn collect(mut flight: StreamRequest, responses: &ResponseQueue) -> WholeResponse {
        let mut whole = WholeResponse {
            first: None,
            begins_with_response: false,
            response_count: 0,
        };
        let mut is_first = true;
        loop {
            let delivery = std::future::poll_fn(|context| match responses.take(context) {
                Some(delivery) => std::task::Poll::Ready(delivery),
                None => std::task::Poll::Pending,
            })
            .await;
            let is_final = delivery.is_final();
            if is_final {
                flight.note_final();
            }
            if let Some(outcome) = delivery.into_outcome() {
                // Only the first is kept, so whatever comes is read at once.
                if let (Some(credits), false) = (flight.credits(), is_final) {
                    credits.refund(outcome.as_ref().map_or(0, Response::byte_size));
                }
                whole.response_count += 1;
                whole.begins_with_response |= is_first;
                whole.first.get_or_insert(outcome);
            }
            is_first = false;
            if is_final {
                return whole;
            }
        }
    }

    async fn answer(self, shard: &Rc<Shard>, id: Box<str>) -> HttpResponse {
        let mut body = Vec::new();
        let mut code = None;
        if let Some(outcome) = self.first {
            let byte_size = outcome.as_ref().map_or(0, Response::byte_size);
            (body, code) = if byte_size < ENCODE_ASIDE_FROM_BYTES as u64 {
                object(&outcome, &id)
            } else {
                let work = move || object(&outcome, &id);
                shard.offload(byte_size, work).await
            };
        }
        if self.response_count != 1 {
            body.clear();
            encode::write_error(&mut body, &Error::internal(NOT_ONE_RESPONSE));
        }
        let code = code.filter(|_| self.begins_with_response);
        HttpResponse::new(code.map_or(200, status_of), ContentType::Json, body)
    }
}

fn object(outcome: &Result<Response, Error>, id: &str) -> (Vec<u8>, Option<Code>) {
    let mut body = Vec::new();
    let code = encode::write_object(&mut body, outcome, id);
    (body, code)
}
