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

use conch_memory::Exhausted;

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

/// Checks the request and hands it to the engine. Yields only while it converts large typed contents.
pub(super) async fn submit(
    shard: &Rc<Shard>,
    arrived: Arrived,
    deadline_ns: Option<u64>,
) -> Result<Submitted, Status> {
    let Arrived { head, charge, raws } = arrived;
    let target = message::Target::read(&head).map_err(|_| Status::unparsable())?;
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
    let message = message::Message::read(&head, inputs_max, outputs_max)?;
    let draft = draft::build(shard, &model, &target, message, raws).await?;
    let reply = shard.infer(&model, draft, deadline_ns)?;
    // The head is not needed while the request waits.
    let id = target.id.into();
    drop(charge);
    Ok(Submitted { reply, id })
}

/// The refusal when the process holds as many request bytes as it may.
fn exhausted(exhausted: Exhausted) -> Status {
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
