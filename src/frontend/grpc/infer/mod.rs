//! ModelInfer: from the message's bytes to the engine and back.
//!
//! [`reader`] splits the message as it arrives, [`message`] reads its head, [`contents`] converts typed tensors, [`draft`] makes the
//! engine's request of it all, [`response`] encodes the answer. ModelStreamInfer has the same messages, many of them.

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
use conch_memory::{Budget, Charge, Exhausted, View, try_text};

use message::{Message, Target};
use smallvec::SmallVec;

use super::status::{Code, Status};
use super::stream::Terms;
use super::trace::{Stations, Wait};
use crate::api::Classes;
use crate::api::regions;
use crate::forward::{self, Forwarded};
use crate::shard::{Flight, Lease, Reply, Shard, Summoned, Tray};

pub(super) use reader::{Arrived, Fault, Reader};
pub(super) use response::{Pieces, encode, encode_failure, encode_streamed};

/// How upstream prints a data type that it does not know.
const INVALID_DATA_TYPE: &str = "<invalid>";
/// Texts up to this size are not charged while their request waits: requests in flight are bounded.
const KEPT_UNCHARGED_BYTES: usize = 4 << 10;

/// What the head of a call says of who sends its requests.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) forwarded: Forwarded,
    pub(super) tenant: Option<Tenant>,
    /// What its bytes are charged to.
    pub(super) budget: Arc<Budget>,
}

impl Sender {
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
pub(super) struct Submitted {
    pub(super) reply: Reply,
    /// To be repeated in the response.
    pub(super) id: Box<str>,
    pub(super) classes: Classes,
    pub(super) stations: Option<Rc<Stations>>,
    /// For what is kept of the head.
    _charge: Charge,
}

/// Tensors made of typed contents, or copied from registered memory, in order; the last may be the reason why there are no more.
pub(super) type Typed = Vec<Result<View, Status>>;

/// Converts the inputs' typed contents and copies what must not be read in registered memory, if there is any. Yields between slices.
///
/// A step of its own because only this one may have to wait: what is read from the head is large, and no call keeps it. What else is
/// wrong with the message is for [`submit`] to tell, which reads it again.
pub(super) async fn convert(shard: &Rc<Shard>, budget: &Arc<Budget>, arrived: &Arrived) -> Typed {
    let has_raws = !arrived.raws.is_empty();
    let may_use_regions = regions::of(shard).is_enabled() && region::is_mentioned(&arrived.head);
    if has_raws && !may_use_regions {
        // Typed contents beside raw ones are an error, whatever they hold.
        return Typed::new();
    }
    arrived.charge.settle();
    // Boxed: its state is large, and most calls never need it.
    Box::pin(async move {
        match read(shard, &arrived.head) {
            Ok((target, model, message)) => {
                let stores = (&**shard, budget);
                draft::convert(stores, &model, &target, &message, has_raws).await
            }
            Err(_) => Typed::new(),
        }
    })
    .await
}

/// Has the model brought in that a message names, where models come when they are asked for; the message keeps it, or why it does not come.
pub(super) async fn summon(shard: &Rc<Shard>, arrived: &mut Arrived) {
    let Ok(target) = Target::read(&arrived.head) else {
        return;
    };
    let Ok(version) = crate::api::parse_version(target.model_version) else {
        return;
    };
    let lease = match shard.summon(target.model_name, version) {
        Ok(Summoned::Here(lease)) => Ok(lease),
        Ok(Summoned::Coming(coming)) => coming.await,
        Err(error) => Err(error),
    };
    arrived.summoned = Some(Box::new(lease.map_err(Status::from)));
}

/// Reads `head`, and finds the model that it names.
fn read<'a>(
    shard: &Rc<Shard>,
    head: &'a [u8],
) -> Result<(Target<'a>, Arc<ModelVersion>, Message<'a>), Status> {
    let target = Target::read(head).map_err(|_| Status::unparsable())?;
    let version = crate::api::parse_version(target.model_version)?;
    let model = shard.find(target.model_name, version)?;
    // One more than the model has: enough for `admit` to find what is wrong with them.
    let (inputs_max, outputs_max) = (
        model.config.inputs.len() + 1,
        model.config.outputs.len() + 1,
    );
    let message = Message::read(head, inputs_max, outputs_max)?;
    Ok((target, model, message))
}

/// Checks the request and hands it to the engine. `typed` comes from [`convert`]. The stations are those of the request, for who sends its
/// response.
pub(super) fn submit(
    shard: &Rc<Shard>,
    arrived: Arrived,
    typed: Typed,
    sender: Sender,
    deadline_ns: Option<u64>,
    wait: Wait,
) -> Result<(Submitted, Option<Rc<Stations>>), Status> {
    let Arrived {
        head,
        charge,
        raws,
        summoned,
    } = arrived;
    let lease = summoned.map_or(Ok(None), |summoned| *summoned);
    let given = (raws, typed, wait, lease);
    try_submit(shard, &head, charge, given, sender, deadline_ns)
        .inspect_err(|status| note_refusal(&head, status))
}

fn note_refusal(head: &[u8], status: &Status) {
    let id = Target::read(head).map_or("", |target| target.id);
    crate::api::note_refusal(id, &status.message);
}

