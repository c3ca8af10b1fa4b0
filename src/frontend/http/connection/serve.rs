//! The loop of a connection: a head, a body, an answer.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use conch_engine::Error;

use super::machine::HttpState;
use super::send::COLLECTED_BYTES_MAX;
use super::service::HttpService;
use super::state::{
    ConnectionClosed, ConnectionEnd, HttpConnection, RequestMeta, SendAhead, deadline_after,
};
use super::turn::{REQUEST_BYTES, WorkBudget};
use crate::access::GrantedRoute;
use crate::api;
use crate::auth::{AccessRefusal, AuthError, Authorizer};
use crate::http::answer::{ContentType, HttpResponse};
use crate::http::cors;
use crate::http::head::{self, HeadRefusal, RecentHead, RequestHead};
use crate::http::input::InputBuffer;
use crate::shard::{
    CLOSE_GRACE, ConnectionGuard, EnsuredModel, HeldPermit, Shard, ShardStream, WaitReason,
};
use crate::tls::{self, ConnectionStream};

/// Serves one connection until it ends.
pub(crate) async fn serve(
    shard: Rc<Shard>,
    stream: ShardStream,
    guard: ConnectionGuard,
    service: impl HttpService,
) {
    let stream = match service.tls(&shard.options) {
        None => ConnectionStream::plain(stream),
        Some(tls) => {
            let outlasts_drains = guard.outlasts_drains();
            // Boxed: it is gone when the connection begins.
            let accepted = Box::pin(tls::accept_in_time(&shard, stream, tls, outlasts_drains));
            match accepted.await {
                Some(stream) => stream,
                None => return,
            }
        }
    };
    if shard.options.auth.is_some() {
        guard.shares().name_peer(stream.peer_names());
    }
    let budget = Arc::clone(guard.shares().own());
    let mut connection = HttpConnection {
        state: HttpState::Idle,
        budget,
        shard,
        stream,
        guard,
        input: InputBuffer::default(),
        out: Vec::new(),
        scratch: Vec::new(),
        source: None,
        traced: None,
        access: None,
        turn: WorkBudget::default(),
        is_input_over: false,
        ahead: SendAhead::Nothing,
        version_is_sent: false,
    };
    // However it ends, dropping the stream closes the socket.
    if let Err(ConnectionEnd::Refused(refusal)) = connection.run_and_rest(&service).await {
        let _ = Box::pin(connection.refuse(&refusal)).await;
    }
    if matches!(connection.state, HttpState::Idle | HttpState::Closing) {
        connection.stream.finish_now();
    }
}

/// What the received part of a head amounts to.
enum HeadProgress {
    /// The head's length.
    Complete(usize),
    Incomplete,
    /// The bytes are TLS.
    Foreign,
}

/// The one way from a head to a granted route, on every listener; else the plan of a refusal.
#[inline]
fn grant<'h, S: HttpService>(
    service: &S,
    shard: &'h Shard,
    head: &'h RequestHead<'_>,
    meta: &RequestMeta,
    peer_names: &[Box<str>],
) -> Result<GrantedRoute<S::Route<'h>>, S::Plan> {
    if meta.allowed_origin.is_some()
        && let Some(answer) = cors::preflight(head)
    {
        return Err(service.plan_refusal(answer));
    }
    let authorizer = Authorizer::new(
        &shard.options.auth,
        &shard.options.http_restrictions,
        peer_names,
    );
    let route = service.route(shard, head);
    // What a message of HTTP is about is in its path: nothing is left to be asked of the rights.
    match authorizer.authorize(route, |name| head.find(name)) {
        Ok((granted, _rights)) => Ok(granted),
        Err(refusal) => Err(service.plan_refusal(refusal_answer(&refusal))),
    }
}

