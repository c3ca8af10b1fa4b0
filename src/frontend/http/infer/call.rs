//! An inference, from the head of its request to the answer.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::admission::refuse_over_limit;
use conch_engine::gpus::GpuHost;
use conch_engine::{Draft, Error, ModelVersion, RequestPermits, Tenant};
use conch_memory::{Budget, ByteView};

use super::decode::{self, DecodeBounds, InferRequest, JsonLimits, decode, decode_cached};
use super::encode::{self, encode};
use crate::api;
use crate::api::regions;
use crate::coding::{ContentCoding, DEFLATE_IN_PLACE_BYTES, packed_bytes_max};
use crate::forward::{self, ForwardedHeaders, HeaderCollector, HeaderPattern};
use crate::http::answer::{ContentType, HttpResponse};
use crate::http::connection::{ConnectionClosed, HttpConnection};
use crate::http::dialect::Dialect;
use crate::http::head::{BodyFraming, RequestHead, length_refusal};
use crate::http::{coding, deadline};
use crate::shard::{
    AcquireError, AcquireOutcome, AcquireTarget, HeldPermit, ResponseFuture, Shard, SubmitOptions,
};
use crate::trace::{ActiveTrace, RemoteContext};

pub(crate) struct InferCall {
    pub(in crate::http) model: Arc<ModelVersion>,
    /// The version that was asked for.
    version: Option<i64>,
    dialect: Dialect,
    pub(in crate::http) json_length: JsonLength,
    /// The body is compressed.
    pub(in crate::http) is_packed: bool,
    /// How the answer is to be compressed.
    answers_in: Option<ContentCoding>,
    /// By the client's own clock hand, if it may set one.
    deadline_ns: Option<u64>,
    forwarded: ForwardedHeaders,
    tenant: Option<Tenant>,
    pub(in crate::http) permit: HeldPermit,
    pub(in crate::http) traced: Option<Arc<ActiveTrace>>,
}

/// Where the JSON of the body ends.
pub(in crate::http) enum JsonLength {
    Known(usize),
    /// The length of a chunked body, which is the default and the bound, is known at its end; that
    /// of a compressed one later still.
    Later(Option<Box<str>>),
}

impl InferCall {
    /// Whether the tensors of the body go to a GPU as they are.
    pub(in crate::http) fn is_for_gpu(&self) -> bool {
        GpuHost::is_in_use() && !self.is_packed && self.model.config.uses_gpus()
    }
}

pub(in crate::http) fn plan_infer(
    shard: &Rc<Shard>,
    head: &RequestHead<'_>,
    (name, version): (&str, Option<&str>),
    dialect: Dialect,
) -> Result<InferCall, Box<HttpResponse>> {
    let plain = |error: Error| Box::new(HttpResponse::error(&error, ContentType::Plain));
    let version = api::parse_version(version.unwrap_or("")).map_err(plain)?;
    shard.server.check_serving().map_err(plain)?;
    let model = shard.find(name, version).map_err(plain)?;
    if model.config.is_decoupled {
        return Err(plain(Error::unsupported(
            "HTTP end point doesn't support models with decoupled transaction policy",
        )));
    }
    let remote = || RemoteContext::read(head.trace_parent, || head.find("tracestate"));
    let traced = shard.tracing.sample(name, remote);
    if let Some(traced) = &traced {
        traced.reach("HTTP_RECV_START");
    }
    let is_packed = match head.content_encoding.unwrap_or("") {
        // The other dialects have no encodings.
        _ if dialect != Dialect::Triton => false,
        "" | "identity" => false,
        encoding if ContentCoding::of(encoding.as_bytes()).is_some() => true,
        _ => {
            let mut answer = plain(Error::unsupported("Unsupported compression type"));
            answer.names_encodings = true;
            return Err(answer);
        }
    };
    let length_text = dialect.length_text(head).map_err(plain)?;
    if let BodyFraming::Length(length) = head.framing
        && length > shard.options.http_body_bytes_max
    {
        return Err(plain(length_refusal(length)));
    }
    let json_length = match head.framing {
        BodyFraming::Length(length) if is_packed => {
            let input_bytes_max = shard.options.http_input_bytes_max;
            if length > packed_bytes_max(input_bytes_max) {
                return Err(plain(coding::too_large(input_bytes_max)));
            }
            JsonLength::Later(length_text.map(Box::from))
        }
        BodyFraming::Length(length) => {
            let length = usize::try_from(length)
                .map_err(|_| plain(Error::invalid("the request's body is too large")))?;
            JsonLength::Known(dialect.parse(length_text, length).map_err(plain)?)
        }
        BodyFraming::Chunked => JsonLength::Later(length_text.map(Box::from)),
    };
    let options = &shard.options;
    let deadline_ns =
        deadline::deadline_of(head, options.http_timeout_header.as_deref()).map_err(plain)?;
    Ok(InferCall {
        model,
        version,
        dialect,
        json_length,
        is_packed,
        answers_in: match dialect {
            Dialect::Triton => coding::preferred(head.accept_encoding),
            Dialect::SageMaker | Dialect::VertexAi => None,
        },
        deadline_ns,
        forwarded: options
            .http_forward
            .as_ref()
            .filter(|_| dialect == Dialect::Triton)
            .and_then(|pattern| forwarded(head, pattern)),
        tenant: shard.tenant(|name| head.find(name)),
        permit: None,
        traced,
    })
}

