//! Frames that cost a client nothing and carry no request, bounded per connection.
//!
//! Three token buckets: control frames, SETTINGS and RST_STREAM. A bucket is full at first, refills
//! with time, and is refilled by what the connection sends: a client that gets answers may
//! acknowledge them and may cancel other calls. An attacker empties a bucket within milliseconds;
//! the connection then ends with GOAWAY ENHANCE_YOUR_CALM.

use crate::frame::{CONTINUATION, DATA, FrameHead, HEADERS, RST_STREAM, SETTINGS};

/// A response lets so many control frames pass, be it its HEADERS or a message of a stream: a
/// window update of the call and one of the connection, twice. gRPC's C core sends both, and a
/// ping, for each message of a stream.
const TOKENS_PER_RESPONSE: u32 = 4;
/// A DATA frame below this carries no message of a response: a window that is opened byte by byte
/// earns nothing.
const MESSAGE_BYTES_MIN: usize = 32;
/// One control frame more per so many bytes of DATA sent. Clients send a window update per several
/// KiB.
const DATA_BYTES_PER_TOKEN: usize = 256;
const EMPTY_PADDED_BYTES_MAX: usize = 256;
const NS_PER_SECOND: u64 = 1_000_000_000;

const CONTROL_BURST: u32 = 8192;
const CONTROL_PER_SECOND: u32 = 2000;
const SETTINGS_BURST: u32 = 64;
const SETTINGS_PER_SECOND: u32 = 4;
/// A client that gives up on every call after 2 ms stays below, and so does one that cancels every
/// second call at any rate.
const RESETS_BURST: u32 = 2000;
const RESETS_PER_SECOND: u32 = 500;

/// Holds `BURST` tokens at most, and gains `PER_SECOND`. Each connection has three for as long as
/// it is open: what all have in common takes no room.
#[derive(Debug)]
struct TokenBucket<const BURST: u32, const PER_SECOND: u32> {
    tokens: u32,
    /// Up to when the time has been turned into tokens.
    refilled_ns: u64,
}

impl<const BURST: u32, const PER_SECOND: u32> TokenBucket<BURST, PER_SECOND> {
    fn new(now_ns: u64) -> Self {
        TokenBucket {
            tokens: BURST,
            refilled_ns: now_ns,
        }
    }

    /// Whether there was a token.
    fn take(&mut self, now_ns: u64) -> bool {
        if self.tokens == 0 {
            self.refill(now_ns);
        }
        let has_token = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        has_token
    }

    fn refill(&mut self, now_ns: u64) {
        let ns_per_token = NS_PER_SECOND / u64::from(PER_SECOND);
        let earned = now_ns.saturating_sub(self.refilled_ns) / ns_per_token;
        self.refilled_ns += earned * ns_per_token;
        self.add(u32::try_from(earned).unwrap_or(u32::MAX));
    }

    fn add(&mut self, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens).min(BURST);
    }
}

/// What one connection may still send of such frames.
#[derive(Debug)]
pub(crate) struct FloodLimits {
    control: TokenBucket<CONTROL_BURST, CONTROL_PER_SECOND>,
    settings: TokenBucket<SETTINGS_BURST, SETTINGS_PER_SECOND>,
    resets: TokenBucket<RESETS_BURST, RESETS_PER_SECOND>,
}

impl FloodLimits {
    pub(crate) fn new(now_ns: u64) -> FloodLimits {
        FloodLimits {
            control: TokenBucket::new(now_ns),
            settings: TokenBucket::new(now_ns),
            resets: TokenBucket::new(now_ns),
        }
    }