#[cold]
fn refusal_answer(refusal: &AccessRefusal<'_>) -> HttpResponse {
    match refusal {
        AccessRefusal::Restricted(restriction) => {
            let message = format!(
                "This API is restricted, expecting header '{}'",
                restriction.header()
            );
            HttpResponse::failure(403, ContentType::Plain, &message)
        }
        AccessRefusal::Denied(AuthError::Unauthenticated(words)) => HttpResponse {
            more_headers: Some("\r\nWWW-Authenticate: Bearer".into()),
            ..HttpResponse::failure(401, ContentType::Json, words)
        },
        AccessRefusal::Denied(AuthError::Forbidden(words)) => {
            HttpResponse::failure(403, ContentType::Json, words)
        }
    }
}

/// Ensures that the model of a request is loaded, where models are loaded on demand. It takes a
/// granted route: a client that may not use a model does not load it either.
#[inline]
fn ensure_loaded<S: HttpService>(
    service: &S,
    shard: &Rc<Shard>,
    head: &RequestHead<'_>,
    route: &GrantedRoute<S::Route<'_>>,
) -> Result<EnsuredModel, Error> {
    let nothing = Ok(EnsuredModel::Here(None));
    if shard.server.demand().is_none() {
        return nothing;
    }
    let Some((name, version)) = service.required_model(head, route) else {
        return nothing;
    };
    match api::parse_version(version.unwrap_or("")) {
        Ok(version) => shard.ensure_loaded(&name, version),
        // For the plan to refuse.
        Err(_) => nothing,
    }
}

/// Plans a granted route; `permit` holds its model, or says why there is none.
#[inline]
fn plan_route<S: HttpService>(
    service: &S,
    shard: &Rc<Shard>,
    head: &RequestHead<'_>,
    route: GrantedRoute<S::Route<'_>>,
    permit: Result<HeldPermit, Error>,
) -> S::Plan {
    match permit {
        Ok(permit) => {
            let mut plan = service.plan(shard, head, route);
            if permit.is_some() {
                service.attach_permit(&mut plan, permit);
            }
            plan
        }
        Err(error) => service.plan_refusal(HttpResponse::error(&error, ContentType::Json)),
    }
}

impl HttpConnection {
    /// Serves requests, and rests between them. What a request needs is in a future of its own,
    /// which is there only while requests come: a connection that rests is small.
    async fn run_and_rest<S: HttpService>(&mut self, service: &S) -> Result<(), ConnectionEnd> {
        self.expect_head()?;
        loop {
            self.rest().await?;
            match Box::pin(self.run(service)).await {
                Err(ConnectionEnd::Rests) => {}
                outcome => return outcome,
            }
        }
    }

    /// Waits for the first bytes of a request.
    async fn rest(&mut self) -> Result<(), ConnectionEnd> {
        let count = std::future::poll_fn(|context| self.poll_head(context)).await;
        let count = count.map_err(|_| ConnectionClosed)?;
        if count == 0 {
            return Err(self.head_ended());
        }
        self.input.received(count);
        Ok(())
    }

    async fn run<S: HttpService>(&mut self, service: &S) -> Result<(), ConnectionEnd> {
        let mut recent = RecentHead::default();
        loop {
            let length = self.read_head(&recent).await?;
            let (meta, plan) = self.plan_request(service, length, &mut recent).await?;
            let is_at_once = service.is_at_once(&plan);
            self.ahead = SendAhead::Version {
                is_version_1_0: meta.is_version_1_0,
            };
            if meta.has_body() || !is_at_once {
                // Who waits for an earlier answer is not to wait for this body, or this model.
                self.flush().await?;
            }
            let body = self.receive_body(&meta, service.placement(&plan)).await?;
            if let (Some(access), Some(body)) = (&self.access, &body) {
                access.note_received(body.block.len());
            }
            let scratch = self.take_scratch(is_at_once);
            let mut answer = service.answer(plan, body, scratch, self).await?;
            let closes = !meta.keeps_alive || self.shard.is_retiring();
            if let Some(source) = self.source.take() {
                let closes = closes || meta.is_version_1_0;
                Box::pin(self.send_stream(&answer, source, &meta, closes)).await?;
                self.note_answered(answer.status, None);
                self.state.answered(closes);
            } else {
                let closes = closes || self.state == HttpState::AnsweringOnly;
                self.send(&answer, &meta, closes).await?;
                self.note_answered(answer.status, Some(answer.length()));
                self.state.answered(closes);
            }
            match self.state {
                HttpState::Lingering => return Ok(self.linger().await?),
                HttpState::Closing => return Ok(self.flush().await?),
                _ if is_at_once => self.turn.spend(REQUEST_BYTES + answer.length()).await,
                _ => self.turn.begin(),
            }
            self.scratch = std::mem::take(&mut answer.body);
            if self.scratch.capacity() > COLLECTED_BYTES_MAX {
                self.scratch = Vec::new();
            }
        }
    }

