//! The message of a call, as it arrives in DATA frames; and the message of the answer, as the
//! peer's windows let it go.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use conch_http2::{BodyError, StreamClosed};
use conch_memory::{Budget, Charge, try_extend, try_push, try_reserve};

use super::compression::{InflateTarget, InflatedLimit, MessageInflater};
use super::frame::{MESSAGE_BYTES_MAX, MessagePrefix, PREFIX_BYTES, put_prefix};
use super::infer::{CompleteMessage, MessageReader, Pieces};
use super::peer_timeout::PeerTimeout;
use super::settings::CONTROL_MESSAGE_BYTES_MAX;
use super::status::GrpcStatus;
use super::transport::{CallBody, DirectFailure, Responder};
use super::uploads::PartialMessages;
use crate::coding::ContentCoding;
use crate::shard::Shard;

/// Why a call ends without an answer of its own.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// To be told to the client.
    Status(GrpcStatus),
    /// The client has withdrawn the call, or is gone.
    Gone,
}

impl From<GrpcStatus> for CallFailure {
    fn from(status: GrpcStatus) -> CallFailure {
        CallFailure::Status(status)
    }
}

impl From<DirectFailure> for CallFailure {
    fn from(failure: DirectFailure) -> CallFailure {
        match failure {
            DirectFailure::Read(fault) => CallFailure::Status(fault.into()),
            DirectFailure::Timeout(status) => CallFailure::Status(status),
        }
    }
}

impl From<BodyError> for CallFailure {
    fn from(failure: BodyError) -> CallFailure {
        match failure {
            BodyError::Gone => CallFailure::Gone,
            BodyError::OutOfMemory(refused) => CallFailure::Status(refused.into()),
        }
    }
}

impl From<StreamClosed> for CallFailure {
    fn from(_: StreamClosed) -> CallFailure {
        CallFailure::Gone
    }
}

/// The next part of the body; none at its end.
async fn next_frame(
    body: &mut CallBody,
    peer_timeout: &mut PeerTimeout,
) -> Result<Option<Bytes>, CallFailure> {
    std::future::poll_fn(|context| match body.poll_next(context) {
        Poll::Ready(Some(Ok(data))) => Poll::Ready(Ok(Some(data))),
        Poll::Ready(Some(Err(failure))) => Poll::Ready(Err(failure.into())),
        Poll::Ready(None) => Poll::Ready(Ok(None)),
        Poll::Pending => peer_timeout.poll(context).map(|status| Err(status.into())),
    })
    .await
}

/// Receives the single message of a ModelInfer call, tensor by tensor. `coding` is what it may be
/// compressed with.
pub(super) async fn receive_tensors(
    shard: &Shard,
    budget: &Arc<Budget>,
    body: &mut CallBody,
    peer_timeout: &mut PeerTimeout,
    coding: Option<ContentCoding>,
    uploads: &Rc<PartialMessages>,
) -> Result<CompleteMessage, CallFailure> {
    let mut prefix = MessagePrefix::default();
    let mut reader: Option<MessageReader> = None;
    // From the first bytes on, unless they are all.
    let mut upload = None;
    loop {
        if reader
            .as_ref()
            .is_some_and(CallBody::is_worth_receiving_into)
        {
            let wait = |context: &mut Context<'_>, has_progressed| {
                if has_progressed {
                    peer_timeout.note_progress();
                }
                peer_timeout.poll(context)
            };
            body.receive_into(&mut reader, wait).await?;
            if let Some(reader) = reader.take_if(|open| open.left() == 0) {
                return Ok(reader.finish().map_err(GrpcStatus::from)?);
            }
        }
        let data = next_frame(body, peer_timeout).await?;
        let Some(data) = data else {
            return Err(GrpcStatus::unparsable().into());
        };
        peer_timeout.note_progress();
        let mut bytes: &[u8] = &data;
        if reader.is_none() {
            let (length, rest) = prefix.take(bytes, MESSAGE_BYTES_MAX, coding)?;
            bytes = rest;
            if let (Some(length), Some(coding)) = (length, prefix.packed()) {
                let first = data.slice(data.len() - rest.len()..);
                let mut compressed = CompressedMessage::new(shard, budget, length, Some(coding))?;
                // Boxed: most calls are not compressed, and its state would make each larger.
                return Box::pin(async {
                    compressed.push(first)?;
                    compressed.receive(body, peer_timeout, uploads).await?;
                    Ok(compressed.unpack_tensors(shard).await?)
                })
                .await;
            }
            reader = length.map(|length| {
                let reader = MessageReader::new(&shard.pool, budget, length);
                reader.with_models(shard.models_on_gpus())
            });
        }
        let Some(open) = &mut reader else {
            continue;
        };
        let (own, excess) = bytes.split_at(bytes.len().min(open.left()));
        open.feed(own).map_err(GrpcStatus::from)?;
        if !excess.is_empty() {
            return Err(surplus().into());
        }
        if open.left() == 0 {
            let reader = reader.expect("it was just fed");
            return Ok(reader.finish().map_err(GrpcStatus::from)?);
        }
        if upload.is_none() {
            upload = Some(uploads.begin()?);
        }
    }
}

