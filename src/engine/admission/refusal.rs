//! Errors of requests that get no place in their model.

use std::sync::Arc;

use crate::limits::{AdmissionLimits, LimitOwner, Permit, ReachedLimit, Tenant};
use crate::model::stats::{FailureReason, RefusalReason};
use crate::request::messages::{RequestIdPrefix, full};
use crate::{Error, ModelVersion, Rejected};

/// Why no place was to be had, for the client. The model counts who was one too many.
pub fn refuse(model: &ModelVersion, id: &str, why: Rejected) -> Error {
    match why {
        Rejected::Full => {
            model.statistics.report_refusal(RefusalReason::QueueFull);
            full(id)
        }
        Rejected::OverModelLimit => {
            let owner = LimitOwner::Model;
            let max = model.requests_max();
            refuse_over_limit(model, id, ReachedLimit { owner, max })
        }
        Rejected::Retired => {
            model.statistics.report_refusal(RefusalReason::Stopping);
            Error::unavailable(format!(
                "Request for unknown model: '{}' version {} is not at ready state",
                model.name, model.version
            ))
        }
    }
}

/// The refusal of request `id` because of a limit, which `model` counts.
pub fn refuse_over_limit(model: &ModelVersion, id: &str, limit: ReachedLimit) -> Error {
    model.statistics.report_failure(FailureReason::Rejected, 0);
    model.statistics.report_refusal(match limit.owner {
        LimitOwner::Server => RefusalReason::ServerLimit,
        LimitOwner::Tenant(_) => RefusalReason::TenantLimit,
        LimitOwner::Model => RefusalReason::ModelLimit,
    });
    let max = limit.max;
    let has = format_args!("has as many live requests as it may have ({max}), try again later");
    let id = RequestIdPrefix(id);
    Error::exhausted(match limit.owner {
        LimitOwner::Server => format!("{id}the server {has}"),
        LimitOwner::Tenant(_) => format!("{id}the tenant {has}"),
        LimitOwner::Model => format!("{id}model '{}' {has}", model.name),
    })
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
    entered.map_err(|limit| refuse_over_limit(model, id, limit))
}
