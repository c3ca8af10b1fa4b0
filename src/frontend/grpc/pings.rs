//! The client's pings, as the connection's bytes show them: h2 answers pings and tells nobody.
//!
//! The rule is that of gRPC's C core. A ping that comes too soon after the one before is bad; what is sent to the client meanwhile
//! (headers, data, window updates) makes up for all bad ones, since clients measure their bandwidth by pings. Without an open call pings may
//! come every two hours, unless they are permitted without calls. Who sends more bad pings than are borne is told so and left.

use std::time::Duration;

use crate::options::GrpcConnections;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const FRAME_HEAD_BYTES: usize = 9;
/// What a client sends before its first frame.
pub(super) const PREFACE_BYTES: usize = 24;
/// How far apart pings must be while no call is open; as upstream's library has it.
const INTERVAL_WITHOUT_CALLS: Duration = Duration::from_secs(2 * 60 * 60);

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Frame {
    pub(super) fn is_ping(self) -> bool {
        self.kind == PING && self.flags & ACK == 0
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
pub(super) struct Frames {
    /// Bytes in front of the next frame.
    skip: usize,
    head: [u8; FRAME_HEAD_BYTES],
    head_len: usize,
}

impl Frames {
    /// For bytes whose first frame stands behind `skip` bytes.
    pub(super) fn new(skip: usize) -> Frames {
        Frames {
            skip,
            head: [0; FRAME_HEAD_BYTES],
            head_len: 0,
        }
    }

    /// Whether the bytes so far end with a frame.
    pub(super) fn is_between(&self) -> bool {
        self.skip == 0 && self.head_len == 0
    }

    /// Looks at the next bytes; `note` gets each frame whose head they complete.
    pub(super) fn follow(&mut self, mut bytes: &[u8], mut note: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            let skipped = bytes.len().min(self.skip);
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or(&[]);
            let (own, rest) = bytes.split_at(bytes.len().min(FRAME_HEAD_BYTES - self.head_len));
            let end = self.head_len + own.len();
            if let Some(place) = self.head.get_mut(self.head_len..end) {
                place.copy_from_slice(own);
            }
            self.head_len = end;
            bytes = rest;
            if end == FRAME_HEAD_BYTES {
                let [a, b, c, kind, flags, stream @ ..] = self.head;
                self.head_len = 0;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                note(Frame {
                    kind,
                    flags,
                    stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
                });
            }
        }
    }
}

/// What is borne of one client's pings.
#[derive(Debug)]
pub(super) struct Strikes {
    interval_min: Duration,
    count_max: u32,
    are_welcome_without_calls: bool,
    /// Monotonic; none before the first, and after an excuse.
    last_ns: Option<u64>,
    count: u32,
}

impl Strikes {
    pub(super) fn new(options: &GrpcConnections) -> Strikes {
        Strikes {
            interval_min: options.ping_interval_min,
            count_max: options.ping_strikes_max,
            are_welcome_without_calls: options.pings_without_calls,
            last_ns: None,
            count: 0,
        }
    }

    /// Something was sent to the client.
    pub(super) fn excuse(&mut self) {
        self.last_ns = None;
        self.count = 0;
    }

    /// A ping came. Says whether it is one too many.
    pub(super) fn note_ping(&mut self, now_ns: u64, has_calls: bool) -> bool {
        let interval = if has_calls || self.are_welcome_without_calls {
            self.interval_min
        } else {
            INTERVAL_WITHOUT_CALLS
        };
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let is_bad = self
            .last_ns
            .replace(now_ns)
            .is_some_and(|last_ns| now_ns < last_ns.saturating_add(interval_ns));
        if !is_bad {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.count_max != 0 && self.count > self.count_max
    }
}

/// The frame that says farewell to such a client, in the words that gRPC clients know: they ping half as often from then on.
pub(super) fn too_many_pings(last_stream: u32) -> Vec<u8> {
    const ENHANCE_YOUR_CALM: u32 = 11;
    const WORDS: &[u8] = b"too_many_pings";
    let mut frame = vec![0, 0, 8 + WORDS.len() as u8, GOAWAY, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&last_stream.to_be_bytes());
    frame.extend_from_slice(&ENHANCE_YOUR_CALM.to_be_bytes());
    frame.extend_from_slice(WORDS);
    frame
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
            let mut frames = Frames::new(PREFACE_BYTES);
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
        let goaway = too_many_pings(7);
        let mut frames = Frames::new(0);
        frames.follow(&goaway, |frame| assert_eq!(frame.kind, GOAWAY));
        assert!(frames.is_between());
    }

    #[test]
    fn strikes_are_counted_as_upstream_counts_them() {
        const SECOND: u64 = 1_000_000_000;
        let options = GrpcConnections::default();
        let tolerated = |options: &GrpcConnections, has_calls, step_s: u64| {
            let mut strikes = Strikes::new(options);
            (0..50).find(|index| strikes.note_ping(index * step_s * SECOND, has_calls))
        };
        // The first is free, two are borne.
        assert_eq!(tolerated(&options, false, 1), Some(3));
        assert_eq!(tolerated(&options, true, 1), Some(3));
        assert_eq!(tolerated(&options, true, 300), None);
        assert_eq!(tolerated(&options, true, 299), Some(3));
        assert_eq!(
            tolerated(&options, false, 300),
            Some(3),
            "without calls every two hours"
        );
        assert_eq!(tolerated(&options, false, 7200), None);
        let permitted = GrpcConnections {
            pings_without_calls: true,
            ..options.clone()
        };
        assert_eq!(tolerated(&permitted, false, 300), None);
        let patient = GrpcConnections {
            ping_strikes_max: 0,
            ..options.clone()
        };
        assert_eq!(tolerated(&patient, false, 0), None);
        let mut strikes = Strikes::new(&options);
        for index in 0..50 {
            assert!(!strikes.note_ping(index, true));
            if index % 3 == 2 {
                strikes.excuse();
            }
        }
    }
}
