//! The terminal: its modes, its size, its keys.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use rustix::termios::{self, OptionalActions, SpecialCodeIndex, Termios};

/// Tenths of a second that a read waits for a key.
const KEY_WAIT_TENTHS: u8 = 1;
/// Where the system does not say.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// The terminal of this process, on another screen and without echo until it is dropped.
pub(crate) struct Terminal {
    device: File,
    former: Termios,
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    End,
    Up,
    Down,
    Other,
}

impl Terminal {
    /// # Errors
    /// There is none, or it cannot be set up.
    pub(crate) fn open() -> io::Result<Terminal> {
        let mut options = File::options();
        let device = options.read(true).write(true).open("/dev/tty")?;
        // Its output may be piped to a file all the same.
        if !termios::isatty(io::stdout()) {
            return Err(io::Error::other("the output is none"));
        }
        let former = termios::tcgetattr(&device)?;
        let mut raw = former.clone();
        raw.make_raw();
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = KEY_WAIT_TENTHS;
        termios::tcsetattr(&device, OptionalActions::Now, &raw)?;
        let terminal = Terminal { device, former };
        // The other screen, no cursor, and no line that goes on in the next.
        terminal.write("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J")?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> (usize, usize) {
        match termios::tcgetwinsize(&self.device) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => USUAL_SIZE,
        }
    }

    pub(crate) fn write(&self, text: &str) -> io::Result<()> {
        (&self.device).write_all(text.as_bytes())
    }

    /// The next key, if one is pressed within a tenth of a second.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn read_key(&self) -> io::Result<Option<Key>> {
        let mut bytes = [0; 16];
        match (&self.device).read(&mut bytes) {
            Ok(count) => Ok(key_of(&bytes[..count])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Failure: it is gone, and with it what was to be put in order.
        let _ = self.write("\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l");
        let _ = termios::tcsetattr(&self.device, OptionalActions::Now, &self.former);
    }
}

/// What was pressed: an arrow comes as several bytes at once.
fn key_of(bytes: &[u8]) -> Option<Key> {
    const CONTROL_C: u8 = 3;
    const CONTROL_D: u8 = 4;
    Some(match bytes {
        [] => return None,
        [b'q' | b'Q' | CONTROL_C | CONTROL_D, ..] | [0x1b] => Key::End,
        [b'k', ..] | [0x1b, b'[' | b'O', b'A', ..] => Key::Up,
        [b'j', ..] | [0x1b, b'[' | b'O', b'B', ..] => Key::Down,
        _ => Key::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_their_bytes() {
        for (bytes, expected) in [
            (&b""[..], None),
            (b"q", Some(Key::End)),
            (b"\x03", Some(Key::End)),
            (b"\x1b", Some(Key::End)),
            (b"\x1b[A", Some(Key::Up)),
            (b"\x1bOB", Some(Key::Down)),
            (b"k", Some(Key::Up)),
            (b"x", Some(Key::Other)),
            (b"\x1b[5~", Some(Key::Other)),
        ] {
            assert_eq!(key_of(bytes), expected);
        }
    }
}
