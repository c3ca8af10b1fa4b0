//! One connection: h2, the calls on it, and the clock hands that end it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use conch_engine::clock;
use h2::server::Connection as Http2;
use h2::{Ping, PingPong};

use super::calls::{CallEnd, CallSet};
use super::goaway::GoawayState;
use super::settings::{HANDSHAKE_TIMEOUT, STALL_TIMEOUT, builder};
use super::transport::{FramedSocket, Payload, Transport, TransportState};
use super::uploads::PartialMessages;
use super::{call, handler};
use crate::access_log::AccessRecord;
use crate::options::GrpcConnections;
use crate::shard::{ConnectionGuard, ConnectionShares, Shard, ShardStream, Timer};
use crate::tls;

/// Serves one connection until the client leaves, errs or stalls, or the shard has drained.
pub(crate) fn serve(
    shard: Rc<Shard>,
    stream: ShardStream,
    guard: ConnectionGuard,
) -> impl Future<Output = ()> {
    // In a state of its own, which is gone when the connection begins.
    let handshake = Box::pin(shake_hands(shard, stream, Rc::clone(guard.shares())));
    async move {
        if let Some(connection) = handshake.await {
            serve_calls(connection, &guard).await;
        }
        drop(guard);
    }
}

async fn serve_calls(mut connection: Box<GrpcConnection>, guard: &ConnectionGuard) {
    let shard = Rc::clone(&connection.shard);
    let mut retired = std::pin::pin!(shard.retired());
    let mut calls = CallSet::new();
    std::future::poll_fn(|context| {
        let is_stop_requested = guard.is_stop_requested();
        connection.poll_goaway(&mut calls, is_stop_requested, retired.as_mut(), context);
        let over = calls.poll_turn(context, |calls, context| connection.poll(calls, context));
        if over.is_ready() || connection.age.poll_grace(context).is_ready() {
            return Poll::Ready(());
        }
        guard.note_calls(
            connection.watch.transport_state.has_calls.get(),
            context.waker(),
        );
        let options = &shard.options.grpc_connections;
        connection.watch.poll(options, context)
    })
    .await;
}

/// From the first byte to the end of the HTTP/2 preface; none if the peer does not get there in
/// time.
async fn shake_hands(
    shard: Rc<Shard>,
    stream: ShardStream,
    shares: Rc<ConnectionShares>,
) -> Option<Box<GrpcConnection>> {
    let mut drained = std::pin::pin!(shard.drained());
    let mut introduction = std::pin::pin!(introduce(&shard, stream, Rc::clone(&shares)));
    let mut timer = Timer::after(HANDSHAKE_TIMEOUT);
    let (http2, socket, transport_state) = std::future::poll_fn(|context| {
        if let Poll::Ready(outcome) = introduction.as_mut().poll(context) {
            return Poll::Ready(outcome);
        }
        // A peer that has not introduced itself yet has nothing here to lose.
        if drained.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut timer).poll(context).map(|()| None)
    })
    .await?;
    Some(GrpcConnection::new(
        Rc::clone(&shard),
        shares,
        http2,
        socket,
        transport_state,
    ))
}

async fn introduce(
    shard: &Shard,
    mut stream: ShardStream,
    shares: Rc<ConnectionShares>,
) -> Option<(
    Http2<Transport, Payload>,
    Rc<RefCell<FramedSocket>>,
    Rc<TransportState>,
)> {
    let session = match &shard.options.grpc_tls {
        Some(tls) => Some(Box::pin(tls::accept(shard, &mut stream, tls)).await?),
        None => None,
    };
    if let (Some(session), Some(_)) = (&session, &shard.options.auth) {
        shares.name_peer(session.peer_names());
    }
    let (transport, transport_state) =
        Transport::new(stream, session, &shard.options.grpc_connections);
    let socket = transport.socket();
    let http2 = builder().handshake::<_, Payload>(transport).await.ok()?;
    Some((http2, socket, transport_state))
}

struct GrpcConnection {
    shard: Rc<Shard>,
    shares: Rc<ConnectionShares>,
    /// The messages of its calls that have arrived in part.
    uploads: Rc<PartialMessages>,
    http2: Http2<Transport, Payload>,
    /// Of the transport, which h2 owns.
    socket: Rc<RefCell<FramedSocket>>,
    watch: TimeoutSweep,
    age: MaxAge,
    goaway: GoawayState,
}