fn forwarded(head: &RequestHead<'_>, pattern: &HeaderPattern) -> ForwardedHeaders {
    let mut collector = HeaderCollector::new(pattern);
    // With the blanks behind a value, as upstream.
    head.each_header(|name, value| collector.collect(name, value));
    collector.finish()
}

/// Why a request has no response of its model.
pub(in crate::http) enum InferFailure {
    /// The client is gone.
    Closed,
    /// Its deadline has passed.
    Late,
    /// With the type that the error is told in.
    Refused(Error, ContentType),
}

impl From<ConnectionClosed> for InferFailure {
    fn from(_: ConnectionClosed) -> InferFailure {
        InferFailure::Closed
    }
}

/// Upstream names a type for errors of the request; what comes of its response keeps the type of
/// its library.
fn request_failure(id: &str, error: Error) -> InferFailure {
    api::note_refusal(id, &error.message);
    InferFailure::Refused(error, ContentType::Json)
}

impl InferCall {
    pub(in crate::http) async fn run(
        mut self,
        mut body: ByteView,
        scratch: Vec<u8>,
        connection: &mut HttpConnection,
    ) -> Result<HttpResponse, InferFailure> {
        let shard = Rc::clone(&connection.shard);
        if let Some(traced) = &self.traced {
            traced.reach("HTTP_RECV_END");
        }
        if let JsonLength::Later(text) = &self.json_length
            && self.is_packed
        {
            let text = text.as_deref();
            // Boxed, as below.
            body = match Box::pin(coding::inflate(&shard, connection.budget(), body, text)).await {
                Ok(plain) => plain,
                Err(error) => return Err(InferFailure::Refused(error, ContentType::Plain)),
            };
        }
        let json_length = self
            .find_json_length(body.len())
            .map_err(|error| InferFailure::Refused(error, ContentType::Plain))?;
        let bounds = self.decode_bounds(&shard);
        let decoded = if json_length < decode::OFFLOAD_FROM_BYTES
            || json_length as u64 > bounds.limits.input_bytes_max
        {
            decode_cached(&body, json_length, &bounds)
        } else {
            let decode = self.decode_job(&shard, body, json_length);
            Box::pin(shard.offload(json_length as u64, decode)).await
        };
        let mut decoded = decoded.map_err(|error| request_failure("", error))?;
        connection.note_id(decoded.id());
        if decoded.uses_regions() {
            let stores = (&*shard, connection.budget());
            // Boxed, as below.
            if let Err(error) = Box::pin(decoded.copy_shared(stores, &self.model)).await {
                return Err(request_failure(decoded.id(), error));
            }
        }
        let held = self.permit.take();
        let permits = match shard.acquire(self.acquire_target(), held) {
            Ok(AcquireOutcome::Acquired(permits)) => permits,
            Ok(AcquireOutcome::Waiting(room)) => {
                decoded.mark_complete();
                // Boxed, as below.
                let outcome = Box::pin(connection.await_reply(room)).await?;
                outcome.map_err(|refusal| self.error(decoded.id(), refusal))?
            }
            Err(limit) => return Err(self.error(decoded.id(), AcquireError::Limit(limit))),
        };
        let reply = self.submit(&shard, connection.budget(), &mut decoded, permits)?;
        let outcome = connection.await_reply(reply).await?;
        if let Some(traced) = self.traced {
            connection.note_traced(traced);
        }
        let response = match outcome {
            Ok(response) => response,
            Err(error) => return Ok(deadline::answer_of(&error, self.deadline_ns)),
        };
        let classes = decoded.classes(connection.budget());
        let (coding, dialect) = (self.answers_in, self.dialect);
        let json_bytes = encode::json_work_bytes(&response, &decoded);
        let cost_bytes = encode::answer_bytes_max(&response, json_bytes);
        let is_small = json_bytes < encode::OFFLOAD_FROM_BYTES
            && (coding.is_none() || cost_bytes <= DEFLATE_IN_PLACE_BYTES as u64)
            && !classes.is_long(&response);
        let finish = move || {
            let encoded = encode(response, &decoded, &classes, scratch);
            finish_answer(encoded, decoded.id(), dialect, coding)
        };
        if is_small {
            return finish();
        }
        // Boxed, as above: rare, and what they capture would make every connection larger.
        Box::pin(shard.offload(cost_bytes, finish)).await
    }

