//! Chunked bodies.
//!
//! A byte-wise machine for everything but the data itself, so that a body costs time in proportion to its bytes wherever it is cut.

use super::head::Refusal;

/// Upstream's limit.
const CHUNKS_MAX: u32 = 65_536;
/// Extensions of one chunk, and all trailers together. Nothing here uses either.
const IGNORED_BYTES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    SizeStart,
    Size,
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
pub(crate) struct Decoder {
    state: State,
    /// Of the present chunk: its size while that is read, then what is still to come.
    remaining: u64,
    chunk_count: u32,
    ignored_bytes: usize,
}

/// What [`Decoder::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Data(&'a [u8]),
    /// Everything given is used up.
    More,
    Done,
}

impl Decoder {
    pub(crate) fn new() -> Decoder {
        Decoder {
            state: State::SizeStart,
            remaining: 0,
            chunk_count: 0,
            ignored_bytes: 0,
        }
    }

    /// Takes the next piece of data off the front of `bytes`.
    ///
    /// # Errors
    /// For anything but the strictest reading of the format.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Piece<'a>, Refusal> {
        loop {
            if self.state == State::Done {
                return Ok(Piece::Done);
            }
            if self.state == State::Data {
                let wanted = usize::try_from(self.remaining)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                if wanted == 0 {
                    return Ok(Piece::More);
                }
                let (data, rest) = bytes.split_at(wanted);
                *bytes = rest;
                self.remaining -= wanted as u64;
                if self.remaining == 0 {
                    self.state = State::DataCarriageReturn;
                }
                return Ok(Piece::Data(data));
            }
            let Some((byte, rest)) = bytes.split_first() else {
                return Ok(Piece::More);
            };
            *bytes = rest;
            self.step(*byte)?;
        }
    }

    fn step(&mut self, byte: u8) -> Result<(), Refusal> {
        self.state = match (self.state, byte) {
            (State::SizeStart | State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                if self.remaining > u64::from(u32::MAX) {
                    return Err(malformed("a chunk is too large"));
                }
                self.remaining = self.remaining << 4 | u64::from(digit);
                State::Size
            }
            (State::Size, b'\r') => State::SizeEnd,
            (State::Size, b';' | b' ' | b'\t') => State::Extension,
            (State::Extension, b'\r') => State::SizeEnd,
            (State::Extension, b'\n') => {
                return Err(malformed("a line ends without a carriage return"));
            }
            (State::Extension, _) => {
                self.ignore()?;
                State::Extension
            }
            (State::SizeEnd, b'\n') => {
                self.ignored_bytes = 0;
                if self.remaining == 0 {
                    State::TrailerStart
                } else {
                    self.chunk_count += 1;
                    if self.chunk_count > CHUNKS_MAX {
                        return Err(Refusal {
                            status: 400,
                            message: format!(
                                "Chunked request body exceeds maximum of {CHUNKS_MAX} non-empty chunks. Send fewer or larger HTTP chunks."
                            ),
                        });
                    }
                    State::Data
                }
            }
            (State::DataCarriageReturn, b'\r') => State::DataLineFeed,
            (State::DataLineFeed, b'\n') => State::SizeStart,
            (State::TrailerStart, b'\r') => State::LastLineFeed,
            (State::Trailer, b'\r') => State::TrailerLineFeed,
            (State::TrailerStart | State::Trailer, b'\n') => {
                return Err(malformed("a line ends without a carriage return"));
            }
            (State::TrailerStart | State::Trailer, _) => {
                self.ignore()?;
                State::Trailer
            }
            (State::TrailerLineFeed, b'\n') => State::TrailerStart,
            (State::LastLineFeed, b'\n') => State::Done,
            _ => return Err(malformed("unexpected byte")),
        };
        Ok(())
    }

    fn ignore(&mut self) -> Result<(), Refusal> {
        self.ignored_bytes += 1;
        if self.ignored_bytes > IGNORED_BYTES_MAX {
            return Err(malformed("too many bytes beside the data"));
        }
        Ok(())
    }
}

fn malformed(what: &str) -> Refusal {
    Refusal {
        status: 400,
        message: format!("the chunked body is malformed: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in pieces of `step` bytes. Returns the data and the bytes left behind the body, or none if more is needed.
    fn decode(text: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize)>, Refusal> {
        let mut decoder = Decoder::new();
        let mut data = Vec::new();
        let mut fed = 0;
        while fed < text.len() {
            let end = (fed + step).min(text.len());
            let mut piece = &text[fed..end];
            fed = end;
            loop {
                match decoder.next(&mut piece)? {
                    Piece::Data(bytes) => data.extend_from_slice(bytes),
                    Piece::More => break,
                    Piece::Done => return Ok(Some((data, piece.len() + text.len() - fed))),
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
            ("5 5\n", Err("a line ends without a carriage return")),
            ("1ffffffff0000\r\n", Err("a chunk is too large")),
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
                        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
                    );
                }
            }
        }
        let endless = [b"1;".to_vec(), vec![b'x'; 5000]].concat();
        assert_eq!(
            decode(&endless, 100),
            Err(malformed("too many bytes beside the data"))
        );
    }
}
