//! Chunked bodies.
//!
//! A byte-wise machine for everything but the data itself, so that a body costs time in proportion
//! to its bytes wherever it is cut.

use super::head::HeadRefusal;

/// Upstream's limit.
const CHUNKS_MAX: u32 = 65_536;
/// Extensions of one chunk, and all trailers together. Nothing here uses either.
const IGNORED_BYTES_MAX: usize = 4096;
/// Digits of a chunk's size, leading zeros among them.
const SIZE_DIGITS_MAX: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    SizeStart,
    Size,
    /// Blanks behind the size.
    Blank,
    Extension,
    SizeEnd,
    Data,
    DataCarriageReturn,
    DataLineFeed,
    TrailerStart,
    Trailer,
    TrailerLineFeed,
    LastLineFeed,
    Done,
}

/// Decodes one body.
pub(crate) struct ChunkedDecoder {
    state: ChunkState,
    /// Of the present chunk: its size while that is read, then what is still to come.
    remaining: u64,
    digit_count: u32,
    /// What the chunks to come may hold together.
    room_bytes: u64,
    chunk_count: u32,
    ignored_bytes: usize,
}

/// What [`ChunkedDecoder::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChunkPiece<'a> {
    Data(&'a [u8]),
    /// Everything given is used up.
    More,
    Done,
}

impl ChunkedDecoder {
    /// For a body of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> ChunkedDecoder {
        ChunkedDecoder {
            state: ChunkState::SizeStart,
            remaining: 0,
            digit_count: 0,
            room_bytes: bytes_max,
            chunk_count: 0,
            ignored_bytes: 0,
        }
    }

    /// Takes the next piece of data off the front of `bytes`.
    ///
    /// # Errors
    /// For anything but the strictest reading of the format; 413 as soon as a chunk's size says
    /// that the body will be too large.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<ChunkPiece<'a>, HeadRefusal> {
        loop {
            if self.state == ChunkState::Done {
                return Ok(ChunkPiece::Done);
            }
            if self.state == ChunkState::Data {
                let wanted = usize::try_from(self.remaining)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                if wanted == 0 {
                    return Ok(ChunkPiece::More);
                }
                let (data, rest) = bytes.split_at(wanted);
                *bytes = rest;
                self.remaining -= wanted as u64;
                if self.remaining == 0 {
                    self.state = ChunkState::DataCarriageReturn;
                }
                return Ok(ChunkPiece::Data(data));
            }
            let Some((byte, rest)) = bytes.split_first() else {
                return Ok(ChunkPiece::More);
            };
            *bytes = rest;
            self.step(*byte)?;
        }
    }

    fn step(&mut self, byte: u8) -> Result<(), HeadRefusal> {
        self.state = match (self.state, byte) {
            (ChunkState::SizeStart | ChunkState::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                self.digit_count += 1;
                if self.digit_count > SIZE_DIGITS_MAX {
                    return Err(malformed("a chunk's size has too many digits"));
                }
                self.remaining = self
                    .remaining
                    .saturating_mul(16)
                    .saturating_add(digit.into());
                if self.remaining > self.room_bytes {
                    return Err(too_large());
                }
                ChunkState::Size
            }
            (ChunkState::Size | ChunkState::Blank, b'\r') => ChunkState::SizeEnd,
            (ChunkState::Size | ChunkState::Blank, b';') => ChunkState::Extension,
            (ChunkState::Size | ChunkState::Blank, b' ' | b'\t') => {
                self.ignore()?;
                ChunkState::Blank
            }
            (ChunkState::Extension, b'\r') => ChunkState::SizeEnd,
            (ChunkState::Extension, b'\n') => {
                return Err(malformed("a line ends without a carriage return"));
            }
            (ChunkState::Extension, _) => {
                self.ignore()?;
                ChunkState::Extension
            }
            (ChunkState::SizeEnd, b'\n') => {
                self.ignored_bytes = 0;
                self.digit_count = 0;
                self.room_bytes = self.room_bytes.saturating_sub(self.remaining);
                if self.remaining == 0 {
                    ChunkState::TrailerStart
                } else {
                    self.chunk_count += 1;
                    if self.chunk_count > CHUNKS_MAX {
                        return Err(HeadRefusal {
                            status: 400,
                            message: format!(
                                "Chunked request body exceeds maximum of {CHUNKS_MAX} non-empty \
                                 chunks. Send fewer or larger HTTP chunks."
                            ),
                        });
                    }
                    ChunkState::Data
                }
            }
            (ChunkState::DataCarriageReturn, b'\r') => ChunkState::DataLineFeed,
            (ChunkState::DataLineFeed, b'\n') => ChunkState::SizeStart,
            (ChunkState::TrailerStart, b'\r') => ChunkState::LastLineFeed,
            (ChunkState::Trailer, b'\r') => ChunkState::TrailerLineFeed,
            (ChunkState::TrailerStart | ChunkState::Trailer, b'\n') => {
                return Err(malformed("a line ends without a carriage return"));
            }
            (ChunkState::TrailerStart | ChunkState::Trailer, _) => {
                self.ignore()?;
                ChunkState::Trailer
            }
            (ChunkState::TrailerLineFeed, b'\n') => ChunkState::TrailerStart,
            (ChunkState::LastLineFeed, b'\n') => ChunkState::Done,
            _ => return Err(malformed("unexpected byte")),
        };
        Ok(())
    }

    fn ignore(&mut self) -> Result<(), HeadRefusal> {
        self.ignored_bytes += 1;
        if self.ignored_bytes > IGNORED_BYTES_MAX {
            return Err(malformed("too many bytes beside the data"));
        }
        Ok(())
    }
}

