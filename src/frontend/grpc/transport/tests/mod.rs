//! Bytes of clients through h2 and its calls, with readers offered to the transport and without.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BufMut;
use conch_memory::{Budget, Charge, ConnectionUsage, Pool};
use h2::RecvStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

mod random;
mod sequences;
mod windows;

use super::direct::{DirectArrival, DirectReceiver};
use super::incoming::{ByteSource, Incoming};
use super::limits::FrameLimits;
use super::payload::Payload;
use super::state::TransportState;
use crate::grpc::calls::{CallEnd, CallSet};
use crate::grpc::frame::{MESSAGE_BYTES_MAX, MessagePrefix, put_prefix};
use crate::grpc::frames::*;
use crate::grpc::infer::MessageReader;
use crate::grpc::settings::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES, builder};
use crate::grpc::wire::put_bytes;
use crate::options::GrpcConnections;
use crate::testing::WakeCount;

const PING_BYTES: [u8; 8] = *b"conchtst";
/// Longer than any frame of ours.
const WHOLE: usize = usize::MAX;

/// What the peer has sent, in the pieces in which it arrives.
#[derive(Default)]
struct Script {
    arrived: VecDeque<u8>,
    receive_count: usize,
}

impl Script {
    fn take(&mut self, place: &mut [u8]) -> usize {
        let count = place.len().min(self.arrived.len());
        for (place, byte) in place.iter_mut().zip(self.arrived.drain(..count)) {
            *place = byte;
        }
        count
    }
}

impl ByteSource for Script {
    fn poll_receive(
        &mut self,
        _context: &mut Context<'_>,
        pieces: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.arrived.is_empty() {
            return Poll::Pending;
        }
        self.receive_count += 1;
        Poll::Ready(Ok(pieces.iter_mut().map(|piece| self.take(piece)).sum()))
    }

    fn receive_now(&mut self, target: &mut impl BufMut) -> io::Result<usize> {
        if self.arrived.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.receive_count += 1;
        let mut place = vec![0; target.remaining_mut()];
        let count = self.take(&mut place);
        target.put_slice(&place[..count]);
        Ok(count)
    }
}

struct Link {
    script: Script,
    limits: FrameLimits,
    /// Wakes the connection when more arrives.
    waker: Option<Waker>,
    sent: Vec<u8>,
}

/// The transport as h2 has it, without a socket.
struct TestTransport {
    link: Rc<RefCell<Link>>,
    incoming: Rc<RefCell<Incoming>>,
}

impl AsyncRead for TestTransport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let link = &mut *self.link.borrow_mut();
        link.waker = Some(context.waker().clone());
        let mut incoming = self.incoming.borrow_mut();
        let outcome = incoming.poll_read(&mut link.script, &mut link.limits, context, target);
        outcome.map_err(|failure| io::Error::other(format!("{failure:?}")))
    }
}

