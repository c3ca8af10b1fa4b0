//! A header block under way: a HEADERS frame and the CONTINUATION frames behind it.

use crate::frame::FrameHead;
use crate::head::HeaderListBuilder;

/// What is kept of a block under way.
#[derive(Default)]
pub(crate) struct HeaderBlock {
    /// 0 for none.
    pub(super) stream: u32,
    pub(super) ends_stream: bool,
    /// Its priority names itself.
    pub(super) depends_on_itself: bool,
    pub(super) list: Option<Box<HeaderListBuilder>>,
    /// The begin of a field whose end has not come.
    pub(super) tail: Vec<u8>,
}

impl HeaderBlock {
    pub(super) fn is_open(&self) -> bool {
        self.stream != 0
    }

    pub(super) fn is_open_for(&self, stream: u32) -> bool {
        self.is_open() && self.stream == stream
    }

    pub(super) fn begin(&mut self, frame: FrameHead) {
        self.stream = frame.stream;
        self.ends_stream = frame.ends_stream();
        self.depends_on_itself = false;
    }
}
