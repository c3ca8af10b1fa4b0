//! Reads a ModelInferRequest as its bytes arrive.
//!
//! The protobuf message is split on the fly: each `raw_input_contents` lands in a block of its own
//! (aligned, from the pool), and everything else, which is small unless the client uses typed
//! contents, is collected in the *head* for [`super::message`]. Each byte of a tensor is thus
//! written once by the kernel and once here.
//!
//! Memory follows what has arrived, never what was declared: blocks grow as bytes come, and bytes
//! are charged against the budget before they are kept. A connection that declares 1 GiB and sends
//! 1 KiB costs a few KiB.

use std::ops::RangeInclusive;
use std::sync::Arc;

use conch_engine::RequestPermits;
use conch_engine::gpus::GpuHost;
use conch_engine::model::registry::Snapshot;
use conch_memory::{
    Block, Budget, BudgetExhausted, ByteView, Charge, OutOfMemory, Pool, try_extend, try_push,
};
use smallvec::SmallVec;

use super::message::InferTarget;
use crate::api;
use crate::grpc::status::{GrpcCode, GrpcStatus, exhausted};
use crate::grpc::wire::{self, MalformedMessage};

mod room;

use room::{WHOLE_BLOCK_BYTES_MAX, room};

/// `raw_input_contents` in ModelInferRequest.
const RAW_INPUT_CONTENTS: u32 = 7;
/// The highest field number of ModelInferRequest; fields beyond are unknown and not kept.
const FIELD_NUMBER_MAX: u32 = 7;
/// A tag and a length or varint, ten bytes each at most.
const FIELD_HEADER_BYTES_MAX: usize = 20;
/// A head, and all tensors together of which none is larger, are not charged up to this size: they
/// are bounded by the in-flight limit, and a charge reserves 64 KiB at least.
const UNCHARGED_BYTES: usize = 4 << 10;
/// What a tensor costs beside its bytes.
const RAW_BYTES: usize = 256;
/// Tensors that lie in pinned memory if they go to a GPU, as of HTTP bodies. Smaller ones are not
/// worth it; larger ones get blocks that grow, which pinned ones do not.
const PINNED_BYTES: RangeInclusive<usize> = 64 << 10..=WHOLE_BLOCK_BYTES_MAX;
/// Raw contents beyond this many are ignored, as upstream ignores those beyond the number of
/// inputs: no model has so many.
const RAWS_MAX: usize = 16 << 10;
/// A request has a field per parameter, input, output and tensor; this many tiny ones still cost
/// less than a millisecond.
const FIELDS_MAX: usize = 64 << 10;

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grpc) enum ReadFault {
    Malformed,
    /// More than [`FIELDS_MAX`] fields at the top level.
    TooManyFields,
    /// The process holds as many request bytes as it may.
    Exhausted(BudgetExhausted),
    /// The system has none.
    OutOfMemory(OutOfMemory),
}

impl From<OutOfMemory> for ReadFault {
    fn from(refused: OutOfMemory) -> ReadFault {
        ReadFault::OutOfMemory(refused)
    }
}

impl From<MalformedMessage> for ReadFault {
    fn from(_: MalformedMessage) -> ReadFault {
        ReadFault::Malformed
    }
}

impl From<BudgetExhausted> for ReadFault {
    fn from(exhausted: BudgetExhausted) -> ReadFault {
        ReadFault::Exhausted(exhausted)
    }
}

/// A message that has arrived in full.
pub(in crate::grpc) struct CompleteMessage {
    /// All fields but the raw contents, as a protobuf message.
    pub(in crate::grpc) head: Vec<u8>,
    /// Keeps the head's bytes charged while they live.
    pub(in crate::grpc) charge: Charge,
    /// Charged by themselves. Two fit here: each more would make every call larger, twice.
    pub(in crate::grpc) raws: SmallVec<[ByteView; 2]>,
    /// What keeps its model, or why that is not there or not for its sender; nothing unless models
    /// come when they are asked for. Boxed, as above.
    pub(in crate::grpc) ensured: Option<Box<Result<RequestPermits, GrpcStatus>>>,
}

