//! What a stub prints, line by line, in the server's log.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;

use conch_backend_sdk as sdk;

/// A longer line is written in pieces.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Reads of one turn, so that one process that prints without end does not keep the others waiting.
const READS_MAX: usize = 16;

/// The reading end of a pipe.
pub(crate) struct LogPipe<F> {
    /// None after its end.
    file: Option<F>,
    label: String,
    /// The line that is not complete yet.
    line: Vec<u8>,
}

impl<F: Read + AsFd> LogPipe<F> {
    pub(crate) fn new(file: F, label: &str) -> LogPipe<F> {
        // Without it the thread would wait for what is not there.
        let is_ready = rustix::io::ioctl_fionbio(&file, true).is_ok();
        LogPipe {
            file: is_ready.then_some(file),
            label: label.to_owned(),
            line: Vec::new(),
        }
    }

    /// What to wait on; none after the end.
    pub(crate) fn file(&self) -> Option<&F> {
        self.file.as_ref()
    }

    /// Logs the lines that have come. Does not block.
    pub(crate) fn forward(&mut self) {
        let mut bytes = [0; 4096];
        for _ in 0..READS_MAX {
            let Some(file) = &mut self.file else { return };
            match file.read(&mut bytes) {
                Ok(0) => {
                    self.file = None;
                    self.flush();
                }
                Ok(count) => self.add(bytes.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.file = None,
            }
        }
    }

    /// Logs what is left after the end of the process.
    pub(crate) fn finish(&mut self) {
        self.forward();
        self.flush();
    }

    fn add(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            self.line.extend_from_slice(line);
            self.flush();
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > LINE_BYTES_MAX {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&self.line);
        sdk::log::write(
            sdk::log::Level::Info,
            "model.py",
            0,
            &format!("{}: {}", self.label, text.trim_end_matches('\r')),
        );
        self.line.clear();
    }
}
