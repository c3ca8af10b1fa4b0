//! Settings, by their numbers, and ours.

use super::limits::{FRAME_BYTES_MAX, STREAM_WINDOW_BYTES, STREAMS_MAX};
use crate::frame::{FrameHead, SETTINGS};
use crate::head::LIST_BYTES_MAX;

pub(super) const HEADER_TABLE_SIZE: u16 = 1;
pub(super) const ENABLE_PUSH: u16 = 2;
pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const MAX_FRAME_SIZE: u16 = 5;
pub(super) const MAX_HEADER_LIST_SIZE: u16 = 6;

/// What a connection begins with.
pub(super) fn our_settings() -> Vec<u8> {
    let settings = [
        (MAX_CONCURRENT_STREAMS, STREAMS_MAX as u32),
        (INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES as u32),
        (MAX_FRAME_SIZE, FRAME_BYTES_MAX as u32),
        (MAX_HEADER_LIST_SIZE, LIST_BYTES_MAX as u32),
    ];
    let head = FrameHead {
        kind: SETTINGS,
        flags: 0,
        stream: 0,
        length: 6 * settings.len(),
    };
    let mut out = head.bytes().to_vec();
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    out
}
