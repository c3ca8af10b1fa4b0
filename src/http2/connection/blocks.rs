//! Header blocks of the client: requests and trailers.

use super::limits::{STREAM_WINDOW_BYTES, STREAMS_MAX};
use super::state::{AcceptedRequest, Connection};
use crate::error::{ConnectionError, Reason};
use crate::frame::{END_HEADERS, FrameHead, HAS_PRIORITY, HEADERS, STREAM_MASK};
use crate::head::{HeaderListBuilder, HeaderListState, RequestHeaders};
use crate::hpack::HpackError;
use crate::memory;
use crate::readers::BodyReader;
use crate::stream::Http2Stream;

/// Why a stream is reset that there is no memory for. REFUSED_STREAM would have the client try
/// again at once.
const NO_MEMORY: Reason = Reason::ENHANCE_YOUR_CALM;

impl<R: BodyReader> Connection<R> {
    /// Reads a frame of the block under way.
    pub(super) fn read_block(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        let fragment = match frame.kind {
            HEADERS => self.strip(frame, payload)?,
            _ => payload,
        };
        let is_over = frame.has(END_HEADERS);
        let mut tail = std::mem::take(&mut self.block.tail);
        let bytes = match tail.is_empty() {
            true => fragment,
            false => {
                memory::extend(&mut tail, fragment)?;
                &tail
            }
        };
        // On the stack, unless the block goes on.
        let mut list = match self.block.list.take() {
            Some(list) => *list,
            None => HeaderListBuilder::new(),
        };
        let decoded = self
            .decoder
            .decode(bytes, is_over, |name, value| list.take(name, value));
        let used = decoded.map_err(|error| match error {
            HpackError::Malformed => ConnectionError::new(Reason::COMPRESSION_ERROR),
            HpackError::TooManyUpdates => ConnectionError::excess("too_many_table_updates"),
            HpackError::TooLong => ConnectionError::excess("too_long_headers"),
        })?;
        if !is_over {
            let rest = bytes.get(used..).unwrap_or(&[]);
            let mut kept = Vec::new();
            memory::extend(&mut kept, rest)?;
            self.block.tail = kept;
            self.block.list = Some(Box::new(list));
            return Ok(());
        }
        let id = std::mem::take(&mut self.block.stream);
        self.end_block(id, list)
    }

    /// The fields of a HEADERS frame, without padding and priority.
    fn strip<'a>(
        &mut self,
        frame: FrameHead,
        payload: &'a [u8],
    ) -> Result<&'a [u8], ConnectionError> {
        let mut rest = payload;
        let mut padding = 0;
        if frame.is_padded() {
            let (length, behind) = rest.split_first().ok_or(ConnectionError::frame_size())?;
            padding = usize::from(*length);
            rest = behind;
        }
        if frame.has(HAS_PRIORITY) {
            let (priority, behind) = rest
                .split_first_chunk::<5>()
                .ok_or(ConnectionError::frame_size())?;
            let [a, b, c, d, _] = *priority;
            let parent = u32::from_be_bytes([a, b, c, d]) & STREAM_MASK;
            self.block.depends_on_itself = parent == frame.stream;
            rest = behind;
        }
        let length = rest.len().checked_sub(padding);
        let length = length.ok_or(ConnectionError::protocol())?;
        Ok(rest.split_at(length).0)
    }

    /// Whether the last block ended its stream.
    pub(super) fn block_ends_stream(&self) -> bool {
        self.block.ends_stream
    }

    /// A block has come in full: the head of a request, or trailers.
    fn end_block(&mut self, id: u32, list: HeaderListBuilder) -> Result<(), ConnectionError> {
        if id <= self.last_stream {
            return self.take_trailers(id, &list);
        }
        self.last_stream = id;
        if self.named_last.is_some_and(|last| id > last) {
            return Ok(());
        }
        if self.block.depends_on_itself {
            return self.reset_for_error(id, Reason::PROTOCOL_ERROR);
        }
        if self.streams.len() >= STREAMS_MAX {
            self.push_reset(id, Reason::REFUSED_STREAM);
            return Ok(());
        }
        match list.finish() {
            Ok((head, content_length)) => self.accept(id, head, content_length),
            Err(HeaderListState::TooLong) => {
                self.refuse_list(id);
                Ok(())
            }
            Err(HeaderListState::OutOfMemory) => {
                self.push_reset(id, NO_MEMORY);
                Ok(())
            }
            Err(_) => self.reset_for_error(id, Reason::PROTOCOL_ERROR),
        }
    }

    fn accept(
        &mut self,
        id: u32,
        head: RequestHeaders,
        content_length: Option<u64>,
    ) -> Result<(), ConnectionError> {
        let mut stream = Http2Stream::new(STREAM_WINDOW_BYTES, self.stream_send_window);
        stream.content_left = content_length;
        self.streams.push(id, stream);
        self.accepted
            .push_back(AcceptedRequest { stream: id, head });
        match self.block.ends_stream {
            true => self.end_body(id),
            false => Ok(()),
        }
    }

    /// HeaderList behind a body, of which none means anything here.
    fn take_trailers(&mut self, id: u32, list: &HeaderListBuilder) -> Result<(), ConnectionError> {
        let ends_stream = self.block.ends_stream;
        let Some(stream) = self.streams.get(id).filter(|stream| stream.reset.is_none()) else {
            // Those of a stream that was over before they came.
            return match list.are_trailers() {
                true => Ok(()),
                false => Err(ConnectionError::protocol()),
            };
        };
        if stream.has_ended {
            return self.reset_for_error(id, Reason::STREAM_CLOSED);
        }
        if !ends_stream || !list.are_trailers() {
            return self.reset_for_error(id, Reason::PROTOCOL_ERROR);
        }
        if let Some(attached) = self.readers.get(id) {
            attached.close();
        }
        self.end_body(id)
    }
}
