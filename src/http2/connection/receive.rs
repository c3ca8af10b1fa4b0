//! Frames of the client: where each begins and ends, and the bodies in DATA frames.

use super::limits::{FRAME_BYTES_MAX, LARGE_BYTES};
use super::position::{Position, Route};
use super::state::Connection;
use crate::error::{ConnectionError, Reason};
use crate::frame::{
    CONTINUATION, DATA, END_HEADERS, FRAME_HEAD_BYTES, FrameHead, GOAWAY, HEADERS, PING, PREFACE,
    PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::room;
use crate::sinks::BodyReader;

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
            bytes = match self.reader.position {
                Position::Preface(seen) => self.preface(bytes, seen)?,
                Position::Head => self.head(bytes)?,
                Position::Payload if self.reader.frame.kind == DATA => self.data(bytes)?,
                Position::Payload => self.payload(bytes)?,
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
        self.reader.position = match seen + own.len() {
            seen if seen < PREFACE.len() => Position::Preface(seen),
            _ => {
                self.block_since_ns = 0;
                Position::Head
            }
        };
        Ok(rest)
    }

    /// Takes bytes up to the end of the next head.
    pub(super) fn head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let reader = &mut self.reader;
        let missing = FRAME_HEAD_BYTES - reader.head_len;
        let (own, rest) = bytes.split_at(bytes.len().min(missing));
        if let Some(place) = reader
            .head
            .get_mut(reader.head_len..reader.head_len + own.len())
        {
            place.copy_from_slice(own);
        }
        reader.head_len += own.len();
        if reader.head_len < FRAME_HEAD_BYTES {
            return Ok(rest);
        }
        reader.head_len = 0;
        let frame = FrameHead::parse(&reader.head);
        reader.frame = frame;
        reader.left = frame.length;
        reader.position = Position::Payload;
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
        let reader = &mut self.reader;
        let (own, rest) = bytes.split_at(bytes.len().min(reader.left));
        reader.left -= own.len();
        if reader.frame.kind > CONTINUATION {
            if reader.left == 0 {
                reader.position = Position::Head;
            }
        } else if reader.left == 0 && reader.partial.is_empty() {
            self.end_payload(own)?;
        } else {
            room::extend(&mut reader.partial, own)?;
            if reader.left == 0 {
                let whole = std::mem::take(&mut reader.partial);
                self.end_payload(&whole)?;
            }
        }
        Ok(rest)
    }

    /// A frame has come in full.
    fn end_payload(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        self.reader.position = Position::Head;
        let frame = self.reader.frame;
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
        self.reader.wants_padding = frame.is_padded();
        self.reader.padding = 0;
        self.reader.route = Route::Nobody;
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
        self.reader.route = Route::Queue;
        if let Some(sink) = self.sinks.get(id) {
            if sink.fits(frame) {
                self.reader.route = Route::Sink;
                if length < sink.reader.left() {
                    sink.frame_length = length;
                    self.frame_length = length as u32;
                }
                self.sinks.note_frame(id);
            } else if length > 0 || frame.ends_stream() {
                sink.close();
            }
        }
        Ok(())
    }

    /// Takes bytes of a DATA frame's payload, up to its end.
    fn data<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let mut rest = bytes;
        if self.reader.wants_padding
            && let Some((padding, behind)) = bytes.split_first()
        {
            rest = behind;
            self.reader.wants_padding = false;
            self.reader.left -= 1;
            self.reader.padding = usize::from(*padding);
            if self.reader.padding > self.reader.left {
                return Err(ConnectionError::protocol());
            }
            self.credit(self.reader.frame.stream, 1);
        }
        let body = self.reader.left - self.reader.padding;
        let (own, behind) = rest.split_at(rest.len().min(body));
        rest = behind;
        if !own.is_empty() {
            self.take_body(own.len(), Some(own))?;
        }
        let padding = match self.reader.left == self.reader.padding {
            true => rest.len().min(self.reader.left),
            false => 0,
        };
        rest = rest.split_at(padding).1;
        self.reader.left -= padding;
        self.reader.padding -= padding;
        self.credit(self.reader.frame.stream, padding);
        if self.reader.left == 0 && !self.reader.wants_padding {
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
        let id = self.reader.frame.stream;
        self.reader.left -= count;
        if self.reader.route != Route::Nobody
            && let Some(stream) = self.streams.get(id)
            && let Some(left) = &mut stream.content_left
        {
            match left.checked_sub(count as u64) {
                Some(rest) => *left = rest,
                // More than its head says.
                None => self.reset_for_error(id, Reason::PROTOCOL_ERROR)?,
            }
        }
        let sink = self.sinks.get(id);
        match (self.reader.route, bytes, sink) {
            (_, None, Some(sink)) => sink.advance(count),
            (Route::Sink, Some(bytes), Some(sink)) => sink.feed(bytes),
            _ => {}
        }
        match self.reader.route {
            Route::Sink => {
                self.credit(id, count);
                Ok(())
            }
            Route::Queue => {
                self.queue_body(id, bytes.unwrap_or(&[]));
                Ok(())
            }
            Route::Nobody => {
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
        self.reader.position = Position::Head;
        let FrameHead { stream: id, .. } = self.reader.frame;
        let ends_stream = self.reader.frame.ends_stream();
        if self.reader.route == Route::Sink
            && let Some(sink) = self.sinks.get(id)
        {
            sink.end_frame(ends_stream);
        }
        match ends_stream && self.reader.route != Route::Nobody {
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
