//! The door into a model: a [`Draft`] that agrees with the model's configuration becomes a
//! queued-to-be request.
//!
//! Every check of "Request validation in core", in upstream's order and words
//! (`core/src/infer_request.cc`, Normalize). Runs on whatever thread brings the request, blocks on
//! nothing, and allocates the claim (and the id's text) only.

mod plan;
mod raw;
mod tensor;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use conch_config::{ResolvedConfig, Scheduling};
use conch_memory::try_text;
use conch_scheduler::SchedulingParams;
use conch_sync::{Claim, NEVER_NS};
use smallvec::SmallVec;

use crate::clock::monotonic_ns;
use crate::ensemble::StepGuard;
use crate::model::{InFlightPermit, Rejected};
use crate::observer::ReleaseGuard;
use crate::order::OrderedCompletion;
use crate::queue::PendingPermit;
use crate::regions::ShmCompletion;
use crate::request::{
    CorrelationId, Draft, DraftInput, Input, Request, RequestContext, RequestHandle, Timestamps,
};
use crate::trace::TraceActivity;
use crate::{Completion, Error, ModelVersion, limits, request_log, sequence, truncated};

pub(crate) use plan::AdmissionPlan;
pub(crate) use tensor::byte_count;
pub use tensor::is_content_checked;

/// The longest textual correlation id, as upstream.
const CORRELATION_ID_CHARACTERS_MAX: usize = 128;

/// Unknown names among which duplicates are looked for; beyond it they are only called unknown.
const UNKNOWN_MAX: usize = 16;
/// Inputs of a request that a message names.
const NAMES_MAX: usize = 64;
/// Dimensions that a message shows; upstream's own bound is far below.
const DIMS_SHOWN_MAX: usize = 64;

/// Checks `draft` against `model` and reserves its places; the handle is ready for
/// [`ModelVersion::submit`].
///
/// The answer goes to `completion` under `slot`, unless this or the submission fails.
/// `timestamps.queue_start_ns` is set here.
///
/// # Errors
/// INVALID_ARG in upstream's words for what does not agree; UNAVAILABLE if the model has too many
/// live requests or its queue policy's bound is reached.
pub fn admit(
    model: &Arc<ModelVersion>,
    draft: Draft<'_>,
    completion: &Arc<dyn Completion>,
    slot: u64,
    timestamps: Timestamps,
) -> Result<RequestHandle, Error> {
    let permit = InFlightPermit::new(model).map_err(|why| refuse(model, &draft, why))?;
    admit_reserved(permit, draft, completion, slot, timestamps)
}

/// [`admit`] for who has a place among the model's live requests already.
///
/// # Errors
/// As [`admit`].
pub fn admit_reserved(
    permit: InFlightPermit,
    draft: Draft<'_>,
    completion: &Arc<dyn Completion>,
    slot: u64,
    timestamps: Timestamps,
) -> Result<RequestHandle, Error> {
    enter(permit, draft, completion, slot, timestamps, None)
}

/// [`admit_reserved`] for a step of an ensemble's request, which is kept until that of the step is
/// given back.
///
/// # Errors
/// As [`admit`].
pub(crate) fn admit_step(
    permit: InFlightPermit,
    draft: Draft<'_>,
    completion: &Arc<dyn Completion>,
    slot: u64,
    timestamps: Timestamps,
    hold: StepGuard,
) -> Result<RequestHandle, Error> {
    enter(permit, draft, completion, slot, timestamps, Some(hold))
}