    /// The answer is handed to the kernel, or collected for it: writes its line.
    #[inline]
    fn note_answered(&mut self, status: u16, bytes: Option<usize>) {
        if let Some(access) = self.access.take() {
            access.note_answer(status, bytes);
        }
    }

    /// An empty buffer for the body of an answer.
    #[inline]
    fn take_scratch(&mut self, is_at_once: bool) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.scratch);
        if scratch.capacity() == 0 && !is_at_once {
            scratch = self.shard.spares.take_output();
        }
        scratch.clear();
        scratch
    }

    /// Receives until a complete head is there. Returns its length.
    async fn read_head(&mut self, recent: &RecentHead) -> Result<usize, ConnectionEnd> {
        loop {
            match self.find_head(recent)? {
                HeadProgress::Complete(length) => return Ok(length),
                HeadProgress::Foreign => return Err(ConnectionEnd::Closed),
                HeadProgress::Incomplete => {}
            }
            self.flush().await?;
            self.expect_head()?;
            if self.receive_head().await? == 0 {
                return Err(self.head_ended());
            }
        }
    }

    /// Looks for the end of a head in what has been received.
    #[inline]
    fn find_head(&mut self, recent: &RecentHead) -> Result<HeadProgress, HeadRefusal> {
        let seen = self.state.seen();
        if seen == 0 {
            if let Some(length) = recent.length_in(self.input.unused()) {
                return Ok(HeadProgress::Complete(length));
            }
            // Some clients end a body with a line too many.
            while self.input.unused().starts_with(b"\r\n") {
                self.input.consume(2);
            }
        }
        let unused = self.input.unused();
        match head::find_end(unused, seen) {
            Ok(Some(length)) => Ok(HeadProgress::Complete(length)),
            Ok(None) if unused.len() >= self.shard.options.http_head_bytes_max => {
                Err(HeadRefusal {
                    status: 431,
                    message: "the request's head is too large".to_owned(),
                })
            }
            _ if seen == 0 && head::is_tls(unused) => Ok(HeadProgress::Foreign),
            Ok(None) => Ok(HeadProgress::Incomplete),
            Err(refusal) => Err(refusal),
        }
    }

    /// Sets the time limit for more of a head.
    #[inline]
    fn expect_head(&mut self) -> Result<(), ConnectionClosed> {
        let seen = self.input.unused().len();
        let options = &self.shard.options;
        if seen > 0 {
            let deadline = || deadline_after(options.http_head_timeout);
            let deadline_ns = self.state.head_incomplete(seen, deadline);
            self.guard.wait(WaitReason::Receiving, deadline_ns);
            return Ok(());
        }
        // The last answer went out before it could tell that the connection ends.
        let timeout = match self.shard.is_retiring() && !self.guard.outlasts_drains() {
            true => options.http_idle_timeout.min(CLOSE_GRACE),
            false => options.http_idle_timeout,
        };
        let deadline_ns = deadline_after(timeout);
        self.guard.wait(WaitReason::Idle, deadline_ns);
        Ok(())
    }

    /// The input has ended before a head was complete.
    #[cold]
    fn head_ended(&self) -> ConnectionEnd {
        if self.state == HttpState::Idle || !self.guard.is_timed_out() {
            return ConnectionEnd::Closed;
        }
        ConnectionEnd::Refused(HeadRefusal {
            status: 408,
            message: "the request's head did not arrive in time".to_owned(),
        })
    }

    /// Parses, routes and plans the head of `length` bytes, once its model is there.
    async fn plan_request<S: HttpService>(
        &mut self,
        service: &S,
        length: usize,
        recent: &mut RecentHead,
    ) -> Result<(RequestMeta, S::Plan), ConnectionEnd> {
        // The head borrows from the input while the connection may send and wait for a model.
        let (mut input, shard) = (std::mem::take(&mut self.input), Rc::clone(&self.shard));
        head::normalize_version(input.unused_mut().get_mut(..length).unwrap_or(&mut []));
        let head = match recent.parse(input.unused().get(..length).unwrap_or(&[])) {
            Ok(head) => head,
            Err(refusal) => {
                self.input = input;
                return Err(refusal.into());
            }
        };
        let peer = self.guard.shares().peer();
        self.access = shard
            .access_log
            .record(peer, ("HTTP", head.method.name()), head.path);
        let meta = RequestMeta::new(&head, shard.options.http_cors_origins.allowed(&head));
        let plan = match grant(
            service,
            &shard,
            &head,
            &meta,
            self.guard.shares().peer_names(),
        ) {
            Ok(route) => {
                let permit = match ensure_loaded(service, &shard, &head, &route) {
                    Ok(EnsuredModel::Here(permit)) => Ok(permit),
                    Ok(EnsuredModel::Coming(coming)) => {
                        self.expect_model().await?;
                        coming.await
                    }
                    Err(error) => Err(error),
                };
                plan_route(service, &shard, &head, route, permit)
            }
            Err(plan) => plan,
        };
        let tenant_header = shard.options.tenant_header.as_deref();
        let shares = self.guard.shares();
        self.budget = shares.of_request(tenant_header, &shard.budget, |name| head.find(name));
        self.input = input;
        self.input.consume(length);
        self.state.head_received();
        Ok((meta, plan))
    }

    /// Before a request waits for its model: a client that waits for an earlier answer is not to
    /// wait for this model.
    async fn expect_model(&mut self) -> Result<(), ConnectionClosed> {
        self.flush().await?;
        self.guard.wait(WaitReason::Busy, 0);
        Ok(())
    }

    /// Receives more of a head.
    async fn receive_head(&mut self) -> Result<usize, ConnectionEnd> {
        let mut is_first_look = self.input.is_empty();
        let count = std::future::poll_fn(|context| {
            if std::mem::take(&mut is_first_look)
                && self.stream.is_plain()
                && self.shard.wait_for_request(self.stream.socket())
            {
                let bytes_max = self.shard.options.http_head_bytes_max;
                let room = self.input.room_mut(bytes_max, &self.shard.spares);
                if let Some(outcome) = self.stream.receive_now(room) {
                    return Poll::Ready(outcome.map_err(|_| ConnectionEnd::Closed));
                }
            }
            match self.poll_head(context) {
                Poll::Ready(outcome) => Poll::Ready(outcome.map_err(|_| ConnectionEnd::Closed)),
                Poll::Pending if self.state == HttpState::Idle => {
                    self.guard.keep_waker(context.waker());
                    match self.guard.is_rest_due() {
                        true => Poll::Ready(Err(ConnectionEnd::Rests)),
                        false => Poll::Pending,
                    }
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await?;
        self.input.received(count);
        self.turn.spend(self.stream.work_bytes(count)).await;
        Ok(count)
    }

    /// Receives into the input, which has not counted it yet. While nothing of a head is there the
    /// connection keeps no buffers.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let (shard, input) = (&*self.shard, &mut self.input);
        let room = input.room_mut(shard.options.http_head_bytes_max, &shard.spares);
        let outcome = self.stream.poll_receive(context, room);
        if outcome.is_pending() {
            self.turn.begin();
            if input.is_empty() {
                input.release(&shard.spares);
                shard.spares.give_output(std::mem::take(&mut self.out));
                shard.spares.give_output(std::mem::take(&mut self.scratch));
            }
        }
        outcome
    }
}
