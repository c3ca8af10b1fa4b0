//! Requests of a stream, from their messages to the engine.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::Credits;
use conch_memory::{Charge, try_text};

use super::draft::{self, TypedTensors};
use super::message::InferTarget;
use super::metadata::CallMetadata;
use super::reader::CompleteMessage;
use super::submit::{RequestParts, kept_bytes, note_refusal, read, reservation_of, trace};
use crate::api::{Classes, parse_version, regions};
use crate::grpc::status::GrpcStatus;
use crate::grpc::trace::{CallTrace, RequestWait};
use crate::shard::{ResponseQueue, Shard, StreamRequest, SubmitOptions};

/// A request of a stream: in the engine's hands, or why it is not.
pub(in crate::grpc) struct StreamedRequest<F = StreamRequest> {
    pub(in crate::grpc) flight: Result<F, GrpcStatus>,
    /// To be repeated in responses: texts as the client sent them.
    pub(in crate::grpc) id: Box<str>,
    pub(in crate::grpc) model_name: Box<str>,
    pub(in crate::grpc) model_version: Box<str>,
    pub(in crate::grpc) is_decoupled: bool,
    /// Its model preserves the order of its requests.
    pub(in crate::grpc) is_ordered: bool,
    /// `triton_enable_empty_final_response`.
    pub(in crate::grpc) wants_empty_final: bool,
    pub(in crate::grpc) classes: Classes,
    pub(in crate::grpc) call_trace: Option<Rc<CallTrace>>,
    /// For what is kept of the message; none in tests.
    pub(in crate::grpc) charge: Option<Charge>,
}

/// [`submit`](super::submit::submit) for a request of a stream; what is delivered for it goes to
/// `responses`.
///
/// # Errors
/// The message is no protobuf message. All else that can be wrong concerns this request only.
pub(in crate::grpc) fn submit_streamed(
    shard: &Rc<Shard>,
    arrived: CompleteMessage,
    typed: TypedTensors,
    (sender, deadline_ns): (&CallMetadata, Option<u64>),
    responses: &Rc<ResponseQueue>,
    wait: RequestWait,
) -> Result<StreamedRequest, GrpcStatus> {
    let CompleteMessage {
        head,
        charge,
        raws,
        ensured,
    } = arrived;
    let target = InferTarget::read(&head).map_err(|_| GrpcStatus::unparsable())?;
    let mut streamed = StreamedRequest {
        flight: Err(GrpcStatus::unparsable()),
        id: try_text(target.id)?,
        model_name: try_text(target.model_name)?,
        model_version: try_text(target.model_version)?,
        is_decoupled: false,
        is_ordered: false,
        wants_empty_final: false,
        classes: Classes::default(),
        call_trace: None,
        charge: Some(charge),
    };
    let parts = (raws, typed, wait, reservation_of(ensured));
    streamed.flight = begin_streamed(
        shard,
        &head,
        parts,
        (sender, deadline_ns),
        responses,
        &mut streamed,
    )
    .inspect_err(|status| note_refusal(&head, status));
    Ok(streamed)
}

fn begin_streamed(
    shard: &Rc<Shard>,
    head: &[u8],
    (raws, typed, wait, permits): RequestParts,
    (sender, deadline_ns): (&CallMetadata, Option<u64>),
    responses: &Rc<ResponseQueue>,
    streamed: &mut StreamedRequest,
) -> Result<StreamRequest, GrpcStatus> {
    if shard.is_draining() {
        return Err(GrpcStatus::shutting_down());
    }
    let permits = permits?;
    let (target, model, message) = read(shard, head)?;
    if let Some(charge) = &mut streamed.charge {
        charge.shrink(kept_bytes(head, &message));
    }
    streamed.is_decoupled = model.config.is_decoupled;
    streamed.is_ordered = model.preserves_order();
    streamed.wants_empty_final = draft::wants_empty_final(&message);
    streamed.call_trace = trace(shard, &model, sender, wait);
    let (mut draft, class_counts) =
        draft::build(&model, regions::of(shard), &target, message, raws, typed)?;
    sender.clone().sign(&mut draft)?;
    if let Some(call_trace) = &streamed.call_trace {
        call_trace.traced().attach(&mut draft, &model);
    }
    streamed.classes = Classes::new(class_counts, &sender.budget);
    draft.features.takes_first = true;
    if model.config.is_decoupled {
        draft.features.credits = Some(Arc::new(Credits::new(
            shard.server.backlog(),
            &sender.budget,
        )));
    }
    let options = SubmitOptions {
        version: parse_version(target.model_version)?,
        tenant: sender.tenant,
        permits,
        deadline_ns,
    };
    Ok(shard.infer_into(responses, &model, &mut draft, options)?)
}