/// Receives the single message of any other call. Its length is bounded, also that of its inflated
/// form.
pub(super) async fn receive_message(
    budget: &Arc<Budget>,
    body: &mut CallBody,
    peer_timeout: &mut PeerTimeout,
    coding: Option<ContentCoding>,
    uploads: &Rc<PartialMessages>,
) -> Result<ChargedBytes, CallFailure> {
    const LENGTH_MAX: usize = CONTROL_MESSAGE_BYTES_MAX;
    let mut prefix = MessagePrefix::default();
    let mut wanted = None;
    let mut upload = None;
    let mut message = ChargedBytes::empty(budget);
    loop {
        let Some(data) = next_frame(body, peer_timeout).await? else {
            return Err(GrpcStatus::unparsable().into());
        };
        peer_timeout.note_progress();
        let mut bytes: &[u8] = &data;
        if wanted.is_none() {
            let (length, rest) = prefix.take(bytes, LENGTH_MAX, coding)?;
            wanted = length;
            bytes = rest;
        }
        if wanted.is_some_and(|wanted| bytes.len() > wanted - message.len()) {
            return Err(surplus().into());
        }
        message.take(bytes)?;
        if wanted != Some(message.len()) {
            if upload.is_none() {
                upload = Some(uploads.begin()?);
            }
            continue;
        }
        let Some(coding) = prefix.packed() else {
            return Ok(message);
        };
        let ChargedBytes { bytes, charge } = message;
        let pieces = vec![Bytes::from(bytes)];
        let limit = InflatedLimit::fixed(LENGTH_MAX);
        let message_inflater =
            MessageInflater::new(pieces, coding, limit, ChargedBytes::empty(budget));
        let message = Box::pin(message_inflater.finish_in_slices()).await?;
        drop(charge);
        return Ok(message);
    }
}

/// A message in the pieces in which it came, and what it holds of the byte budget.
pub(super) struct CompressedMessage {
    pieces: Vec<Bytes>,
    length: usize,
    length_max: usize,
    /// How it is compressed.
    coding: Option<ContentCoding>,
    inflated: InflatedLimit,
    /// Given back with the pieces.
    charge: Charge,
    budget: Arc<Budget>,
}

impl CompressedMessage {
    /// For a message of `length_max` bytes as they are on the wire.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if it is compressed and must inflate to more than it may.
    pub(super) fn new(
        shard: &Shard,
        budget: &Arc<Budget>,
        length_max: usize,
        coding: Option<ContentCoding>,
    ) -> Result<CompressedMessage, GrpcStatus> {
        let inflated = InflatedLimit::configured(&shard.options);
        if coding.is_some() {
            inflated.check_packed(length_max)?;
        }
        Ok(CompressedMessage {
            pieces: Vec::new(),
            length: 0,
            length_max,
            coding,
            inflated,
            charge: Charge::empty(budget),
            budget: Arc::clone(budget),
        })
    }

    /// Bytes that are still to come.
    pub(super) fn left(&self) -> usize {
        self.length_max - self.length
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, data: Bytes) -> Result<(), GrpcStatus> {
        if data.is_empty() {
            return Ok(());
        }
        if data.len() > self.left() {
            return Err(surplus());
        }
        self.length += data.len();
        let held_bytes = self.length + (self.pieces.len() + 1) * PIECE_BYTES;
        let charged = self.charge.cover(held_bytes as u64);
        charged.map_err(super::status::exhausted)?;
        Ok(try_push(&mut self.pieces, data)?)
    }

    /// Receives the rest of a call's only message.
    async fn receive(
        &mut self,
        body: &mut CallBody,
        peer_timeout: &mut PeerTimeout,
        uploads: &Rc<PartialMessages>,
    ) -> Result<(), CallFailure> {
        let _upload = match self.left() {
            0 => None,
            _ => Some(uploads.begin()?),
        };
        while self.left() > 0 {
            let Some(data) = next_frame(body, peer_timeout).await? else {
                return Err(GrpcStatus::unparsable().into());
            };
            peer_timeout.note_progress();
            self.push(data)?;
        }
        Ok(())
    }

