//! One call, from its headers to its trailers.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};

use conch_engine::clock;
use conch_http2::{HeaderList, Reason, RequestHeaders};
use conch_log as log;
use conch_memory::Budget;
use futures_util::FutureExt;
use smallvec::smallvec;

use super::body::{
    CallFailure, framed, receive_large_message, receive_message, receive_tensors, send_pieces,
};
use super::calls::CallEnd;
use super::compression::{CallCompression, pack};
use super::infer::{self, CallExtensions, CallMetadata, Pieces};
use super::method::GrpcMethod;
use super::peer_timeout::PeerTimeout;
use super::settings::{METADATA_BYTES_MAX, WATCH_PERIOD};
use super::status::{GrpcCode, GrpcStatus};
use super::trace::{CallTrace, RequestWait, SEND_END, SEND_START, note};
use super::transport::{CallBody, Responder};
use super::uploads::{PartialMessages, check_memory};
use super::{
    control, delays, forward, readiness, reflection, reply, repository, shared_memory, stream,
    timeout,
};
use crate::access::GrantedRoute;
use crate::access_log::AccessRecord;
use crate::auth::{Authorizer, CallerRights};
use crate::coding::ContentCoding;
use crate::shard::{ConnectionShares, Shard, Timer};
use crate::trace::RemoteContext;

/// Answers one call. Ends early if the client withdraws it. A panic fails this call alone.
///
/// `access` is its record in the access log, if it has one, which is told the id of its inference.
///
/// The head is read before the call has a state to keep: what it says takes some bytes, it takes
/// hundreds.
pub(super) fn run(
    shard: Rc<Shard>,
    shares: &ConnectionShares,
    uploads: Rc<PartialMessages>,
    (head, access): (RequestHeaders, Option<&Rc<AccessRecord>>),
    (body, mut respond): (CallBody, Responder),
) -> impl Future<Output = CallEnd> + use<> {
    let call_head = begin(&shard, shares, &head, access);
    drop(head);
    async move {
        let outcome = AssertUnwindSafe(answer(&shard, &uploads, call_head, body, &mut respond))
            .catch_unwind()
            .await;
        let status = match outcome {
            Ok(Ok(())) => return CallEnd::Answered,
            Ok(Err(CallFailure::Gone)) => return CallEnd::Gone,
            Ok(Err(CallFailure::Status(status))) => status,
            Err(_) => {
                log::error!("a gRPC call panicked; it fails alone");
                GrpcStatus::new(GrpcCode::Internal, "internal error")
            }
        };
        if reply::send_status_only(&mut respond, &status).is_err() {
            // The head is out already, or the client is gone: nothing more can be said.
            respond.reset(Reason::INTERNAL_ERROR);
        }
        CallEnd::Refused(status.code)
    }
}

/// What a call's head asks for.
struct CallHead {
    method: GrantedRoute<GrpcMethod>,
    deadline_ns: Option<u64>,
    /// `triton_grpc_error`: the first failed inference ends a stream.
    ends_at_error: bool,
    sender: CallMetadata,
    compression: CallCompression,
}

/// Why a call is not let in.
enum CallRefusal {
    /// It is no gRPC call at all; an HTTP status.
    Transport(u16),
    Status(GrpcStatus),
}

impl From<GrpcStatus> for CallRefusal {
    fn from(status: GrpcStatus) -> CallRefusal {
        CallRefusal::Status(status)
    }
}

fn begin(
    shard: &Shard,
    shares: &ConnectionShares,
    head: &RequestHeaders,
    access: Option<&Rc<AccessRecord>>,
) -> Result<CallHead, CallRefusal> {
    let fields = &head.fields;
    if let Some(refusal) = refuse_transport(&head.method, fields) {
        return Err(CallRefusal::Transport(refusal));
    }
    check_metadata(fields)?;
    let Some(method) = GrpcMethod::of(head.path_text()) else {
        return Err(GrpcStatus::new(GrpcCode::Unimplemented, "unknown method").into());
    };
    let (auth, restrictions) = (&shard.options.auth, &shard.options.grpc_restrictions);
    let authorizer = Authorizer::new(auth, restrictions, shares.peer_names());
    let passed = authorizer.authorize(method, |name| fields.get(name));
    let (granted, rights) = passed.map_err(GrpcStatus::from)?;
    let compression = CallCompression::agree(fields, shard.options.grpc_compression)?;
    let deadline_ns = deadline_of(fields)?;
    if shard.is_draining() && !method.is_health() {
        return Err(GrpcStatus::shutting_down().into());
    }
    if !method.is_health() {
        check_memory()?;
    }
    let ends_at_error = fields.get("triton_grpc_error") == Some(b"true");
    let access = access.filter(|_| matches!(method, GrpcMethod::ModelInfer));
    let extensions = extensions(shard, fields, method, access, rights);
    let tenant = match method.is_inference() {
        true => shard.tenant(|name| fields.get(name)),
        false => None,
    };
    let tenant_header = shard.options.tenant_header.as_deref();
    Ok(CallHead {
        method: granted,
        deadline_ns,
        ends_at_error,
        sender: CallMetadata {
            extensions,
            tenant,
            budget: shares.of_request(tenant_header, &shard.budget, |name| fields.get(name)),
        },
        compression,
    })
}

