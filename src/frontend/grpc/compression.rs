//! Compression of messages, one by one: what the client may send, what it is sent.

use bytes::Bytes;
use conch_engine::truncated;
use conch_http2::HeaderList;
use smallvec::smallvec;

use super::frame::{MESSAGE_BYTES_MAX, PREFIX_BYTES, put_prefix};
use super::infer::{MessageReader, Pieces};
use super::status::{GrpcCode, GrpcStatus};
use crate::coding::{
    ContentCoding, DEFLATE_IN_PLACE_BYTES, INFLATE_IN_PLACE_BYTES, Inflater, deflate_into,
    packed_bytes_max,
};
use crate::options::{CompressionLevel, FrontendOptions};
use crate::shard::offload::INFLATED_PER_PACKED;
use crate::shard::{Shard, yield_now};

/// What a call's head says about compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallCompression {
    /// How messages are compressed that say they are.
    pub(super) incoming: Option<ContentCoding>,
    /// How inference responses are to be compressed.
    pub(super) outgoing: Option<ContentCoding>,
}

impl CallCompression {
    /// Reads `fields`.
    ///
    /// # Errors
    /// UNIMPLEMENTED for a compressor that is not known; the answer's head says which are.
    pub(super) fn agree(
        fields: &HeaderList,
        level: CompressionLevel,
    ) -> Result<CallCompression, GrpcStatus> {
        let incoming = match fields.get("grpc-encoding") {
            None | Some(b"identity") => None,
            Some(name) => Some(ContentCoding::of(name).ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                let message = format!(
                    "Compression algorithm '{name}' is not supported.",
                    name = truncated(&name)
                );
                GrpcStatus::new(GrpcCode::Unimplemented, message)
            })?),
        };
        let outgoing = match level {
            CompressionLevel::None => None,
            level => fields
                .get("grpc-accept-encoding")
                .and_then(|accepted| choose(accepted, level)),
        };
        Ok(CallCompression { incoming, outgoing })
    }
}

/// The compressor for `level` among those that the client accepts, ranked as upstream's library
/// does: gzip below deflate.
fn choose(accepted: &[u8], level: CompressionLevel) -> Option<ContentCoding> {
    let is_accepted = |coding: &ContentCoding| {
        accepted
            .split(|byte| *byte == b',')
            .any(|name| name.trim_ascii() == coding.name().as_bytes())
    };
    let mut ranked = [ContentCoding::Gzip, ContentCoding::Deflate]
        .into_iter()
        .filter(is_accepted);
    match level {
        CompressionLevel::None => None,
        CompressionLevel::Low => ranked.next(),
        // Of two the second, as upstream's library rounds.
        CompressionLevel::Medium | CompressionLevel::High => ranked.next_back(),
    }
}

/// Where an inflated message goes.
pub(super) trait InflateTarget: Send + 'static {
    fn take(&mut self, bytes: &[u8]) -> Result<(), GrpcStatus>;
}

impl InflateTarget for MessageReader {
    fn take(&mut self, bytes: &[u8]) -> Result<(), GrpcStatus> {
        Ok(self.feed(bytes)?)
    }
}

impl InflateTarget for Vec<u8> {
    fn take(&mut self, bytes: &[u8]) -> Result<(), GrpcStatus> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// At a time: of inflated bytes, and of compressed ones.
const PLACE_BYTES: usize = 16 << 10;

/// A compressed message on its way into its sink.
pub(super) struct MessageInflater<S> {
    pieces: Vec<Bytes>,
    index: usize,
    at: usize,
    inflater: Inflater,
    length: usize,
    limit: InflatedLimit,
    sink: S,
}

/// What a compressed message may inflate to.
#[derive(Clone, Copy, Debug)]
pub(super) struct InflatedLimit {
    bytes_max: usize,
    is_configured: bool,
}

impl InflatedLimit {
    /// That of small messages.
    pub(super) fn fixed(bytes_max: usize) -> InflatedLimit {
        InflatedLimit {
            bytes_max,
            is_configured: false,
        }
    }

    /// `--grpc-max-inflated-size`, within what any message may have.
    pub(super) fn configured(options: &FrontendOptions) -> InflatedLimit {
        let bytes_max = usize::try_from(options.grpc_inflated_bytes_max).unwrap_or(usize::MAX);
        InflatedLimit {
            bytes_max: bytes_max.min(MESSAGE_BYTES_MAX),
            is_configured: true,
        }
    }

