//! Where in the frames of the client a connection is.

use crate::frame::{DATA, FRAME_HEAD_BYTES, FrameHead};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramePosition {
    /// So many bytes of the preface have come.
    Preface(usize),
    Head,
    /// The payload of the current frame.
    Payload,
}

/// Who gets the payload of the current DATA frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataRoute {
    /// The queue of its stream.
    Queue,
    /// The reader of its stream.
    Reader,
    /// The stream is over.
    Nobody,
}

/// How far the client's frames have come.
pub(crate) struct FrameReader {
    pub(super) position: FramePosition,
    pub(super) head: [u8; FRAME_HEAD_BYTES],
    pub(super) head_len: usize,
    /// The current frame.
    pub(super) frame: FrameHead,
    /// Bytes of its payload that have not come, padding included.
    pub(super) left: usize,
    pub(super) route: DataRoute,
    /// The length of the padding has not come.
    pub(super) wants_padding: bool,
    pub(super) padding: usize,
    /// What has come of the payload of a frame other than DATA, if that is not all.
    pub(super) partial: Vec<u8>,
}

impl FrameReader {
    pub(super) fn new() -> FrameReader {
        FrameReader {
            position: FramePosition::Preface(0),
            head: [0; FRAME_HEAD_BYTES],
            head_len: 0,
            frame: FrameHead::default(),
            left: 0,
            route: DataRoute::Nobody,
            wants_padding: false,
            padding: 0,
            partial: Vec::new(),
        }
    }
}

impl FrameReader {
    /// Whether a DATA frame of this stream has come in part.
    pub(super) fn is_in_data_of(&self, stream: u32) -> bool {
        let FrameHead {
            kind, stream: own, ..
        } = self.frame;
        self.position == FramePosition::Payload && kind == DATA && own == stream
    }

    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.position, FramePosition::Preface(_))
    }
}