impl CompleteMessage {
    /// Whether it is known already that it comes to nothing.
    pub(in crate::grpc) fn is_refused(&self) -> bool {
        self.ensured.as_deref().is_some_and(Result::is_err)
    }
}

/// Where in the message the next byte belongs.
enum ReadPosition {
    /// In a tag, or in the length or varint after it.
    FieldHeader,
    /// In a field that goes to the head.
    Head { left: usize },
    /// In a raw tensor; it has a block from its first byte on.
    Raw { block: Option<Block>, left: usize },
    /// In a field that nobody wants.
    Skipped { left: usize },
}

/// The reader of one message.
pub(in crate::grpc) struct MessageReader {
    pool: Arc<Pool>,
    budget: Arc<Budget>,
    /// On hosts with GPUs: which models there are, until the first large tensor has come.
    models: Option<Arc<Snapshot>>,
    /// Bytes of the message that have not been fed yet.
    left: usize,
    place: ReadPosition,
    /// A field header that arrived in part.
    partial: SmallVec<[u8; FIELD_HEADER_BYTES_MAX]>,
    /// Numbers of the unknown groups that enclose the current field.
    groups: Vec<u32>,
    field_count: usize,
    head: Vec<u8>,
    raws: SmallVec<[ByteView; 2]>,
    /// What the raws take up that have no charge of their own.
    small_bytes: usize,
    /// For the head and for these.
    charge: Charge,
}

impl MessageReader {
    /// A reader for a message of `length` bytes.
    pub(in crate::grpc) fn new(
        pool: &Arc<Pool>,
        budget: &Arc<Budget>,
        length: usize,
    ) -> MessageReader {
        MessageReader {
            pool: Arc::clone(pool),
            budget: Arc::clone(budget),
            models: None,
            left: length,
            place: ReadPosition::FieldHeader,
            partial: SmallVec::new(),
            groups: Vec::new(),
            field_count: 0,
            head: Vec::new(),
            raws: SmallVec::new(),
            small_bytes: 0,
            charge: Charge::empty(budget),
        }
    }

    /// Has large tensors for models on GPUs in pinned memory, from which they are copied without
    /// the CPU. `models` are those of the server; none on a host without GPUs.
    pub(in crate::grpc) fn with_models(mut self, models: Option<Arc<Snapshot>>) -> MessageReader {
        self.models = models;
        self
    }

    /// Bytes still to come.
    pub(in crate::grpc) fn left(&self) -> usize {
        self.left
    }

