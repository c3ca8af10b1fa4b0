//! The frames of an HTTP/2 connection, as its bytes show them.

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
pub(super) const FRAME_HEAD_BYTES: usize = 9;
/// A stream's number beside the reserved bit; as the last stream of a GOAWAY frame, every stream.
pub(super) const STREAM_MASK: u32 = 0x7fff_ffff;
/// What a client sends before its first frame.
pub(super) const PREFACE_BYTES: usize = 24;

/// The head of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    /// Of its payload, padding included.
    pub(super) length: usize,
}

impl FrameHead {
    pub(super) fn is_ping(self) -> bool {
        self.kind == PING && !self.is_ack()
    }

    /// Of a PING or SETTINGS frame.
    pub(super) fn is_ack(self) -> bool {
        self.flags & ACK != 0
    }

    /// Whether it acknowledges our settings.
    pub(super) fn acknowledges_settings(self) -> bool {
        self.kind == SETTINGS && self.is_ack()
    }

    /// Of a DATA or HEADERS frame.
    pub(super) fn ends_stream(self) -> bool {
        self.flags & END_STREAM != 0
    }

    pub(super) fn is_padded(self) -> bool {
        self.flags & PADDED != 0
    }

    /// The stream that it may open.
    pub(super) fn opens(self) -> Option<u32> {
        (self.kind == HEADERS).then_some(self.stream)
    }

    /// Whether sending it shows that the client's pings had a reason.
    pub(super) fn excuses_pings(self) -> bool {
        matches!(self.kind, DATA | HEADERS | WINDOW_UPDATE)
    }
}

/// Follows the frames in one direction of a connection, whatever pieces the bytes come in.
#[derive(Debug)]
pub(super) struct FrameObserver {
    /// Bytes in front of the next frame.
    skip: usize,
    head: [u8; FRAME_HEAD_BYTES],
    head_len: usize,
    block: HeaderBlock,
}

impl FrameObserver {
    /// For bytes whose first frame stands behind `skip` bytes.
    pub(super) fn new(skip: usize) -> FrameObserver {
        FrameObserver {
            skip,
            head: [0; FRAME_HEAD_BYTES],
            head_len: 0,
            block: HeaderBlock::default(),
        }
    }

    /// Whether the bytes so far end with a frame.
    pub(super) fn is_between(&self) -> bool {
        self.skip == 0 && self.head_len == 0
    }

    /// Whether a header block has begun whose end has not come.
    pub(super) fn is_in_block(&self) -> bool {
        self.block.is_open
    }

    /// Whether a frame of another stream may follow: not inside a frame or a header block.
    pub(super) fn has_room(&self) -> bool {
        self.is_between() && !self.is_in_block()
    }

    /// Size updates of the HPACK table with which the last header block begins.
    pub(super) fn table_update_count(&self) -> u32 {
        self.block.update_count
    }

    /// Bytes of the current frame that have not come; 0 between frames and inside a head.
    pub(super) fn payload_left(&self) -> usize {
        self.skip
    }

    /// The part that has come of a head that has not come in full.
    pub(super) fn partial_head(&self) -> &[u8] {
        self.head.get(..self.head_len).unwrap_or(&[])
    }

    /// The last head that has come in full, until the next begins.
    pub(super) fn last_head(&self) -> &[u8; FRAME_HEAD_BYTES] {
        &self.head
    }

    /// Takes `count` bytes of a DATA frame's payload, which nobody has to look at.
    pub(super) fn skip_payload(&mut self, count: usize) {
        self.skip -= count;
    }

    /// Takes bytes up to the end of the current frame's payload, or of the next head. Returns how
    /// many, and the head if they complete it.
    pub(super) fn step(&mut self, bytes: &[u8]) -> (usize, Option<FrameHead>) {
        if self.skip > 0 {
            let (skipped, _) = bytes.split_at(bytes.len().min(self.skip));
            self.skip -= skipped.len();
            if self.block.is_in_frame {
                self.block.follow(skipped, self.skip == 0);
            }
            return (skipped.len(), None);
        }
        let (own, _) = bytes.split_at(bytes.len().min(FRAME_HEAD_BYTES - self.head_len));
        let end = self.head_len + own.len();
        if let Some(place) = self.head.get_mut(self.head_len..end) {
            place.copy_from_slice(own);
        }
        self.head_len = end;
        if end < FRAME_HEAD_BYTES {
            return (own.len(), None);
        }
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        self.head_len = 0;
        self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
        let frame = FrameHead {
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & STREAM_MASK,
            length: self.skip,
        };
        self.block.begin_frame(frame);
        (own.len(), Some(frame))
    }

