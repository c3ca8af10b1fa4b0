//! Whole connections: what a client sends, what calls see of it, and what is sent.

mod bodies;
mod client;
mod corpus;
mod judge;
mod rules;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frame::{ACK, FRAME_HEAD_BYTES, FrameHead, GOAWAY, PREFACE, RST_STREAM, SETTINGS};
use crate::hpack::Decoder;
use crate::readers::BodyReader;
use crate::{
    AcceptedRequest, Connection, ConnectionError, PingPolicy, ReaderProgress, ReceiveError,
    RequestHeaders,
};

/// Bodies begin with their length.
const LENGTH_BYTES: usize = 4;
/// Of a reader that is worth being attached.
const LENT_BYTES_MIN: usize = 2000;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }

    fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// The seeds of a test: the one that is asked for, or those that once failed and as many more.
fn seeds(kept: &[u64], count: u64) -> Vec<u64> {
    match std::env::var("CONCH_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => kept.iter().copied().chain(0..count).collect(),
    }
}

fn pings() -> PingPolicy {
    PingPolicy {
        interval_min: Duration::from_secs(300),
        strikes_max: 2,
        are_welcome_without_calls: false,
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = FrameHead {
        kind,
        flags,
        stream,
        length: payload.len(),
    };
    [&head.bytes()[..], payload].concat()
}

/// The fields of a usual request, as literals.
fn usual_fields() -> Vec<u8> {
    // POST, http, a path by its known name, and a field of its own.
    let mut block = vec![0x83, 0x86, 0x04, 4];
    block.extend(b"/a/b");
    block.extend([0x00, 2, b't', b'e', 8]);
    block.extend(b"trailers");
    block
}

/// A body that says how long it is.
fn message(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_be_bytes()[..], content].concat()
}

/// Reads a body into one piece of memory.
#[derive(Debug)]
struct VecReader {
    bytes: Vec<u8>,
    filled: usize,
}

impl VecReader {
    fn new(length: usize) -> VecReader {
        VecReader {
            bytes: vec![0; length],
            filled: 0,
        }
    }
}

impl BodyReader for VecReader {
    type Error = ();

    fn left(&self) -> usize {
        self.bytes.len() - self.filled
    }

    fn direct_left(&self) -> usize {
        self.left()
    }

    fn room(&mut self, bytes: usize) -> Result<&mut [u8], ()> {
        let end = self.bytes.len().min(self.filled + bytes);
        Ok(&mut self.bytes[self.filled..end])
    }

    fn spare(&mut self) -> &[u8] {
        &self.bytes[self.filled..]
    }

