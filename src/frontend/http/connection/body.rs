//! Bodies of requests, received into one block each.

use conch_memory::{ALIGNMENT_BYTES, Block, ByteView, Charge, OutOfMemory, is_scarce};

use super::send::COPIED_BYTES_MAX;
use super::state::{ConnectionClosed, HttpConnection, RequestMeta, deadline_after};
use crate::http::chunked::{self, ChunkPiece, ChunkedDecoder};
use crate::http::head::{BodyFraming, HeadRefusal};
use crate::shard::WaitReason;

/// Bodies up to here get all their memory at once (untouched pages cost nothing); larger ones grow
/// with what really arrives.
const BODY_AT_ONCE_BYTES_MAX: usize = 16 << 20;
/// Where larger bodies begin.
const BODY_FIRST_BYTES: usize = 256 << 10;
/// One receive: bounds what arrives before it is charged, and the length of a shard turn.
const RECEIVE_BYTES_MAX: usize = 1 << 20;
/// What a body is for: all that the connection must know before it receives one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyPlacement {
    /// Bytes at the start after which the alignment matters.
    pub(crate) json_length: usize,
}

/// A received body: `bytes[start..]`, so placed that the byte behind its JSON is aligned.
pub(crate) struct ReceivedBody {
    pub(crate) block: Block,
    pub(crate) start: usize,
}