/// What few calls have: rights that are limited, and, of inferences, headers that are forwarded, or
/// carry on the trace of its client, and a record in the access log, which knows one request.
fn extensions(
    shard: &Shard,
    fields: &HeaderList,
    method: GrpcMethod,
    access: Option<&Rc<AccessRecord>>,
    rights: CallerRights,
) -> Option<Box<CallExtensions>> {
    let is_inference = method.is_inference();
    let forwarded = match &shard.options.grpc_forward {
        Some(pattern) if is_inference => forward::collect(pattern, fields),
        _ => None,
    };
    let remote = match is_inference && shard.tracing.takes_context() {
        true => RemoteContext::read(fields.get("traceparent"), || fields.get("tracestate")),
        false => None,
    };
    let is_wanted =
        rights.are_limited() || forwarded.is_some() || remote.is_some() || access.is_some();
    is_wanted.then(|| {
        Box::new(CallExtensions {
            rights,
            forwarded,
            remote,
            access: access.cloned(),
        })
    })
}

fn refuse(refusal: CallRefusal, respond: &mut Responder) -> Result<(), CallFailure> {
    match refusal {
        CallRefusal::Transport(refusal) => {
            respond.send_head(refusal, &[], true)?;
            Ok(())
        }
        CallRefusal::Status(status) => Err(status.into()),
    }
}

async fn answer(
    shard: &Rc<Shard>,
    uploads: &Rc<PartialMessages>,
    call_head: Result<CallHead, CallRefusal>,
    body: CallBody,
    respond: &mut Responder,
) -> Result<(), CallFailure> {
    let CallHead {
        method,
        deadline_ns,
        ends_at_error,
        sender,
        compression,
    } = match call_head {
        Ok(call_head) => call_head,
        Err(refusal) => return refuse(refusal, respond),
    };
    if is_past(deadline_ns) {
        return Err(GrpcStatus::deadline_exceeded().into());
    }
    let mut call = GrpcCall {
        shard,
        uploads,
        compression,
        body,
        peer_timeout: PeerTimeout::new(deadline_ns),
        respond,
    };
    match method.into_inner() {
        GrpcMethod::ModelInfer => call.infer(sender).await,
        GrpcMethod::ModelStreamInfer => {
            let terms = stream::StreamSetup {
                deadline_ns,
                ends_at_error,
                sender,
                compression,
            };
            // Boxed, as below.
            Box::pin(stream::serve(
                shard,
                terms,
                uploads,
                call.body,
                call.respond,
            ))
            .await
        }
        GrpcMethod::Reflection => {
            let (budget, coding) = (&sender.budget, compression.incoming);
            // Boxed, as below.
            let GrpcCall { body, respond, .. } = call;
            let serve = reflection::serve(shard, budget, body, coding, deadline_ns, respond);
            Box::pin(serve).await
        }
        method @ (GrpcMethod::RepositoryIndex
        | GrpcMethod::RepositoryModelLoad
        | GrpcMethod::RepositoryModelUnload) => call.control_repository(method, &sender).await,
        method => call.control(method, &sender).await,
    }
}

/// A call that has been let in. Each call in flight has room for what lives on, so its parts are
/// kept here alone.
struct GrpcCall<'a> {
    shard: &'a Rc<Shard>,
    uploads: &'a Rc<PartialMessages>,
    compression: CallCompression,
    body: CallBody,
    peer_timeout: PeerTimeout,
    respond: &'a mut Responder,
}

