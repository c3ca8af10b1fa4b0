//! ModelInfer: from the message's bytes to the engine and back.
//!
//! [`reader`] splits the message as it arrives, [`message`] reads its head, [`contents`] converts
//! typed tensors, [`draft`] makes the engine's request of it all, [`mod@submit`] and
//! [`streamed`] hand it to the engine, [`response`] and [`mod@answer`] encode the answer.
//! ModelStreamInfer has the same messages, many of them.

mod acquire;
mod answer;
mod contents;
mod draft;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod message;
mod metadata;
mod reader;
mod region;
mod response;
mod streamed;
mod submit;

pub(super) use acquire::{acquire, note_acquired};
pub(super) use answer::{EncodedResponse, answer};
pub(super) use metadata::{CallExtensions, CallMetadata};
pub(super) use reader::{CompleteMessage, MessageReader, ReadFault};
pub(super) use response::{Pieces, encode_failure, encode_streamed};
pub(super) use streamed::{StreamedRequest, submit_streamed};
pub(super) use submit::{SubmittedRequest, check_model, convert, ensure_loaded, submit};
