//! One connection: its socket, the calls on it, and the clock hands that end it.

use std::cell::RefCell;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use conch_engine::clock;
use conch_http2::AcceptedRequest;

use super::calls::{CallEnd, CallSet};
use super::goaway::GoawayState;
use super::settings::{HANDSHAKE_TIMEOUT, STALL_TIMEOUT};
use super::transport::{GrpcSocket, Http2Connection, TurnEnd, sides};
use super::uploads::PartialMessages;
use super::{call, handler};
use crate::access_log::AccessRecord;
use crate::options::GrpcConnections;
use crate::shard::{ConnectionGuard, ConnectionShares, Shard, ShardStream, Timer};
use crate::tls::{self, TlsSession};

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
        let has_calls = connection.socket.http2().borrow().has_streams();
        guard.note_calls(has_calls, context.waker());
        if !has_calls {
            // A few small allocations of each call, so that a connection at rest holds little.
            connection.socket.http2().borrow_mut().rest();
            calls.rest();
        }
        connection.poll_timeouts(context)
    })
    .await;
}

/// TLS, if it is asked for; none if the peer does not get there in time.
async fn shake_hands(
    shard: Rc<Shard>,
    mut stream: ShardStream,
    shares: Rc<ConnectionShares>,
) -> Option<Box<GrpcConnection>> {
    let Some(tls) = &shard.options.grpc_tls else {
        return Some(GrpcConnection::new(&shard, shares, stream, None));
    };
    let session = {
        let mut drained = std::pin::pin!(shard.drained());
        let mut accepted = std::pin::pin!(tls::accept(&shard, &mut stream, tls));
        let mut timer = Timer::after(HANDSHAKE_TIMEOUT);
        std::future::poll_fn(|context| {
            if let Poll::Ready(outcome) = accepted.as_mut().poll(context) {
                return Poll::Ready(outcome);
            }
            // A peer that has not introduced itself yet has nothing here to lose.
            if drained.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut timer).poll(context).map(|()| None)
        })
        .await?
    };
    if shard.options.auth.is_some() {
        shares.name_peer(session.peer_names());
    }
    Some(GrpcConnection::new(&shard, shares, stream, Some(session)))
}

struct GrpcConnection {
    shard: Rc<Shard>,
    shares: Rc<ConnectionShares>,
    /// The messages of its calls that have arrived in part.
    uploads: Rc<PartialMessages>,
    socket: GrpcSocket,
    watch: TimeoutSweep,
    age: MaxAge,
    goaway: GoawayState,
}