    /// Inflates a request for inference on its way into tensors.
    pub(super) async fn unpack_tensors(self, shard: &Shard) -> Result<CompleteMessage, GrpcStatus> {
        let CompressedMessage {
            pieces,
            coding,
            inflated,
            charge,
            budget,
            ..
        } = self;
        // What it becomes moves on as it is inflated.
        charge.mark_complete();
        let coding = coding.expect("only compressed messages are unpacked");
        // Its length is only a bound; what is too long is for the inflater to tell. The charge
        // covers what has been inflated.
        let reader = MessageReader::new(&shard.pool, &budget, MESSAGE_BYTES_MAX);
        let message_inflater = MessageInflater::new(pieces, coding, inflated, reader);
        let reader = message_inflater.finish_on(shard).await?;
        drop(charge);
        Ok(reader.end()?)
    }

    /// The message in one piece, inflated, and what it is charged with. Copies it: not for shards,
    /// as it may be large.
    pub(super) fn join(self) -> Result<(Vec<u8>, Charge), GrpcStatus> {
        let CompressedMessage {
            pieces,
            length,
            coding,
            inflated,
            charge,
            ..
        } = self;
        if let Some(coding) = coding {
            let plain = ChargedBytes {
                bytes: Vec::new(),
                charge,
            };
            let plain = MessageInflater::new(pieces, coding, inflated, plain).finish()?;
            return Ok((plain.bytes, plain.charge));
        }
        let mut message = Vec::new();
        try_reserve(&mut message, length)?;
        for piece in pieces {
            message.extend_from_slice(&piece);
        }
        Ok((message, charge))
    }
}

/// Bytes in one piece that are charged as they come.
pub(super) struct ChargedBytes {
    bytes: Vec<u8>,
    charge: Charge,
}

impl ChargedBytes {
    fn empty(budget: &Arc<Budget>) -> ChargedBytes {
        ChargedBytes {
            bytes: Vec::new(),
            charge: Charge::empty(budget),
        }
    }
}

impl Deref for ChargedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl InflateTarget for ChargedBytes {
    fn take(&mut self, bytes: &[u8]) -> Result<(), GrpcStatus> {
        let held_bytes = self.bytes.len() + bytes.len();
        if held_bytes > UNCHARGED_BYTES {
            let charged = self.charge.cover(held_bytes as u64);
            charged.map_err(super::status::exhausted)?;
        }
        Ok(try_extend(&mut self.bytes, bytes)?)
    }
}

/// Receives the single message of a call whose message may be as large as a model.
pub(super) async fn receive_large_message(
    shard: &Shard,
    budget: &Arc<Budget>,
    body: &mut CallBody,
    peer_timeout: &mut PeerTimeout,
    coding: Option<ContentCoding>,
    uploads: &Rc<PartialMessages>,
) -> Result<CompressedMessage, CallFailure> {
    let mut prefix = MessagePrefix::default();
    loop {
        let Some(data) = next_frame(body, peer_timeout).await? else {
            return Err(GrpcStatus::unparsable().into());
        };
        peer_timeout.note_progress();
        let (length, rest) = prefix.take(&data, MESSAGE_BYTES_MAX, coding)?;
        let rest = data.slice(data.len() - rest.len()..);
        let Some(length) = length else {
            continue;
        };
        let mut compressed = CompressedMessage::new(shard, budget, length, prefix.packed())?;
        compressed.push(rest)?;
        compressed.receive(body, peer_timeout, uploads).await?;
        return Ok(compressed);
    }
}

/// Smaller messages are not charged: streams bound their number, and a charge reserves 64 KiB at
/// least.
const UNCHARGED_BYTES: usize = 4 << 10;
/// Smaller parts of a message are no progress to speak of, where that is counted.
const MOVED_BYTES_MIN: usize = 4 << 10;
/// What a piece costs beside its bytes.
const PIECE_BYTES: usize = 128;

/// A unary call has one message.
fn surplus() -> GrpcStatus {
    GrpcStatus::new(
        super::status::GrpcCode::Internal,
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

/// Hands `pieces` to the connection as fast as the peer takes them. What the peer gives no window
/// for waits here, and not for ever: after a failure the message is cut off, and it is
/// for the caller to end the call.
pub(super) async fn send_pieces(
    respond: &mut Responder,
    budget: &Budget,
    pieces: Pieces,
    peer_timeout: &mut PeerTimeout,
) -> Result<(), CallFailure> {
    for mut piece in pieces {
        while !piece.is_empty() {
            let sent =
                std::future::poll_fn(|context| match respond.poll_send(&mut piece, context) {
                    Poll::Ready(sent) => Poll::Ready(sent.map_err(CallFailure::from)),
                    Poll::Pending => peer_timeout.poll(context).map(|status| Err(status.into())),
                });
            let sent_bytes = sent.await?;
            if sent_bytes >= MOVED_BYTES_MIN {
                budget.note_moved(sent_bytes);
            }
            peer_timeout.note_progress();
        }
    }
    Ok(())
}