impl AsyncWrite for TestTransport {
    fn poll_write(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.link.borrow_mut().sent.extend_from_slice(source);
        Poll::Ready(Ok(source.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What a call saw: its tensors, or how it failed.
type Outcome = Result<Vec<Vec<u8>>, String>;

/// As a call of ModelInfer does.
async fn receive(
    mut body: RecvStream,
    direct: Option<DirectReceiver>,
    budget: Arc<Budget>,
) -> Outcome {
    let pool = Pool::new(64 << 20);
    let mut prefix = MessagePrefix::default();
    let mut reader: Option<MessageReader> = None;
    loop {
        let data = match &direct {
            Some(direct) if reader.as_ref().is_some_and(DirectReceiver::wants) => {
                let next = direct.next(&mut body, &mut reader, |_, _| Poll::Pending);
                match next.await.map_err(|failure| match failure {
                    super::DirectFailure::Stream => "stream".to_owned(),
                    failure => format!("{failure:?}"),
                })? {
                    DirectArrival::Frame(data) => data,
                    DirectArrival::Reader => match reader.take_if(|open| open.left() == 0) {
                        Some(reader) => return finish(reader),
                        None => continue,
                    },
                }
            }
            _ => match std::future::poll_fn(|context| body.poll_data(context)).await {
                Some(Ok(data)) => Some(data),
                Some(Err(_)) => return Err("stream".to_owned()),
                None => None,
            },
        };
        let Some(data) = data else {
            return Err("cut off".to_owned());
        };
        let mut bytes = &data[..];
        if reader.is_none() {
            let taken = prefix.take(bytes, MESSAGE_BYTES_MAX, None);
            let (length, rest) = taken.map_err(|status| status.message.clone())?;
            bytes = rest;
            reader = length.map(|length| MessageReader::new(&pool, &budget, length));
        }
        let _ = body.flow_control().release_capacity(data.len());
        let Some(open) = &mut reader else { continue };
        if bytes.len() > open.left() {
            return Err("surplus".to_owned());
        }
        open.feed(bytes).map_err(|fault| format!("{fault:?}"))?;
        if let Some(reader) = reader.take_if(|open| open.left() == 0) {
            return finish(reader);
        }
    }
}

/// Runs `call` until the test has it end.
async fn until_stopped(stream: u32, call: impl Future<Output = Outcome>, stops: Stops) -> Outcome {
    let mut call = pin!(call);
    std::future::poll_fn(|context| {
        let mut stops = stops.borrow_mut();
        let (is_stopped, waker) = stops.entry(stream).or_default();
        *waker = Some(context.waker().clone());
        match is_stopped {
            true => Poll::Ready(Err("stopped".to_owned())),
            false => call.as_mut().poll(context),
        }
    })
    .await
}

fn finish(reader: MessageReader) -> Outcome {
    let message = reader.finish().map_err(|fault| format!("{fault:?}"))?;
    Ok(message
        .raws
        .iter()
        .map(|raw| raw.as_ref().to_vec())
        .collect())
}

/// Calls that are to end before their messages have come, or may be.
type Stops = Rc<RefCell<BTreeMap<u32, (bool, Option<Waker>)>>>;

/// A server with one connection, and what its client knows.
struct Server {
    link: Rc<RefCell<Link>>,
    incoming: Rc<RefCell<Incoming>>,
    http2: h2::server::Connection<TestTransport, Payload>,
    calls: CallSet,
    outcomes: Rc<RefCell<BTreeMap<u32, Outcome>>>,
    wakes: Arc<WakeCount>,
    is_direct: bool,
    is_over: bool,
    budget: Arc<Budget>,
    stops: Stops,
    /// By which windows were opened for routed bytes.
    credited: BTreeMap<u32, usize>,
    opens_windows: bool,
}

impl Server {
    fn start(is_direct: bool) -> Server {
        let transport_state = Rc::new(TransportState::default());
        // What ends the connection at its receive, not in order, is not for these tests.
        let options = GrpcConnections {
            ping_strikes_max: 0,
            ..GrpcConnections::default()
        };
        let link = Rc::new(RefCell::new(Link {
            script: Script::default(),
            limits: FrameLimits::new(&transport_state, &options),
            waker: None,
            sent: Vec::new(),
        }));
        let incoming = Rc::new(RefCell::new(Incoming::new()));
        let transport = TestTransport {
            link: Rc::clone(&link),
            incoming: Rc::clone(&incoming),
        };
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        hello.extend(frame(SETTINGS, 0, 0, &[]));
        hello.extend(frame(SETTINGS, ACK, 0, &[]));
        link.borrow_mut().script.arrived.extend(hello);
        let mut handshake = pin!(builder().handshake::<_, Payload>(transport));
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(http2)) = handshake.as_mut().poll(&mut context) else {
            panic!("all of it is there");
        };
        let mut server = Server {
            link,
            incoming,
            http2,
            calls: CallSet::new(),
            outcomes: Rc::default(),
            wakes: Arc::default(),
            is_direct,
            is_over: false,
            budget: Budget::new(1 << 30),
            stops: Stops::default(),
            credited: BTreeMap::new(),
            opens_windows: true,
        };
        server.run();
        server
    }

    /// Lets `bytes` arrive, and handles them.
    fn arrive(&mut self, bytes: &[u8]) {
        let waker = {
            let mut link = self.link.borrow_mut();
            link.script.arrived.extend(bytes);
            link.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        self.run();
    }

    /// Has a call end that is under way.
    fn stop(&mut self, stream: u32) {
        let waker = {
            let mut stops = self.stops.borrow_mut();
            let (is_stopped, waker) = stops.get_mut(&stream).expect("it has begun");
            *is_stopped = true;
            waker.take()
        };
        waker.expect("it waits").wake();
        self.run();
    }

    /// Runs turns until nothing is due.
    fn run(&mut self) {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let mut context = Context::from_waker(&waker);
        loop {
            let before = self.wakes.get();
            self.turn(&mut context);
            if self.wakes.get() == before {
                return;
            }
        }
    }

    fn turn(&mut self, context: &mut Context<'_>) {
        let Server {
            link,
            incoming,
            http2,
            outcomes,
            is_direct,
            is_over,
            budget,
            stops,
            credited,
            opens_windows,
            ..
        } = self;
        let _ = self.calls.poll_turn(context, |calls, context| {
            incoming.borrow_mut().begin_turn();
            loop {
                match http2.poll_accept(context) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        let body = request.into_body();
                        let stream = body.stream_id().as_u32();
                        let direct = is_direct.then(|| DirectReceiver::new(Rc::clone(incoming)));
                        let call = receive(body, direct, Arc::clone(budget));
                        let noted = until_stopped(stream, call, Rc::clone(stops));
                        let outcomes = Rc::clone(outcomes);
                        calls.push(async move {
                            let outcome = noted.await;
                            drop(respond);
                            outcomes.borrow_mut().insert(stream, outcome);
                            CallEnd::Answered
                        });
                    }
                    Poll::Ready(_) => {
                        *is_over = true;
                        return Poll::Ready(());
                    }
                    Poll::Pending => break,
                }
            }
            if *opens_windows {
                incoming.borrow_mut().take_credits(|stream, bytes| {
                    *credited.entry(stream).or_default() += bytes as usize;
                    link.borrow_mut().sent.extend(window_update(stream, bytes));
                    true
                });
            }
            Poll::Pending
        });
    }

    /// What the server has sent of a kind since it was asked last: stream and payload. Other frames
    /// are forgotten.
    fn sent(&mut self, kind: u8) -> Vec<(u32, Vec<u8>)> {
        let bytes = std::mem::take(&mut self.link.borrow_mut().sent);
        let mut rest = &bytes[..];
        let mut seen = Vec::new();
        while let [a, b, c, own_kind, _flags, d, e, f, g, after @ ..] = rest {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let (payload, next) = after.split_at(length);
            rest = next;
            if *own_kind == kind {
                seen.push((u32::from_be_bytes([*d, *e, *f, *g]), payload.to_vec()));
            }
        }
        assert!(rest.is_empty(), "frames are whole");
        seen
    }

    /// By how much windows were opened since this was asked last; stream 0 is the connection.
    fn opened(&mut self) -> BTreeMap<u32, usize> {
        let mut opened = BTreeMap::new();
        for (stream, payload) in self.sent(WINDOW_UPDATE) {
            let bytes = u32::from_be_bytes(payload.try_into().unwrap());
            *opened.entry(stream).or_default() += bytes as usize;
        }
        opened
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The head of a call.
fn headers(stream: u32) -> Vec<u8> {
    // POST, http, /: indexed fields of HPACK's static table.
    frame(HEADERS, 4, stream, &[0x83, 0x86, 0x84])
}

/// Bytes that differ from place to place, and from seed to seed.
fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// A message with its prefix.
fn message(tensors: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut message = Vec::new();
    put_bytes(&mut message, 1, b"model");
    for tensor in tensors {
        put_bytes(&mut message, 7, tensor.as_ref());
    }
    let mut out = vec![0; 5];
    out.extend(&message);
    put_prefix(&mut out, message.len());
    out
}

/// DATA frames of a message; the last has `last_flags`.
fn data(stream: u32, message: &[u8], frame_bytes: usize, last_flags: u8) -> Vec<Vec<u8>> {
    let count = message.len().div_ceil(frame_bytes);
    let parts = message.chunks(frame_bytes).enumerate();
    let frames = parts.map(|(index, part)| {
        let flags = if index + 1 == count { last_flags } else { 0 };
        frame(DATA, flags, stream, part)
    });
    frames.collect()
}

fn padded(stream: u32, part: &[u8], padding: u8) -> Vec<u8> {
    let mut payload = vec![padding];
    payload.extend(part);
    payload.extend(vec![0; usize::from(padding)]);
    frame(DATA, PADDED, stream, &payload)
}

/// What has been routed is either on account or has been given back.
fn check_account(server: &mut Server) {
    let incoming = server.incoming.borrow();
    let credited = server.credited.get(&0).copied().unwrap_or(0);
    assert_eq!(
        incoming.sinks.uncredited() + credited,
        incoming.sinks.routed_bytes(),
        "the connection's window"
    );
}

fn brief(outcomes: &BTreeMap<u32, Outcome>) -> Vec<(u32, Result<Vec<usize>, String>)> {
    let lengths = |raws: &Vec<Vec<u8>>| raws.iter().map(Vec::len).collect();
    let brief = outcomes
        .iter()
        .map(|(stream, outcome)| (*stream, outcome.as_ref().map(lengths).map_err(Clone::clone)));
    brief.collect()
}