    /// Takes the next bytes of the message; `bytes` holds at most [`MessageReader::left`].
    ///
    /// # Errors
    /// The message is broken or the budget is spent; the reader is of no further use.
    pub(in crate::grpc) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), ReadFault> {
        debug_assert!(
            bytes.len() <= self.left,
            "the caller cuts at the end of the message"
        );
        while !bytes.is_empty() {
            let used = match &mut self.place {
                ReadPosition::FieldHeader => self.field_header(bytes)?,
                ReadPosition::Head { left } => {
                    let (part, _) = bytes.split_at(bytes.len().min(*left));
                    *left -= part.len();
                    let is_done = *left == 0;
                    self.push_head(part)?;
                    if is_done {
                        self.place = ReadPosition::FieldHeader;
                    }
                    part.len()
                }
                ReadPosition::Skipped { left } => {
                    let used = bytes.len().min(*left);
                    *left -= used;
                    if *left == 0 {
                        self.place = ReadPosition::FieldHeader;
                    }
                    used
                }
                ReadPosition::Raw { .. } => self.raw(bytes)?,
            };
            bytes = bytes.split_at(used).1;
            self.left -= used;
        }
        Ok(())
    }

    /// The whole message, once [`MessageReader::left`] is 0.
    pub(in crate::grpc) fn finish(self) -> Result<CompleteMessage, ReadFault> {
        if self.left > 0 {
            return Err(ReadFault::Malformed);
        }
        self.end()
    }

    /// The message, where its length was only a bound: it ends here.
    pub(in crate::grpc) fn end(mut self) -> Result<CompleteMessage, ReadFault> {
        let is_whole = self.partial.is_empty()
            && self.groups.is_empty()
            && matches!(self.place, ReadPosition::FieldHeader);
        if !is_whole {
            return Err(ReadFault::Malformed);
        }
        let mut charge = self.charge;
        if self.small_bytes > UNCHARGED_BYTES
            && let Some(raw) = self.raws.iter_mut().find(|raw| !raw.is_empty())
        {
            // They live as long as the request, all of them: one keeps the charge.
            let whole = std::mem::replace(&mut charge, Charge::empty(&self.budget));
            *raw = std::mem::replace(raw, ByteView::empty()).with_charge(whole);
        }
        Ok(CompleteMessage {
            head: self.head,
            charge,
            raws: self.raws,
            ensured: None,
        })
    }

    /// Reads a field's tag and length, which may be split between two calls; returns the bytes
    /// used.
    fn field_header(&mut self, bytes: &[u8]) -> Result<usize, ReadFault> {
        if self.partial.is_empty() {
            // The common case: the header lies in this piece as a whole.
            if let Some((header, used)) = FieldHeader::parse(bytes)? {
                self.begin_field(header, used, bytes)?;
                return Ok(used);
            }
            self.partial.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        for (index, byte) in bytes.iter().enumerate() {
            self.partial.push(*byte);
            let partial = std::mem::take(&mut self.partial);
            if let Some((header, used)) = FieldHeader::parse(&partial)? {
                debug_assert_eq!(used, partial.len());
                // `left` does not count the bytes of this call yet, but those of earlier ones.
                let fresh = index + 1;
                self.begin_field(header, fresh, &partial)?;
                return Ok(fresh);
            }
            self.partial = partial;
        }
        Ok(bytes.len())
    }

    /// `fresh` bytes of the header came with this call and still count in `left`; `wire` starts
    /// with the header.
    fn begin_field(
        &mut self,
        header: FieldHeader,
        fresh: usize,
        wire: &[u8],
    ) -> Result<(), ReadFault> {
        self.field_count += 1;
        if self.field_count > FIELDS_MAX {
            return Err(ReadFault::TooManyFields);
        }
        let rest = self.left - fresh;
        let is_nested = !self.groups.is_empty();
        match header.kind {
            wire::VARINT => {}
            wire::FIXED64 => self.skip(8, rest)?,
            wire::FIXED32 => self.skip(4, rest)?,
            wire::GROUP_START => {
                if self.groups.len() == wire::GROUP_DEPTH_MAX {
                    return Err(ReadFault::Malformed);
                }
                self.groups.push(header.number);
            }
            wire::GROUP_END => {
                if self.groups.pop() != Some(header.number) {
                    return Err(ReadFault::Malformed);
                }
            }
            _ => {
                let length = usize::try_from(header.value).map_err(|_| ReadFault::Malformed)?;
                if length > rest {
                    return Err(ReadFault::Malformed);
                }
                if is_nested || header.number > FIELD_NUMBER_MAX {
                    self.skip(length, rest)?;
                } else if header.number == RAW_INPUT_CONTENTS {
                    self.begin_raw(length)?;
                } else {
                    let header_len = header.len;
                    self.push_head(
                        wire.get(..header_len)
                            .expect("the header was parsed from these bytes"),
                    )?;
                    if length > 0 {
                        self.place = ReadPosition::Head { left: length };
                    }
                }
            }
        }
        Ok(())
    }

    fn skip(&mut self, length: usize, rest: usize) -> Result<(), ReadFault> {
        if length > rest {
            return Err(ReadFault::Malformed);
        }
        if length > 0 {
            self.place = ReadPosition::Skipped { left: length };
        }
        Ok(())
    }

    fn begin_raw(&mut self, length: usize) -> Result<(), ReadFault> {
        if self.raws.len() == RAWS_MAX {
            if length > 0 {
                self.place = ReadPosition::Skipped { left: length };
            }
        } else if length == 0 {
            self.push_raw(ByteView::empty())?;
        } else {
            if PINNED_BYTES.contains(&length)
                && let Some(models) = self.models.take()
            {
                self.choose_pool(&models);
            }
            self.place = ReadPosition::Raw {
                block: None,
                left: length,
            };
        }
        Ok(())
    }

    /// What comes before the tensors names the model, unless a client orders fields strangely.
    #[cold]
    fn choose_pool(&mut self, models: &Snapshot) {
        let Ok(target) = InferTarget::read(&self.head) else {
            return;
        };
        let version = api::parse_version(target.model_version).ok();
        let model = version.and_then(|version| models.find(target.model_name, version).ok());
        if model.is_some_and(|model| model.config.uses_gpus())
            && let Some(pool) = GpuHost::body_pool()
        {
            self.pool = pool;
        }
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<usize, ReadFault> {
        let ReadPosition::Raw { block, left } = &mut self.place else {
            unreachable!("called in this place only");
        };
        let part = bytes
            .get(..bytes.len().min(*left))
            .expect("cut to the shorter length");
        room(block, part.len(), *left, &self.pool, &self.budget)?.extend_from_slice(part);
        *left -= part.len();
        if *left == 0 {
            self.finish_raw()?;
        }
        Ok(part.len())
    }

    /// The tensor under way has come in full.
    fn finish_raw(&mut self) -> Result<(), ReadFault> {
        match std::mem::replace(&mut self.place, ReadPosition::FieldHeader) {
            ReadPosition::Raw { block, .. } => {
                self.push_raw(block.map_or_else(ByteView::empty, ByteView::from))
            }
            place => {
                self.place = place;
                Ok(())
            }
        }
    }

    fn push_raw(&mut self, raw: ByteView) -> Result<(), ReadFault> {
        self.small_bytes += RAW_BYTES;
        if raw.len() <= UNCHARGED_BYTES {
            self.small_bytes += raw.len();
        }
        self.cover(self.head.len())?;
        Ok(try_push(&mut self.raws, raw)?)
    }

    fn push_head(&mut self, bytes: &[u8]) -> Result<(), ReadFault> {
        self.cover(self.head.len() + bytes.len())?;
        Ok(try_extend(&mut self.head, bytes)?)
    }

    /// Charges a head of so many bytes, and the small tensors.
    fn cover(&mut self, head_bytes: usize) -> Result<(), ReadFault> {
        let charged = |bytes: usize| if bytes > UNCHARGED_BYTES { bytes } else { 0 };
        let bytes = charged(head_bytes) + charged(self.small_bytes);
        Ok(self.charge.cover(bytes as u64)?)
    }
}

/// A field's tag, and its length or varint where it has one.
struct FieldHeader {
    number: u32,
    kind: u8,
    value: u64,
    len: usize,
}

impl FieldHeader {
    /// Parses the header at the start of `bytes`; none if they end inside it.
    fn parse(bytes: &[u8]) -> Result<Option<(FieldHeader, usize)>, MalformedMessage> {
        let Some((tag, tag_len)) = wire::varint(bytes)? else {
            return Ok(None);
        };
        let (number, kind) = wire::split_tag(tag)?;
        if kind != wire::VARINT && kind != wire::BYTES {
            return Ok(Some((
                FieldHeader {
                    number,
                    kind,
                    value: 0,
                    len: tag_len,
                },
                tag_len,
            )));
        }
        let rest = bytes
            .get(tag_len..)
            .expect("the tag was read from these bytes");
        let Some((value, value_len)) = wire::varint(rest)? else {
            return Ok(None);
        };
        let len = tag_len + value_len;
        Ok(Some((
            FieldHeader {
                number,
                kind,
                value,
                len,
            },
            len,
        )))
    }
}

impl From<ReadFault> for GrpcStatus {
    fn from(fault: ReadFault) -> GrpcStatus {
        match fault {
            ReadFault::Malformed => GrpcStatus::unparsable(),
            ReadFault::TooManyFields => {
                GrpcStatus::new(GrpcCode::InvalidArgument, "the request has too many fields")
            }
            ReadFault::Exhausted(spent) => exhausted(spent),
            ReadFault::OutOfMemory(refused) => refused.into(),
        }
    }
}

#[cfg(test)]
mod tests;
