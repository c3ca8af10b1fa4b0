//! The server's side of HTTP/2, without a socket.
//!
//! A [`Connection`] is given the bytes that a client sends and says which requests they begin; it
//! keeps the frames that are to be sent until it is asked for them. Bodies are queued until they
//! are taken, or go to a [`BodyReader`], into whose memory they can be received without a copy
//! ([`Connection::poll_receive_direct`]). It follows RFC 9113 and RFC 7541 (HPACK), but for
//! priorities, which are ignored, and pushed streams, which a server of calls has no use for.
//!
//! What a client sends too much of ends its connection, or waits for its windows. Memory whose size
//! a client determines may be refused by the system, unless it is small: then a call learns of it,
//! or the connection ends.
//!
//! Everything here belongs to one thread; nothing blocks, and nothing reads a clock.

#![forbid(unsafe_code)]

mod connection;
mod error;
mod floods;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod head;
mod hpack;
mod memory;
mod outgoing;
mod pings;
mod readers;
mod stream;

pub use connection::{AcceptedRequest, Connection, ReaderProgress, ReceiveError};
pub use error::{BodyError, ConnectionError, Reason, StreamClosed};
pub use head::{HeaderList, RequestHeaders};
pub use hpack::HeaderField;
pub use pings::PingPolicy;
pub use readers::BodyReader;

#[cfg(test)]
mod tests;
