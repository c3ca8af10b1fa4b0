//! The message of a call, as it arrives in DATA frames; and the message of the answer, as the peer's windows let it go.

use std::task::Poll;

use bytes::Bytes;
use conch_memory::Charge;
use h2::{RecvStream, SendStream};

use super::frame::{PREFIX_BYTES, Prefix, put_prefix};
use super::infer::{Arrived, Pieces, Reader};
use super::patience::Patience;
use super::status::Status;
use crate::shard::Shard;

/// Why a call ends without an answer of its own.
#[derive(Debug)]
pub(super) enum Failure {
    /// To be told to the client.
    Status(Status),
    /// The client has withdrawn the call, or is gone.
    Gone,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Status(status)
    }
}

impl From<h2::Error> for Failure {
    fn from(_: h2::Error) -> Failure {
        Failure::Gone
    }
}

/// The next DATA frame; none at the end of the stream. Its bytes still count against the windows.
async fn next_frame(
    body: &mut RecvStream,
    patience: &mut Patience,
) -> Result<Option<Bytes>, Failure> {
    std::future::poll_fn(|context| match body.poll_data(context) {
        Poll::Ready(Some(Ok(data))) => Poll::Ready(Ok(Some(data))),
        Poll::Ready(Some(Err(_))) => Poll::Ready(Err(Failure::Gone)),
        Poll::Ready(None) => Poll::Ready(Ok(None)),
        Poll::Pending => patience.poll(context).map(|status| Err(status.into())),
    })
    .await
}

/// Gives the bytes of a consumed frame back to the peer's windows.
pub(super) fn release(body: &mut RecvStream, length: usize) {
    // Fails only if more is given back than came.
    let _ = body.flow_control().release_capacity(length);
}

/// Receives the single message of a ModelInfer call, tensor by tensor.
pub(super) async fn receive_tensors(
    shard: &Shard,
    body: &mut RecvStream,
    patience: &mut Patience,
) -> Result<Arrived, Failure> {
    let mut prefix = Prefix::default();
    let mut reader: Option<Reader> = None;
    loop {
        let Some(data) = next_frame(body, patience).await? else {
            return Err(Status::unparsable().into());
        };
        patience.note_progress();
        let mut bytes: &[u8] = &data;
        if reader.is_none() {
            let (length, rest) = prefix.take(bytes, super::frame::MESSAGE_BYTES_MAX)?;
            bytes = rest;
            reader = length.map(|length| Reader::new(&shard.pool, &shard.budget, length));
        }
        let Some(open) = &mut reader else {
            release(body, data.len());
            continue;
        };
        let (own, excess) = bytes.split_at(bytes.len().min(open.left()));
        open.feed(own).map_err(Status::from)?;
        if !excess.is_empty() {
            return Err(surplus().into());
        }
        release(body, data.len());
        if open.left() == 0 {
            let reader = reader.expect("it was just fed");
            return Ok(reader.finish().map_err(Status::from)?);
        }
    }
}

/// Receives the single message of any other call, of at most `length_max` bytes.
pub(super) async fn receive_message(
    body: &mut RecvStream,
    patience: &mut Patience,
    length_max: usize,
) -> Result<Vec<u8>, Failure> {
    let mut prefix = Prefix::default();
    let mut wanted = None;
    let mut message = Vec::new();
    loop {
        let Some(data) = next_frame(body, patience).await? else {
            return Err(Status::unparsable().into());
        };
        patience.note_progress();
        let mut bytes: &[u8] = &data;
        if wanted.is_none() {
            let (length, rest) = prefix.take(bytes, length_max)?;
            wanted = length;
            bytes = rest;
        }
        message.extend_from_slice(bytes);
        release(body, data.len());
        let Some(wanted) = wanted else { continue };
        if message.len() > wanted {
            return Err(surplus().into());
        }
        if message.len() == wanted {
            return Ok(message);
        }
    }
}