impl GrpcConnection {
    fn new(
        shard: &Rc<Shard>,
        shares: Rc<ConnectionShares>,
        stream: ShardStream,
        session: Option<Box<TlsSession>>,
    ) -> Box<GrpcConnection> {
        let options = &shard.options.grpc_connections;
        Box::new(GrpcConnection {
            shard: Rc::clone(shard),
            shares,
            uploads: Rc::new(PartialMessages::default()),
            socket: GrpcSocket::new(stream, session, options),
            watch: TimeoutSweep::default(),
            age: MaxAge::new(options),
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
                || self
                    .age
                    .poll(&self.shard.options.grpc_connections, context)
                    .is_ready())
        {
            self.goaway = GoawayState::Requested;
            // Nobody else wakes the connection for this.
            calls.note_connection();
        }
    }

    /// Moves bytes in both directions and accepts what calls have come. Ready when the connection
    /// is over.
    fn poll(&mut self, calls: &mut CallSet, context: &mut Context<'_>) -> Poll<()> {
        self.socket.http2().borrow_mut().begin_turn(context.waker());
        let http2 = Rc::clone(self.socket.http2());
        let is_full = http2.borrow().is_queue_full();
        if is_full && matches!(self.socket.poll_send(context), Poll::Ready(Err(_))) {
            return Poll::Ready(());
        }
        let (shard, shares, uploads) = (&self.shard, &self.shares, &self.uploads);
        let received = self.socket.poll_receive(context, |accepted| {
            accept(shard, shares, uploads, &http2, accepted, calls);
        });
        match received {
            Poll::Ready(TurnEnd::Refused) => return Poll::Ready(()),
            // A client may close its side and still read: it gets what is there.
            Poll::Ready(TurnEnd::Closed) => {
                let _ = self.socket.poll_send(context);
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
        let (was_full, is_over) = {
            let mut http2 = http2.borrow_mut();
            let was_full = http2.is_queue_full();
            self.goaway.advance(&mut http2, context);
            (was_full, self.goaway.is_over(&http2))
        };
        if is_over {
            return self.socket.poll_close(context).map(|_| ());
        }
        // All answers of the turn leave together.
        match self.socket.poll_send(context) {
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        let (failure, is_full) = {
            let http2 = http2.borrow();
            (http2.failure(), http2.is_queue_full())
        };
        if let Some(error) = failure {
            self.socket.refuse(error);
            return Poll::Ready(());
        }
        if was_full && !is_full {
            // Receiving stopped for it, and nobody else comes back for the rest.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Ready when the peer has been silent for too long.
    fn poll_timeouts(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let options = &self.shard.options.grpc_connections;
        self.watch.poll(&self.socket, options, context)
    }
}

/// Adds a call to those of its connection.
fn accept(
    shard: &Rc<Shard>,
    shares: &ConnectionShares,
    uploads: &Rc<PartialMessages>,
    http2: &Rc<RefCell<Http2Connection>>,
    accepted: AcceptedRequest,
    calls: &mut CallSet,
) {
    let AcceptedRequest { stream, head } = accepted;
    let sides = sides(http2, stream);
    let path = head.path_text();
    let logged = handler::logged(path);
    let delays = shard.options.grpc_delays;
    let access = shard.access_log.record(shares.peer(), ("gRPC", ""), path);
    let call = call::run(
        Rc::clone(shard),
        shares,
        Rc::clone(uploads),
        (head, access.as_ref()),
        sides,
    );
    match (logged, access) {
        (None, None) => calls.push(call),
        (None, Some(access)) => calls.push(note_end(access, call)),
        (Some(kind), None) => calls.push(handler::log(kind, delays, call)),
        (Some(kind), Some(access)) => {
            calls.push(note_end(access, handler::log(kind, delays, call)));
        }
    }
}

/// When the connection is to end whatever happens on it.
enum MaxAge {
    Unlimited,
    /// Until it is asked to end. Boxed, as few connections have one.
    Whole(Box<Timer>),
    /// Until it is ended, with the calls on it.
    Grace(Box<Timer>),
}

impl MaxAge {
    fn new(options: &GrpcConnections) -> MaxAge {
        let whole = options
            .age_max
            .map(|age| Box::new(Timer::after(about(age))));
        whole.map_or(MaxAge::Unlimited, MaxAge::Whole)
    }

    /// Ready when the connection is to be asked to end: once.
    fn poll(&mut self, options: &GrpcConnections, context: &mut Context<'_>) -> Poll<()> {
        let MaxAge::Whole(timer) = self else {
            return Poll::Pending;
        };
        std::task::ready!(Pin::new(&mut **timer).poll(context));
        let grace = options.age_grace.map(|grace| Box::new(Timer::after(grace)));
        *self = grace.map_or(MaxAge::Unlimited, MaxAge::Grace);
        Poll::Ready(())
    }

    /// Ready when the connection is to be dropped.
    fn poll_grace(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            MaxAge::Grace(timer) => Pin::new(&mut **timer).poll(context),
            MaxAge::Unlimited | MaxAge::Whole(_) => Poll::Pending,
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
#[derive(Default)]
struct TimeoutSweep {
    idle: Option<Timer>,
    // Boxed: hardly ever needed.
    blocked: Option<Box<Timer>>,
    block: Option<Box<Timer>>,
    /// When the ping that is out was sent; 0 for none.
    pinged_ns: u64,
    /// When it was last let be, because no call was open.
    rested_ns: u64,
}

impl TimeoutSweep {
    /// Ready when the connection is to be dropped.
    fn poll(
        &mut self,
        socket: &GrpcSocket,
        options: &GrpcConnections,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let blocked_ns = socket.blocked_since_ns();
        if poll_since(blocked_ns, STALL_TIMEOUT, &mut self.blocked, context).is_ready() {
            return Poll::Ready(());
        }
        let (block_ns, has_begun) = {
            let http2 = socket.http2().borrow();
            (http2.block_since_ns(), http2.has_begun())
        };
        let timeout = match has_begun {
            true => options.headers_timeout,
            false => HANDSHAKE_TIMEOUT,
        };
        if poll_since(block_ns, timeout, &mut self.block, context).is_ready() {
            return Poll::Ready(());
        }
        match options.keepalive_time {
            Some(time) => self.poll_idle(&mut socket.http2().borrow_mut(), time, options, context),
            None => Poll::Pending,
        }
    }

    fn poll_idle(
        &mut self,
        http2: &mut Http2Connection,
        time: Duration,
        options: &GrpcConnections,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if self.pinged_ns != 0 && http2.take_pong() {
                self.pinged_ns = 0;
                self.idle = None;
            }
            // Whatever comes shows that the peer is there.
            let (since_ns, peer_timeout) = match self.pinged_ns {
                0 => (self.rested_ns, time),
                pinged_ns => (pinged_ns, options.keepalive_timeout),
            };
            let since_ns = since_ns.max(http2.received_ns());
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
            if !options.pings_without_calls && !http2.has_streams() {
                self.rested_ns = now_ns;
                continue;
            }
            self.pinged_ns = now_ns;
            http2.send_ping();
        }
    }
}

/// Ready once `peer_timeout` has passed since `since_ns`, while that is not 0.
fn poll_since(
    since_ns: u64,
    peer_timeout: Duration,
    timer: &mut Option<Box<Timer>>,
    context: &mut Context<'_>,
) -> Poll<()> {
    if since_ns == 0 {
        *timer = None;
        return Poll::Pending;
    }
    loop {
        let until_ns = since_ns.saturating_add(nanoseconds(peer_timeout));
        let pending = timer.get_or_insert_with(|| Box::new(Timer::at(until_ns)));
        if Pin::new(&mut **pending).poll(context).is_pending() {
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
