//! Bodies of requests, received into one block each.

use std::ops::RangeInclusive;

use conch_engine::gpus::GpuHost;
use conch_memory::{
    ALIGNMENT_BYTES, Block, ByteView, Charge, HUGE_ABOVE_BYTES, MemoryKind, OutOfMemory,
    held_bytes, is_scarce,
};

use super::send::COPIED_BYTES_MAX;
use super::state::{
    BodyAction, ConnectionClosed, ConnectionEnd, HttpConnection, RequestMeta, deadline_after,
};
use crate::http::chunked::{self, ChunkPiece, ChunkedDecoder};
use crate::http::head::{BodyFraming, HeadRefusal};
use crate::shard::WaitReason;

/// Bodies up to here get all their memory at once: untouched pages cost nothing. Larger blocks have
/// huge pages, which hold more than a client may have sent.
const BODY_AT_ONCE_BYTES_MAX: usize = HUGE_ABOVE_BYTES;
/// Where larger bodies begin. They get the rest once so much has arrived.
const BODY_FIRST_BYTES: usize = 1 << 20;
/// The most that they get then; what is larger still grows with what really arrives.
const BODY_SECOND_BYTES_MAX: usize = 64 << 20;
/// Connections with more to receive than this keep no input meanwhile.
const INPUT_KEPT_BYTES_MAX: usize = 256 << 10;
/// One receive: bounds what arrives before it is charged, and the length of a shard turn.
const RECEIVE_BYTES_MAX: usize = 1 << 20;
/// Bodies that lie in pinned memory if they go to a GPU. Less is not worth it; more would take too
/// much of what all share.
const PINNED_BODY_BYTES: RangeInclusive<usize> = 64 << 10..=64 << 20;

/// What a body is for: all that the connection must know before it receives one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyPlacement {
    /// Bytes at the start after which the alignment matters.
    pub(crate) json_length: usize,
    /// Its tensors go to a GPU.
    pub(crate) is_for_gpu: bool,
}

impl BodyPlacement {
    /// Of a body that is JSON or text.
    pub(crate) const TEXT: BodyPlacement = BodyPlacement {
        json_length: 0,
        is_for_gpu: false,
    };
}

/// A received body: `bytes[start..]`, so placed that the byte behind its JSON is aligned.
pub(crate) struct ReceivedBody {
    pub(crate) block: Block,
    pub(crate) start: usize,
}