fn try_submit(
    shard: &Rc<Shard>,
    head: &[u8],
    mut charge: Charge,
    (raws, typed, wait, lease): Given,
    sender: Sender,
    deadline_ns: Option<u64>,
) -> Result<(Submitted, Option<Rc<Stations>>), Status> {
    let lease = lease?;
    let (target, model, message) = read(shard, head)?;
    charge.shrink(kept_bytes(head, &message));
    if model.config.is_decoupled {
        return Err(Status::new(
            Code::Unimplemented,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    let stations = trace(shard, &model, wait);
    let (mut draft, class_counts) =
        draft::build(&model, regions::of(shard), &target, message, raws, typed)?;
    let classes = Classes::new(class_counts, &sender.budget);
    sender.sign(&mut draft)?;
    draft.lease = lease;
    if let Some(stations) = &stations {
        draft.asker = Some(stations.traced().asker(&model, target.id));
    }
    let version = crate::api::parse_version(target.model_version)?;
    let reply = shard.infer(&model, version, draft, deadline_ns)?;
    // The head is not needed while the request waits.
    let id = try_text(target.id)?;
    let submitted = Submitted {
        reply,
        id,
        classes,
        stations: stations.clone(),
        _charge: charge,
    };
    Ok((submitted, stations))
}

/// How much of the head lives on in texts: its id, parameters and names. Typed contents do as tensors, which are charged by themselves.
fn kept_bytes(head: &[u8], message: &Message<'_>) -> u64 {
    let bytes = head.len() - message.contents_bytes();
    if bytes > KEPT_UNCHARGED_BYTES {
        bytes as u64
    } else {
        0
    }
}

/// The stations of a request to `model`, if it is to be traced.
fn trace(shard: &Rc<Shard>, model: &ModelVersion, wait: Wait) -> Option<Rc<Stations>> {
    let traced = shard.tracing.sample(&model.name)?;
    Some(Stations::new(traced, wait))
}

/// An encoded response, or what will be one.
pub(super) enum Encoded {
    Ready(Pieces),
    /// It takes too long for a shard. Boxed: rare, and would make every call larger.
    Later(Pin<Box<dyn Future<Output = Result<Pieces, Status>>>>),
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
) -> Result<Encoded, Status> {
    if !classes.is_long(&response) {
        return encode(response, &id, &classes).map(Encoded::Ready);
    }
    let shard = Rc::clone(shard);
    let cost_bytes = response.byte_size();
    let work = move || encode(response, &id, &classes);
    Ok(Encoded::Later(Box::pin(async move {
        shard.offload(cost_bytes, work).await
    })))
}

/// A request of a stream: in the engine's hands, or why it is not.
pub(super) struct Streamed<F = Flight> {
    pub(super) flight: Result<F, Status>,
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
    pub(super) stations: Option<Rc<Stations>>,
    /// For what is kept of the message; none in tests.
    pub(super) charge: Option<Charge>,
}

/// [`submit`] for a request of a stream; what is delivered for it goes to `tray`.
///
/// # Errors
/// The message is no protobuf message. All else that can be wrong concerns this request only.
pub(super) fn submit_streamed(
    shard: &Rc<Shard>,
    arrived: Arrived,
    typed: Typed,
    terms: &Terms,
    tray: &Rc<Tray>,
    wait: Wait,
) -> Result<Streamed, Status> {
    let Arrived {
        head,
        charge,
        raws,
        summoned,
    } = arrived;
    let target = Target::read(&head).map_err(|_| Status::unparsable())?;
    let mut streamed = Streamed {
        flight: Err(Status::unparsable()),
        id: try_text(target.id)?,
        model_name: try_text(target.model_name)?,
        model_version: try_text(target.model_version)?,
        is_decoupled: false,
        is_ordered: false,
        wants_empty_final: false,
        classes: Classes::default(),
        stations: None,
        charge: Some(charge),
    };
    let lease = summoned.map_or(Ok(None), |summoned| *summoned);
    let given = (raws, typed, wait, lease);
    streamed.flight = begin_streamed(shard, &head, given, terms, tray, &mut streamed)
        .inspect_err(|status| note_refusal(&head, status));
    Ok(streamed)
}

/// What a request of a stream is made of, beside its head.
type Given = (SmallVec<[View; 2]>, Typed, Wait, Result<Lease, Status>);

fn begin_streamed(
    shard: &Rc<Shard>,
    head: &[u8],
    (raws, typed, wait, lease): Given,
    terms: &Terms,
    tray: &Rc<Tray>,
    streamed: &mut Streamed,
) -> Result<Flight, Status> {
    if shard.is_draining() {
        return Err(Status::shutting_down());
    }
    let lease = lease?;
    let (target, model, message) = read(shard, head)?;
    if let Some(charge) = &mut streamed.charge {
        charge.shrink(kept_bytes(head, &message));
    }
    streamed.is_decoupled = model.config.is_decoupled;
    streamed.is_ordered = model.preserves_order();
    streamed.wants_empty_final = draft::wants_empty_final(&message);
    streamed.stations = trace(shard, &model, wait);
    let (mut draft, class_counts) =
        draft::build(&model, regions::of(shard), &target, message, raws, typed)?;
    terms.sender.clone().sign(&mut draft)?;
    draft.lease = lease;
    if let Some(stations) = &streamed.stations {
        draft.asker = Some(stations.traced().asker(&model, target.id));
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
    Ok(shard.infer_into(tray, &model, version, draft, terms.deadline_ns)?)
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
            Fault::OutOfMemory(refused) => refused.into(),
        }
    }
}
