//! One HTTP/1.1 connection: requests in, answers out, in order.
//!
//! Requests are served one after the other, as upstream does. Of requests that arrived together
//! those are answered together that can be answered at once; an answer never waits for what may
//! take long behind it. While a request is with the engine the connection still reads, so that a
//! client that goes away cancels it (see [`half_closed`]). A connection between requests keeps no
//! buffer.

mod half_closed;
mod streaming;
mod turn;

use std::borrow::Cow;
use std::future::Future;
use std::io::IoSlice;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use conch_engine::{Error, clock};
use conch_memory::{ALIGNMENT_BYTES, Block, Budget, ByteView, Charge, OutOfMemory, is_scarce};
use smallvec::SmallVec;

use super::answer::{BodyDelimiter, ContentType, HttpResponse, ResponseHeadOptions};
use super::chunked::{self, ChunkPiece, ChunkedDecoder};
use super::cors;
use super::head::{self, BodyFraming, HeadRefusal, RequestHead};
use super::input::InputBuffer;
use crate::access::{GrantedRoute, GuardedRoute};
use crate::api;
use crate::shard::{ConnectionGuard, EnsuredModel, ModelLease, Shard, ShardStream, WaitReason};
use crate::trace::ActiveTrace;
use half_closed::SendAhead;
pub(crate) use streaming::BodySource;
use turn::{REQUEST_BYTES, WorkBudget};

/// Answers up to this size are copied together and sent by one plain call; above, the parts are
/// sent by reference. Measured in the design's runtime notes.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Collected answers to pipelined requests before they are sent.
const COLLECTED_BYTES_MAX: usize = 64 << 10;
/// Bodies up to here get all their memory at once (untouched pages cost nothing); larger ones grow
/// with what really arrives.
const BODY_AT_ONCE_BYTES_MAX: usize = 16 << 20;
/// Where larger bodies begin.
const BODY_FIRST_BYTES: usize = 256 << 10;
/// One receive: bounds what arrives before it is charged, and the length of a shard turn.
const RECEIVE_BYTES_MAX: usize = 1 << 20;
/// After a refusal the client may still be sending; if we closed at once, the reset could overtake
/// the answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 4 << 20;

/// The connection is over.
pub(crate) struct ConnectionClosed;

/// What a body is for: all that the connection must know before it receives one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyPlacement {
    /// Bytes at the start after which the alignment matters.
    pub(crate) json_length: usize,
}

/// How a listener answers requests.
pub(crate) trait HttpService {
    /// What a request asks for.
    type Route<'a>: GuardedRoute;
    /// A request whose head is known.
    type Plan;

    /// Says what is asked for, and so what one must be allowed to do.
    fn route<'a>(&self, shard: &'a Shard, head: &'a RequestHead<'_>) -> Self::Route<'a>;

    /// Decides from the head alone.
    fn plan(
        &self,
        shard: &Rc<Shard>,
        head: &RequestHead<'_>,
        route: GrantedRoute<Self::Route<'_>>,
    ) -> Self::Plan;

    /// The model, and its version, without which there is no plan for the request, where models
    /// come when they are asked for.
    fn wanted<'a>(
        &'a self,
        _head: &'a RequestHead<'_>,
        _route: &'a Self::Route<'_>,
    ) -> Option<(Cow<'a, str>, Option<&'a str>)> {
        None
    }

    /// Gives `plan` what keeps that model.
    fn keep(&self, _plan: &mut Self::Plan, _lease: ModelLease) {}

    /// What answers `answer`, whatever was asked for.
    fn plan_refusal(&self, answer: HttpResponse) -> Self::Plan;

    /// Whether the answer needs neither a body nor any waiting.
    fn is_at_once(&self, plan: &Self::Plan) -> bool;

    /// Where the body goes; none if it is of no interest.
    fn placement(&self, plan: &Self::Plan) -> Option<BodyPlacement>;

    /// Answers. `body` is what `placement` asked for; `scratch` is an empty buffer for the answer's
    /// body.
    async fn answer(
        &self,
        plan: Self::Plan,
        body: Option<ReceivedBody>,
        scratch: Vec<u8>,
        connection: &mut HttpConnection,
    ) -> Result<HttpResponse, ConnectionClosed>;
}