    /// Counts a frame that came. Returns what there were too many of, if the connection is to end.
    pub(crate) fn note_received(&mut self, frame: FrameHead, now_ns: u64) -> Option<&'static str> {
        let (has_token, words) = match frame.kind {
            HEADERS => return None,
            DATA => {
                let is_empty = frame.length == 0 && !frame.ends_stream();
                let is_padding = frame.is_padded() && frame.length <= EMPTY_PADDED_BYTES_MAX;
                if !is_empty && !is_padding {
                    return None;
                }
                (self.control.take(now_ns), "too_many_empty_frames")
            }
            SETTINGS if !frame.is_ack() => (self.settings.take(now_ns), "too_many_settings"),
            RST_STREAM => (self.resets.take(now_ns), "too_many_resets"),
            CONTINUATION => (self.control.take(now_ns), "too_many_continuations"),
            _ => (self.control.take(now_ns), "too_many_control_frames"),
        };
        (!has_token).then_some(words)
    }

    /// A frame was sent to the client.
    pub(crate) fn note_sent(&mut self, frame: FrameHead) {
        match frame.kind {
            HEADERS => {
                self.control.add(TOKENS_PER_RESPONSE);
                if frame.ends_stream() {
                    self.resets.add(1);
                }
            }
            DATA if frame.length >= MESSAGE_BYTES_MIN => {
                let tokens = frame.length / DATA_BYTES_PER_TOKEN;
                let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
                self.control.add(tokens.saturating_add(TOKENS_PER_RESPONSE));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{ACK, END_STREAM, PADDED, PING, WINDOW_UPDATE};

    fn frame(kind: u8, flags: u8, length: usize) -> FrameHead {
        FrameHead {
            kind,
            flags,
            stream: 1,
            length,
        }
    }

    /// How many of `frame` are taken within `per_frame_ns` of each other, of at most 100,000.
    fn taken(frame: FrameHead, per_frame_ns: u64) -> Option<(u64, &'static str)> {
        let mut floods = FloodLimits::new(0);
        (0..100_000)
            .find_map(|index| Some((index, floods.note_received(frame, index * per_frame_ns)?)))
    }

    #[test]
    fn floods_end_at_their_burst_and_what_comes_slowly_never() {
        const PRIORITY: u8 = 2;
        let control = u64::from(CONTROL_BURST);
        for (kind, flags, length, burst, words) in [
            (SETTINGS, 0, 0, 64, "too_many_settings"),
            (SETTINGS, ACK, 0, control, "too_many_control_frames"),
            (PING, 0, 8, control, "too_many_control_frames"),
            (PRIORITY, 0, 5, control, "too_many_control_frames"),
            (WINDOW_UPDATE, 0, 4, control, "too_many_control_frames"),
            (CONTINUATION, 0, 1, control, "too_many_continuations"),
            (99, 0, 1, control, "too_many_control_frames"),
            (DATA, 0, 0, control, "too_many_empty_frames"),
            (DATA, PADDED, 256, control, "too_many_empty_frames"),
            (RST_STREAM, 0, 4, 2000, "too_many_resets"),
        ] {
            assert_eq!(taken(frame(kind, flags, length), 0), Some((burst, words)));
            assert_eq!(taken(frame(kind, flags, length), NS_PER_SECOND), None);
        }
        for (kind, flags, length) in [
            (HEADERS, 0, 10),
            (DATA, END_STREAM, 0),
            (DATA, 0, 1),
            (DATA, PADDED, 257),
        ] {
            assert_eq!(taken(frame(kind, flags, length), 0), None);
        }
    }

    #[test]
    fn messages_of_a_stream_earn_control_frames_and_bytes_do_not() {
        for (length, refused_at) in [(60, None), (32, None), (31, Some(4096)), (1, Some(4096))] {
            let mut floods = FloodLimits::new(0);
            let refused = (0..50_000).find(|_| {
                floods.note_sent(frame(DATA, 0, length));
                [WINDOW_UPDATE, WINDOW_UPDATE]
                    .map(|kind| floods.note_received(frame(kind, 0, 4), 0))
                    .iter()
                    .any(Option::is_some)
            });
            assert_eq!(refused, refused_at, "{length}");
        }
    }

    #[test]
    fn answers_earn_control_frames_and_resets() {
        let mut floods = FloodLimits::new(0);
        for _ in 0..50_000 {
            // A client that cancels every second call, and acknowledges what it gets.
            floods.note_sent(frame(HEADERS, 0, 20));
            floods.note_sent(frame(DATA, 0, 100));
            floods.note_sent(frame(HEADERS, END_STREAM, 20));
            for kind in [WINDOW_UPDATE, WINDOW_UPDATE, PING, RST_STREAM] {
                assert_eq!(floods.note_received(frame(kind, 0, 4), 0), None);
            }
        }
        // A window opened byte by byte.
        let mut floods = FloodLimits::new(0);
        let dribbled = (0..100_000).find(|_| {
            floods.note_sent(frame(DATA, 0, 1));
            floods
                .note_received(frame(WINDOW_UPDATE, 0, 4), 0)
                .is_some()
        });
        assert_eq!(dribbled, Some(CONTROL_BURST as usize));
    }
}
