//! An inference, from the head of its request to the answer.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::{Error, ModelVersion, Tenant};
use conch_memory::ByteView;

use super::decode::{self, JsonLimits, decode};
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
use crate::shard::{ModelLease, Shard};
use crate::trace::ActiveTrace;

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
    pub(in crate::http) lease: ModelLease,
    pub(in crate::http) traced: Option<Arc<ActiveTrace>>,
}

/// Where the JSON of the body ends.
pub(in crate::http) enum JsonLength {
    Known(usize),
    /// The length of a chunked body, which is the default and the bound, is known at its end; that
    /// of a compressed one later still.
    Later(Option<Box<str>>),
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
    let traced = shard.tracing.sample(name);
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
        lease: None,
        traced,
    })
}

fn forwarded(head: &RequestHead<'_>, pattern: &HeaderPattern) -> ForwardedHeaders {
    let mut collector = HeaderCollector::new(pattern);
    // With the blanks behind a value, as upstream.
    head.each_header(|name, value| collector.see(name, value));
    collector.finish()
}

impl InferCall {
    pub(in crate::http) async fn run(
        self,
        mut body: ByteView,
        scratch: Vec<u8>,
        connection: &mut HttpConnection,
    ) -> Result<Result<HttpResponse, (Error, ContentType)>, ConnectionClosed> {
        // Upstream names a type for errors of the request; what comes of its response keeps the
        // type of its library.
        let of_request = |id: &str, error: Error| {
            api::note_refusal(id, &error.message);
            Ok(Err((error, ContentType::Json)))
        };
        let of_response = |error| (error, ContentType::Plain);
        let shard = Rc::clone(&connection.shard);
        if let Some(traced) = &self.traced {
            traced.reach("HTTP_RECV_END");
        }
        let json_length = match self.json_length {
            JsonLength::Known(length) => Ok(length),
            JsonLength::Later(text) => {
                if self.is_packed {
                    // Boxed, as below.
                    let inflated = Box::pin(coding::inflate(
                        &shard,
                        connection.budget(),
                        body,
                        text.as_deref(),
                    ))
                    .await;
                    body = match inflated {
                        Ok(plain) => plain,
                        Err(error) => {
                            return Ok(Ok(HttpResponse::error(&error, ContentType::Plain)));
                        }
                    };
                }
                self.dialect.parse(text.as_deref(), body.len())
            }
        };
        let json_length = match json_length {
            Ok(length) => length,
            // Upstream has no request yet, and says nothing about the content.
            Err(error) => {
                api::note_refusal("", &error.message);
                return Ok(Err((error, ContentType::Plain)));
            }
        };
        let limits = JsonLimits::of(&shard.options);
        let regions = regions::of(&shard);
        let decoded = if json_length < decode::OFFLOAD_FROM_BYTES
            || json_length as u64 > limits.input_bytes_max
        {
            decode(&body, json_length, &self.model.name, limits, regions)
        } else {
            let (name, regions) = (Arc::clone(&self.model.name), Arc::clone(regions));
            let decode = move || decode(&body, json_length, &name, limits, &regions);
            Box::pin(shard.offload(json_length as u64, decode)).await
        };
        let mut decoded = match decoded {
            Ok(decoded) => decoded,
            Err(error) => return of_request("", error),
        };
        if decoded.uses_regions() {
            // Boxed, as below.
            let settled =
                Box::pin(decoded.settle_regions((&shard, connection.budget()), &self.model)).await;
            if let Err(error) = settled {
                return of_request(decoded.id(), error);
            }
        }
        let mut draft = match decoded.draft() {
            Ok(draft) => draft,
            // Out of memory: its id stays untold.
            Err(error) => return of_request("", error),
        };
        if let Err(error) = forward::attach(self.forwarded, &mut draft.parameters) {
            return of_request(draft.id, error);
        }
        draft.tenant = self.tenant;
        draft.budget = Some(Arc::clone(connection.budget()));
        draft.lease = self.lease;
        if deadline::is_past(self.deadline_ns) {
            return Ok(Ok(deadline::exceeded()));
        }
        if let Some(traced) = &self.traced {
            draft.observer = Some(traced.observer(&self.model, draft.id));
        }
        let reply = match shard.infer(&self.model, self.version, draft, self.deadline_ns) {
            Ok(reply) => reply,
            Err(error) => return of_request(decoded.id(), error),
        };
        let outcome = connection.await_reply(reply).await?;
        if let Some(traced) = self.traced {
            connection.note_traced(traced);
        }
        let response = match outcome {
            Ok(response) => response,
            Err(error) => return Ok(Ok(deadline::answer_of(&error, self.deadline_ns))),
        };
        let classes = decoded.classes(connection.budget());
        let (compression, dialect) = (self.answers_in, self.dialect);
        let json_bytes = encode::json_work_bytes(&response, &decoded);
        let is_small = json_bytes < encode::OFFLOAD_FROM_BYTES
            && (compression.is_none()
                || encode::answer_bytes_max(&response, json_bytes)
                    <= DEFLATE_IN_PLACE_BYTES as u64)
            && !classes.is_long(&response);
        let cost_bytes = encode::answer_bytes_max(&response, json_bytes);
        let finish = move || {
            let encoded = encode(response, &decoded, &classes, scratch);
            let encoded =
                encoded.inspect_err(|error| api::note_refusal(decoded.id(), &error.message));
            let answer = dialect.dress(encoded?);
            Ok(match compression {
                Some(coding) => answer.compressed(coding),
                None => answer,
            })
        };
        if is_small {
            return Ok(finish().map_err(of_response));
        }
        // Boxed, as above: rare, and what they capture would make every connection larger.
        let outcome = Box::pin(shard.offload(cost_bytes, finish)).await;
        Ok(outcome.map_err(of_response))
    }
}
