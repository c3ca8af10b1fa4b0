//! ModelInfer: from the message's bytes to the engine and back.
//!
//! [`reader`] splits the message as it arrives, [`message`] reads its head, [`contents`] converts typed tensors, [`draft`] makes the
//! engine's request of it all, [`response`] encodes the answer.

mod contents;
mod draft;
mod message;
mod reader;
mod response;

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::ModelVersion;
use conch_memory::{Exhausted, View};

use message::{Message, Target};

use super::status::{Code, Status};
use crate::shard::{Reply, Shard};

pub(super) use reader::{Arrived, Fault, Reader};
pub(super) use response::{Pieces, encode};

/// How upstream prints a data type that it does not know.
const INVALID_DATA_TYPE: &str = "<invalid>";

/// A request in the engine's hands.
pub(super) struct Submitted {
    pub(super) reply: Reply,
    /// To be repeated in the response.
    pub(super) id: Box<str>,
}

/// Tensors made of typed contents, in order; the last may be the reason why there are no more.
pub(super) type Typed = Vec<Result<View, Status>>;

/// Converts the inputs' typed contents, if there are any. Yields between slices.
///
/// A step of its own because only this one may have to wait: what is read from the head is large, and no call keeps it. What else is
/// wrong with the message is for [`submit`] to tell, which reads it again.
pub(super) async fn convert(shard: &Rc<Shard>, arrived: &Arrived) -> Typed {
    if !arrived.raws.is_empty() {
        // Typed contents beside raw ones are an error, whatever they hold.
        return Typed::new();
    }
    // Boxed: its state is large, and most calls never need it.
    Box::pin(async {
        match read(shard, &arrived.head) {
            Ok((target, _, message)) => draft::convert(shard, &target, &message).await,
            Err(_) => Typed::new(),
        }
    })
    .await
}

/// Reads `head`, and finds the model that it names.
fn read<'a>(
    shard: &Rc<Shard>,
    head: &'a [u8],
) -> Result<(Target<'a>, Arc<ModelVersion>, Message<'a>), Status> {
    let target = Target::read(head).map_err(|_| Status::unparsable())?;
    let version = crate::api::parse_version(target.model_version)?;
    let model = shard.find(target.model_name, version)?;
    if model.config.is_decoupled {
        return Err(Status::new(
            Code::Unimplemented,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    // One more than the model has: enough for `admit` to find what is wrong with them.
    let (inputs_max, outputs_max) = (
        model.config.inputs.len() + 1,
        model.config.outputs.len() + 1,
    );
    let message = Message::read(head, inputs_max, outputs_max)?;
    Ok((target, model, message))
}

/// Checks the request and hands it to the engine. `typed` comes from [`convert`].
pub(super) fn submit(
    shard: &Rc<Shard>,
    arrived: Arrived,
    typed: Typed,
    deadline_ns: Option<u64>,
) -> Result<Submitted, Status> {
    let Arrived { head, charge, raws } = arrived;
    let (target, model, message) = read(shard, &head)?;
    let draft = draft::build(&model, &target, message, raws, typed)?;
    let version = crate::api::parse_version(target.model_version)?;
    let reply = shard.infer(&model, version, draft, deadline_ns)?;
    // The head is not needed while the request waits.
    let id = target.id.into();
    drop(charge);
    Ok(Submitted { reply, id })
}

/// The refusal when the process holds as many request bytes as it may.
pub(super) fn exhausted(exhausted: Exhausted) -> Status {
    let Exhausted { limit_bytes, .. } = exhausted;
    Status::new(
        Code::ResourceExhausted,
        format!(
            "the server's limit of {limit_bytes} bytes for requests is reached (--memory-limit-bytes)"
        ),
    )
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Status {
        match fault {
            Fault::Malformed => Status::unparsable(),
            Fault::TooManyFields => {
                Status::new(Code::InvalidArgument, "the request has too many fields")
            }
            Fault::Exhausted(spent) => exhausted(spent),
        }
    }
}
