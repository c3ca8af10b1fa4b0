//! ModelInfer: from the message's bytes to the engine and back.
//!
//! [`reader`] splits the message as it arrives, [`message`] reads its head, [`contents`] converts
//! typed tensors, [`draft`] makes the engine's request of it all, [`response`] encodes the answer.
//! ModelStreamInfer has the same messages, many of them.

mod contents;
mod draft;
mod message;
mod reader;
mod region;
mod response;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use conch_engine::{Credits, Draft, Error, ModelVersion, Response, Tenant};
use conch_memory::{Budget, BudgetExhausted, ByteView, Charge, try_text};

use message::{InferHead, InferTarget};
use smallvec::SmallVec;

use super::status::{GrpcCode, GrpcStatus};
use super::stream::StreamSetup;
use super::trace::{CallTrace, RequestWait};
use crate::api::Classes;
use crate::api::regions;
use crate::forward::{self, ForwardedHeaders};
use crate::shard::{EnsuredModel, ModelLease, ResponseFuture, ResponseQueue, Shard, StreamRequest};

pub(super) use reader::{CompleteMessage, MessageReader, ReadFault};
pub(super) use response::{Pieces, encode, encode_failure, encode_streamed};

/// How upstream prints a data type that it does not know.
const INVALID_DATA_TYPE: &str = "<invalid>";
/// Texts up to this size are not charged while their request waits: requests in flight are bounded.
const KEPT_UNCHARGED_BYTES: usize = 4 << 10;

/// What the head of a call says of who sends its requests.
#[derive(Clone)]
pub(super) struct CallMetadata {
    pub(super) forwarded: ForwardedHeaders,
    pub(super) tenant: Option<Tenant>,
    /// What its bytes are charged to.
    pub(super) budget: Arc<Budget>,
}

impl CallMetadata {
    /// Adds it to a request.
    ///
    /// # Errors
    /// For metadata that cannot be forwarded.
    fn sign(self, draft: &mut Draft<'_>) -> Result<(), Error> {
        draft.tenant = self.tenant;
        draft.budget = Some(self.budget);
        forward::attach(self.forwarded, &mut draft.parameters)
    }
}

/// A request in the engine's hands.
pub(super) struct SubmittedRequest {
    pub(super) reply: ResponseFuture,
    /// To be repeated in the response.
    pub(super) id: Box<str>,
    pub(super) classes: Classes,
    pub(super) call_trace: Option<Rc<CallTrace>>,
    /// For what is kept of the head.
    _charge: Charge,
}

/// Tensors made of typed contents, or copied from registered memory, in order; the last may be the
/// reason why there are no more.
pub(super) type TypedTensors = Vec<Result<ByteView, GrpcStatus>>;

