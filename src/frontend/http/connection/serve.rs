//! The loop of a connection: a head, a body, an answer.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::Error;

use super::send::COLLECTED_BYTES_MAX;
use super::service::HttpService;
use super::state::{ConnectionClosed, HttpConnection, RequestMeta, SendAhead, deadline_after};
use super::turn::{REQUEST_BYTES, WorkBudget};
use crate::api;
use crate::http::answer::{ContentType, HttpResponse};
use crate::http::head::{self, BodyFraming, HeadRefusal, RequestHead};
use crate::http::input::InputBuffer;
use crate::http::{chunked, cors};
use crate::shard::{ConnectionGuard, EnsuredModel, Shard, ShardStream, WaitReason};

/// Serves one connection until it ends.
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
}
