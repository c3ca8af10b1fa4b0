//! Frames that concern no body: settings, pings, windows, resets.

use super::limits::{ERROR_RESETS_MAX, RESET_BEFORE_ACCEPT_MAX};
use super::position::DataRoute;
use super::settings::{ENABLE_PUSH, HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE};
use super::state::Connection;
use crate::error::{ConnectionError, Reason};
use crate::frame::{self, ACK, FrameHead, RST_STREAM, SETTINGS};
use crate::readers::BodyReader;

/// No window may be larger.
const WINDOW_BYTES_MAX: i64 = 0x7fff_ffff;
/// A peer says how large our frames may be within these bounds.
const FRAME_BYTES: std::ops::RangeInclusive<u32> = 16_384..=16_777_215;
/// And we make them no larger than this.
const OUR_FRAME_BYTES_MAX: u32 = 1 << 20;

impl<R: BodyReader> Connection<R> {
    /// Whether the client has not opened a stream of this number, nor one behind it.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        id.is_multiple_of(2) || id > self.last_stream
    }

    pub(super) fn take_settings(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        let mut stream_window = None;
        let (settings, _) = payload.as_chunks::<6>();
        for [a, b, value @ ..] in settings {
            let (name, value) = (u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value));
            match name {
                HEADER_TABLE_SIZE => self.encoder.set_table_limit(value as usize),
                ENABLE_PUSH if value > 1 => return Err(ConnectionError::protocol()),
                INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_BYTES_MAX => {
                    return Err(ConnectionError::new(Reason::FLOW_CONTROL_ERROR));
                }
                // Once per frame, as it concerns all streams.
                INITIAL_WINDOW_SIZE => stream_window = Some(value),
                MAX_FRAME_SIZE if !FRAME_BYTES.contains(&value) => {
                    return Err(ConnectionError::protocol());
                }
                MAX_FRAME_SIZE => {
                    self.send_frame_bytes = value.min(OUR_FRAME_BYTES_MAX) as usize;
                }
                _ => {}
            }
        }
        if let Some(value) = stream_window {
            self.set_stream_window(value)?;
        }
        let head = FrameHead {
            kind: SETTINGS,
            flags: ACK,
            stream: 0,
            length: 0,
        };
        self.push(&head.bytes());
        Ok(())
    }

    /// The window of new streams, by which those of all others move as well.
    fn set_stream_window(&mut self, value: u32) -> Result<(), ConnectionError> {
        let window = i64::from(value);
        let change = window - self.stream_send_window;
        self.stream_send_window = window;
        for (_, stream) in self.streams.iter_mut() {
            stream.send_window += change;
            if stream.send_window > WINDOW_BYTES_MAX {
                return Err(ConnectionError::new(Reason::FLOW_CONTROL_ERROR));
            }
            if change > 0 {
                stream.wake();
            }
        }
        Ok(())
    }

    pub(super) fn take_ping(&mut self, frame: FrameHead, payload: &[u8]) {
        if frame.is_ack() {
            self.has_pong = true;
        } else if let Some(payload) = payload.first_chunk() {
            self.push(&frame::ping(*payload, ACK));
        }
    }

    pub(super) fn take_window_update(
        &mut self,
        id: u32,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        let increment = i64::from(number(payload) & frame::STREAM_MASK);
        if id == 0 {
            self.send_window += increment;
            if increment == 0 {
                return Err(ConnectionError::protocol());
            }
            if self.send_window > WINDOW_BYTES_MAX {
                return Err(ConnectionError::new(Reason::FLOW_CONTROL_ERROR));
            }
            self.wake_waiting();
            return Ok(());
        }
        if self.is_idle(id) {
            return Err(ConnectionError::protocol());
        }
        let Some(stream) = self.streams.get(id).filter(|stream| stream.reset.is_none()) else {
            return Ok(());
        };
        stream.send_window += increment;
        if increment == 0 {
            return self.reset_for_error(id, Reason::PROTOCOL_ERROR);
        }
        if stream.send_window > WINDOW_BYTES_MAX {
            return self.reset_for_error(id, Reason::FLOW_CONTROL_ERROR);
        }
        stream.wake();
        Ok(())
    }

    pub(super) fn take_reset(&mut self, id: u32, payload: &[u8]) -> Result<(), ConnectionError> {
        if self.is_idle(id) {
            return Err(ConnectionError::protocol());
        }
        let is_accepted = self
            .streams
            .get(id)
            .map(|stream| stream.reset.is_some() || stream.is_accepted);
        self.stop(id, Reason(number(payload)));
        if is_accepted == Some(false) {
            self.accepted_resets += 1;
            if self.accepted_resets > RESET_BEFORE_ACCEPT_MAX {
                return Err(ConnectionError::excess("too_many_resets"));
            }
        }
        Ok(())
    }

    /// Resets a stream whose client broke a rule.
    ///
    /// # Errors
    /// That has happened too often: the connection ends.
    pub(super) fn reset_for_error(
        &mut self,
        id: u32,
        reason: Reason,
    ) -> Result<(), ConnectionError> {
        self.error_resets += 1;
        if self.error_resets > ERROR_RESETS_MAX {
            return Err(ConnectionError::excess("too_many_internal_resets"));
        }
        let is_unaccepted = self
            .streams
            .get(id)
            .is_some_and(|stream| stream.reset.is_none() && !stream.is_accepted);
        self.accepted_resets += u32::from(is_unaccepted);
        self.push_reset(id, reason);
        self.stop(id, reason);
        self.frames.route = DataRoute::Nobody;
        Ok(())
    }

    /// Nothing more comes on a stream, and nothing is sent.
    pub(super) fn stop(&mut self, id: u32, reason: Reason) {
        let Some(stream) = self.streams.get(id).filter(|stream| stream.reset.is_none()) else {
            return;
        };
        stream.reset = Some(reason);
        let queued = stream.clear_queue();
        stream.wake();
        if let Some(attached) = self.readers.get(id) {
            attached.close();
        }
        self.credit_connection(queued);
    }

    pub(super) fn push_reset(&mut self, id: u32, reason: Reason) {
        self.push(&frame::short(RST_STREAM, id, reason.0));
    }
}

/// The number that a payload begins with.
fn number(payload: &[u8]) -> u32 {
    payload
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