/// A received body: `bytes[start..]`, so placed that the byte behind its JSON is aligned.
pub(crate) struct ReceivedBody {
    pub(crate) block: Block,
    pub(crate) start: usize,
}

pub(crate) struct HttpConnection {
    pub(crate) shard: Rc<Shard>,
    stream: ShardStream,
    guard: ConnectionGuard,
    input: InputBuffer,
    out: Vec<u8>,
    scratch: Vec<u8>,
    /// The body of the next answer comes from here, piece by piece.
    source: Option<Box<dyn BodySource>>,
    /// Whom the answer that is sent next, or on its way, is traced for.
    traced: Option<Arc<ActiveTrace>>,
    turn: WorkBudget,
    /// What the request at hand is charged to.
    budget: Arc<Budget>,
    /// The client has ended its side.
    is_input_over: bool,
    /// What can be sent of the answer that is waited for.
    ahead: SendAhead,
    /// The answer's version has been.
    version_is_sent: bool,
}

/// What of a head is still needed after its bytes are gone.
struct RequestMeta {
    framing: BodyFraming,
    keeps_alive: bool,
    is_version_1_0: bool,
    is_head: bool,
    expects_continue: bool,
    /// Whose scripts may read the answer.
    allowed_origin: Option<Box<str>>,
}

pub(crate) async fn serve(
    shard: Rc<Shard>,
    stream: ShardStream,
    guard: ConnectionGuard,
    service: impl HttpService,
) {
    let budget = Arc::clone(guard.shares().own());
    let mut connection = HttpConnection {
        budget,
        shard,
        stream,
        guard,
        input: InputBuffer::default(),
        out: Vec::new(),
        scratch: Vec::new(),
        source: None,
        traced: None,
        turn: WorkBudget::default(),
        is_input_over: false,
        ahead: SendAhead::Nothing,
        version_is_sent: false,
    };
    // However it ends, dropping the stream closes the socket.
    let _ = connection.run(&service).await;
}

/// The one way from a head to a plan, on every listener.
fn decide<S: HttpService>(service: &S, shard: &Rc<Shard>, head: &RequestHead<'_>) -> S::Plan {
    let restrictions = &shard.options.http_restrictions;
    match restrictions.pass(service.route(shard, head), |name| head.find(name)) {
        Ok(route) => service.plan(shard, head, route),
        Err(restriction) => {
            let message = format!(
                "This API is restricted, expecting header '{}'",
                restriction.header()
            );
            service.plan_refusal(HttpResponse::failure(403, ContentType::Plain, &message))
        }
    }
}

/// Sees to it that the model is there that the request needs. Nobody brings one in who may not use
/// it.
fn ensure_loaded<S: HttpService>(
    service: &S,
    shard: &Rc<Shard>,
    head: &[u8],
) -> Result<EnsuredModel, Error> {
    let nothing = Ok(EnsuredModel::Here(None));
    if shard.server.demand().is_none() {
        return nothing;
    }
    let Ok(head) = head::parse(head) else {
        return nothing;
    };
    let restrictions = &shard.options.http_restrictions;
    let granted = restrictions.pass(service.route(shard, &head), |name| head.find(name));
    let Ok(route) = granted else { return nothing };
    let Some((name, version)) = service.wanted(&head, &route) else {
        return nothing;
    };
    match api::parse_version(version.unwrap_or("")) {
        Ok(version) => shard.ensure_loaded(&name, version),
        // For the plan to refuse.
        Err(_) => nothing,
    }
}