fn enter(
    permit: InFlightPermit,
    mut draft: Draft<'_>,
    completion: &Arc<dyn Completion>,
    slot: u64,
    mut timestamps: Timestamps,
    step: Option<StepGuard>,
) -> Result<RequestHandle, Error> {
    let model: &Arc<ModelVersion> = &permit;
    let config = &*model.config;
    let Examined {
        indices,
        inputs,
        requested_outputs,
        batch_size,
    } = examine(model, &mut draft)?;

    let membership = sequence::check(model, &mut draft, batch_size)?;
    let level = level(config, draft.priority);
    timestamps.queue_start_ns = monotonic_ns();
    let facts = SchedulingParams {
        batch_count: batch_size.max(1),
        level,
        queued_ns: timestamps.queue_start_ns,
        timeout_us: draft.timeout_us,
        deadline_ns: match timestamps.deadline_ns {
            0 => NEVER_NS,
            deadline_ns => deadline_ns,
        },
        signature: model
            .plan
            .signature(config, &indices, &inputs, batch_size > 0)?,
    };
    // What the response cache answers needs no place in the queue. It must not keep answers of
    // requests in shared memory: between the look at a key and the execution, or between the
    // execution and the copy, the client could plant anything there for others.
    let member = model
        .cache
        .get()
        .filter(|_| draft.usage.is_none() && !inputs.iter().any(Input::is_shared));
    let place = match member {
        Some(_) => None,
        None => Some(PendingPermit::enter(model, draft.id, level)?),
    };
    let turn = model
        .order
        .as_ref()
        .map(|order| OrderedCompletion::new(order, completion));
    let mut completion = match &turn {
        Some(turn) => Arc::clone(turn) as Arc<dyn Completion>,
        None => Arc::clone(completion),
    };
    let deposit = member.map(|member| member.deposit(&completion));
    if let Some(deposit) = &deposit {
        completion = Arc::clone(deposit) as Arc<dyn Completion>;
    }
    if let Some(usage) = &draft.usage {
        completion = Arc::new(ShmCompletion::new(&completion, usage));
    }
    // An ensemble's is its steps' models' to interpret.
    let priority = match &config.scheduling {
        Scheduling::Ensemble => draft.priority,
        _ => level,
    };
    let origin = RequestContext {
        model: permit,
        id: try_text(draft.id)?,
        completion,
        slot,
        credits: draft.credits,
        takes_first: draft.takes_first,
        usage: draft.usage,
        budget: draft.budget,
        facts,
        member: membership,
        turn,
        deposit,
        run: OnceLock::new(),
    };
    let request = Request {
        correlation_id: draft.correlation_id,
        sequence_flags: draft.sequence_flags,
        priority,
        timeout_us: draft.timeout_us,
        parameters: draft.parameters,
        inputs,
        requested_outputs,
        batch_size,
        timestamps,
        states: None,
        is_null: false,
        return_guard: None,
        place,
        step,
        hold: ReleaseGuard::new(draft.observer),
    };
    request_log::note_prepared(&origin, &request);
    if let Some(trace) = request.observer().and_then(|observer| observer.trace()) {
        trace.reach(TraceActivity::RequestStart, timestamps.request_start_ns);
        trace.reach(TraceActivity::QueueStart, timestamps.queue_start_ns);
        trace.show_inputs(TraceActivity::TensorQueueInput, &request.inputs);
    }
    Ok(Claim::new(origin, request))
}

/// A draft that agrees with its model.
pub(crate) struct Examined {
    /// Of the inputs, among the configured ones.
    indices: SmallVec<[usize; 4]>,
    pub(crate) inputs: SmallVec<[Input; 4]>,
    /// As in [`Request`].
    pub(crate) requested_outputs: SmallVec<[u16; 4]>,
    /// As in [`Request`].
    pub(crate) batch_size: u32,
}

/// Checks `draft` against the configuration of `model`, and takes its inputs.
///
/// # Errors
/// INVALID_ARG in upstream's words.
#[inline]
pub(crate) fn examine(model: &Arc<ModelVersion>, draft: &mut Draft<'_>) -> Result<Examined, Error> {
    let config = &*model.config;
    let request = ModelName {
        model: &model.name,
        id: draft.id,
    };
    if let CorrelationId::Text(text) = &draft.correlation_id
        && text.chars().count() > CORRELATION_ID_CHARACTERS_MAX
    {
        return Err(Error::unsupported(format!(
            "string correlation ID cannot be longer than {CORRELATION_ID_CHARACTERS_MAX} characters"
        )));
    }
    let matched = match_inputs(&request, model, draft)?;
    let requested_outputs = match_outputs(&request, model, draft)?;
    if draft.is_raw {
        raw::deduce(&request, config, &mut draft.inputs)?;
    }
    requested_outputs.check(&request)?;
    matched.check(&request, model, draft)?;
    let batch_size = batch_size(&request, config, &matched, &draft.inputs)?;

    let mut inputs: SmallVec<[Input; 4]> = SmallVec::with_capacity(draft.inputs.len());
    for (input, index) in draft.inputs.drain(..).zip(&matched.indices) {
        let spec = config.inputs.get(*index).expect("matched above");
        let label = if draft.is_raw { raw::LABEL } else { &spec.name };
        inputs.push(tensor::check(
            &request, config, spec, label, batch_size, input,
        )?);
    }
    Ok(Examined {
        indices: matched.indices,
        inputs,
        requested_outputs: requested_outputs.indices,
        batch_size,
    })
}

/// What messages name: the model and the request.
pub(crate) struct ModelName<'a> {
    model: &'a str,
    id: &'a str,
}

impl ModelName<'_> {
    /// INVALID_ARG, with the request's id in front.
    fn invalid(&self, message: impl fmt::Display) -> Error {
        Error::invalid(format!("{}{message}", RequestIdPrefix(self.id)))
    }
}

/// The words with which upstream begins messages that name a request.
pub struct RequestIdPrefix<'a>(pub &'a str);

