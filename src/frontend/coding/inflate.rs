//! Inflating, a piece at a time.

use flate2::{Decompress, FlushDecompress, Status};

use super::format::ContentCoding;

/// The largest window of the format, which every decoder offers.
const WINDOW_BITS: u8 = 15;
/// What begins a gzip stream, and no zlib stream.
const GZIP_MAGIC: u8 = 0x1f;

/// The bytes are no such stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorruptStream;

/// What one step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InflateStep {
    pub(crate) read_count: usize,
    pub(crate) written_count: usize,
    /// The stream's last byte is out, and its checksum was right.
    pub(crate) has_ended: bool,
}

/// One compressed stream.
pub(crate) struct Inflater {
    state: Decompress,
    /// Of which format it is.
    pub(crate) coding: ContentCoding,
}

impl Inflater {
    pub(crate) fn new(coding: ContentCoding) -> Inflater {
        let state = match coding {
            ContentCoding::Gzip => Decompress::new_gzip(WINDOW_BITS),
            ContentCoding::Deflate => Decompress::new_with_window_bits(true, WINDOW_BITS),
        };
        Inflater { state, coding }
    }

    /// For a stream that begins with `bytes`, whatever it is called: HTTP clients have mixed the
    /// names up, and zlib looks for itself.
    pub(crate) fn detect(bytes: &[u8]) -> Inflater {
        Inflater::new(match bytes.first() {
            Some(&GZIP_MAGIC) => ContentCoding::Gzip,
            _ => ContentCoding::Deflate,
        })
    }

    /// Turns some of `input` into some of `output`. A step that does neither and has not ended
    /// wants more of one of them.
    pub(crate) fn step(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<InflateStep, CorruptStream> {
        let (in_before, out_before) = (self.state.total_in(), self.state.total_out());
        let status = self
            .state
            .decompress(input, output, FlushDecompress::None)
            .map_err(|_| CorruptStream)?;
        let count =
            |before: u64, after: u64| usize::try_from(after - before).map_err(|_| CorruptStream);
        Ok(InflateStep {
            read_count: count(in_before, self.state.total_in())?,
            written_count: count(out_before, self.state.total_out())?,
            has_ended: status == Status::StreamEnd,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::deflate_into;

    fn inflated(
        mut inflater: Inflater,
        packed: &[u8],
        room: usize,
    ) -> Result<Vec<u8>, CorruptStream> {
        let (mut out, mut at) = (Vec::new(), 0);
        let mut place = vec![0; room];
        loop {
            let step = inflater.step(packed.get(at..).unwrap_or(&[]), &mut place)?;
            out.extend_from_slice(&place[..step.written_count]);
            at += step.read_count;
            if step.has_ended {
                return Ok(out);
            }
            if step.read_count == 0 && step.written_count == 0 {
                return Err(CorruptStream);
            }
        }
    }

    #[test]
    fn what_was_deflated_comes_back_in_any_pieces() {
        let plain: Vec<u8> = (0..100_000u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            let mut packed = Vec::new();
            deflate_into(coding, [&plain[..5], &plain[5..]], &mut packed).unwrap();
            assert!(packed.len() < plain.len() / 2);
            for room in [1000, 1 << 20] {
                assert_eq!(
                    inflated(Inflater::new(coding), &packed, room),
                    Ok(plain.clone())
                );
                assert_eq!(
                    inflated(Inflater::detect(&packed), &packed, room),
                    Ok(plain.clone())
                );
            }
            for broken in [
                &packed[..packed.len() - 1],
                &packed[..packed.len() / 2],
                &packed[1..],
                &plain[..],
                &[],
            ] {
                assert_eq!(
                    inflated(Inflater::new(coding), broken, 1000),
                    Err(CorruptStream)
                );
            }
            let mut flipped = packed.clone();
            *flipped.last_mut().unwrap() ^= 1;
            assert_eq!(
                inflated(Inflater::new(coding), &flipped, 1000),
                Err(CorruptStream),
                "a checksum is looked at"
            );
        }
    }

    #[test]
    fn noise_is_refused_or_ends() {
        let mut seed = 1u64;
        for _ in 0..2000 {
            let noise: Vec<u8> = (0..300)
                .map(|_| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed.to_le_bytes()[3]
                })
                .collect();
            let gzip = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3], &noise[..]].concat();
            let zlib = [&[0x78, 0x9c], &noise[..]].concat();
            for packed in [gzip, zlib] {
                let _ = inflated(Inflater::detect(&packed), &packed, 100);
            }
        }
    }
}