impl GrpcCall<'_> {
    async fn infer(&mut self, sender: CallMetadata) -> Result<(), CallFailure> {
        let shard = self.shard;
        let wait = RequestWait::begin(shard);
        let mut arrived = receive_tensors(
            shard,
            &sender.budget,
            &mut self.body,
            &mut self.peer_timeout,
            self.compression.incoming,
            self.uploads,
        )
        .await?;
        let wait = wait.end();
        infer::check_model(&sender, &mut arrived);
        if shard.server.demand().is_some() && !arrived.is_refused() {
            // Boxed, as below.
            Box::pin(infer::ensure_loaded(shard, &mut arrived)).await;
        }
        if shard.limits_requests() {
            // Boxed, as below.
            Box::pin(self.reserve(&mut arrived, &sender)).await?;
        }
        if let Some(delay) = shard.options.grpc_delays.submit {
            Box::pin(delays::wait(delay, "the submission of an inference")).await;
        }
        let typed = infer::convert(shard, &sender.budget, &arrived).await;
        let budget = Arc::clone(&sender.budget);
        let deadline_ns = self.peer_timeout.deadline_ns;
        let (submitted, call_trace) =
            infer::submit(shard, arrived, typed, sender, deadline_ns, wait)?;
        let outcome = outcome(shard, submitted, deadline_ns, self.respond);
        let mut pieces = match note_failure(outcome.await, call_trace.as_ref())? {
            infer::EncodedResponse::Ready(pieces) => pieces,
            infer::EncodedResponse::Later(pieces) => pieces.await?,
        };
        if let Some(delay) = shard.options.grpc_delays.complete {
            Box::pin(delays::wait(delay, "the answer of an inference")).await;
        }
        let coding = self.compression.outgoing;
        if let Some(coding) = coding {
            // Boxed, as below.
            pieces = Box::pin(pack(shard, pieces, coding)).await;
        }
        note(call_trace.as_ref(), SEND_START);
        let peer_timeout = &mut self.peer_timeout;
        let sent = send(self.respond, &budget, pieces, coding, peer_timeout).await;
        note(call_trace.as_ref(), SEND_END);
        sent
    }

    /// Reserves room for an inference; waits for it unless the client withdraws the call.
    async fn reserve(
        &mut self,
        arrived: &mut infer::CompleteMessage,
        sender: &CallMetadata,
    ) -> Result<(), CallFailure> {
        let deadline_ns = self.peer_timeout.deadline_ns;
        let Some(mut room) = infer::acquire(self.shard, arrived, sender, deadline_ns) else {
            return Ok(());
        };
        let outcome = std::future::poll_fn(|context| {
            if let Poll::Ready(outcome) = Pin::new(&mut room).poll(context) {
                return Poll::Ready(Ok(outcome));
            }
            ready!(self.respond.poll_reset(context));
            Poll::Ready(Err(CallFailure::Gone))
        })
        .await?;
        infer::note_acquired(self.shard, arrived, outcome);
        Ok(())
    }

    /// Answers what lists, loads or unloads models.
    async fn control_repository(
        &mut self,
        method: GrpcMethod,
        sender: &CallMetadata,
    ) -> Result<(), CallFailure> {
        let budget = &sender.budget;
        let shard = self.shard;
        // A model's files may come with the call.
        let message = Box::pin(receive_large_message(
            shard,
            budget,
            &mut self.body,
            &mut self.peer_timeout,
            self.compression.incoming,
            self.uploads,
        ))
        .await?;
        let deadline_ns = self.peer_timeout.deadline_ns;
        // Boxed, as below.
        let respond = &mut *self.respond;
        let rights = sender.rights();
        let answer = repository::answer(shard, (method, rights), message, deadline_ns, respond);
        let pieces = smallvec![Box::pin(answer).await?];
        delay_answer(shard).await;
        send(self.respond, budget, pieces, None, &mut self.peer_timeout).await
    }

    /// Answers what tells or sets something at once.
    async fn control(
        &mut self,
        method: GrpcMethod,
        sender: &CallMetadata,
    ) -> Result<(), CallFailure> {
        let budget = &sender.budget;
        let shard = self.shard;
        let message = receive_message(
            budget,
            &mut self.body,
            &mut self.peer_timeout,
            self.compression.incoming,
            self.uploads,
        )
        .await?;
        let deadline_ns = self.peer_timeout.deadline_ns;
        let answer = match method {
            // Boxed, these three: rare, and their states would make every call larger.
            GrpcMethod::HealthWatch => {
                return Box::pin(watch(shard, budget, self.respond, deadline_ns)).await;
            }
            GrpcMethod::ServerReady | GrpcMethod::ModelReady | GrpcMethod::HealthCheck => {
                let respond = &mut *self.respond;
                let answer = readiness::answer(shard, method, &message, deadline_ns, respond);
                Box::pin(answer).await?
            }
            GrpcMethod::SharedMemory(kind, action) => {
                Box::pin(shared_memory::answer(shard, kind, action, message)).await?
            }
            method => control::answer(shard, method, &message, &sender.rights())?,
        };
        delay_answer(shard).await;
        let pieces = smallvec![answer];
        send(self.respond, budget, pieces, None, &mut self.peer_timeout).await
    }
}