pub(super) fn too_large() -> HeadRefusal {
    HeadRefusal {
        status: 413,
        message: "the request's body is too large".to_owned(),
    }
}

fn malformed(what: &str) -> HeadRefusal {
    HeadRefusal {
        status: 400,
        message: format!("the chunked body is malformed: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: u64 = 1 << 20;

    /// Feeds `text` in pieces of `step` bytes. Returns the data and the bytes left behind the body,
    /// or none if more is needed.
    fn decode(text: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize)>, HeadRefusal> {
        let mut decoder = ChunkedDecoder::new(BYTES_MAX);
        let mut data = Vec::new();
        let mut fed = 0;
        while fed < text.len() {
            let end = (fed + step).min(text.len());
            let mut piece = &text[fed..end];
            fed = end;
            loop {
                match decoder.next(&mut piece)? {
                    ChunkPiece::Data(bytes) => data.extend_from_slice(bytes),
                    ChunkPiece::More => break,
                    ChunkPiece::Done => return Ok(Some((data, piece.len() + text.len() - fed))),
                }
            }
        }
        Ok(None)
    }

    #[test]
    fn bodies_wherever_they_are_cut() {
        for (text, expected) in [
            ("0\r\n\r\n", Ok(Some(("", 0)))),
            ("5\r\nhello\r\n0\r\n\r\nGET", Ok(Some(("hello", 3)))),
            (
                "5;a=b\r\nhello\r\n1 \r\n!\r\n00\r\nX: y\r\n\r\n",
                Ok(Some(("hello!", 0))),
            ),
            ("A\r\n0123456789\r\n", Ok(None)),
            ("5\nhello\r\n0\r\n\r\n", Err("unexpected byte")),
            ("5\r\nhello0\r\n\r\n", Err("unexpected byte")),
            ("5\r\nhello\n0\r\n\r\n", Err("unexpected byte")),
            ("\r\n", Err("unexpected byte")),
            ("-5\r\n", Err("unexpected byte")),
            ("0x5\r\n", Err("unexpected byte")),
            ("5 ;a\n", Err("a line ends without a carriage return")),
            ("5 5\r\nhello\r\n0\r\n\r\n", Err("unexpected byte")),
            ("5x\r\nhello\r\n0\r\n\r\n", Err("unexpected byte")),
            ("5 \t;a=b\r\nhello\r\n0\r\n\r\n", Ok(Some(("hello", 0)))),
            ("0\r\n\n", Err("a line ends without a carriage return")),
            (
                "0\r\nX: y\n\r\n",
                Err("a line ends without a carriage return"),
            ),
        ] {
            for step in 1..=text.len() {
                let outcome = decode(text.as_bytes(), step);
                let expected = expected.map_err(malformed);
                let expected = expected.map(|found: Option<(&str, usize)>| {
                    found.map(|(data, left)| (data.as_bytes().to_vec(), left))
                });
                assert_eq!(outcome, expected, "{text:?} in pieces of {step}");
            }
        }
    }

    /// Nothing of a chunk is waited for that would be too much.
    #[test]
    fn sizes_that_promise_too_much_are_refused_at_once() {
        for (text, is_refused) in [
            ("100000\r\n", false),
            ("100001", true),
            ("ffffffffffffffffffffffff", true),
            ("5\r\nhello\r\nffffc", true),
            ("5\r\nhello\r\nffffb\r\n", false),
        ] {
            let expected = match is_refused {
                true => Err(too_large()),
                false => Ok(None),
            };
            assert_eq!(decode(text.as_bytes(), 1), expected, "{text:?}");
        }
    }

    #[test]
    fn the_number_of_chunks_is_limited_exactly() {
        for (count, is_accepted) in [(65_536, true), (65_537, false)] {
            let mut text = b"1\r\nx\r\n".repeat(count);
            text.extend_from_slice(b"0\r\n\r\n");
            match decode(&text, 1000) {
                Ok(found) => {
                    assert!(is_accepted && found.is_some_and(|(data, _)| data.len() == count))
                }
                Err(refusal) => {
                    assert!(!is_accepted);
                    assert_eq!(
                        refusal.message,
                        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send \
                         fewer or larger HTTP chunks."
                    );
                }
            }
        }
        let zeros = |count: usize| [vec![b'0'; count], b"1\r\nx\r\n0\r\n\r\n".to_vec()].concat();
        assert_eq!(decode(&zeros(63), 9), Ok(Some((b"x".to_vec(), 0))));
        assert_eq!(
            decode(&zeros(64), 9),
            Err(malformed("a chunk's size has too many digits"))
        );
        let endless = [b"1;".to_vec(), vec![b'x'; 5000]].concat();
        assert_eq!(
            decode(&endless, 100),
            Err(malformed("too many bytes beside the data"))
        );
    }
}