impl HttpConnection {
    /// Receives the body, or receives and drops it if nobody wants it.
    pub(super) async fn receive_body(
        &mut self,
        meta: &RequestMeta,
        placement: Option<BodyPlacement>,
    ) -> Result<Option<ReceivedBody>, ConnectionEnd> {
        let bytes_max = self.shard.options.http_body_bytes_max;
        match meta.body_action(placement.is_some(), bytes_max) {
            BodyAction::Receive => {}
            BodyAction::Skip => {
                self.state.body_skipped();
                return Ok(None);
            }
            BodyAction::Refuse => return Err(chunked::too_large().into()),
        }
        if meta.expects_continue && meta.has_body() && self.input.is_empty() {
            self.send_bytes(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let outcome = match (meta.framing, placement) {
            (BodyFraming::Length(length), Some(placement)) => {
                self.receive_length(length, placement).await.map(Some)
            }
            (BodyFraming::Length(length), None) => self.drop_length(length).await.map(|()| None),
            (BodyFraming::Chunked, placement) => self.receive_chunked(placement).await,
        };
        self.guard.wait(WaitReason::Busy, 0);
        if outcome.is_ok() {
            self.state.body_received();
        }
        outcome
    }

    async fn receive_length(
        &mut self,
        length: u64,
        placement: BodyPlacement,
    ) -> Result<ReceivedBody, ConnectionEnd> {
        let length = usize::try_from(length).map_err(|_| chunked::too_large())?;
        let start = padding(placement.json_length);
        let total = start + length;
        let first = if total <= BODY_AT_ONCE_BYTES_MAX {
            total
        } else {
            BODY_FIRST_BYTES
        };
        let mut block = match pinned_block(placement, total, first) {
            Some(block) => self.start_block(start, block),
            None => self.begin_block(start, first)?,
        };
        let buffered = self.input.unused();
        let buffered = buffered
            .get(..length.min(buffered.len()))
            .unwrap_or(buffered);
        block.extend_from_slice(buffered);
        let buffered_count = buffered.len();
        self.input.consume(buffered_count);
        loop {
            charge(&mut block)?;
            if block.len() == total {
                return Ok(ReceivedBody { block, start });
            }
            if total > INPUT_KEPT_BYTES_MAX {
                // Thousands of clients may promise much and send little: what they do not need is
                // not kept for them.
                self.input.release(&self.shard.spares);
            }
            if block.len() == block.capacity() {
                self.grow_block(&mut block, placement, total)?;
                charge(&mut block)?;
            }
            let wanted = (total - block.len()).min(RECEIVE_BYTES_MAX);
            let spare = block.spare_mut();
            let wanted = wanted.min(spare.len());
            self.expect_body();
            let room = spare.get_mut(..wanted).unwrap_or(&mut []);
            match self.turn.receive(&mut self.stream, room).await {
                Ok(count) if count > 0 => block.advance(count),
                Ok(_) => return Err(self.body_ended()),
                Err(_) => return Err(ConnectionEnd::Closed),
            }
        }
    }

    async fn receive_chunked(
        &mut self,
        placement: Option<BodyPlacement>,
    ) -> Result<Option<ReceivedBody>, ConnectionEnd> {
        let start = placement.map_or(0, |placement| padding(placement.json_length));
        let mut block = match placement {
            Some(_) => Some(self.begin_block(start, COPIED_BYTES_MAX)?),
            None => None,
        };
        let mut decoder = ChunkedDecoder::new(self.shard.options.http_body_bytes_max);
        loop {
            let is_done = self.decode_chunks(&mut decoder, block.as_mut())?;
            if let Some(block) = &mut block {
                charge(block)?;
            }
            if is_done {
                return Ok(block.map(|block| ReceivedBody { block, start }));
            }
            if self.receive_more().await? == 0 {
                return Err(self.body_ended());
            }
        }
    }

    /// Moves the data of the chunks that have arrived to `block`. Whether the last one was there.
    fn decode_chunks(
        &mut self,
        decoder: &mut ChunkedDecoder,
        mut block: Option<&mut Block>,
    ) -> Result<bool, HeadRefusal> {
        let before = self.input.unused();
        let mut unused = before;
        let is_done = loop {
            let data = match decoder.next(&mut unused)? {
                ChunkPiece::Done => break true,
                ChunkPiece::More => break false,
                ChunkPiece::Data(data) => data,
            };
            let Some(block) = block.as_deref_mut() else {
                continue;
            };
            let needed = block.len() + data.len();
            if needed > block.capacity() {
                block.try_reserve(needed.max(block.capacity() * 2))?;
            }
            block.extend_from_slice(data);
        };
        let used = before.len() - unused.len();
        self.input.consume(used);
        Ok(is_done)
    }

    fn begin_block(&self, start: usize, capacity: usize) -> Result<Block, OutOfMemory> {
        if is_scarce() {
            return Err(OutOfMemory {
                asked_bytes: capacity,
            });
        }
        let block = self.shard.pool.try_take(capacity.max(start))?;
        Ok(self.start_block(start, block))
    }

    /// Gives the full `block` of a body of `total` bytes room for more of it.
    fn grow_block(
        &self,
        block: &mut Block,
        placement: BodyPlacement,
        total: usize,
    ) -> Result<(), OutOfMemory> {
        if block.capacity() >= BODY_SECOND_BYTES_MAX {
            return block.try_reserve((block.capacity() * 2).min(total));
        }
        let capacity = total.min(BODY_SECOND_BYTES_MAX);
        let mut roomy = match pinned_block(placement, total, capacity) {
            Some(roomy) => roomy,
            None => self.shard.pool.try_take(capacity)?,
        };
        roomy.extend_from_slice(block.as_slice());
        if let Some(charge) = block.take_charge() {
            roomy.set_charge(charge);
        }
        *block = roomy;
        Ok(())
    }

    fn start_block(&self, start: usize, mut block: Block) -> Block {
        block.extend_from_slice([0; ALIGNMENT_BYTES].get(..start).unwrap_or(&[]));
        block.set_charge(Charge::empty(&self.budget));
        block
    }

    async fn drop_length(&mut self, length: u64) -> Result<(), ConnectionEnd> {
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
            if self.receive_more().await? == 0 {
                return Err(ConnectionEnd::Closed);
            }
        }
    }

    /// Receives more of a body into the input; 0 is its end.
    async fn receive_more(&mut self) -> Result<usize, ConnectionClosed> {
        self.expect_body();
        let bytes_max = self.shard.options.http_head_bytes_max;
        let room = self.input.room_mut(bytes_max, &self.shard.spares);
        let received = self.turn.receive(&mut self.stream, room).await;
        let count = received.map_err(|_| ConnectionClosed)?;
        self.input.received(count);
        Ok(count)
    }

    /// Sets the time limit for more of a body.
    #[inline]
    fn expect_body(&self) {
        let deadline_ns = deadline_after(self.shard.options.http_stall_timeout);
        self.guard.wait(WaitReason::Receiving, deadline_ns);
    }

    /// The input has ended before the body was complete.
    #[cold]
    fn body_ended(&self) -> ConnectionEnd {
        if !self.guard.is_timed_out() {
            return ConnectionEnd::Closed;
        }
        ConnectionEnd::Refused(HeadRefusal {
            status: 408,
            message: "the request's body did not arrive in time".to_owned(),
        })
    }
}

/// A block of pinned memory for `capacity` of the `total` bytes of a body that goes to a GPU, from
/// which its tensors are copied without the CPU. None if there is no room.
fn pinned_block(placement: BodyPlacement, total: usize, capacity: usize) -> Option<Block> {
    if !placement.is_for_gpu || !PINNED_BODY_BYTES.contains(&total) {
        return None;
    }
    let block = GpuHost::body_pool()?.try_take(capacity).ok()?;
    // Ordinary memory comes from the pool of the shard, which keeps it.
    (block.place().kind == MemoryKind::CpuPinned).then_some(block)
}

/// Bytes in front of the body that bring what follows its JSON onto an alignment boundary.
pub(in crate::http) fn padding(json_length: usize) -> usize {
    (ALIGNMENT_BYTES - json_length % ALIGNMENT_BYTES) % ALIGNMENT_BYTES
}

/// Makes the block's charge cover the memory that it holds.
fn charge(block: &mut Block) -> Result<(), HeadRefusal> {
    let held_bytes = held_bytes(block.len(), block.capacity()) as u64;
    let Some(charge) = block.charge_mut() else {
        return Ok(());
    };
    charge.cover(held_bytes).map_err(|exhausted| HeadRefusal {
        status: 503,
        message: exhausted.to_string(),
    })
}

/// The bytes behind `start`.
pub(crate) fn freeze(body: ReceivedBody) -> ByteView {
    let view = ByteView::from(body.block);
    let end = view.len();
    view.slice(body.start, end).unwrap_or_else(ByteView::empty)
}