    fn advance(&mut self, count: usize) -> Result<(), ()> {
        self.filled += count;
        Ok(())
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.bytes[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        Ok(())
    }

    fn trim(&mut self) {}
}

/// What is on its way to h2, and what h2 has written.
#[derive(Default)]
struct MemoryPipe {
    arrived: VecDeque<u8>,
    written: Vec<u8>,
}

/// A socket for h2. Who fills the pipe polls h2 as well.
struct MemorySocket(Rc<RefCell<MemoryPipe>>);

impl AsyncRead for MemorySocket {
    fn poll_read(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut pipe = self.0.borrow_mut();
        let count = target.remaining().min(pipe.arrived.len());
        if count == 0 {
            return Poll::Pending;
        }
        let bytes: Vec<u8> = pipe.arrived.drain(..count).collect();
        target.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MemorySocket {
    fn poll_write(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().written.extend_from_slice(source);
        Poll::Ready(Ok(source.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    Open,
    Ended,
    Reset,
}

struct TestCall {
    head: RequestHeaders,
    /// Of the body, what has been taken; with a reader, what came before it and behind it.
    prefix: Vec<u8>,
    reader: Option<VecReader>,
    is_attached: bool,
    excess: Vec<u8>,
    state: CallState,
}

impl TestCall {
    fn take(&mut self, mut part: &[u8]) {
        if self.reader.is_none() && !self.is_attached {
            let missing = LENGTH_BYTES - self.prefix.len();
            let (own, rest) = part.split_at(part.len().min(missing));
            self.prefix.extend(own);
            part = rest;
            if let Some(length) = self.prefix.first_chunk() {
                self.reader = Some(VecReader::new(
                    u32::from_be_bytes(*length) as usize % (1 << 22),
                ));
            }
        }
        if let Some(reader) = &mut self.reader {
            let (own, rest) = part.split_at(part.len().min(reader.left()));
            reader.feed(own).expect("room");
            self.excess.extend(rest);
        }
    }

    /// All bytes of the body that came.
    fn body(&self) -> Vec<u8> {
        let own = self
            .reader
            .as_ref()
            .map(|reader| &reader.bytes[..reader.filled]);
        [&self.prefix, own.unwrap_or(&[]), &self.excess].concat()
    }
}

/// A connection with calls that read all they get.
struct TestServer {
    http2: Connection<VecReader>,
    arrived: VecDeque<u8>,
    /// At most so many bytes per receive.
    receive_max: usize,
    attaches_readers: bool,
    calls: BTreeMap<u32, TestCall>,
    sent: Vec<u8>,
    error: Option<ConnectionError>,
    direct_bytes: usize,
}

impl TestServer {
    fn new(attaches_readers: bool) -> TestServer {
        TestServer {
            http2: Connection::new(pings(), 1),
            arrived: VecDeque::new(),
            receive_max: 16 << 10,
            attaches_readers,
            calls: BTreeMap::new(),
            sent: Vec::new(),
            error: None,
            direct_bytes: 0,
        }
    }

    /// One that has seen a preface and settings.
    fn greeted(attaches_readers: bool) -> TestServer {
        let mut server = TestServer::new(attaches_readers);
        server.arrive(PREFACE);
        server.arrive(&frame(SETTINGS, 0, 0, &[]));
        server.arrive(&frame(SETTINGS, ACK, 0, &[]));
        server.take_sent();
        server
    }

    /// What came runs through the connection and its calls, until nothing more happens.
    fn arrive(&mut self, bytes: &[u8]) {
        self.arrived.extend(bytes);
        while self.error.is_none() && !self.arrived.is_empty() {
            self.http2.begin_turn(Waker::noop());
            if let Err(error) = self.receive() {
                self.http2.end(error);
                self.error = Some(error);
            }
            while let Some(AcceptedRequest { stream, head }) = self.http2.next_accepted() {
                self.calls.insert(
                    stream,
                    TestCall {
                        head,
                        prefix: Vec::new(),
                        reader: None,
                        is_attached: false,
                        excess: Vec::new(),
                        state: CallState::Open,
                    },
                );
            }
            self.run_calls();
        }
        let sent = &mut self.sent;
        let outcome = self.http2.poll_send(|pieces| {
            let before = sent.len();
            pieces
                .iter()
                .for_each(|piece| sent.extend_from_slice(piece));
            Poll::Ready(Ok(sent.len() - before))
        });
        assert!(matches!(outcome, Poll::Ready(Ok(()))));
    }

    fn receive(&mut self) -> Result<(), ConnectionError> {
        let (arrived, receive_max) = (&mut self.arrived, self.receive_max);
        let mut take = |pieces: &mut [IoSliceMut<'_>]| {
            let mut taken = 0;
            for piece in pieces {
                let count = piece.len().min(arrived.len()).min(receive_max - taken);
                for (place, byte) in piece.iter_mut().zip(arrived.drain(..count)) {
                    *place = byte;
                }
                taken += count;
            }
            taken
        };
        let direct = self
            .http2
            .poll_receive_direct(|| 1, |pieces| Poll::Ready(Ok(take(pieces))));
        match direct {
            Some(Poll::Ready(Ok(received))) => {
                self.direct_bytes += received;
                Ok(())
            }
            Some(Poll::Ready(Err(ReceiveError::Connection(error)))) => Err(error),
            Some(other) => unreachable!("{other:?}"),
            None => {
                let mut buffer = vec![0; 16 << 10];
                let count = take(&mut [IoSliceMut::new(&mut buffer)]);
                self.http2.receive(&buffer[..count], 1)
            }
        }
    }

    fn run_calls(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for (id, call) in &mut self.calls {
            while call.state == CallState::Open {
                let is_worth = call
                    .reader
                    .as_ref()
                    .is_some_and(|reader| reader.left() >= LENT_BYTES_MIN);
                if self.attaches_readers && is_worth {
                    call.is_attached =
                        self.http2
                            .attach_reader(*id, &mut call.reader, Waker::noop());
                }
                if call.is_attached {
                    if let ReaderProgress::Open { .. } = self.http2.poll_reader(*id, Waker::noop())
                    {
                        break;
                    }
                    let (reader, fault) = self.http2.detach_reader(*id).expect("it was attached");
                    assert_eq!(fault, None);
                    call.reader = Some(reader);
                    call.is_attached = false;
                }
                match self.http2.poll_body(*id, &mut context) {
                    Poll::Ready(Some(Ok(part))) => call.take(&part),
                    Poll::Ready(Some(Err(_))) => call.state = CallState::Reset,
                    Poll::Ready(None) => call.state = CallState::Ended,
                    Poll::Pending => break,
                }
            }
        }
    }

    /// Calls take what their attached readers have so far.
    fn take_back_readers(&mut self) {
        for (id, call) in &mut self.calls {
            if let Some((reader, _)) = self.http2.detach_reader(*id) {
                call.reader = Some(reader);
            }
        }
    }

    /// The calls let go of their streams.
    fn release_calls(&mut self) {
        for id in self.calls.keys() {
            self.http2.release(*id);
        }
    }

    /// The frames that were sent since the last time.
    fn take_sent(&mut self) -> Vec<(FrameHead, Vec<u8>)> {
        let sent = std::mem::take(&mut self.sent);
        frames(&sent)
    }
}

fn frames(mut wire: &[u8]) -> Vec<(FrameHead, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = wire.split_first_chunk::<FRAME_HEAD_BYTES>() {
        let head = FrameHead::parse(head);
        let (payload, rest) = rest.split_at(head.length);
        frames.push((head, payload.to_vec()));
        wire = rest;
    }
    assert!(wire.is_empty());
    frames
}

/// The reasons of resets, by stream; that of the connection's end under 0.
fn reasons(frames: &[(FrameHead, Vec<u8>)]) -> BTreeMap<u32, u32> {
    let number = |bytes: &[u8]| u32::from_be_bytes(*bytes.first_chunk().expect("a number"));
    let mut reasons = BTreeMap::new();
    for (head, payload) in frames {
        match head.kind {
            RST_STREAM => reasons.insert(head.stream, number(payload)),
            GOAWAY => reasons.insert(0, number(&payload[4..])),
            _ => None,
        };
    }
    reasons
}

/// The fields of a block that a server sent.
pub(crate) fn fields(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    decoder.begin_block();
    let own = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    decoder
        .decode(block, true, |name, value| {
            fields.push((own(name), own(value)));
        })
        .expect("a block");
    fields
}