/// A message in the pieces in which it came, and what it holds of the byte budget.
pub(super) struct Pile {
    pieces: Vec<Bytes>,
    length: usize,
    /// Given back with the pieces.
    charge: Charge,
}

impl Pile {
    /// The message in one piece, and what it is charged with. Copies it: not for shards, as it may be large.
    pub(super) fn join(self) -> (Vec<u8>, Charge) {
        let Pile {
            pieces,
            length,
            charge,
        } = self;
        let mut message = Vec::with_capacity(length);
        for piece in pieces {
            message.extend_from_slice(&piece);
        }
        (message, charge)
    }
}

/// Receives the single message of a call whose message may be as large as a model.
pub(super) async fn receive_pile(
    shard: &Shard,
    body: &mut RecvStream,
    patience: &mut Patience,
) -> Result<Pile, Failure> {
    let mut prefix = Prefix::default();
    let mut wanted = None;
    let mut pile = Pile {
        pieces: Vec::new(),
        length: 0,
        charge: Charge::empty(&shard.budget),
    };
    loop {
        let Some(mut data) = next_frame(body, patience).await? else {
            return Err(Status::unparsable().into());
        };
        patience.note_progress();
        let frame_bytes = data.len();
        if wanted.is_none() {
            let (length, rest) = prefix.take(&data, super::frame::MESSAGE_BYTES_MAX)?;
            wanted = length;
            data = data.slice(frame_bytes - rest.len()..);
        }
        if !data.is_empty() {
            pile.length += data.len();
            if data.len() < SHARED_BYTES_MIN {
                data = Bytes::copy_from_slice(&data);
            }
            let held_bytes = pile.length + pile.pieces.len() * PIECE_BYTES;
            let charged = pile.charge.cover(held_bytes as u64);
            charged.map_err(super::infer::exhausted)?;
            pile.pieces.push(data);
        }
        release(body, frame_bytes);
        let Some(wanted) = wanted else { continue };
        if pile.length > wanted {
            return Err(surplus().into());
        }
        if pile.length == wanted {
            return Ok(pile);
        }
    }
}

/// Smaller frames are copied: one that is kept keeps the buffer alive that it was read into.
const SHARED_BYTES_MIN: usize = 4 << 10;
/// What a piece costs beside its bytes.
const PIECE_BYTES: usize = 128;

/// A unary call has one message.
fn surplus() -> Status {
    Status::new(
        super::status::Code::Internal,
        "the call carries more than one message",
    )
}

/// A protobuf message with its prefix.
pub(super) fn framed(message: &impl conch_proto::Message) -> Bytes {
    let mut out = Vec::with_capacity(PREFIX_BYTES + message.encoded_len());
    out.resize(PREFIX_BYTES, 0);
    message.encode_raw(&mut out);
    let length = out.len() - PREFIX_BYTES;
    put_prefix(&mut out, length);
    Bytes::from(out)
}

/// Hands `pieces` to the connection as fast as the peer takes them. What the peer gives no window for waits here, not in h2, and not
/// for ever: after a failure the message is cut off, and it is for the caller to end the call.
pub(super) async fn send_pieces(
    stream: &mut SendStream<Bytes>,
    pieces: Pieces,
    patience: &mut Patience,
) -> Result<(), Failure> {
    for mut piece in pieces {
        while !piece.is_empty() {
            stream.reserve_capacity(piece.len());
            let window = stream.capacity();
            if window > 0 {
                let part = piece.split_to(piece.len().min(window));
                stream.send_data(part, false)?;
                patience.note_progress();
                continue;
            }
            let waited = std::future::poll_fn(|context| match stream.poll_capacity(context) {
                Poll::Ready(Some(Ok(_))) => Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(_)) | None) => Poll::Ready(Err(Failure::Gone)),
                Poll::Pending => patience.poll(context).map(|status| Err(status.into())),
            })
            .await;
            waited?;
        }
    }
    Ok(())
}