    fn decode_bounds<'a>(&'a self, shard: &'a Shard) -> DecodeBounds<'a> {
        DecodeBounds {
            model_name: &self.model.name,
            limits: JsonLimits::of(&shard.options),
            regions: regions::of(shard),
        }
    }

    /// Decodes `body` on another thread.
    fn decode_job(
        &self,
        shard: &Shard,
        body: ByteView,
        json_length: usize,
    ) -> impl FnOnce() -> Result<Box<InferRequest>, Error> + Send + use<> {
        let limits = JsonLimits::of(&shard.options);
        let (name, regions) = (Arc::clone(&self.model.name), Arc::clone(regions::of(shard)));
        move || {
            let bounds = DecodeBounds {
                model_name: &name,
                limits,
                regions: &regions,
            };
            decode(&body, json_length, &bounds)
        }
    }

    /// The bytes of JSON in a plain body of `body_length` bytes.
    #[inline]
    fn find_json_length(&self, body_length: usize) -> Result<usize, Error> {
        match &self.json_length {
            JsonLength::Known(length) => Ok(*length),
            // Upstream has no request yet, and says nothing about the content.
            JsonLength::Later(text) => self
                .dialect
                .parse(text.as_deref(), body_length)
                .inspect_err(|error| api::note_refusal("", &error.message)),
        }
    }

    fn acquire_target(&self) -> AcquireTarget<'_> {
        AcquireTarget {
            model: &self.model,
            version: self.version,
            tenant: self.tenant,
            deadline_ns: self.deadline_ns,
        }
    }

    /// Why request `id` is not let in.
    #[cold]
    fn error(&self, id: &str, refusal: AcquireError) -> InferFailure {
        match refusal {
            AcquireError::Limit(limit) => {
                request_failure(id, refuse_over_limit(&self.model, id, limit))
            }
            AcquireError::DeadlineExceeded => InferFailure::Late,
            AcquireError::Gone(error) => request_failure(id, error),
        }
    }

    /// Hands the decoded request to the engine.
    #[inline]
    fn submit(
        &mut self,
        shard: &Rc<Shard>,
        budget: &Arc<Budget>,
        decoded: &mut InferRequest,
        permits: RequestPermits,
    ) -> Result<ResponseFuture, InferFailure> {
        let takes_lent = self.answers_in.is_none() && decoded.is_all_binary();
        // Out of memory: its id stays untold.
        let mut draft = Draft::default();
        decoded
            .move_to(&mut draft)
            .map_err(|error| request_failure("", error))?;
        forward::attach(self.forwarded.take(), &mut draft.parameters)
            .map_err(|error| request_failure(draft.id, error))?;
        draft.features.budget = Some(Arc::clone(budget));
        draft.features.takes_lent = takes_lent;
        if deadline::is_past(self.deadline_ns) {
            return Err(InferFailure::Late);
        }
        if let Some(traced) = &self.traced {
            traced.attach(&mut draft, &self.model);
        }
        let options = SubmitOptions {
            version: self.version,
            tenant: self.tenant.take(),
            permits,
            deadline_ns: self.deadline_ns,
        };
        shard
            .infer(&self.model, &mut draft, options)
            .map_err(|error| request_failure(draft.id, error))
    }
}

/// The last step of an answer, on the shard or on an offload thread.
#[inline]
fn finish_answer(
    encoded: Result<HttpResponse, Error>,
    id: &str,
    dialect: Dialect,
    coding: Option<ContentCoding>,
) -> Result<HttpResponse, InferFailure> {
    let answer = encoded
        .inspect_err(|error| api::note_refusal(id, &error.message))
        .map(|answer| dialect.dress(answer));
    match (answer, coding) {
        (Ok(answer), Some(coding)) => Ok(answer.compressed(coding)),
        (Ok(answer), None) => Ok(answer),
        (Err(error), _) => Err(InferFailure::Refused(error, ContentType::Plain)),
    }
}
