//! Admission: a draft that agrees with its model becomes a request.

use std::sync::Arc;

use conch_config::{ResolvedConfig, Scheduling};
use conch_memory::try_text;
use conch_scheduler::SchedulingParams;
use conch_sync::{Claim, NEVER_NS};

use crate::admission::sequence;
use crate::admission::shm_completion::ShmCompletion;
use crate::clock::monotonic_ns;
use crate::request::ensemble_run::StepGuard;
use crate::request::observer::ReleaseGuard;
use crate::request::request_log;
use crate::request::trace::TraceActivity;
use crate::validation::draft::{CheckedDraft, examine};
use crate::{
    Completion, Draft, Error, InFlightPermit, Input, ModelVersion, PendingPermit, Request,
    RequestContext, RequestFeatures, RequestHandle, RequestInputs, Timestamps,
};

/// Checks `draft` against the model of `permit` and reserves its place among the waiting; the
/// handle is ready for [`ModelVersion::submit`]. The draft is used up, but stays where it is, as it
/// is large.
///
/// The answer goes to `completion` under `slot`, unless this or the submission fails.
/// `timestamps.queue_start_ns` is set here.
///
/// # Errors
/// INVALID_ARG in upstream's words for what does not agree; UNAVAILABLE if its queue policy's bound
/// is reached.
pub fn admit(
    permit: InFlightPermit,
    draft: &mut Draft<'_>,
    completion: &Arc<dyn Completion>,
    slot: u64,
    timestamps: Timestamps,
) -> Result<RequestHandle, Error> {
    check_and_reserve(permit, draft, completion, slot, timestamps, None)
}

/// [`admit`] for a step of an ensemble's request, which is kept until that of the step is
/// given back.
///
/// # Errors
/// As [`admit`].
pub(crate) fn admit_step(
    permit: InFlightPermit,
    draft: &mut Draft<'_>,
    completion: &Arc<dyn Completion>,
    slot: u64,
    timestamps: Timestamps,
    hold: StepGuard,
) -> Result<RequestHandle, Error> {
    check_and_reserve(permit, draft, completion, slot, timestamps, Some(hold))
}

fn check_and_reserve(
    permit: InFlightPermit,
    draft: &mut Draft<'_>,
    completion: &Arc<dyn Completion>,
    slot: u64,
    mut timestamps: Timestamps,
    step: Option<StepGuard>,
) -> Result<RequestHandle, Error> {
    let model: &Arc<ModelVersion> = &permit;
    let config = &*model.config;
    let mut inputs = RequestInputs::new();
    let CheckedDraft {
        indices,
        requested_outputs,
        batch_size,
    } = examine(model, draft, &mut inputs)?;

    let membership = sequence::check(model, draft, batch_size)?;
    timestamps.queue_start_ns = monotonic_ns();
    let facts = SchedulingParams {
        batch_count: batch_size.max(1),
        level: level(config, draft.priority),
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
    let first_response = model.statistics.first_response(timestamps.request_start_ns);
    draft.features.begin(first_response, &timestamps);
    let completion = path_to(completion, model, &mut draft.features, &inputs);
    // What the response cache answers needs no place in the queue.
    let place = match draft.features.deposit {
        Some(_) => None,
        None => Some(PendingPermit::enter(model, draft.id, facts.level)?),
    };
    // An ensemble's is its steps' models' to interpret.
    let priority = match &config.scheduling {
        Scheduling::Ensemble => draft.priority,
        _ => facts.level,
    };
    let origin = RequestContext {
        model: permit,
        id: try_text(draft.id)?,
        completion,
        slot,
        features: std::mem::take(&mut draft.features),
        facts,
        member: membership,
    };
    let request = Request {
        correlation_id: std::mem::take(&mut draft.correlation_id),
        sequence_flags: draft.sequence_flags,
        priority,
        timeout_us: draft.timeout_us,
        parameters: std::mem::take(&mut draft.parameters),
        inputs,
        requested_outputs,
        batch_size,
        timestamps,
        states: None,
        is_null: false,
        return_guard: None,
        place,
        step,
        hold: ReleaseGuard::new(draft.observer.take()),
    };
    request_log::note_prepared(&origin, &request);
    if let Some(trace) = request.observer().and_then(|observer| observer.trace()) {
        trace.reach(TraceActivity::RequestStart, timestamps.request_start_ns);
        trace.reach(TraceActivity::QueueStart, timestamps.queue_start_ns);
        let budget = origin.features.budget.as_ref();
        trace.show_inputs(TraceActivity::TensorQueueInput, &request.inputs, budget);
    }
    Ok(Claim::new(origin, request))
}

/// The first that takes the request's deliveries: registered memory before the cache before the
/// response order before `completion`, as far as the request has them.
fn path_to(
    completion: &Arc<dyn Completion>,
    model: &ModelVersion,
    features: &mut RequestFeatures,
    inputs: &[Input],
) -> Arc<dyn Completion> {
    // A cache must not keep answers of requests in shared memory: between the look at a key and the
    // execution, or between the execution and the copy, the client could plant anything there for
    // others.
    let may_cache = features.regions.is_none() && !inputs.iter().any(Input::is_shared);
    let path = model.executor.response_path(completion, may_cache);
    features.turn = path.turn;
    features.deposit = path.deposit;
    match &features.regions {
        Some(regions) => Arc::new(ShmCompletion::new(&path.completion, regions)),
        None => path.completion,
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
