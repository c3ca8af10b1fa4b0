//! Errors of requests that get no place in their model.

use std::fmt;

use crate::model::stats::FailureReason;
use crate::request::messages::{RequestIdPrefix, full};
use crate::{Draft, Error, ModelVersion, Rejected};

/// Why no place was to be had, for the client. The model counts who was one too many.
pub fn refuse(model: &ModelVersion, draft: &Draft<'_>, why: Rejected) -> Error {
    match why {
        Rejected::Full => full(draft.id),
        Rejected::Crowded => {
            let who = format_args!("model '{}'", model.name);
            refusal(model, draft.id, &who, model.requests_max())
        }
        Rejected::Retired => Error::unavailable(format!(
            "Request for unknown model: '{}' version {} is not at ready state",
            model.name, model.version
        )),
    }
}

/// The refusal of request `id` because `who` has `max` live requests, which `model` counts.
pub(crate) fn refusal(model: &ModelVersion, id: &str, who: &dyn fmt::Display, max: u64) -> Error {
    model.statistics.report_failure(FailureReason::Rejected, 0);
    Error::exhausted(format!(
        "{}{who} has as many live requests as it may have ({max}), try again later",
        RequestIdPrefix(id)
    ))
}
