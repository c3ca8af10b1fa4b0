//! Frames of the client: where each begins and ends, and the bodies in DATA frames.

use super::limits::{FRAME_BYTES_MAX, LARGE_BYTES};
use super::position::{DataRoute, FramePosition};
use super::state::Connection;
use crate::error::{ConnectionError, Reason};
use crate::frame::{
    CONTINUATION, DATA, END_HEADERS, FRAME_HEAD_BYTES, FrameHead, GOAWAY, HEADERS, PING, PREFACE,
    PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::memory;
use crate::readers::BodyReader;

impl<R: BodyReader> Connection<R> {
    /// Takes bytes that the client has sent; `now_ns` is monotonic. Requests that they begin are
    /// accepted.
    ///
    /// # Errors
    /// The connection is to end, and the client to be told why.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) -> Result<(), ConnectionError> {
        self.received_ns = now_ns;
        self.feed(bytes)?;
        self.failure.map_or(Ok(()), Err)
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), ConnectionError> {
        while !bytes.is_empty() {
            bytes = match self.frames.position {
                FramePosition::Preface(seen) => self.preface(bytes, seen)?,
                FramePosition::Head => self.head(bytes)?,
                FramePosition::Payload if self.frames.frame.kind == DATA => self.data(bytes)?,
                FramePosition::Payload => self.payload(bytes)?,
            };
        }
        Ok(())
    }

    fn preface<'a>(&mut self, bytes: &'a [u8], seen: usize) -> Result<&'a [u8], ConnectionError> {
        let expected = PREFACE.get(seen..).unwrap_or(&[]);
        let (own, rest) = bytes.split_at(bytes.len().min(expected.len()));
        if !expected.starts_with(own) {
            return Err(ConnectionError::protocol());
        }
        self.frames.position = match seen + own.len() {
            seen if seen < PREFACE.len() => FramePosition::Preface(seen),
            _ => {
                self.block_since_ns = 0;
                FramePosition::Head
            }
        };
        Ok(rest)
    }

    /// Takes bytes up to the end of the next head.
    pub(super) fn head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let frames = &mut self.frames;
        let missing = FRAME_HEAD_BYTES - frames.head_len;
        let (own, rest) = bytes.split_at(bytes.len().min(missing));
        if let Some(place) = frames
            .head
            .get_mut(frames.head_len..frames.head_len + own.len())
        {
            place.copy_from_slice(own);
        }
        frames.head_len += own.len();
        if frames.head_len < FRAME_HEAD_BYTES {
            return Ok(rest);
        }
        frames.head_len = 0;
        let frame = FrameHead::parse(&frames.head);
        frames.frame = frame;
        frames.left = frame.length;
        frames.position = FramePosition::Payload;
        self.begin_frame(frame)?;
        if frame.length == 0 {
            self.end_payload(&[])?;
        }
        Ok(rest)
    }

    /// Decides what is to be done with a frame whose head has come.
    fn begin_frame(&mut self, frame: FrameHead) -> Result<(), ConnectionError> {
        if frame.length > FRAME_BYTES_MAX {
            return Err(ConnectionError::frame_size());
        }
        let continues = frame.kind == CONTINUATION && self.block.is_open_for(frame.stream);
        if self.block.is_open() && !continues {
            return Err(ConnectionError::protocol());
        }
        self.note_limits(frame)?;
        let has_stream = frame.stream != 0;
        match frame.kind {
            DATA if has_stream => self.begin_data(frame),
            HEADERS if frame.stream % 2 == 1 => {
                self.block_since_ns = self.received_ns;
                self.block.begin(frame);
                self.decoder.begin_block();
                Ok(())
            }
            CONTINUATION if continues => Ok(()),
            PRIORITY if has_stream => check_length(frame, 5),
            RST_STREAM if has_stream => check_length(frame, 4),
            WINDOW_UPDATE => check_length(frame, 4),
            SETTINGS if !has_stream && frame.is_ack() => check_length(frame, 0),
            SETTINGS if !has_stream && frame.length.is_multiple_of(6) => Ok(()),
            SETTINGS if !has_stream => Err(ConnectionError::frame_size()),
            PING if !has_stream => check_length(frame, 8),
            GOAWAY if !has_stream && frame.length >= 8 => Ok(()),
            GOAWAY if !has_stream => Err(ConnectionError::frame_size()),
            DATA | HEADERS | PRIORITY | RST_STREAM | SETTINGS | PUSH_PROMISE | PING | GOAWAY
            | CONTINUATION => Err(ConnectionError::protocol()),
            // Frames of extensions are skipped.
            _ => Ok(()),
        }
    }

    /// Counts a frame of which there may be too many.
    fn note_limits(&mut self, frame: FrameHead) -> Result<(), ConnectionError> {
        if frame.is_ping() {
            let has_calls = self.has_streams();
            if self.strikes.note_ping(self.received_ns, has_calls) {
                return Err(ConnectionError::excess("too_many_pings"));
            }
        }
        match self.floods.note_received(frame, self.received_ns) {
            Some(words) => Err(ConnectionError::excess(words)),
            None => Ok(()),
        }
    }

    /// Takes bytes of a frame other than DATA, up to its end.
    fn payload<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let frames = &mut self.frames;
        let (own, rest) = bytes.split_at(bytes.len().min(frames.left));
        frames.left -= own.len();
        if frames.frame.kind > CONTINUATION {
            if frames.left == 0 {
                frames.position = FramePosition::Head;
            }
        } else if frames.left == 0 && frames.partial.is_empty() {
            self.end_payload(own)?;
        } else {
            memory::extend(&mut frames.partial, own)?;
            if frames.left == 0 {
                let whole = std::mem::take(&mut frames.partial);
                self.end_payload(&whole)?;
            }
        }
        Ok(rest)
    }

    /// A frame has come in full.
    fn end_payload(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        self.frames.position = FramePosition::Head;
        let frame = self.frames.frame;
        match frame.kind {
            DATA => self.end_data(),
            HEADERS | CONTINUATION => {
                self.read_block(frame, payload)?;
                if frame.has(END_HEADERS) {
                    self.block_since_ns = 0;
                }
                Ok(())
            }
            RST_STREAM => self.take_reset(frame.stream, payload),
            SETTINGS if !frame.is_ack() => self.take_settings(payload),
            PING => {
                self.take_ping(frame, payload);
                Ok(())
            }
            WINDOW_UPDATE => self.take_window_update(frame.stream, payload),
            GOAWAY => {
                self.is_client_leaving = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Counts a DATA frame against the windows, and finds who gets its payload.
    fn begin_data(&mut self, frame: FrameHead) -> Result<(), ConnectionError> {
        let FrameHead {
            stream: id, length, ..
        } = frame;
        if self.is_idle(id) {
            return Err(ConnectionError::protocol());
        }
        self.receive_window -= length as i64;
        if self.receive_window < 0 {
            return Err(ConnectionError::new(Reason::FLOW_CONTROL_ERROR));
        }
        self.frames.wants_padding = frame.is_padded();
        self.frames.padding = 0;
        self.frames.route = DataRoute::Nobody;
        if frame.is_padded() && length == 0 {
            return Err(ConnectionError::protocol());
        }
        let Some(stream) = self.streams.get(id).filter(|stream| stream.reset.is_none()) else {
            return Ok(());
        };
        if stream.has_ended {
            return self.reset_for_error(id, Reason::STREAM_CLOSED);
        }
        stream.receive_window -= length as i64;
        if stream.receive_window < 0 {
            return self.reset_for_error(id, Reason::FLOW_CONTROL_ERROR);
        }
        self.frames.route = DataRoute::Queue;
        if let Some(attached) = self.readers.get(id) {
            if attached.fits(frame) {
                self.frames.route = DataRoute::Reader;
                if length < attached.reader.left() {
                    attached.frame_length = length;
                    self.frame_length = length as u32;
                }
                self.readers.note_frame(id);
            } else if length > 0 || frame.ends_stream() {
                attached.close();
            }
        }
        Ok(())
    }

    /// Takes bytes of a DATA frame's payload, up to its end.
    fn data<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let mut rest = bytes;
        if self.frames.wants_padding
            && let Some((padding, behind)) = bytes.split_first()
        {
            rest = behind;
            self.frames.wants_padding = false;
            self.frames.left -= 1;
            self.frames.padding = usize::from(*padding);
            if self.frames.padding > self.frames.left {
                return Err(ConnectionError::protocol());
            }
            self.credit(self.frames.frame.stream, 1);
        }
        let body = self.frames.left - self.frames.padding;
        let (own, behind) = rest.split_at(rest.len().min(body));
        rest = behind;
        if !own.is_empty() {
            self.take_body(own.len(), Some(own))?;
        }
        let padding = match self.frames.left == self.frames.padding {
            true => rest.len().min(self.frames.left),
            false => 0,
        };
        rest = rest.split_at(padding).1;
        self.frames.left -= padding;
        self.frames.padding -= padding;
        if padding > 0 {
            self.credit(self.frames.frame.stream, padding);
        }
        if self.frames.left == 0 && !self.frames.wants_padding {
            self.end_payload(&[])?;
        }
        Ok(rest)
    }

    /// The next `count` bytes of the current DATA frame's body have come: `bytes`, or none if they
    /// lie in the room of its reader.
    pub(super) fn take_body(
        &mut self,
        count: usize,
        bytes: Option<&[u8]>,
    ) -> Result<(), ConnectionError> {
        let id = self.frames.frame.stream;
        self.frames.left -= count;
        if self.frames.route != DataRoute::Nobody
            && let Some(stream) = self.streams.get(id)
            && let Some(left) = &mut stream.content_left
        {
            match left.checked_sub(count as u64) {
                Some(rest) => *left = rest,
                // More than its head says.
                None => self.reset_for_error(id, Reason::PROTOCOL_ERROR)?,
            }
        }
        let attached = self.readers.get(id);
        match (self.frames.route, bytes, attached) {
            (_, None, Some(attached)) => attached.advance(count),
            (DataRoute::Reader, Some(bytes), Some(attached)) => attached.feed(bytes),
            _ => {}
        }
        match self.frames.route {
            DataRoute::Reader => {
                self.credit(id, count);
                Ok(())
            }
            DataRoute::Queue => {
                self.queue_body(id, bytes.unwrap_or(&[]));
                Ok(())
            }
            DataRoute::Nobody => {
                self.credit_connection(count);
                Ok(())
            }
        }
    }

    fn queue_body(&mut self, id: u32, bytes: &[u8]) {
        let Some(stream) = self.streams.get(id).filter(|stream| stream.reset.is_none()) else {
            self.credit_connection(bytes.len());
            return;
        };
        let is_kept = stream.queue(bytes);
        self.has_large_bodies |= stream.queued_bytes >= LARGE_BYTES;
        stream.wake();
        if !is_kept {
            self.credit(id, bytes.len());
        }
    }

    /// A DATA frame has come in full.
    pub(super) fn end_data(&mut self) -> Result<(), ConnectionError> {
        self.frames.position = FramePosition::Head;
        let FrameHead { stream: id, .. } = self.frames.frame;
        let ends_stream = self.frames.frame.ends_stream();
        if self.frames.route == DataRoute::Reader
            && let Some(attached) = self.readers.get(id)
        {
            attached.end_frame(ends_stream);
        }
        match ends_stream && self.frames.route != DataRoute::Nobody {
            true => self.end_body(id),
            false => Ok(()),
        }
    }

    /// The client has sent all of a request.
    pub(super) fn end_body(&mut self, id: u32) -> Result<(), ConnectionError> {
        let Some(stream) = self.streams.get(id).filter(|stream| stream.reset.is_none()) else {
            return Ok(());
        };
        stream.has_ended = true;
        if stream.content_left.is_some_and(|left| left > 0) {
            // Less than its head says.
            return self.reset_for_error(id, Reason::PROTOCOL_ERROR);
        }
        stream.wake();
        Ok(())
    }
}

fn check_length(frame: FrameHead, length: usize) -> Result<(), ConnectionError> {
    match frame.length == length {
        true => Ok(()),
        false => Err(ConnectionError::frame_size()),
    }
}