/// Converts the inputs' typed contents and copies what must not be read in registered memory, if
/// there is any. Yields between slices.
///
/// A step of its own because only this one may have to wait: what is read from the head is large,
/// and no call keeps it. What else is wrong with the message is for [`submit`] to tell, which reads
/// it again.
pub(super) async fn convert(
    shard: &Rc<Shard>,
    budget: &Arc<Budget>,
    arrived: &CompleteMessage,
) -> TypedTensors {
    let has_raws = !arrived.raws.is_empty();
    let may_use_regions = regions::of(shard).is_enabled() && region::is_mentioned(&arrived.head);
    if has_raws && !may_use_regions {
        // Typed contents beside raw ones are an error, whatever they hold.
        return TypedTensors::new();
    }
    arrived.charge.settle();
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

/// Has the model brought in that a message names, where models come when they are asked for; the
/// message keeps it, or why it does not come.
pub(super) async fn ensure_loaded(shard: &Rc<Shard>, arrived: &mut CompleteMessage) {
    let Ok(target) = InferTarget::read(&arrived.head) else {
        return;
    };
    let Ok(version) = crate::api::parse_version(target.model_version) else {
        return;
    };
    let lease = match shard.ensure_loaded(target.model_name, version) {
        Ok(EnsuredModel::Here(lease)) => Ok(lease),
        Ok(EnsuredModel::Coming(coming)) => coming.await,
        Err(error) => Err(error),
    };
    arrived.ensured = Some(Box::new(lease.map_err(GrpcStatus::from)));
}

/// Reads `head`, and finds the model that it names.
fn read<'a>(
    shard: &Rc<Shard>,
    head: &'a [u8],
) -> Result<(InferTarget<'a>, Arc<ModelVersion>, InferHead<'a>), GrpcStatus> {
    let target = InferTarget::read(head).map_err(|_| GrpcStatus::unparsable())?;
    let version = crate::api::parse_version(target.model_version)?;
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
pub(super) fn submit(
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
    let lease = ensured.map_or(Ok(None), |ensured| *ensured);
    let given = (raws, typed, wait, lease);
    try_submit(shard, &head, charge, given, sender, deadline_ns)
        .inspect_err(|status| note_refusal(&head, status))
}

fn note_refusal(head: &[u8], status: &GrpcStatus) {
    let id = InferTarget::read(head).map_or("", |target| target.id);
    crate::api::note_refusal(id, &status.message);
}

fn try_submit(
    shard: &Rc<Shard>,
    head: &[u8],
    mut charge: Charge,
    (raws, typed, wait, lease): StreamInput,
    sender: CallMetadata,
    deadline_ns: Option<u64>,
) -> Result<(SubmittedRequest, Option<Rc<CallTrace>>), GrpcStatus> {
    let lease = lease?;
    let (target, model, message) = read(shard, head)?;
    charge.shrink(kept_bytes(head, &message));
    if model.config.is_decoupled {
        return Err(GrpcStatus::new(
            GrpcCode::Unimplemented,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    let call_trace = trace(shard, &model, wait);
    let (mut draft, class_counts) =
        draft::build(&model, regions::of(shard), &target, message, raws, typed)?;
    let classes = Classes::new(class_counts, &sender.budget);
    sender.sign(&mut draft)?;
    draft.lease = lease;
    if let Some(call_trace) = &call_trace {
        draft.observer = Some(call_trace.traced().observer(&model, target.id));
    }
    let version = crate::api::parse_version(target.model_version)?;
    let reply = shard.infer(&model, version, draft, deadline_ns)?;
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
fn kept_bytes(head: &[u8], message: &InferHead<'_>) -> u64 {
    let bytes = head.len() - message.contents_bytes();
    if bytes > KEPT_UNCHARGED_BYTES {
        bytes as u64
    } else {
        0
    }
}

/// The stations of a request to `model`, if it is to be traced.
fn trace(shard: &Rc<Shard>, model: &ModelVersion, wait: RequestWait) -> Option<Rc<CallTrace>> {
    let traced = shard.tracing.sample(&model.name)?;
    Some(CallTrace::new(traced, wait))
}

/// An encoded response, or what will be one.
pub(super) enum EncodedResponse {
    Ready(Pieces),
    /// It takes too long for a shard. Boxed: rare, and would make every call larger.
    Later(Pin<Box<dyn Future<Output = Result<Pieces, GrpcStatus>>>>),
}

/// Encodes the response to the unary request `id`.
///
/// # Errors
/// As [`encode`].
pub(super) fn answer(
    shard: &Rc<Shard>,
    response: Response,
    id: Box<str>,
    classes: Classes,
) -> Result<EncodedResponse, GrpcStatus> {
    if !classes.is_long(&response) {
        return encode(response, &id, &classes).map(EncodedResponse::Ready);
    }
    let shard = Rc::clone(shard);
    let cost_bytes = response.byte_size();
    let work = move || encode(response, &id, &classes);
    Ok(EncodedResponse::Later(Box::pin(async move {
        shard.offload(cost_bytes, work).await
    })))
}

/// A request of a stream: in the engine's hands, or why it is not.
pub(super) struct StreamedRequest<F = StreamRequest> {
    pub(super) flight: Result<F, GrpcStatus>,
    /// To be repeated in responses: texts as the client sent them.
    pub(super) id: Box<str>,
    pub(super) model_name: Box<str>,
    pub(super) model_version: Box<str>,
    pub(super) is_decoupled: bool,
    /// Its model preserves the order of its requests.
    pub(super) is_ordered: bool,
    /// `triton_enable_empty_final_response`.
    pub(super) wants_empty_final: bool,
    pub(super) classes: Classes,
    pub(super) call_trace: Option<Rc<CallTrace>>,
    /// For what is kept of the message; none in tests.
    pub(super) charge: Option<Charge>,
}

/// [`submit`] for a request of a stream; what is delivered for it goes to `responses`.
///
/// # Errors
/// The message is no protobuf message. All else that can be wrong concerns this request only.
pub(super) fn submit_streamed(
    shard: &Rc<Shard>,
    arrived: CompleteMessage,
    typed: TypedTensors,
    terms: &StreamSetup,
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
    let lease = ensured.map_or(Ok(None), |ensured| *ensured);
    let given = (raws, typed, wait, lease);
    streamed.flight = begin_streamed(shard, &head, given, terms, responses, &mut streamed)
        .inspect_err(|status| note_refusal(&head, status));
    Ok(streamed)
}

/// What a request of a stream is made of, beside its head.
type StreamInput = (
    SmallVec<[ByteView; 2]>,
    TypedTensors,
    RequestWait,
    Result<ModelLease, GrpcStatus>,
);

fn begin_streamed(
    shard: &Rc<Shard>,
    head: &[u8],
    (raws, typed, wait, lease): StreamInput,
    terms: &StreamSetup,
    responses: &Rc<ResponseQueue>,
    streamed: &mut StreamedRequest,
) -> Result<StreamRequest, GrpcStatus> {
    if shard.is_draining() {
        return Err(GrpcStatus::shutting_down());
    }
    let lease = lease?;
    let (target, model, message) = read(shard, head)?;
    if let Some(charge) = &mut streamed.charge {
        charge.shrink(kept_bytes(head, &message));
    }
    streamed.is_decoupled = model.config.is_decoupled;
    streamed.is_ordered = model.preserves_order();
    streamed.wants_empty_final = draft::wants_empty_final(&message);
    streamed.call_trace = trace(shard, &model, wait);
    let (mut draft, class_counts) =
        draft::build(&model, regions::of(shard), &target, message, raws, typed)?;
    terms.sender.clone().sign(&mut draft)?;
    draft.lease = lease;
    if let Some(call_trace) = &streamed.call_trace {
        draft.observer = Some(call_trace.traced().observer(&model, target.id));
    }
    streamed.classes = Classes::new(class_counts, &terms.sender.budget);
    draft.takes_first = true;
    if model.config.is_decoupled {
        draft.credits = Some(Arc::new(Credits::new(
            shard.server.backlog(),
            &terms.sender.budget,
        )));
    }
    let version = crate::api::parse_version(target.model_version)?;
    Ok(shard.infer_into(responses, &model, version, draft, terms.deadline_ns)?)
}

/// The refusal when the process holds as many request bytes as it may.
pub(super) fn exhausted(exhausted: BudgetExhausted) -> GrpcStatus {
    let BudgetExhausted { limit_bytes, .. } = exhausted;
    GrpcStatus::new(
        GrpcCode::ResourceExhausted,
        format!(
            "the server's limit of {limit_bytes} bytes for requests is reached (--memory-limit-bytes)"
        ),
    )
}

impl From<ReadFault> for GrpcStatus {
    fn from(fault: ReadFault) -> GrpcStatus {
        match fault {
            ReadFault::Malformed => GrpcStatus::unparsable(),
            ReadFault::TooManyFields => {
                GrpcStatus::new(GrpcCode::InvalidArgument, "the request has too many fields")
            }
            ReadFault::Exhausted(spent) => exhausted(spent),
            ReadFault::OutOfMemory(refused) => refused.into(),
        }
    }
}
