//! Room for requests under the limits of live requests, before they are submitted.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::admission::refuse_over_limit;
use conch_engine::{ModelVersion, RequestPermits};
use conch_memory::ByteView;

use super::message::InferTarget;
use super::metadata::CallMetadata;
use super::reader::CompleteMessage;
use crate::api::parse_version;
use crate::grpc::status::GrpcStatus;
use crate::shard::{AcquireError, AcquireFuture, AcquireOutcome, AcquireTarget, Shard};

/// Reserves room for the request of a message, where requests are limited. Some: it has to wait for
/// that, and what comes of it goes to [`note_acquired`]. What is wrong with the message is for the
/// submission to tell.
pub(in crate::grpc) fn acquire(
    shard: &Rc<Shard>,
    arrived: &mut CompleteMessage,
    sender: &CallMetadata,
    deadline_ns: Option<u64>,
) -> Option<Box<AcquireFuture>> {
    if !shard.limits_requests() {
        return None;
    }
    let (target, version, model) = find(shard, &arrived.head)?;
    let held = match arrived.ensured.take().map(|ensured| *ensured) {
        None => None,
        Some(Ok(permits)) => permits.into_held(),
        refused => {
            arrived.ensured = refused.map(Box::new);
            return None;
        }
    };
    let acquire_target = AcquireTarget {
        model: &model,
        version,
        tenant: sender.tenant,
        deadline_ns,
    };
    let outcome = match shard.acquire(acquire_target, held) {
        Ok(AcquireOutcome::Waiting(room)) => {
            arrived.charge.mark_complete();
            arrived.raws.iter().for_each(ByteView::mark_complete);
            return Some(room);
        }
        Ok(AcquireOutcome::Acquired(permits)) => Ok(permits),
        Err(limit) => Err(refuse_over_limit(&model, target.id, limit).into()),
    };
    arrived.ensured = Some(Box::new(outcome));
    None
}

/// Notes what came of waiting for room.
pub(in crate::grpc) fn note_acquired(
    shard: &Rc<Shard>,
    arrived: &mut CompleteMessage,
    outcome: Result<RequestPermits, AcquireError>,
) {
    let outcome = outcome.map_err(|refusal| match (refusal, find(shard, &arrived.head)) {
        (AcquireError::Gone(error), _) => error.into(),
        (AcquireError::Limit(limit), Some((target, _, model))) => {
            refuse_over_limit(&model, target.id, limit).into()
        }
        // Without a model it says so itself.
        (AcquireError::Limit(_), None) | (AcquireError::DeadlineExceeded, _) => {
            GrpcStatus::deadline_exceeded()
        }
    });
    arrived.ensured = Some(Box::new(outcome));
}

/// What a message names, with the version that it asks for and the model, if there is one.
fn find<'a>(
    shard: &Rc<Shard>,
    head: &'a [u8],
) -> Option<(InferTarget<'a>, Option<i64>, Arc<ModelVersion>)> {
    let target = InferTarget::read(head).ok()?;
    let version = parse_version(target.model_version).ok()?;
    let model = shard.find(target.model_name, version).ok()?;
    Some((target, version, model))
}
