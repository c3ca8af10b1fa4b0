//! Requests of unary calls, from their messages to the engine.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::{ModelVersion, RequestPermits};
use conch_memory::{Budget, ByteView, Charge, try_text};
use smallvec::SmallVec;

use super::draft::{self, TypedTensors};
use super::message::{InferHead, InferTarget};
use super::metadata::CallMetadata;
use super::reader::CompleteMessage;
use super::region;
use crate::access::GuardedRoute;
use crate::api::{self, Classes, parse_version, regions};
use crate::grpc::method::GrpcMethod;
use crate::grpc::status::{GrpcCode, GrpcStatus};
use crate::grpc::trace::{CallTrace, RequestWait};
use crate::shard::{EnsuredModel, ResponseFuture, Shard, SubmitOptions};

/// Texts up to this size are not charged while their request waits: requests in flight are bounded.
const KEPT_UNCHARGED_BYTES: usize = 4 << 10;

/// A request in the engine's hands.
pub(in crate::grpc) struct SubmittedRequest {
    pub(in crate::grpc) reply: ResponseFuture,
    /// To be repeated in the response.
    pub(in crate::grpc) id: Box<str>,
    pub(in crate::grpc) classes: Classes,
    pub(in crate::grpc) call_trace: Option<Rc<CallTrace>>,
    /// For what is kept of the head.
    _charge: Charge,
}

/// Converts the inputs' typed contents and copies what must not be read in registered memory, if
/// there is any. Yields between slices.
///
/// A step of its own because only this one may have to wait: what is read from the head is large,
/// and no call keeps it. What else is wrong with the message is for [`submit`] to tell, which reads
/// it again.
pub(in crate::grpc) async fn convert(
    shard: &Rc<Shard>,
    budget: &Arc<Budget>,
    arrived: &CompleteMessage,
) -> TypedTensors {
    let has_raws = !arrived.raws.is_empty();
    let may_use_regions = regions::of(shard).is_enabled() && region::is_mentioned(&arrived.head);
    if has_raws && !may_use_regions || arrived.is_refused() {
        // Typed contents beside raw ones are an error, whatever they hold.
        return TypedTensors::new();
    }
    arrived.charge.mark_complete();
    // Boxed: its state is large, and most calls never need it.
    Box::pin(async move {
        match read(shard, &arrived.head) {
            Ok((target, model, message)) => {
                let stores = (&**shard, budget);
                draft::convert(stores, &model, &target, &message, has_raws).await
            }
            Err(_) => TypedTensors::new(),
        }
    })
    .await
}

/// Refuses a message that names a model which its sender may not use. One that cannot be read is
/// refused later.
pub(in crate::grpc) fn check_model(sender: &CallMetadata, arrived: &mut CompleteMessage) {
    let Some(extensions) = &sender.extensions else {
        return;
    };
    if !extensions.rights.are_limited() {
        return;
    }
    let Ok(target) = InferTarget::read(&arrived.head) else {
        return;
    };
    let access = GrpcMethod::ModelInfer.access();
    if let Err(refused) = extensions.rights.check(access, target.model_name) {
        arrived.ensured = Some(Box::new(Err(refused.into())));
    }
}

/// Has the model brought in that a message names, where models come when they are asked for; the
/// message keeps it, or why it does not come.
pub(in crate::grpc) async fn ensure_loaded(shard: &Rc<Shard>, arrived: &mut CompleteMessage) {
    let Ok(target) = InferTarget::read(&arrived.head) else {
        return;
    };
    let Ok(version) = parse_version(target.model_version) else {
        return;
    };
    let permit = match shard.ensure_loaded(target.model_name, version) {
        Ok(EnsuredModel::Here(permit)) => Ok(permit),
        Ok(EnsuredModel::Coming(coming)) => coming.await,
        Err(error) => Err(error),
    };
    let permits = permit.map(RequestPermits::holding);
    arrived.ensured = Some(Box::new(permits.map_err(GrpcStatus::from)));
}

