//! Frames: their heads, and those that we send.

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const HAS_PRIORITY: u8 = 0x20;
pub(crate) const FRAME_HEAD_BYTES: usize = 9;
/// A stream's number beside the reserved bit; as the last stream of a GOAWAY frame, every stream.
pub(crate) const STREAM_MASK: u32 = 0x7fff_ffff;
/// What a client sends before its first frame.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The head of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    /// Of its payload, padding included.
    pub(crate) length: usize,
}

impl FrameHead {
    pub(crate) fn parse(bytes: &[u8; FRAME_HEAD_BYTES]) -> FrameHead {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        FrameHead {
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & STREAM_MASK,
            length: u32::from_be_bytes([0, a, b, c]) as usize,
        }
    }

    pub(crate) fn bytes(self) -> [u8; FRAME_HEAD_BYTES] {
        let [_, a, b, c] = (self.length as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Of a PING or SETTINGS frame.
    pub(crate) fn is_ack(self) -> bool {
        self.has(ACK)
    }

    pub(crate) fn is_ping(self) -> bool {
        self.kind == PING && !self.is_ack()
    }

    /// Of a DATA or HEADERS frame.
    pub(crate) fn ends_stream(self) -> bool {
        self.has(END_STREAM)
    }

    pub(crate) fn is_padded(self) -> bool {
        self.has(PADDED)
    }
}

/// A frame with a payload of four bytes: RST_STREAM, and WINDOW_UPDATE.
pub(crate) fn short(kind: u8, stream: u32, value: u32) -> [u8; FRAME_HEAD_BYTES + 4] {
    let [a, b, c, d, e, f, g, h, i] = FrameHead {
        kind,
        flags: 0,
        stream,
        length: 4,
    }
    .bytes();
    let [j, k, l, m] = value.to_be_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m]
}

pub(crate) fn ping(payload: [u8; 8], flags: u8) -> [u8; FRAME_HEAD_BYTES + 8] {
    let head = FrameHead {
        kind: PING,
        flags,
        stream: 0,
        length: payload.len(),
    };
    let mut frame = [0; FRAME_HEAD_BYTES + 8];
    let (place, rest) = frame.split_at_mut(FRAME_HEAD_BYTES);
    place.copy_from_slice(&head.bytes());
    rest.copy_from_slice(&payload);
    frame
}

/// The frame that ends a connection, and why.
pub(crate) fn goaway(last_stream: u32, reason: u32, words: &str) -> Vec<u8> {
    let head = FrameHead {
        kind: GOAWAY,
        flags: 0,
        stream: 0,
        length: 8 + words.len(),
    };
    let (last, reason) = (last_stream.to_be_bytes(), reason.to_be_bytes());
    [&head.bytes()[..], &last, &reason, words.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back() {
        for head in [
            FrameHead::default(),
            FrameHead {
                kind: 9,
                flags: 0xa5,
                stream: STREAM_MASK,
                length: 0x00ab_cdef,
            },
        ] {
            assert_eq!(FrameHead::parse(&head.bytes()), head);
        }
        let mut reserved = FrameHead::default().bytes();
        reserved[5] = 0x80;
        assert_eq!(FrameHead::parse(&reserved).stream, 0);
        let frame = goaway(7, 11, "too_many_pings");
        assert_eq!(frame.len(), FRAME_HEAD_BYTES + 8 + 14);
        assert_eq!(short(WINDOW_UPDATE, 3, 0x0102_0304)[9..], [1, 2, 3, 4]);
    }
}