impl fmt::Display for RequestIdPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = if self.0.is_empty() {
            "<id_unknown>"
        } else {
            self.0
        };
        write!(f, "[request id: {}] ", truncated(id))
    }
}

/// Dimensions as upstream prints them: `[-1,16]`.
pub(crate) struct Dims<'a>(pub(crate) &'a [i64]);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dim) in self.0.iter().take(DIMS_SHOWN_MAX).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{dim}")?;
        }
        if self.0.len() > DIMS_SHOWN_MAX {
            f.write_str(",...")?;
        }
        f.write_str("]")
    }
}

/// Why no place was to be had, for the client. The model counts who was one too many.
pub fn refuse(model: &ModelVersion, draft: &Draft<'_>, why: Rejected) -> Error {
    match why {
        Rejected::Full => full(draft.id),
        Rejected::Crowded => {
            let who = format_args!("model '{}'", model.name);
            limits::refusal(model, draft.id, &who, model.requests_max())
        }
        Rejected::Retired => Error::unavailable(format!(
            "Request for unknown model: '{}' version {} is not at ready state",
            model.name, model.version
        )),
    }
}

/// The refusal of request `id` for want of a place. Not counted as a failure, as upstream counts
/// none that was never queued.
pub(crate) fn full(id: &str) -> Error {
    Error::unavailable(format!("{}Exceeds maximum queue size", RequestIdPrefix(id)))
}

/// A set of small numbers.
#[derive(Default)]
struct SeenInputs(SmallVec<[u64; 2]>);

impl SeenInputs {
    fn with_capacity(count: usize) -> SeenInputs {
        SeenInputs(SmallVec::from_elem(0, count.div_ceil(64)))
    }

    /// False if it was there already.
    fn insert(&mut self, index: usize) -> bool {
        let Some(word) = self.0.get_mut(index / 64) else {
            return false;
        };
        let bit = 1 << (index % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn contains(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| word & (1 << (index % 64)) != 0)
    }
}

/// The configured inputs that a draft's inputs belong to.
struct MatchedInputs {
    /// As long as the draft's inputs, unless one is unknown.
    indices: SmallVec<[usize; 4]>,
    seen: SeenInputs,
    unknown: SmallVec<[usize; 4]>,
}

/// # Errors
/// Duplicates; what else is wrong is kept for [`MatchedInputs::check`], which upstream does later.
fn match_inputs(
    request: &ModelName<'_>,
    model: &ModelVersion,
    draft: &Draft<'_>,
) -> Result<MatchedInputs, Error> {
    let config = &*model.config;
    let mut matched = MatchedInputs {
        indices: SmallVec::new(),
        seen: SeenInputs::with_capacity(config.inputs.len()),
        unknown: SmallVec::new(),
    };
    if draft.is_raw {
        if config.inputs.len() == 1 && draft.inputs.len() == 1 {
            matched.seen.insert(0);
            matched.indices.push(0);
        }
        return Ok(matched);
    }
    for (position, input) in draft.inputs.iter().enumerate() {
        let is_new = match model.plan.input_index(config, input.name) {
            Some(index) => {
                matched.indices.push(index);
                matched.seen.insert(index)
            }
            None => {
                let is_new = matched
                    .unknown
                    .iter()
                    .all(|other| draft.inputs[*other].name != input.name);
                if matched.unknown.len() < UNKNOWN_MAX {
                    matched.unknown.push(position);
                }
                is_new
            }
        };
        if !is_new {
            return Err(request.invalid(format_args!(
                "input '{}' already exists in request",
                input.name
            )));
        }
    }
    Ok(matched)
}

impl MatchedInputs {
    /// # Errors
    /// A wrong count, then an unknown input.
    fn check(
        &self,
        request: &ModelName<'_>,
        model: &ModelVersion,
        draft: &Draft<'_>,
    ) -> Result<(), Error> {
        let config = &*model.config;
        let (count, required, configured) = (
            draft.inputs.len(),
            model.plan.required_count,
            config.inputs.len(),
        );
        if count < required || count > configured {
            return Err(request.invalid(self.wrong_count(request, config, draft, required)));
        }
        if let Some(position) = self.unknown.first() {
            let name = draft.inputs[*position].name;
            return Err(Error::invalid(format!(
                "unexpected inference input '{name}' for model '{}'",
                request.model,
                name = truncated(&name)
            )));
        }
        Ok(())
    }