fn deadline_after(timeout: Duration) -> u64 {
    clock::monotonic_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

impl HttpConnection {
    async fn run<S: HttpService>(&mut self, service: &S) -> Result<(), ConnectionClosed> {
        loop {
            let (meta, plan) = self.next_head(service).await?;
            let placement = service.placement(&plan);
            let is_at_once = service.is_at_once(&plan);
            self.ahead = SendAhead::Version {
                is_version_1_0: meta.is_version_1_0,
            };
            if meta.framing != BodyFraming::Length(0) || !is_at_once {
                // Who waits for an earlier answer is not to wait for this body, or this model.
                self.flush().await?;
            }
            let is_endless = match meta.framing {
                BodyFraming::Length(length) => length > self.shard.options.http_body_bytes_max,
                BodyFraming::Chunked => false,
            };
            if placement.is_some() && is_endless {
                return self.refuse(&chunked::too_large()).await;
            }
            if placement.is_none()
                && (is_endless || meta.expects_continue && meta.framing != BodyFraming::Length(0))
            {
                // A client that waits with its body is spared it, but whether it sends it all the
                // same is not known. Of what nobody would take nothing is read.
                let answer = service.answer(plan, None, Vec::new(), self).await?;
                self.send(&answer, &meta, true).await?;
                return self.linger().await;
            }
            let body = match self.receive_body(&meta, placement).await? {
                Ok(body) => body,
                Err(refusal) => return self.refuse(&refusal).await,
            };
            let mut scratch = std::mem::take(&mut self.scratch);
            if scratch.capacity() == 0 && !is_at_once {
                scratch = self.shard.spares.take_output();
            }
            scratch.clear();
            let mut answer = service.answer(plan, body, scratch, self).await?;
            if let Some(source) = self.source.take() {
                let closes = !meta.keeps_alive || meta.is_version_1_0 || self.shard.is_draining();
                Box::pin(self.send_stream(&answer, source, &meta, closes)).await?;
                if closes {
                    return Ok(());
                }
                continue;
            }
            let closes = !meta.keeps_alive || self.shard.is_draining();
            self.send(&answer, &meta, closes).await?;
            if closes {
                return self.flush().await;
            }
            if is_at_once {
                self.turn.spend(REQUEST_BYTES + answer.length()).await;
            } else {
                self.turn.begin();
            }
            self.scratch = std::mem::take(&mut answer.body);
            if self.scratch.capacity() > COLLECTED_BYTES_MAX {
                self.scratch = Vec::new();
            }
        }
    }

    async fn next_head<S: HttpService>(
        &mut self,
        service: &S,
    ) -> Result<(RequestMeta, S::Plan), ConnectionClosed> {
        let mut seen = 0;
        let mut head_deadline_ns = 0;
        loop {
            if seen == 0 {
                // Some clients end a body with a line too many.
                while self.input.unused().starts_with(b"\r\n") {
                    self.input.consume(2);
                }
            }
            let refusal = match head::find_end(self.input.unused(), seen) {
                Ok(Some(length)) => {
                    let whole = self.input.unused_mut().get_mut(..length);
                    head::settle_version(whole.unwrap_or(&mut []));
                    let bytes = self.input.unused().get(..length).unwrap_or(&[]);
                    let lease = match ensure_loaded(service, &self.shard, bytes) {
                        Ok(EnsuredModel::Here(lease)) => Ok(lease),
                        Ok(EnsuredModel::Coming(coming)) => {
                            // Who waits for an earlier answer is not to wait for this model.
                            self.flush().await?;
                            self.guard.wait(WaitReason::Busy, 0);
                            coming.await
                        }
                        Err(error) => Err(error),
                    };
                    match head::parse(self.input.unused().get(..length).unwrap_or(&[])) {
                        Ok(head) => {
                            let meta = RequestMeta {
                                framing: head.framing,
                                keeps_alive: head.keeps_alive,
                                is_version_1_0: head.is_version_1_0,
                                is_head: head.method == head::HttpMethod::Head,
                                expects_continue: head.expects_continue,
                                allowed_origin: self.shard.options.http_cors_origins.allowed(&head),
                            };
                            let preflight = match meta.allowed_origin {
                                Some(_) => cors::preflight(&head),
                                None => None,
                            };
                            let shares = self.guard.shares();
                            let tenant_header = self.shard.options.tenant_header.as_deref();
                            self.budget =
                                shares.of_request(tenant_header, &self.shard.budget, |name| {
                                    head.find(name)
                                });
                            let plan = match lease {
                                _ if let Some(answer) = preflight => service.plan_refusal(answer),
                                Ok(lease) => {
                                    let mut plan = decide(service, &self.shard, &head);
                                    if lease.is_some() {
                                        service.keep(&mut plan, lease);
                                    }
                                    plan
                                }
                                Err(error) => service
                                    .plan_refusal(HttpResponse::error(&error, ContentType::Json)),
                            };
                            self.input.consume(length);
                            return Ok((meta, plan));
                        }
                        Err(refusal) => refusal,
                    }
                }
                Ok(None) if self.input.unused().len() >= self.shard.options.http_head_bytes_max => {
                    HeadRefusal {
                        status: 431,
                        message: "the request's head is too large".to_owned(),
                    }
                }
                _ if seen == 0 && head::is_tls(self.input.unused()) => {
                    return Err(ConnectionClosed);
                }
                Ok(None) => {
                    seen = self.input.unused().len();
                    self.flush().await?;
                    if seen == 0 {
                        if self.shard.is_draining() && !self.guard.outlasts_drains() {
                            return Err(ConnectionClosed);
                        }
                        self.guard.wait(
                            WaitReason::Idle,
                            deadline_after(self.shard.options.http_idle_timeout),
                        );
                    } else {
                        if head_deadline_ns == 0 {
                            head_deadline_ns = deadline_after(self.shard.options.http_head_timeout);
                        }
                        self.guard.wait(WaitReason::Receiving, head_deadline_ns);
                    }
                    let count = self.receive_head().await?;
                    if count > 0 {
                        continue;
                    }
                    if seen == 0 || !self.guard.is_timed_out() {
                        return Err(ConnectionClosed);
                    }
                    HeadRefusal {
                        status: 408,
                        message: "the request's head did not arrive in time".to_owned(),
                    }
                }
                Err(refusal) => refusal,
            };
            self.refuse(&refusal).await?;
            return Err(ConnectionClosed);
        }
    }

    /// Receives more of a head. While nothing of it is there the connection keeps no buffers.
    async fn receive_head(&mut self) -> Result<usize, ConnectionClosed> {
        let (shard, stream) = (&*self.shard, &mut self.stream);
        let (input, out, scratch) = (&mut self.input, &mut self.out, &mut self.scratch);
        let count = std::future::poll_fn(|context| {
            let room = input.room_mut(shard.options.http_head_bytes_max, &shard.spares);
            let outcome = stream.poll_receive(context, room);
            if outcome.is_pending() {
                self.turn.begin();
                if input.is_empty() {
                    input.release(&shard.spares);
                    shard.spares.give_output(std::mem::take(out));
                    shard.spares.give_output(std::mem::take(scratch));
                }
            }
            outcome
        })
        .await
        .map_err(|_| ConnectionClosed)?;
        self.input.received(count);
        self.turn.spend(count).await;
        Ok(count)
    }

    /// Receives the body, or receives and forgets it if nobody wants it.
    async fn receive_body(
        &mut self,
        meta: &RequestMeta,
        placement: Option<BodyPlacement>,
    ) -> Result<Result<Option<ReceivedBody>, HeadRefusal>, ConnectionClosed> {
        if meta.expects_continue && meta.framing != BodyFraming::Length(0) && self.input.is_empty()
        {
            self.send_bytes(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let outcome = match (meta.framing, placement) {
            (BodyFraming::Length(length), Some(placement)) => {
                self.receive_length(length, placement).await?.map(Some)
            }
            (BodyFraming::Chunked, Some(placement)) => {
                self.receive_chunked(Some(placement)).await?
            }
            (BodyFraming::Length(length), None) => {
                self.forget(length).await?;
                Ok(None)
            }
            (BodyFraming::Chunked, None) => self.receive_chunked(None).await?,
        };
        self.guard.wait(WaitReason::Busy, 0);
        Ok(outcome)
    }

    async fn receive_length(
        &mut self,
        length: u64,
        placement: BodyPlacement,
    ) -> Result<Result<ReceivedBody, HeadRefusal>, ConnectionClosed> {
        let Ok(length) = usize::try_from(length) else {
            return Ok(Err(chunked::too_large()));
        };
        let start = padding(placement);
        let total = start + length;
        let at_once = if total <= BODY_AT_ONCE_BYTES_MAX {
            total
        } else {
            BODY_FIRST_BYTES
        };
        let mut block = match self.begin_block(start, at_once) {
            Ok(block) => block,
            Err(refused) => return Ok(Err(refused.into())),
        };
        let buffered = self.input.unused();
        let buffered = buffered
            .get(..length.min(buffered.len()))
            .unwrap_or(buffered);
        block.extend_from_slice(buffered);
        let buffered_count = buffered.len();
        self.input.consume(buffered_count);
        loop {
            if let Err(refusal) = charge(&mut block) {
                return Ok(Err(refusal));
            }
            if block.len() == total {
                return Ok(Ok(ReceivedBody { block, start }));
            }
            if total > BODY_FIRST_BYTES {
                // Thousands of clients may promise much and send little: what they do not need is
                // not kept for them.
                self.input.release(&self.shard.spares);
            }
            if block.len() == block.capacity()
                && let Err(refused) = block.try_reserve((block.capacity() * 2).min(total))
            {
                return Ok(Err(refused.into()));
            }
            let wanted = (total - block.len()).min(RECEIVE_BYTES_MAX);
            let spare = block.spare_mut();
            let wanted = wanted.min(spare.len());
            self.guard.wait(
                WaitReason::Receiving,
                deadline_after(self.shard.options.http_stall_timeout),
            );
            let room = spare.get_mut(..wanted).unwrap_or(&mut []);
            match self.turn.receive(&mut self.stream, room).await {
                Ok(count) if count > 0 => block.advance(count),
                Ok(_) if self.guard.is_timed_out() => return Ok(Err(stalled())),
                _ => return Err(ConnectionClosed),
            }
        }
    }

    async fn receive_chunked(
        &mut self,
        placement: Option<BodyPlacement>,
    ) -> Result<Result<Option<ReceivedBody>, HeadRefusal>, ConnectionClosed> {
        let start = placement.map_or(0, padding);
        let mut block = match placement.map(|_| self.begin_block(start, COPIED_BYTES_MAX)) {
            Some(Ok(block)) => Some(block),
            Some(Err(refused)) => return Ok(Err(refused.into())),
            None => None,
        };
        let mut decoder = ChunkedDecoder::new(self.shard.options.http_body_bytes_max);
        loop {
            let before = self.input.unused();
            let mut unused = before;
            let is_done = loop {
                match decoder.next(&mut unused) {
                    Err(refusal) => return Ok(Err(refusal)),
                    Ok(ChunkPiece::Done) => break true,
                    Ok(ChunkPiece::More) => break false,
                    Ok(ChunkPiece::Data(data)) => {
                        let Some(block) = &mut block else { continue };
                        let needed = block.len() + data.len();
                        if needed > block.capacity()
                            && let Err(refused) =
                                block.try_reserve(needed.max(block.capacity() * 2))
                        {
                            return Ok(Err(refused.into()));
                        }
                        block.extend_from_slice(data);
                    }
                }
            };
            let used = before.len() - unused.len();
            self.input.consume(used);
            if let Some(block) = &mut block
                && let Err(refusal) = charge(block)
            {
                return Ok(Err(refusal));
            }
            if is_done {
                return Ok(Ok(block.map(|block| ReceivedBody { block, start })));
            }
            self.guard.wait(
                WaitReason::Receiving,
                deadline_after(self.shard.options.http_stall_timeout),
            );
            let bytes_max = self.shard.options.http_head_bytes_max;
            let room = self.input.room_mut(bytes_max, &self.shard.spares);
            match self.turn.receive(&mut self.stream, room).await {
                Ok(count) if count > 0 => self.input.received(count),
                Ok(_) if self.guard.is_timed_out() => return Ok(Err(stalled())),
                _ => return Err(ConnectionClosed),
            }
        }
    }

    fn begin_block(&self, start: usize, capacity: usize) -> Result<Block, OutOfMemory> {
        if is_scarce() {
            return Err(OutOfMemory {
                asked_bytes: capacity,
            });
        }
        let mut block = self.shard.pool.try_take(capacity.max(start))?;
        block.extend_from_slice([0; ALIGNMENT_BYTES].get(..start).unwrap_or(&[]));
        block.set_charge(Charge::empty(&self.budget));
        Ok(block)
    }

    async fn forget(&mut self, length: u64) -> Result<(), ConnectionClosed> {
        let mut remaining = length;
        loop {
            let buffered = usize::try_from(remaining)
                .unwrap_or(usize::MAX)
                .min(self.input.unused().len());
            self.input.consume(buffered);
            remaining -= buffered as u64;
            if remaining == 0 {
                return Ok(());
            }
            self.guard.wait(
                WaitReason::Receiving,
                deadline_after(self.shard.options.http_stall_timeout),
            );
            let bytes_max = self.shard.options.http_head_bytes_max;
            let room = self.input.room_mut(bytes_max, &self.shard.spares);
            match self.turn.receive(&mut self.stream, room).await {
                Ok(count) if count > 0 => self.input.received(count),
                _ => return Err(ConnectionClosed),
            }
        }
    }

    /// What the request at hand is charged to.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Waits for the engine, and for the client to go away: then the request is cancelled, as
    /// `reply` is dropped.
    pub(crate) async fn await_reply<F: Future>(
        &mut self,
        reply: F,
    ) -> Result<F::Output, ConnectionClosed> {
        let mut reply = pin!(reply);
        if !self.is_input_over {
            let shard = &*self.shard;
            let (stream, input) = (&mut self.stream, &mut self.input);
            let outcome = std::future::poll_fn(|context| {
                if let Poll::Ready(outcome) = reply.as_mut().poll(context) {
                    return Poll::Ready(Ok(Some(outcome)));
                }
                loop {
                    // As much as a head may have, and anew after a large body. A client that goes
                    // away behind more is noticed when it is written to.
                    let room = input.room_mut(shard.options.http_head_bytes_max, &shard.spares);
                    if room.is_empty() {
                        return Poll::Pending;
                    }
                    match stream.poll_receive(context, room) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Ok(0)) => return Poll::Ready(Ok(None)),
                        Poll::Ready(Ok(count)) => input.received(count),
                        Poll::Ready(Err(_)) => return Poll::Ready(Err(ConnectionClosed)),
                    }
                }
            })
            .await?;
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
            self.is_input_over = true;
        }
        // Boxed: rare, and what it keeps would make every connection larger.
        Box::pin(self.await_half_closed(reply)).await
    }

    /// A traced request has its response; what is sent next is its answer.
    pub(crate) fn note_traced(&mut self, traced: Arc<ActiveTrace>) {
        traced.reach("INFER_RESPONSE_COMPLETE");
        self.traced = Some(traced);
    }

    /// The answer's first bytes are written next.
    fn note_sending(&self) {
        if let Some(traced) = &self.traced {
            traced.reach("HTTP_SEND_START");
        }
    }

    fn note_sent(&mut self) {
        if let Some(traced) = self.traced.take() {
            traced.reach("HTTP_SEND_END");
        }
    }

    /// Collects an answer's head.
    fn write_head(
        &mut self,
        answer: &HttpResponse,
        meta: &RequestMeta,
        closes: bool,
        delimiting: BodyDelimiter,
    ) {
        if self.out.capacity() == 0 {
            self.out = self.shard.spares.take_output();
        }
        let options = ResponseHeadOptions {
            is_version_1_0: meta.is_version_1_0,
            version_is_sent: std::mem::take(&mut self.version_is_sent),
            connection: match (closes, meta.is_version_1_0) {
                (true, _) => Some("close"),
                (false, true) => Some("keep-alive"),
                (false, false) => None,
            },
            delimiting,
            allowed_origin: meta.allowed_origin.as_deref(),
        };
        answer.write_head(&mut self.out, options);
        self.ahead = SendAhead::Nothing;
    }

    /// Sends an answer, or collects it if more requests are waiting.
    async fn send(
        &mut self,
        answer: &HttpResponse,
        meta: &RequestMeta,
        closes: bool,
    ) -> Result<(), ConnectionClosed> {
        self.note_sending();
        self.write_head(answer, meta, closes, BodyDelimiter::Length);
        if meta.is_head {
            return Ok(());
        }
        if answer.length() <= COPIED_BYTES_MAX {
            self.out.extend_from_slice(&answer.body);
            for part in &answer.parts {
                self.out.extend_from_slice(part.as_ref());
            }
            if self.out.len() > COLLECTED_BYTES_MAX {
                self.flush().await?;
            }
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        let mut pieces: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        pieces.push(IoSlice::new(&out));
        pieces.push(IoSlice::new(&answer.body));
        pieces.extend(answer.parts.iter().map(|part| IoSlice::new(part.as_ref())));
        let outcome = self.send_pieces(&mut pieces).await;
        drop(pieces);
        self.guard.wait(WaitReason::Busy, 0);
        self.out = out;
        self.out.clear();
        self.note_sent();
        outcome
    }

    async fn send_pieces(
        &mut self,
        mut pieces: &mut [IoSlice<'_>],
    ) -> Result<(), ConnectionClosed> {
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            self.guard.wait(
                WaitReason::Sending,
                deadline_after(self.shard.options.http_stall_timeout),
            );
            let sent =
                std::future::poll_fn(|context| self.stream.poll_send_vectored(context, pieces))
                    .await
                    .map_err(|_| ConnectionClosed)?;
            if sent == 0 {
                return Err(ConnectionClosed);
            }
            self.budget.note_moved(sent);
            IoSlice::advance_slices(&mut pieces, sent);
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), ConnectionClosed> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        let outcome = self.send_bytes(&out).await;
        self.note_sent();
        self.out = out;
        self.out.clear();
        if self.out.capacity() > COLLECTED_BYTES_MAX {
            self.out = Vec::new();
        }
        outcome
    }

    async fn send_bytes(&mut self, mut bytes: &[u8]) -> Result<(), ConnectionClosed> {
        // The deadline costs a look at the clock: set it only when the socket does not take
        // everything at once.
        let mut is_first = true;
        while !bytes.is_empty() {
            if !is_first {
                self.guard.wait(
                    WaitReason::Sending,
                    deadline_after(self.shard.options.http_stall_timeout),
                );
            }
            let sent = std::future::poll_fn(|context| {
                let outcome = self.stream.poll_send(context, bytes);
                if outcome.is_pending() && is_first {
                    let timeout = self.shard.options.http_stall_timeout;
                    self.guard
                        .wait(WaitReason::Sending, deadline_after(timeout));
                }
                outcome
            })
            .await
            .map_err(|_| ConnectionClosed)?;
            is_first = false;
            bytes = bytes.get(sent..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Answers what cannot be served and ends the connection.
    async fn refuse(&mut self, refusal: &HeadRefusal) -> Result<(), ConnectionClosed> {
        let answer = HttpResponse::failure(refusal.status, ContentType::Plain, &refusal.message);
        let options = ResponseHeadOptions {
            connection: Some("close"),
            ..ResponseHeadOptions::default()
        };
        answer.write_head(&mut self.out, options);
        self.out.extend_from_slice(&answer.body);
        self.linger().await
    }

    /// Sends what is collected, says that nothing more comes, and reads on for a while: closing on
    /// unread bytes would reset the connection and could take the answer away from the client.
    async fn linger(&mut self) -> Result<(), ConnectionClosed> {
        self.flush().await?;
        conch_net::finish_sending(self.stream.socket());
        let deadline_ns = deadline_after(LINGER);
        let mut received_bytes = 0;
        while received_bytes < LINGER_BYTES_MAX {
            let unused_count = self.input.unused().len();
            self.input.consume(unused_count);
            self.guard.wait(WaitReason::Receiving, deadline_ns);
            // Not what room is there: a large body has had it given back, and no room would look
            // like the client's end.
            let bytes_max = self.shard.options.http_head_bytes_max;
            let room = self.input.room_mut(bytes_max, &self.shard.spares);
            let count = self
                .turn
                .receive(&mut self.stream, room)
                .await
                .map_err(|_| ConnectionClosed)?;
            if count == 0 {
                break;
            }
            received_bytes += count;
        }
        Err(ConnectionClosed)
    }
}

/// Bytes in front of the body that bring what follows its JSON onto an alignment boundary.
pub(super) fn padding(placement: BodyPlacement) -> usize {
    (ALIGNMENT_BYTES - placement.json_length % ALIGNMENT_BYTES) % ALIGNMENT_BYTES
}

/// Makes the block's charge cover what it holds.
fn charge(block: &mut Block) -> Result<(), HeadRefusal> {
    let held_bytes = block.len() as u64;
    let Some(charge) = block.charge_mut() else {
        return Ok(());
    };
    charge.cover(held_bytes).map_err(|exhausted| HeadRefusal {
        status: 503,
        message: format!(
            "the server has no memory left for the request: the limit is {} bytes",
            exhausted.limit_bytes
        ),
    })
}

fn stalled() -> HeadRefusal {
    HeadRefusal {
        status: 408,
        message: "the request's body did not arrive in time".to_owned(),
    }
}

/// The bytes behind `start`.
pub(crate) fn freeze(body: ReceivedBody) -> ByteView {
    let view = ByteView::from(body.block);
    let end = view.len();
    view.slice(body.start, end).unwrap_or_else(ByteView::empty)
}