/// Whether the deadline has passed, if there is one.
fn is_past(deadline_ns: Option<u64>) -> bool {
    deadline_ns.is_some_and(|deadline_ns| deadline_ns <= clock::monotonic_ns())
}

/// See [`Delays`](super::ServerDelays).
async fn delay_answer(shard: &Shard) {
    if let Some(delay) = shard.options.grpc_delays.answer {
        Box::pin(delays::wait(delay, "the write of the response")).await;
    }
}

/// Waits for one inference; withdraws it if the client does. No `async fn`: what it is given would
/// take up room twice.
fn outcome<'a>(
    shard: &'a Rc<Shard>,
    mut submitted: infer::SubmittedRequest,
    deadline_ns: Option<u64>,
    respond: &'a mut Responder,
) -> impl Future<Output = Result<infer::EncodedResponse, CallFailure>> + 'a {
    let mut notice = None;
    std::future::poll_fn(move |context| {
        let Poll::Ready(outcome) = Pin::new(&mut submitted.reply).poll(context) else {
            if notice.is_none() {
                ready!(respond.poll_reset(context));
                notice = shard.options.grpc_delays.notice();
            }
            if let Some(notice) = &mut notice {
                ready!(notice.as_mut().poll(context));
            }
            return Poll::Ready(Err(CallFailure::Gone));
        };
        if let Some(call_trace) = &submitted.call_trace {
            call_trace.note_response();
        }
        Poll::Ready(match outcome {
            Ok(response) => {
                let id = std::mem::take(&mut submitted.id);
                let classes = std::mem::take(&mut submitted.classes);
                infer::answer(shard, response, id, classes).map_err(CallFailure::from)
            }
            Err(error) => Err(refusal(error, deadline_ns).into()),
        })
    })
}

/// Notes that an error is sent, like an answer, at once and in one frame.
fn note_failure(
    outcome: Result<infer::EncodedResponse, CallFailure>,
    call_trace: Option<&Rc<CallTrace>>,
) -> Result<infer::EncodedResponse, CallFailure> {
    if let (Err(CallFailure::Status(_)), Some(call_trace)) = (&outcome, call_trace) {
        call_trace.reach(SEND_START);
        call_trace.reach(SEND_END);
    }
    outcome
}

/// The status of a failed inference; one that was withdrawn at its deadline failed by that.
fn refusal(error: conch_engine::Error, deadline_ns: Option<u64>) -> GrpcStatus {
    if is_past(deadline_ns) && error.code == conch_engine::Code::Cancelled {
        return GrpcStatus::deadline_exceeded();
    }
    GrpcStatus::from(error)
}

/// Sends a complete answer.
async fn send(
    respond: &mut Responder,
    budget: &Budget,
    pieces: Pieces,
    coding: Option<ContentCoding>,
    peer_timeout: &mut PeerTimeout,
) -> Result<(), CallFailure> {
    reply::send_head(respond, coding)?;
    // The deadline has been met; what counts from here on is that the client takes the bytes.
    peer_timeout.deadline_ns = None;
    if let Err(failure) = send_pieces(respond, budget, pieces, peer_timeout).await {
        respond.reset(Reason::CANCEL);
        return Err(failure);
    }
    reply::send_ok(respond)?;
    Ok(())
}

