//! Server-sent events, one after the other.

use std::io::{self, BufRead, Read as _};

/// A line of an event; the server's are far shorter.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// One event of one line of data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerEvent {
    pub(crate) name: String,
    pub(crate) data: String,
}

/// Reads up to the end of the next event; none at the end of the stream.
///
/// # Errors
/// Those of `source`, and INVALID_DATA for a line that is too long or is not in UTF-8.
pub(crate) fn read_event(source: &mut impl BufRead) -> io::Result<Option<ServerEvent>> {
    let mut event = ServerEvent::default();
    loop {
        let mut line = String::new();
        if source.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if !line.ends_with('\n') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "too long a line",
            ));
        }
        let line = line.trim_end_matches(['\r', '\n']);
        match line.split_once(": ") {
            Some(("event", name)) => event.name = name.into(),
            Some(("data", data)) => event.data = data.into(),
            Some(_) => {}
            None if line.is_empty() && !event.data.is_empty() => return Ok(Some(event)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_end_with_an_empty_line() {
        let text = ": a comment\n\nevent: layout\ndata: {}\n\nevent: sample\r\nid: 7\r\ndata: \
                    [1: 2]\r\n\r\ndata: cut";
        let mut source = text.as_bytes();
        let mut found = Vec::new();
        while let Ok(Some(event)) = read_event(&mut source) {
            found.push((event.name, event.data));
        }
        let expected = [("layout", "{}"), ("sample", "[1: 2]")];
        assert_eq!(
            found,
            expected.map(|(name, data)| (name.into(), data.into()))
        );
    }
}