impl GrpcConnection {
    fn new(
        shard: Rc<Shard>,
        shares: Rc<ConnectionShares>,
        mut http2: Http2<Transport, Payload>,
        socket: Rc<RefCell<FramedSocket>>,
        transport_state: Rc<TransportState>,
    ) -> Box<GrpcConnection> {
        let ping_pong = http2.ping_pong();
        let uploads = PartialMessages::new(socket.borrow().direct_receiver());
        let age = MaxAge::new(&shard.options.grpc_connections);
        Box::new(GrpcConnection {
            shard,
            shares,
            uploads: Rc::new(uploads),
            age,
            http2,
            socket,
            watch: TimeoutSweep {
                transport_state,
                ping_pong,
                idle: None,
                blocked: None,
                block: None,
                pinged_ns: 0,
                rested_ns: 0,
            },
            goaway: GoawayState::None,
        })
    }

    /// Begins the end, if the shard retires, or the connection is old enough or one too many.
    fn poll_goaway(
        &mut self,
        calls: &mut CallSet,
        is_stop_requested: bool,
        retired: Pin<&mut impl Future<Output = ()>>,
        context: &mut Context<'_>,
    ) {
        if matches!(self.goaway, GoawayState::None)
            && (is_stop_requested
                || retired.poll(context).is_ready()
                || self.age.poll(context).is_ready())
        {
            self.goaway = GoawayState::Requested;
            // Nobody else wakes the connection for this.
            calls.note_connection();
        }
    }

    /// Moves bytes in both directions and accepts what calls have come. Ready when the connection
    /// is over.
    fn poll(&mut self, calls: &mut CallSet, context: &mut Context<'_>) -> Poll<()> {
        self.socket.borrow_mut().begin_turn();
        loop {
            match self.http2.poll_accept(context) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let (shard, shares) = (Rc::clone(&self.shard), &self.shares);
                    let uploads = Rc::clone(&self.uploads);
                    let logged = handler::logged(request.uri().path());
                    let delays = shard.options.grpc_delays;
                    let path = request.uri().path();
                    let access = shard.access_log.record(shares.peer(), ("gRPC", ""), path);
                    let call =
                        call::run(shard, shares, uploads, (request, access.as_ref()), respond);
                    match (logged, access) {
                        (None, None) => calls.push(call),
                        (None, Some(access)) => calls.push(note_end(access, call)),
                        (Some(kind), None) => calls.push(handler::log(kind, delays, call)),
                        (Some(kind), Some(access)) => {
                            calls.push(note_end(access, handler::log(kind, delays, call)));
                        }
                    }
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending if self.goaway.advance(&mut self.http2, &self.socket, context) => {}
                Poll::Pending => break,
            }
        }
        self.watch
            .transport_state
            .has_calls
            .set(self.http2.has_streams());
        // All answers of the turn leave together.
        match self.socket.borrow_mut().poll_send_queued(context) {
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }
}

/// When the connection is to end whatever happens on it.
struct MaxAge {
    /// Until it is asked to end.
    whole: Option<Timer>,
    grace_time: Option<Duration>,
    /// Until it is ended.
    grace: Option<Timer>,
}

impl MaxAge {
    fn new(options: &GrpcConnections) -> MaxAge {
        MaxAge {
            whole: options.age_max.map(|age| Timer::after(about(age))),
            grace_time: options.age_grace,
            grace: None,
        }
    }

    /// Ready when the connection is to be asked to end: once.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(timer) = &mut self.whole else {
            return Poll::Pending;
        };
        std::task::ready!(Pin::new(timer).poll(context));
        self.whole = None;
        self.grace = self.grace_time.map(Timer::after);
        Poll::Ready(())
    }

    /// Ready when the connection is to be dropped, with the calls on it.
    fn poll_grace(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.grace {
            Some(timer) => Pin::new(timer).poll(context),
            None => Poll::Pending,
        }
    }
}

/// `age`, a tenth more or less: connections that began together should not all come back at once.
fn about(age: Duration) -> Duration {
    let noise = RandomState::new().hash_one(()) % 201;
    let permille = u32::try_from(900 + noise).unwrap_or(1000);
    age.saturating_mul(permille) / 1000
}

