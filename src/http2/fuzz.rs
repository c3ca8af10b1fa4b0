//! What the fuzz target does with its input.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::frame::PREFACE;
use crate::{
    BodyReader, Connection, ConnectionError, HeaderField, PingPolicy, ReaderProgress, ReceiveError,
};

/// A reader's body.
const BODY_BYTES: usize = 300;
/// With more, what is received at once may decide whether there are too many resets.
const INPUT_BYTES_MAX: usize = 4 << 10;

struct FixedReader {
    bytes: [u8; BODY_BYTES],
    filled: usize,
}

impl BodyReader for FixedReader {
    type Error = ();

    fn left(&self) -> usize {
        BODY_BYTES - self.filled
    }

    fn direct_left(&self) -> usize {
        self.left()
    }

    fn room(&mut self, bytes: usize) -> Result<&mut [u8], ()> {
        let end = BODY_BYTES.min(self.filled + bytes);
        Ok(&mut self.bytes[self.filled..end])
    }

    fn spare(&mut self) -> &[u8] {
        &self.bytes[self.filled..]
    }

    fn advance(&mut self, count: usize) -> Result<(), ()> {
        self.filled += count;
        assert!(self.filled <= BODY_BYTES);
        Ok(())
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.bytes[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.advance(bytes.len())
    }

    fn trim(&mut self) {}
}

/// What calls have of their bodies.
type Bodies = BTreeMap<u32, Vec<u8>>;

/// Frames behind a preface, as they arrive in pieces of `piece_bytes`, and at once.
///
/// # Panics
/// If pieces make something else of the connection than the whole.
pub fn frames(bytes: &[u8], piece_bytes: usize) {
    if bytes.len() > INPUT_BYTES_MAX {
        return;
    }
    let (whole, whole_bodies) = serve(bytes, bytes.len(), false);
    for attaches_readers in [false, true] {
        let (pieces, bodies) = serve(bytes, piece_bytes, attaches_readers);
        assert_eq!(pieces, whole);
        // Calls that are reset before they are accepted, together with what ends the connection,
        // are seen only if they do not come at once.
        assert!(
            whole_bodies
                .keys()
                .all(|stream| bodies.contains_key(stream))
        );
    }
}

fn serve(
    bytes: &[u8],
    piece_bytes: usize,
    attaches_readers: bool,
) -> (Option<ConnectionError>, Bodies) {
    let pings = PingPolicy {
        interval_min: Duration::from_secs(300),
        strikes_max: 2,
        are_welcome_without_calls: false,
    };
    let mut http2 = Connection::<FixedReader>::new(pings, 1);
    let mut calls: BTreeMap<u32, Option<FixedReader>> = BTreeMap::new();
    let mut bodies = Bodies::new();
    http2.receive(PREFACE, 1).expect("a preface");
    let mut rest = bytes;
    while !rest.is_empty() {
        http2.begin_turn(Waker::noop());
        let mut place = [0; INPUT_BYTES_MAX];
        if let Err(error) = receive(&mut http2, &mut rest, piece_bytes.max(1), &mut place) {
            http2.end(error);
            send(&mut http2);
            return (Some(error), bodies);
        }
        while let Some(accepted) = http2.next_accepted() {
            calls.insert(accepted.stream, None);
            bodies.insert(accepted.stream, Vec::new());
        }
        for (stream, reader) in &mut calls {
            run_call(&mut http2, *stream, reader, attaches_readers, &mut bodies);
        }
        send(&mut http2);
    }
    calls.keys().for_each(|stream| http2.release(*stream));
    assert!(!http2.has_streams());
    (None, bodies)
}

fn receive(
    http2: &mut Connection<FixedReader>,
    rest: &mut &[u8],
    piece_bytes: usize,
    place: &mut [u8],
) -> Result<(), ConnectionError> {
    let mut take = |pieces: &mut [IoSliceMut<'_>]| {
        let mut taken = 0;
        for piece in pieces {
            let count = piece.len().min(rest.len()).min(piece_bytes - taken);
            let (own, behind) = rest.split_at(count);
            piece[..count].copy_from_slice(own);
            *rest = behind;
            taken += count;
        }
        taken
    };
    match http2.poll_receive_direct(|| 1, |pieces| Poll::Ready(Ok(take(pieces)))) {
        None => {
            let count = take(&mut [IoSliceMut::new(place)]);
            http2.receive(&place[..count], 1)
        }
        Some(Poll::Ready(Err(ReceiveError::Connection(error)))) => Err(error),
        Some(_) => Ok(()),
    }
}

/// A call that takes its body, and answers when it has come.
fn run_call(
    http2: &mut Connection<FixedReader>,
    stream: u32,
    reader: &mut Option<FixedReader>,
    attaches_readers: bool,
    bodies: &mut Bodies,
) {
    let mut context = Context::from_waker(Waker::noop());
    let body = bodies.entry(stream).or_default();
    loop {
        if attaches_readers {
            if let ReaderProgress::Open { .. } = http2.poll_reader(stream, Waker::noop()) {
                return;
            }
            if let Some((reader, _)) = http2.detach_reader(stream) {
                body.extend_from_slice(&reader.bytes[..reader.filled]);
            }
            *reader = Some(FixedReader {
                bytes: [0; BODY_BYTES],
                filled: 0,
            });
            if http2.attach_reader(stream, reader, Waker::noop()) {
                return;
            }
        }
        match http2.poll_body(stream, &mut context) {
            Poll::Ready(Some(Ok(part))) => body.extend_from_slice(&part),
            Poll::Ready(Some(Err(_))) | Poll::Pending => return,
            Poll::Ready(None) => break,
        }
    }
    let fields = [HeaderField::repeated(
        0,
        "content-type",
        b"application/grpc",
    )];
    if http2.send_head(stream, 200, &fields, false).is_ok() {
        let mut payload = bytes::Bytes::from(body.clone());
        let _ = http2.poll_send_body(stream, &mut payload, &mut context);
        let _ = http2.send_trailers(stream, &[HeaderField::new("grpc-status", b"0")]);
    }
}

fn send(http2: &mut Connection<FixedReader>) {
    let _ = http2.poll_send(|pieces| Poll::Ready(Ok(pieces.iter().map(|piece| piece.len()).sum())));
}