    /// Refuses a message of so many compressed bytes if it must inflate to too many.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub(super) fn check_packed(self, packed_bytes: usize) -> Result<(), GrpcStatus> {
        let packed_max = packed_bytes_max(self.bytes_max as u64);
        if packed_bytes as u64 > packed_max {
            return Err(self.exceeded(packed_bytes));
        }
        Ok(())
    }

    fn exceeded(self, length: usize) -> GrpcStatus {
        let mut message = format!(
            "Received message larger than max ({length} vs. {})",
            self.bytes_max
        );
        if self.is_configured {
            message.push_str(": the limit of compressed messages, see --grpc-max-inflated-size");
        }
        GrpcStatus::new(GrpcCode::ResourceExhausted, message)
    }
}

impl<S: InflateTarget> MessageInflater<S> {
    /// `sink` takes at most as many bytes as `limit` says.
    pub(super) fn new(
        pieces: Vec<Bytes>,
        coding: ContentCoding,
        limit: InflatedLimit,
        sink: S,
    ) -> Self {
        MessageInflater {
            pieces,
            index: 0,
            at: 0,
            inflater: Inflater::new(coding),
            length: 0,
            limit,
            sink,
        }
    }

    /// Inflates in place as long as that is short, then on the shard's offload thread.
    pub(super) async fn finish_on(mut self, shard: &Shard) -> Result<S, GrpcStatus> {
        let packed_bytes: usize = self.pieces.iter().map(Bytes::len).sum();
        if packed_bytes <= INFLATE_IN_PLACE_BYTES && self.run(INFLATE_IN_PLACE_BYTES)? {
            return Ok(self.sink);
        }
        let cost_bytes = (packed_bytes as u64).saturating_mul(INFLATED_PER_PACKED);
        shard.offload(cost_bytes, move || self.finish()).await
    }

    /// Inflates in slices, between which the shard breathes: for messages with a small bound.
    pub(super) async fn finish_in_slices(mut self) -> Result<S, GrpcStatus> {
        while !self.run(INFLATE_IN_PLACE_BYTES)? {
            yield_now().await;
        }
        Ok(self.sink)
    }

    /// Inflates all of it. Not for shards.
    pub(super) fn finish(mut self) -> Result<S, GrpcStatus> {
        while !self.run(usize::MAX)? {}
        Ok(self.sink)
    }

    /// Inflates until the end or until about `work_bytes` have gone in or come out; says whether
    /// that was the end.
    fn run(&mut self, work_bytes: usize) -> Result<bool, GrpcStatus> {
        let mut place = [0; PLACE_BYTES];
        let mut done_bytes = 0;
        let has_begun = self.index != 0 || self.at != 0;
        if !has_begun && self.packed().is_empty() {
            // Upstream's library takes nothing for the compressed form of nothing.
            return Ok(true);
        }
        while done_bytes < work_bytes {
            let input = rest(&self.pieces, self.index, self.at);
            // There are streams of which long stretches say nothing.
            let input = input.get(..PLACE_BYTES).unwrap_or(input);
            let step = self.inflater.step(input, &mut place);
            let step = step.map_err(|_| self.corrupt())?;
            self.at += step.read_count;
            done_bytes += step.written_count.max(step.read_count);
            self.length += step.written_count;
            if self.length > self.limit.bytes_max {
                return Err(self.limit.exceeded(self.length));
            }
            self.sink
                .take(place.get(..step.written_count).unwrap_or_default())?;
            let has_more = !self.packed().is_empty();
            if step.has_ended {
                return if has_more {
                    Err(self.corrupt())
                } else {
                    Ok(true)
                };
            }
            if step.read_count == 0 && step.written_count == 0 {
                return Err(self.corrupt());
            }
        }
        Ok(false)
    }

    /// The next compressed bytes; none at the end.
    fn packed(&mut self) -> &[u8] {
        while self
            .pieces
            .get(self.index)
            .is_some_and(|piece| self.at == piece.len())
        {
            self.index += 1;
            self.at = 0;
        }
        rest(&self.pieces, self.index, self.at)
    }

    fn corrupt(&self) -> GrpcStatus {
        let name = self.inflater.coding.name();
        let message = format!(
            "Unexpected error decompressing data for algorithm {name}",
            name = truncated(&name)
        );
        GrpcStatus::new(GrpcCode::Internal, message)
    }
}