    /// Looks at the next bytes; `note` gets each frame whose head they complete.
    pub(super) fn follow(&mut self, mut bytes: &[u8], mut note: impl FnMut(FrameHead)) {
        while !bytes.is_empty() {
            let (used, frame) = self.step(bytes);
            bytes = bytes.split_at(used).1;
            if let Some(frame) = frame {
                note(frame);
            }
        }
    }
}

/// The last header block: a HEADERS frame and the CONTINUATION frames that belong to it.
#[derive(Debug, Default)]
struct HeaderBlock {
    is_open: bool,
    /// The current frame is one of its frames, and has bytes to come.
    is_in_frame: bool,
    ends_with_frame: bool,
    /// Bytes in front of the fields: the length of the padding, and a priority.
    skip: usize,
    update_count: u32,
    /// Inside an update whose size takes several bytes.
    is_in_update: bool,
    /// The first field has been seen: no update may follow.
    has_fields: bool,
}

impl HeaderBlock {
    fn begin_frame(&mut self, frame: FrameHead) {
        match frame.kind {
            HEADERS => {
                *self = HeaderBlock {
                    is_open: true,
                    skip: usize::from(frame.is_padded())
                        + 5 * usize::from(frame.flags & PRIORITY != 0),
                    ..HeaderBlock::default()
                };
            }
            CONTINUATION if self.is_open => {}
            _ => {
                self.is_in_frame = false;
                return;
            }
        }
        self.is_in_frame = frame.length > 0;
        self.ends_with_frame = frame.flags & END_HEADERS != 0;
        self.is_open = self.is_in_frame || !self.ends_with_frame;
    }

    /// Looks at the next bytes of a frame's payload.
    fn follow(&mut self, bytes: &[u8], is_end: bool) {
        if is_end {
            self.is_in_frame = false;
            self.is_open = !self.ends_with_frame;
        }
        if self.has_fields {
            return;
        }
        let skipped = bytes.len().min(self.skip);
        self.skip -= skipped;
        for byte in bytes.get(skipped..).unwrap_or(&[]) {
            if self.is_in_update {
                self.is_in_update = byte & 0x80 != 0;
            } else if byte & 0xe0 == 0x20 {
                self.update_count = self.update_count.saturating_add(1);
                self.is_in_update = byte & 0x1f == 0x1f;
            } else {
                self.has_fields = true;
                return;
            }
        }
    }
}

/// The frame that ends a connection, and why.
pub(super) fn goaway(last_stream: u32, reason: u32, words: &str) -> Vec<u8> {
    let length = u8::try_from(8 + words.len()).expect("the words are short");
    let mut frame = vec![0, 0, length, GOAWAY, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&last_stream.to_be_bytes());
    frame.extend_from_slice(&reason.to_be_bytes());
    frame.extend_from_slice(words.as_bytes());
    frame
}

