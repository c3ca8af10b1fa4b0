//! The body of an answer with `Transfer-Encoding: chunked`, as one stream of bytes.

use std::io::{self, BufRead, Read};

/// What a chunk's size is at most, with what may stand behind it.
const SIZE_LINE_BYTES_MAX: u64 = 256;
const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// Reads chunks from `source`.
pub(crate) struct ChunkReader<R> {
    source: R,
    /// Of the chunk at hand.
    left: u64,
    has_begun: bool,
    is_over: bool,
}

impl<R: BufRead> ChunkReader<R> {
    pub(crate) fn new(source: R) -> ChunkReader<R> {
        ChunkReader {
            source,
            left: 0,
            has_begun: false,
            is_over: false,
        }
    }

    fn begin_chunk(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.has_begun, true) {
            self.read_line()?;
        }
        let line = self.read_line()?;
        let size = line.split(';').next().unwrap_or("").trim();
        let size = u64::from_str_radix(size, 16).ok();
        self.left = size
            .filter(|size| *size <= CHUNK_BYTES_MAX)
            .ok_or_else(|| invalid("no size of a chunk"))?;
        self.is_over = self.left == 0;
        Ok(())
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        let mut bounded = self.source.by_ref().take(SIZE_LINE_BYTES_MAX);
        bounded.read_line(&mut line)?;
        match line.ends_with('\n') {
            true => Ok(line),
            false if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Err(invalid("a line without an end")),
        }
    }
}

impl<R: BufRead> Read for ChunkReader<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.is_over {
            self.begin_chunk()?;
        }
        if self.is_over || target.is_empty() {
            return Ok(0);
        }
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let room = room.min(target.len());
        let count = self.source.read(&mut target[..room])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined() {
        let whole = "3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n";
        for (text, expected) in [
            (whole, Ok("abc0123456789")),
            ("0\r\n\r\n", Ok("")),
            ("3\r\nab", Err(io::ErrorKind::UnexpectedEof)),
            ("", Err(io::ErrorKind::UnexpectedEof)),
            ("x\r\n", Err(io::ErrorKind::InvalidData)),
            ("fffffffff\r\n", Err(io::ErrorKind::InvalidData)),
        ] {
            let mut read = String::new();
            let outcome = ChunkReader::new(text.as_bytes()).read_to_string(&mut read);
            match expected {
                Ok(expected) => assert_eq!((outcome.is_ok(), &*read), (true, expected)),
                Err(kind) => assert_eq!(outcome.unwrap_err().kind(), kind, "{text}"),
            }
        }
        let endless = "1".repeat(1_000);
        let mut read = Vec::new();
        let outcome = ChunkReader::new(endless.as_bytes()).read_to_end(&mut read);
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
