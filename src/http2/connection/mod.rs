//! One connection: what the client has sent, and what it is to be sent.

/// Requests and trailers.
mod blocks;
/// Frames that concern no body.
mod control;
/// Bodies that are received into the memory of their readers.
mod direct;
mod header_block;
pub(crate) mod limits;
mod position;
/// Frames, and the bodies in them.
mod receive;
/// Answers.
mod send;
mod settings;
mod state;

pub use self::direct::{ReaderProgress, ReceiveError};
pub use self::state::{AcceptedRequest, Connection};