/// The frame that opens the window of a stream, or of the connection (0), by so many bytes.
pub(super) fn window_update(stream: u32, bytes: u32) -> [u8; FRAME_HEAD_BYTES + 4] {
    let mut frame = [0, 0, 4, WINDOW_UPDATE, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (_, fields) = frame.split_at_mut(5);
    let (number, increment) = fields.split_at_mut(4);
    number.copy_from_slice(&stream.to_be_bytes());
    increment.copy_from_slice(&bytes.to_be_bytes());
    frame
}

/// An empty DATA frame that ends a stream.
pub(super) fn end_of_stream(stream: u32) -> [u8; FRAME_HEAD_BYTES] {
    let [a, b, c, d] = stream.to_be_bytes();
    [0, 0, 0, DATA, END_STREAM, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
        let mut bytes = (length as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(vec![PING; length]);
        bytes
    }

    #[test]
    fn frames_are_found_in_any_pieces() {
        let rows = [
            (4, 0, 0, 12),
            (PING, 0, 0, 8),
            (HEADERS, 5, 7, 300),
            (DATA, 1, 7, 70_000),
            (4, 1, 0, 0),
            (PING, ACK, 0, 8),
        ];
        let mut wire = vec![b'P'; PREFACE_BYTES];
        for (kind, flags, stream, length) in rows {
            wire.extend(frame(kind, flags, stream, length));
        }
        for cut in [1, 2, 9, 10, 1000, wire.len()] {
            let mut frames = FrameObserver::new(PREFACE_BYTES);
            let mut seen = Vec::new();
            for piece in wire.chunks(cut) {
                frames.follow(piece, |frame| {
                    seen.push((frame.kind, frame.flags, frame.stream))
                });
            }
            assert_eq!(
                seen,
                rows.map(|(kind, flags, stream, _)| (kind, flags, stream)),
                "{cut}"
            );
            assert!(frames.is_between());
            frames.follow(&[0], |_| ());
            assert!(!frames.is_between());
        }
        let goaway = goaway(7, 11, "too_many_pings");
        let mut frames = FrameObserver::new(0);
        frames.follow(&goaway, |frame| assert_eq!(frame.kind, GOAWAY));
        assert!(frames.is_between());
        for (frame, kind) in [
            (&window_update(3, 0x0102_0304)[..], WINDOW_UPDATE),
            (&end_of_stream(3)[..], DATA),
        ] {
            frames.follow(frame, |head| {
                assert_eq!((head.kind, head.stream), (kind, 3))
            });
            assert!(frames.is_between());
        }
    }

    #[test]
    fn header_blocks_are_followed_to_their_end() {
        // Frames (kind, flags, payload), whether the block is open after them, and its table
        // updates.
        type Rows<'a> = &'a [(u8, u8, &'a [u8])];
        const FIELD: u8 = 0x82;
        let table: [(Rows<'_>, bool, u32); 9] = [
            (&[(HEADERS, END_HEADERS, &[FIELD])], false, 0),
            (&[(HEADERS, END_HEADERS, &[])], false, 0),
            (&[(HEADERS, 0, &[FIELD])], true, 0),
            (&[(HEADERS, 0, &[]), (CONTINUATION, 0, &[FIELD])], true, 0),
            (
                &[
                    (HEADERS, 0, &[0x20]),
                    (CONTINUATION, END_HEADERS, &[0x21, FIELD, 0x20]),
                ],
                false,
                2,
            ),
            // 4096 takes three bytes, of which one looks like an update.
            (
                &[(HEADERS, END_HEADERS, &[0x20, 0x3f, 0xa0, 0x20, FIELD])],
                false,
                2,
            ),
            (
                &[(
                    HEADERS,
                    END_HEADERS | PADDED | PRIORITY,
                    &[0x20, 0x20, 0x20, 0x20, 0x20, 0x20, 0x20, FIELD],
                )],
                false,
                1,
            ),
            (&[(HEADERS, END_HEADERS, &[0x20; 30])], false, 30),
            (
                &[
                    (HEADERS, END_HEADERS, &[0x20; 30]),
                    (DATA, 0, &[0x20; 9]),
                    (CONTINUATION, 0, &[0x20]),
                ],
                false,
                30,
            ),
        ];
        for (rows, is_open, update_count) in table {
            let mut wire = Vec::new();
            for (kind, flags, payload) in rows {
                wire.extend(frame(*kind, *flags, 1, payload.len()));
                let start = wire.len() - payload.len();
                wire[start..].copy_from_slice(payload);
            }
            for cut in [1, 2, 5, wire.len()] {
                let mut frames = FrameObserver::new(0);
                for piece in wire.chunks(cut) {
                    frames.follow(piece, |_| ());
                }
                let seen = (frames.is_in_block(), frames.table_update_count());
                assert_eq!(seen, (is_open, update_count), "{rows:?} {cut}");
            }
            // Before its last byte no block has ended.
            let mut frames = FrameObserver::new(0);
            frames.follow(&wire[..wire.len() - 1], |_| ());
            assert!(frames.is_in_block() || wire.len() == FRAME_HEAD_BYTES || rows.len() == 3);
        }
    }
}