/// Reads `head`, and finds the model that it names.
pub(super) fn read<'a>(
    shard: &Rc<Shard>,
    head: &'a [u8],
) -> Result<(InferTarget<'a>, Arc<ModelVersion>, InferHead<'a>), GrpcStatus> {
    let target = InferTarget::read(head).map_err(|_| GrpcStatus::unparsable())?;
    let version = parse_version(target.model_version)?;
    let model = shard.find(target.model_name, version)?;
    // One more than the model has: enough for `admit` to find what is wrong with them.
    let (inputs_max, outputs_max) = (
        model.config.inputs.len() + 1,
        model.config.outputs.len() + 1,
    );
    let message = InferHead::read(head, inputs_max, outputs_max)?;
    Ok((target, model, message))
}

/// Checks the request and hands it to the engine. `typed` comes from [`convert`]. The stations are
/// those of the request, for who sends its response.
pub(in crate::grpc) fn submit(
    shard: &Rc<Shard>,
    arrived: CompleteMessage,
    typed: TypedTensors,
    sender: CallMetadata,
    deadline_ns: Option<u64>,
    wait: RequestWait,
) -> Result<(SubmittedRequest, Option<Rc<CallTrace>>), GrpcStatus> {
    let CompleteMessage {
        head,
        charge,
        raws,
        ensured,
    } = arrived;
    let parts = (raws, typed, wait, reservation_of(ensured));
    try_submit(shard, &head, charge, parts, sender, deadline_ns)
        .inspect_err(|status| note_refusal(&head, status))
}

pub(super) fn note_refusal(head: &[u8], status: &GrpcStatus) {
    let id = InferTarget::read(head).map_or("", |target| target.id);
    api::note_refusal(id, &status.message);
}

fn try_submit(
    shard: &Rc<Shard>,
    head: &[u8],
    mut charge: Charge,
    (raws, typed, wait, permits): RequestParts,
    sender: CallMetadata,
    deadline_ns: Option<u64>,
) -> Result<(SubmittedRequest, Option<Rc<CallTrace>>), GrpcStatus> {
    let permits = permits?;
    let (target, model, message) = read(shard, head)?;
    charge.shrink(kept_bytes(head, &message));
    if model.config.is_decoupled {
        return Err(GrpcStatus::new(
            GrpcCode::Unimplemented,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    let call_trace = trace(shard, &model, &sender, wait);
    let (mut draft, class_counts) =
        draft::build(&model, regions::of(shard), &target, message, raws, typed)?;
    let classes = Classes::new(class_counts, &sender.budget);
    let tenant = sender.tenant;
    sender.sign(&mut draft)?;
    if let Some(call_trace) = &call_trace {
        call_trace.traced().attach(&mut draft, &model);
    }
    let options = SubmitOptions {
        version: parse_version(target.model_version)?,
        tenant,
        permits,
        deadline_ns,
    };
    let reply = shard.infer(&model, &mut draft, options)?;
    // The head is not needed while the request waits.
    let id = try_text(target.id)?;
    let submitted = SubmittedRequest {
        reply,
        id,
        classes,
        call_trace: call_trace.clone(),
        _charge: charge,
    };
    Ok((submitted, call_trace))
}

/// How much of the head lives on in texts: its id, parameters and names. Typed contents do as
/// tensors, which are charged by themselves.
pub(super) fn kept_bytes(head: &[u8], message: &InferHead<'_>) -> u64 {
    let bytes = head.len() - message.contents_bytes();
    if bytes > KEPT_UNCHARGED_BYTES {
        bytes as u64
    } else {
        0
    }
}

/// The stations of a request to `model`, if it is to be traced.
pub(super) fn trace(
    shard: &Rc<Shard>,
    model: &ModelVersion,
    sender: &CallMetadata,
    wait: RequestWait,
) -> Option<Rc<CallTrace>> {
    let traced = shard.tracing.sample(&model.name, || sender.remote())?;
    Some(CallTrace::new(traced, wait))
}

/// What was reserved for a request before it is submitted, or why it must not be.
pub(super) fn reservation_of(
    ensured: Option<Box<Result<RequestPermits, GrpcStatus>>>,
) -> Result<RequestPermits, GrpcStatus> {
    ensured.map_or_else(|| Ok(RequestPermits::default()), |ensured| *ensured)
}

/// The parts of a request beside its head.
pub(super) type RequestParts = (
    SmallVec<[ByteView; 2]>,
    TypedTensors,
    RequestWait,
    Result<RequestPermits, GrpcStatus>,
);