/// Streams the server's health: now, and at each change, until the client leaves or the server
/// drains.
async fn watch(
    shard: &Rc<Shard>,
    budget: &Budget,
    respond: &mut Responder,
    deadline_ns: Option<u64>,
) -> Result<(), CallFailure> {
    reply::send_head(respond, None)?;
    let mut told = None;
    loop {
        let health = readiness::health(shard).await;
        if told != Some(health) {
            told = Some(health);
            let mut peer_timeout = PeerTimeout::new(deadline_ns);
            let pieces = smallvec![framed(&readiness::health_response(health))];
            if let Err(failure) = send_pieces(respond, budget, pieces, &mut peer_timeout).await {
                respond.reset(Reason::CANCEL);
                return Err(failure);
            }
        }
        let end = if shard.is_draining() {
            Some(GrpcStatus::shutting_down())
        } else if is_past(deadline_ns) {
            Some(GrpcStatus::deadline_exceeded())
        } else {
            None
        };
        if let Some(status) = end {
            reply::send_error(respond, &status)?;
            return Ok(());
        }
        let mut timer = pin!(Timer::after(WATCH_PERIOD));
        let mut drained = pin!(shard.drained());
        std::future::poll_fn(|context| {
            if respond.poll_reset(context).is_ready() {
                return Poll::Ready(Err(CallFailure::Gone));
            }
            if drained.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            timer.as_mut().poll(context).map(Ok)
        })
        .await?;
    }
}

/// What is no gRPC call at all gets an HTTP status.
fn refuse_transport(verb: &[u8], fields: &HeaderList) -> Option<u16> {
    if verb != b"POST" {
        return Some(METHOD_NOT_ALLOWED);
    }
    let kind = fields.get("content-type").unwrap_or(&[]);
    let rest = kind
        .strip_prefix(b"application/grpc")
        .map(|rest| rest.split_first());
    match rest {
        // `application/grpc`, `application/grpc+proto`, `application/grpc; charset=…`
        Some(None | Some((b'+' | b';', _))) => None,
        _ => Some(UNSUPPORTED_MEDIA_TYPE),
    }
}

/// What a client may say about a call. A field costs 32 bytes beside its own, as HTTP/2 counts.
fn check_metadata(fields: &HeaderList) -> Result<(), GrpcStatus> {
    let bytes = fields.list_bytes();
    if bytes <= METADATA_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("received metadata size exceeds limit ({bytes} vs. {METADATA_BYTES_MAX})");
    Err(GrpcStatus::new(GrpcCode::ResourceExhausted, message))
}

/// The client's deadline on our clock.
fn deadline_of(fields: &HeaderList) -> Result<Option<u64>, GrpcStatus> {
    let Some(value) = fields.get("grpc-timeout") else {
        return Ok(None);
    };
    let timeout_ns = timeout::parse_ns(value)
        .ok_or_else(|| GrpcStatus::new(GrpcCode::Internal, "malformed grpc-timeout"))?;
    Ok(Some(clock::monotonic_ns().saturating_add(timeout_ns)))
}

const METHOD_NOT_ALLOWED: u16 = 405;
const UNSUPPORTED_MEDIA_TYPE: u16 = 415;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderList {
        pairs.iter().copied().collect()
    }

    #[test]
    fn only_grpc_is_let_in() {
        let table: [(&[u8], &str, Option<u16>); 6] = [
            (b"POST", "application/grpc", None),
            (b"POST", "application/grpc+proto", None),
            (b"POST", "application/grpc;charset=utf-8", None),
            (
                b"POST",
                "application/grpc-web",
                Some(UNSUPPORTED_MEDIA_TYPE),
            ),
            (b"POST", "application/json", Some(UNSUPPORTED_MEDIA_TYPE)),
            (b"GET", "application/grpc", Some(METHOD_NOT_ALLOWED)),
        ];
        for (verb, kind, expected) in table {
            assert_eq!(
                refuse_transport(verb, &headers(&[("content-type", kind)])),
                expected,
                "{verb:?} {kind}"
            );
        }
        assert_eq!(
            refuse_transport(b"POST", &headers(&[])),
            Some(UNSUPPORTED_MEDIA_TYPE)
        );
    }

    #[test]
    fn deadlines() {
        assert_eq!(deadline_of(&headers(&[])), Ok(None));
        let now_ns = clock::monotonic_ns();
        let deadline_ns = deadline_of(&headers(&[("grpc-timeout", "1S")]))
            .unwrap()
            .unwrap();
        assert!((1_000_000_000..2_000_000_000).contains(&(deadline_ns - now_ns)));
        assert_eq!(
            deadline_of(&headers(&[("grpc-timeout", "99999999H")])),
            Ok(Some(u64::MAX))
        );
        assert_eq!(
            deadline_of(&headers(&[("grpc-timeout", "soon")]))
                .unwrap_err()
                .code,
            GrpcCode::Internal
        );
    }
}
