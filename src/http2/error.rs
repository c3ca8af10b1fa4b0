//! Why streams and connections end.

use std::fmt;

use conch_memory::OutOfMemory;

/// Error codes of RST_STREAM and GOAWAY frames; a code that has no name here is kept as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    pub const NO_ERROR: Reason = Reason(0);
    pub const PROTOCOL_ERROR: Reason = Reason(1);
    pub const INTERNAL_ERROR: Reason = Reason(2);
    pub const FLOW_CONTROL_ERROR: Reason = Reason(3);
    pub const STREAM_CLOSED: Reason = Reason(5);
    pub const FRAME_SIZE_ERROR: Reason = Reason(6);
    pub const REFUSED_STREAM: Reason = Reason(7);
    pub const CANCEL: Reason = Reason(8);
    pub const COMPRESSION_ERROR: Reason = Reason(9);
    pub const ENHANCE_YOUR_CALM: Reason = Reason(11);
}

/// The stream was reset, or the connection is over: nothing more can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamClosed;

/// Why no more of a body comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The stream was reset, or the connection is over.
    Gone,
    /// There was no memory for the next part.
    OutOfMemory(OutOfMemory),
}

/// The peer broke a rule, and the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    pub reason: Reason,
    /// For the GOAWAY frame, or empty.
    pub words: &'static str,
}

impl ConnectionError {
    /// There is no memory for a frame.
    pub(crate) const OUT_OF_MEMORY: ConnectionError = ConnectionError {
        reason: Reason::INTERNAL_ERROR,
        words: "out_of_memory",
    };

    pub(crate) const fn new(reason: Reason) -> ConnectionError {
        ConnectionError { reason, words: "" }
    }

    pub(crate) const fn protocol() -> ConnectionError {
        ConnectionError::new(Reason::PROTOCOL_ERROR)
    }

    pub(crate) const fn frame_size() -> ConnectionError {
        ConnectionError::new(Reason::FRAME_SIZE_ERROR)
    }

    /// The peer sends too many of something.
    pub(crate) const fn excess(words: &'static str) -> ConnectionError {
        ConnectionError {
            reason: Reason::ENHANCE_YOUR_CALM,
            words,
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words {
            "" => write!(out, "HTTP/2 error {}", self.reason.0),
            words => out.write_str(words),
        }
    }
}

impl std::error::Error for ConnectionError {}

impl From<OutOfMemory> for ConnectionError {
    fn from(_: OutOfMemory) -> ConnectionError {
        ConnectionError::OUT_OF_MEMORY
    }
}