impl HttpConnection {
    /// Receives the body, or receives and forgets it if nobody wants it.
    pub(super) async fn receive_body(
        &mut self,
        meta: &RequestMeta,
        placement: Option<BodyPlacement>,
    ) -> Result<Result<Option<ReceivedBody>, HeadRefusal>, ConnectionClosed> {
        if meta.expects_continue && meta.framing != BodyFraming::Length(0) && self.input.is_empty()
        {
            self.send_bytes(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let outcome = match (meta.framing, placement) {
            (BodyFraming::Length(length), Some(placement)) => {
                self.receive_length(length, placement).await?.map(Some)
            }
            (BodyFraming::Chunked, Some(placement)) => {
                self.receive_chunked(Some(placement)).await?
            }
            (BodyFraming::Length(length), None) => {
                self.forget(length).await?;
                Ok(None)
            }
            (BodyFraming::Chunked, None) => self.receive_chunked(None).await?,
        };
        self.guard.wait(WaitReason::Busy, 0);
        Ok(outcome)
    }

    async fn receive_length(
        &mut self,
        length: u64,
        placement: BodyPlacement,
    ) -> Result<Result<ReceivedBody, HeadRefusal>, ConnectionClosed> {
        let Ok(length) = usize::try_from(length) else {
            return Ok(Err(chunked::too_large()));
        };
        let start = padding(placement);
        let total = start + length;
        let at_once = if total <= BODY_AT_ONCE_BYTES_MAX {
            total
        } else {
            BODY_FIRST_BYTES
        };
        let mut block = match self.begin_block(start, at_once) {
            Ok(block) => block,
            Err(refused) => return Ok(Err(refused.into())),
        };
        let buffered = self.input.unused();
        let buffered = buffered
            .get(..length.min(buffered.len()))
            .unwrap_or(buffered);
        block.extend_from_slice(buffered);
        let buffered_count = buffered.len();
        self.input.consume(buffered_count);
        loop {
            if let Err(refusal) = charge(&mut block) {
                return Ok(Err(refusal));
            }
            if block.len() == total {
                return Ok(Ok(ReceivedBody { block, start }));
            }
            if total > BODY_FIRST_BYTES {
                // Thousands of clients may promise much and send little: what they do not need is
                // not kept for them.
                self.input.release(&self.shard.spares);
            }
            if block.len() == block.capacity()
                && let Err(refused) = block.try_reserve((block.capacity() * 2).min(total))
            {
                return Ok(Err(refused.into()));
            }
            let wanted = (total - block.len()).min(RECEIVE_BYTES_MAX);
            let spare = block.spare_mut();
            let wanted = wanted.min(spare.len());
            self.guard.wait(
                WaitReason::Receiving,
                deadline_after(self.shard.options.http_stall_timeout),
            );
            let room = spare.get_mut(..wanted).unwrap_or(&mut []);
            match self.turn.receive(&mut self.stream, room).await {
                Ok(count) if count > 0 => block.advance(count),
                Ok(_) if self.guard.is_timed_out() => return Ok(Err(stalled())),
                _ => return Err(ConnectionClosed),
            }
        }
    }

    async fn receive_chunked(
        &mut self,
        placement: Option<BodyPlacement>,
    ) -> Result<Result<Option<ReceivedBody>, HeadRefusal>, ConnectionClosed> {
        let start = placement.map_or(0, padding);
        let mut block = match placement.map(|_| self.begin_block(start, COPIED_BYTES_MAX)) {
            Some(Ok(block)) => Some(block),
            Some(Err(refused)) => return Ok(Err(refused.into())),
            None => None,
        };
        let mut decoder = ChunkedDecoder::new(self.shard.options.http_body_bytes_max);
        loop {
            let before = self.input.unused();
            let mut unused = before;
            let is_done = loop {
                match decoder.next(&mut unused) {
                    Err(refusal) => return Ok(Err(refusal)),
                    Ok(ChunkPiece::Done) => break true,
                    Ok(ChunkPiece::More) => break false,
                    Ok(ChunkPiece::Data(data)) => {
                        let Some(block) = &mut block else { continue };
                        let needed = block.len() + data.len();
                        if needed > block.capacity()
                            && let Err(refused) =
                                block.try_reserve(needed.max(block.capacity() * 2))
                        {
                            return Ok(Err(refused.into()));
                        }
                        block.extend_from_slice(data);
                    }
                }
            };
            let used = before.len() - unused.len();
            self.input.consume(used);
            if let Some(block) = &mut block
                && let Err(refusal) = charge(block)
            {
                return Ok(Err(refusal));
            }
            if is_done {
                return Ok(Ok(block.map(|block| ReceivedBody { block, start })));
            }
            self.guard.wait(
                WaitReason::Receiving,
                deadline_after(self.shard.options.http_stall_timeout),
            );
            let bytes_max = self.shard.options.http_head_bytes_max;
            let room = self.input.room_mut(bytes_max, &self.shard.spares);
            match self.turn.receive(&mut self.stream, room).await {
                Ok(count) if count > 0 => self.input.received(count),
                Ok(_) if self.guard.is_timed_out() => return Ok(Err(stalled())),
                _ => return Err(ConnectionClosed),
            }
        }
    }

    fn begin_block(&self, start: usize, capacity: usize) -> Result<Block, OutOfMemory> {
        if is_scarce() {
            return Err(OutOfMemory {
                asked_bytes: capacity,
            });
        }
        let mut block = self.shard.pool.try_take(capacity.max(start))?;
        block.extend_from_slice([0; ALIGNMENT_BYTES].get(..start).unwrap_or(&[]));
        block.set_charge(Charge::empty(&self.budget));
        Ok(block)
    }

    async fn forget(&mut self, length: u64) -> Result<(), ConnectionClosed> {
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
            self.guard.wait(
                WaitReason::Receiving,
                deadline_after(self.shard.options.http_stall_timeout),
            );
            let bytes_max = self.shard.options.http_head_bytes_max;
            let room = self.input.room_mut(bytes_max, &self.shard.spares);
            match self.turn.receive(&mut self.stream, room).await {
                Ok(count) if count > 0 => self.input.received(count),
                _ => return Err(ConnectionClosed),
            }
        }
    }
}

/// Bytes in front of the body that bring what follows its JSON onto an alignment boundary.
pub(in crate::http) fn padding(placement: BodyPlacement) -> usize {
    (ALIGNMENT_BYTES - placement.json_length % ALIGNMENT_BYTES) % ALIGNMENT_BYTES
}

/// Makes the block's charge cover what it holds.
fn charge(block: &mut Block) -> Result<(), HeadRefusal> {
    let held_bytes = block.len() as u64;
    let Some(charge) = block.charge_mut() else {
        return Ok(());
    };
    charge.cover(held_bytes).map_err(|exhausted| HeadRefusal {
        status: 503,
        message: format!(
            "the server has no memory left for the request: the limit is {} bytes",
            exhausted.limit_bytes
        ),
    })
}

fn stalled() -> HeadRefusal {
    HeadRefusal {
        status: 408,
        message: "the request's body did not arrive in time".to_owned(),
    }
}

/// The bytes behind `start`.
pub(crate) fn freeze(body: ReceivedBody) -> ByteView {
    let view = ByteView::from(body.block);
    let end = view.len();
    view.slice(body.start, end).unwrap_or_else(ByteView::empty)
}