/// What is left of the piece at `index`.
fn rest(pieces: &[Bytes], index: usize, at: usize) -> &[u8] {
    let piece = pieces.get(index).and_then(|piece| piece.get(at..));
    piece.unwrap_or_default()
}

/// `pieces` as one compressed message if that is shorter, as upstream's library decides. What is
/// large is compressed on the shard's offload thread.
pub(super) async fn pack(shard: &Shard, pieces: Pieces, coding: ContentCoding) -> Pieces {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    if length <= DEFLATE_IN_PLACE_BYTES {
        return packed(pieces, length, coding);
    }
    let work = move || packed(pieces, length, coding);
    shard.offload(length as u64, work).await
}

fn packed(pieces: Pieces, length: usize, coding: ContentCoding) -> Pieces {
    let mut out = vec![0; PREFIX_BYTES];
    let mut prefix_bytes = PREFIX_BYTES;
    let contents = pieces.iter().map(|piece| {
        let own_bytes = piece.len().min(prefix_bytes);
        prefix_bytes -= own_bytes;
        piece.get(own_bytes..).unwrap_or_default()
    });
    // Without memory for the compressed form the plain one is as good.
    if deflate_into(coding, contents, &mut out).is_err() || out.len() >= length {
        return pieces;
    }
    let packed_bytes = out.len() - PREFIX_BYTES;
    put_prefix(&mut out, packed_bytes);
    if let Some(flag) = out.first_mut() {
        *flag = 1;
    }
    smallvec![Bytes::from(out)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderList {
        pairs.iter().copied().collect()
    }

    #[test]
    fn compressors_are_agreed_on() {
        let (gzip, deflate) = (Some(ContentCoding::Gzip), Some(ContentCoding::Deflate));
        use CompressionLevel::{High, Low, Medium, None as Never};
        for (accepted, level, expected) in [
            ("identity,deflate,gzip", Never, None),
            ("identity,deflate,gzip", Low, gzip),
            ("identity, deflate, gzip", Medium, deflate),
            ("gzip,deflate", High, deflate),
            ("gzip", Low, gzip),
            ("gzip", Medium, gzip),
            ("gzip", High, gzip),
            ("deflate", Low, deflate),
            ("identity", High, None),
            ("snappy", Low, None),
            ("", Low, None),
        ] {
            let agreed =
                CallCompression::agree(&headers(&[("grpc-accept-encoding", accepted)]), level);
            let expected = CallCompression {
                incoming: None,
                outgoing: expected,
            };
            assert_eq!(agreed, Ok(expected), "{accepted} {level:?}");
        }
        assert_eq!(
            CallCompression::agree(&headers(&[]), High),
            Ok(CallCompression::default())
        );
        for (name, expected) in [("gzip", gzip), ("deflate", deflate), ("identity", None)] {
            let agreed = CallCompression::agree(&headers(&[("grpc-encoding", name)]), Never);
            assert_eq!(agreed.map(|compression| compression.incoming), Ok(expected));
        }
        for name in ["snappy", "", "GZIP", "stream/gzip"] {
            let refused = CallCompression::agree(&headers(&[("grpc-encoding", name)]), Never);
            assert_eq!(refused.unwrap_err().code, GrpcCode::Unimplemented, "{name}");
        }
    }

    fn framed(message: &[u8]) -> Pieces {
        let mut prefix = vec![0; PREFIX_BYTES];
        put_prefix(&mut prefix, message.len());
        prefix.extend_from_slice(&message[..message.len() / 3]);
        smallvec![
            Bytes::from(prefix),
            Bytes::copy_from_slice(&message[message.len() / 3..])
        ]
    }

    fn unpacked(
        packed: &[u8],
        cut: usize,
        coding: ContentCoding,
        length_max: usize,
    ) -> Result<Vec<u8>, GrpcStatus> {
        let pieces = packed.chunks(cut).map(Bytes::copy_from_slice).collect();
        MessageInflater::new(pieces, coding, InflatedLimit::fixed(length_max), Vec::new()).finish()
    }

    #[test]
    fn messages_come_back_in_any_pieces() {
        let message: Vec<u8> = (0..20_000u32).flat_map(|n| (n / 9).to_le_bytes()).collect();
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            let wire = packed(framed(&message), message.len() + PREFIX_BYTES, coding).concat();
            let (prefix, body) = wire.split_at(PREFIX_BYTES);
            assert_eq!(
                (prefix[0], &prefix[1..]),
                (1, &(body.len() as u32).to_be_bytes()[..])
            );
            for cut in [1, 7, 5000, body.len()] {
                assert_eq!(
                    unpacked(body, cut, coding, message.len()),
                    Ok(message.clone())
                );
            }
            let large = unpacked(body, 5000, coding, message.len() - 1).unwrap_err();
            assert_eq!(large.code, GrpcCode::ResourceExhausted);
            for bad in [
                &body[..body.len() - 1],
                &[body, b"x"].concat(),
                &[body, body].concat(),
                &message,
            ] {
                let refused = unpacked(bad, 100, coding, usize::MAX).unwrap_err();
                assert_eq!(refused.code, GrpcCode::Internal);
            }
            assert_eq!(unpacked(&[], 1, coding, 0), Ok(Vec::new()));
        }
    }

    /// In as many turns as they take.
    fn unpacked_in_slices(
        packed: Vec<u8>,
        coding: ContentCoding,
        work_bytes: usize,
    ) -> (usize, Outcome) {
        let pieces = vec![Bytes::from(packed)];
        let mut message_inflater =
            MessageInflater::new(pieces, coding, InflatedLimit::fixed(usize::MAX), Vec::new());
        let mut turns = 1;
        loop {
            match message_inflater.run(work_bytes) {
                Ok(false) => turns += 1,
                Ok(true) => return (turns, Ok(message_inflater.sink)),
                Err(status) => return (turns, Err(status.code)),
            }
        }
    }

    type Outcome = Result<Vec<u8>, GrpcCode>;

    #[test]
    fn a_turn_that_takes_the_last_bytes_is_not_the_end() {
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            // All bytes that a turn may make, or more than it may; and without the checksum.
            for length in [PLACE_BYTES, 4 * PLACE_BYTES, 9 * PLACE_BYTES] {
                let message = vec![7; length];
                let wire = packed(framed(&message), length + PREFIX_BYTES, coding).concat();
                let body = wire[PREFIX_BYTES..].to_vec();
                for work_bytes in [1, PLACE_BYTES, length] {
                    let (_, whole) = unpacked_in_slices(body.clone(), coding, work_bytes);
                    assert_eq!(whole, Ok(message.clone()), "{coding:?} {work_bytes}");
                    let checksum_bytes = if coding == ContentCoding::Gzip { 8 } else { 4 };
                    for missing in 1..=checksum_bytes {
                        let cut = body[..body.len() - missing].to_vec();
                        let (_, refused) = unpacked_in_slices(cut, coding, work_bytes);
                        assert_eq!(refused, Err(GrpcCode::Internal), "{coding:?} {work_bytes}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_says_nothing_takes_turns_as_well() {
        // Stored blocks of no bytes; the last one is not marked as such.
        let mut body = vec![0x78, 0x9c];
        body.extend([0, 0, 0, 0xff, 0xff].repeat(100_000));
        let (turns, refused) =
            unpacked_in_slices(body, ContentCoding::Deflate, INFLATE_IN_PLACE_BYTES);
        assert_eq!(refused, Err(GrpcCode::Internal));
        assert_eq!(turns, 1 + 500_002 / INFLATE_IN_PLACE_BYTES);
    }

    #[test]
    fn what_inflates_to_too_much_is_refused_by_its_length_alone() {
        let limit = InflatedLimit::fixed(1 << 20);
        let packed_max = (1 << 20) + (1 << 16) + (64 << 10);
        assert_eq!(limit.check_packed(packed_max), Ok(()));
        let refused = limit.check_packed(packed_max + 1).unwrap_err();
        assert_eq!(refused.code, GrpcCode::ResourceExhausted);
        let options = FrontendOptions {
            grpc_inflated_bytes_max: u64::MAX,
            ..FrontendOptions::default()
        };
        let limit = InflatedLimit::configured(&options);
        assert_eq!(limit.bytes_max, MESSAGE_BYTES_MAX);
        let refused = limit.exceeded(7);
        assert!(
            refused.message.ends_with("see --grpc-max-inflated-size"),
            "{refused:?}"
        );
    }

    #[test]
    fn what_would_not_shrink_stays_as_it_is() {
        for message in [&b""[..], b"abc", b"\x01\xf3\x77"] {
            let pieces = framed(message);
            assert_eq!(
                packed(
                    pieces.clone(),
                    message.len() + PREFIX_BYTES,
                    ContentCoding::Gzip
                ),
                pieces
            );
        }
    }
}