/// The clock hands: a peer that sends nothing for long is pinged, and one that takes nothing for
/// long, or does not end the headers of a call, is left.
struct TimeoutSweep {
    transport_state: Rc<TransportState>,
    ping_pong: Option<PingPong>,
    idle: Option<Timer>,
    blocked: Option<Timer>,
    block: Option<Timer>,
    /// When the ping that is out was sent; 0 for none.
    pinged_ns: u64,
    /// When it was last let be, because no call was open.
    rested_ns: u64,
}

impl TimeoutSweep {
    /// Ready when the connection is to be dropped.
    fn poll(&mut self, options: &GrpcConnections, context: &mut Context<'_>) -> Poll<()> {
        let (transport_state, blocked) = (&self.transport_state, &mut self.blocked);
        if poll_since(
            &transport_state.blocked_since_ns,
            STALL_TIMEOUT,
            blocked,
            context,
        )
        .is_ready()
        {
            return Poll::Ready(());
        }
        let (headers_timeout, block) = (options.headers_timeout, &mut self.block);
        if poll_since(
            &transport_state.block_since_ns,
            headers_timeout,
            block,
            context,
        )
        .is_ready()
        {
            return Poll::Ready(());
        }
        match options.keepalive_time {
            Some(time) => self.poll_idle(time, options, context),
            None => Poll::Pending,
        }
    }

    fn poll_idle(
        &mut self,
        time: Duration,
        options: &GrpcConnections,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if self.pinged_ns != 0 && self.poll_pong(context).is_ready() {
                self.pinged_ns = 0;
                self.idle = None;
            }
            // Whatever comes shows that the peer is there.
            let (since_ns, peer_timeout) = match self.pinged_ns {
                0 => (self.rested_ns, time),
                pinged_ns => (pinged_ns, options.keepalive_timeout),
            };
            let since_ns = since_ns.max(self.transport_state.received_ns.get());
            let until_ns = since_ns.saturating_add(nanoseconds(peer_timeout));
            let timer = self.idle.get_or_insert_with(|| Timer::at(until_ns));
            if Pin::new(timer).poll(context).is_pending() {
                return Poll::Pending;
            }
            self.idle = None;
            let now_ns = clock::monotonic_ns();
            if now_ns < until_ns {
                // Something came meanwhile: measure again from there.
                continue;
            }
            if self.pinged_ns != 0 {
                return Poll::Ready(());
            }
            if !options.pings_without_calls && !self.transport_state.has_calls.get() {
                self.rested_ns = now_ns;
                continue;
            }
            self.pinged_ns = now_ns;
            let sent = self
                .ping_pong
                .as_mut()
                .map(|ping_pong| ping_pong.send_ping(Ping::opaque()));
            if !matches!(sent, Some(Ok(()))) {
                return Poll::Ready(());
            }
        }
    }

    fn poll_pong(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.ping_pong {
            Some(ping_pong) => ping_pong.poll_pong(context).map(|_| ()),
            None => Poll::Pending,
        }
    }
}

/// Ready once `peer_timeout` has passed since `since_ns`, while that is not 0.
fn poll_since(
    since_ns: &Cell<u64>,
    peer_timeout: Duration,
    timer: &mut Option<Timer>,
    context: &mut Context<'_>,
) -> Poll<()> {
    loop {
        let since_ns = since_ns.get();
        if since_ns == 0 {
            *timer = None;
            return Poll::Pending;
        }
        let until_ns = since_ns.saturating_add(nanoseconds(peer_timeout));
        let pending = timer.get_or_insert_with(|| Timer::at(until_ns));
        if Pin::new(pending).poll(context).is_pending() {
            return Poll::Pending;
        }
        *timer = None;
        if clock::monotonic_ns() >= until_ns {
            return Poll::Ready(());
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Runs a call that is in the access log.
async fn note_end(access: Rc<AccessRecord>, call: impl Future<Output = CallEnd>) -> CallEnd {
    let end = call.await;
    match end {
        CallEnd::Answered => access.note_status("OK"),
        CallEnd::Refused(code) => access.note_status(code.name()),
        CallEnd::Gone => {}
    }
    end
}