    fn wrong_count(
        &self,
        request: &ModelName<'_>,
        config: &ResolvedConfig,
        draft: &Draft<'_>,
        required: usize,
    ) -> String {
        let quote = |name: &str| format!("'{name}'", name = truncated(&name));
        let given = draft.inputs.iter().map(|input| quote(input.name));
        let mut got: Vec<String> = given.take(NAMES_MAX).collect();
        if draft.inputs.len() > NAMES_MAX {
            got.push("...".to_owned());
        }
        let missing: Vec<String> = config
            .inputs
            .iter()
            .enumerate()
            .filter(|(index, spec)| !spec.is_optional && !self.seen.contains(*index))
            .map(|(_, spec)| quote(&spec.name))
            .collect();
        // With nothing missing upstream cuts off the opening bracket.
        let missing = if missing.is_empty() {
            "]".into()
        } else {
            format!("[{}]", missing.join(","))
        };
        let expected = if required == config.inputs.len() {
            format!("expected {required} inputs")
        } else {
            format!(
                "expected number of inputs between {required} and {}",
                config.inputs.len()
            )
        };
        format!(
            "{expected} but got {} inputs for model '{}'. Got input(s) [{}], but missing required input(s) {missing}. \
             Please provide all required input(s).",
            draft.inputs.len(),
            request.model,
            got.join(",")
        )
    }
}

struct MatchedOutputs<'a> {
    indices: SmallVec<[u16; 4]>,
    unknown: SmallVec<[&'a str; 1]>,
}

/// # Errors
/// Duplicates; unknown ones are kept for [`MatchedOutputs::check`].
fn match_outputs<'a>(
    request: &ModelName<'_>,
    model: &ModelVersion,
    draft: &Draft<'a>,
) -> Result<MatchedOutputs<'a>, Error> {
    let config = &*model.config;
    let mut matched = MatchedOutputs {
        indices: SmallVec::new(),
        unknown: SmallVec::new(),
    };
    let mut seen = SeenInputs::with_capacity(if draft.requested_outputs.is_empty() {
        0
    } else {
        config.outputs.len()
    });
    for name in &draft.requested_outputs {
        let is_new = match model.plan.output_index(config, name) {
            Some(index) => {
                // A configuration has far fewer outputs than 65,536; one beyond is never reached by
                // its name.
                matched
                    .indices
                    .push(u16::try_from(index).unwrap_or(u16::MAX));
                seen.insert(index)
            }
            None => {
                let is_new = !matched.unknown.contains(name);
                if matched.unknown.len() < UNKNOWN_MAX {
                    matched.unknown.push(name);
                }
                is_new
            }
        };
        if !is_new {
            return Err(request.invalid(format_args!(
                "output '{name}' already exists in request",
                name = truncated(&name)
            )));
        }
    }
    // Backends answer in the order in which they are asked, so clients see it.
    matched.indices.sort_unstable_by_key(|index| {
        let spec = config.outputs.get(usize::from(*index));
        spec.map(|spec| &*spec.name)
    });
    Ok(matched)
}

impl MatchedOutputs<'_> {
    fn check(&self, request: &ModelName<'_>) -> Result<(), Error> {
        match self.unknown.first() {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "unexpected inference output '{name}' for model '{}'",
                request.model,
                name = truncated(&name)
            ))),
        }
    }
}

/// The leading dimension that all inputs of a batching model share; 0 without batching.
fn batch_size(
    request: &ModelName<'_>,
    config: &ResolvedConfig,
    matched: &MatchedInputs,
    inputs: &[DraftInput<'_>],
) -> Result<u32, Error> {
    if !config.is_batching() {
        return Ok(0);
    }
    let mut batch_size = 0_i64;
    for (input, index) in inputs.iter().zip(&matched.indices) {
        let spec = config.inputs.get(*index).expect("matched before");
        if spec.is_shape_tensor {
            continue;
        }
        let Some(first) = input.shape.first() else {
            return Err(request.invalid(format_args!(
                "input '{}' has no shape but model requires batch dimension for '{}'",
                spec.name, request.model
            )));
        };
        if batch_size == 0 {
            batch_size = *first;
        } else if *first != batch_size {
            return Err(request.invalid(format_args!(
                "input '{}' batch size does not match other inputs for '{}'",
                spec.name, request.model
            )));
        }
    }
    match u32::try_from(batch_size) {
        Ok(batch_size) if batch_size <= config.max_batch_size => Ok(batch_size),
        // A negative one is, as in upstream's unsigned arithmetic, too large.
        _ => Err(request.invalid(format_args!(
            "inference request batch-size must be <= {} for '{}'",
            config.max_batch_size, request.model
        ))),
    }
}

/// The level that a request's priority means.
fn level(config: &ResolvedConfig, priority: u64) -> u64 {
    match &config.scheduling {
        Scheduling::Dynamic(settings) if settings.priority_levels > 0 => {
            if (1..=settings.priority_levels).contains(&priority) {
                priority
            } else {
                settings.default_priority_level
            }
        }
        _ => 0,
    }
}
