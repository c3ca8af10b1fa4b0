//! Errors of requests that get no place in their model.

use std::fmt;
use std::sync::Arc;

use crate::limits::{AdmissionLimits, LimitReached, Permit, Tenant};
use crate::model::stats::FailureReason;
use crate::request::messages::{RequestIdPrefix, full};
use crate::{Error, ModelVersion, Rejected};

/// Why no place was to be had, for the client. The model counts who was one too many.
pub fn refuse(model: &ModelVersion, id: &str, why: Rejected) -> Error {
    match why {
        Rejected::Full => full(id),
        Rejected::OverModelLimit => {
            let who = format_args!("model '{}'", model.name);
            refusal(model, id, &who, model.requests_max())
        }
        Rejected::Retired => Error::unavailable(format!(
            "Request for unknown model: '{}' version {} is not at ready state",
            model.name, model.version
        )),
    }
}

/// The refusal of request `id` because `who` has `max` live requests, which `model` counts.
fn refusal(model: &ModelVersion, id: &str, who: &dyn fmt::Display, max: u64) -> Error {
    model.statistics.report_failure(FailureReason::Rejected, 0);
    Error::exhausted(format!(
        "{}{who} has as many live requests as it may have ({max}), try again later",
        RequestIdPrefix(id)
    ))
}

/// Lets request `id` of `tenant` in, which wants to go to `model`. Does not block.
///
/// # Errors
/// EXHAUSTED, counted as rejected by the model.
pub fn enter_limits(
    limits: &Arc<AdmissionLimits>,
    model: &ModelVersion,
    id: &str,
    tenant: Option<Tenant>,
) -> Result<Permit, Error> {
    let entered = limits.enter(tenant);
    entered.map_err(|LimitReached { owner, max }| refusal(model, id, &owner, max))
}
