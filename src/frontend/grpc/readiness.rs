//! The calls that ask whether the server or a model is ready: their answers may have to come from
//! backends.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use conch_engine::model::readiness::ReadinessAnswer;
use conch_proto::health::health_check_response::ServingStatus;
use conch_proto::health::{HealthCheckRequest, HealthCheckResponse};
use conch_proto::inference as proto;

use super::body::{CallFailure, framed};
use super::control::decode;
use super::method::GrpcMethod;
use super::status::GrpcStatus;
use super::transport::Responder;
use crate::api;
use crate::shard::{Shard, Timer};

/// Answers `message` to one of these methods, framed for the wire. Ends early if the client
/// withdraws the call or its deadline passes.
pub(super) async fn answer(
    shard: &Shard,
    method: GrpcMethod,
    message: &[u8],
    deadline_ns: Option<u64>,
    respond: &mut Responder,
) -> Result<Bytes, CallFailure> {
    let readiness = ask(shard, method, message)?;
    let is_ready = match readiness {
        ReadinessAnswer::Known(is_ready) => is_ready,
        ReadinessAnswer::Asked(probe) => {
            let mut with_timeout = pin!(api::ProbeWithTimeout::new(probe));
            let mut deadline = deadline_ns.map(Timer::at);
            std::future::poll_fn(|context| {
                if let Poll::Ready(is_ready) = with_timeout.as_mut().poll(context) {
                    return Poll::Ready(Ok(is_ready));
                }
                if let Some(timer) = &mut deadline
                    && Pin::new(timer).poll(context).is_ready()
                {
                    return Poll::Ready(Err(GrpcStatus::deadline_exceeded().into()));
                }
                respond.poll_reset(context).map(|()| Err(CallFailure::Gone))
            })
            .await?
        }
    };
    Ok(match method {
        GrpcMethod::ServerReady => framed(&proto::ServerReadyResponse { ready: is_ready }),
        GrpcMethod::ModelReady => framed(&proto::ModelReadyResponse { ready: is_ready }),
        _ => framed(&health_response(serving(is_ready))),
    })
}

fn ask(shard: &Shard, method: GrpcMethod, message: &[u8]) -> Result<ReadinessAnswer, GrpcStatus> {
    Ok(match method {
        GrpcMethod::ModelReady => {
            let request: proto::ModelReadyRequest = decode(message)?;
            let version = api::parse_version(&request.version)?;
            shard.server.check_serving()?;
            // Clients ask for models that may not be there yet, and take an error for a broken
            // server.
            let readiness = shard.server.model_readiness(&request.name, version);
            readiness.unwrap_or(ReadinessAnswer::Known(false))
        }
        GrpcMethod::ServerReady => {
            decode::<proto::ServerReadyRequest>(message)?;
            shard.server.readiness()
        }
        _ => {
            decode::<HealthCheckRequest>(message)?;
            health_readiness(shard)
        }
    })
}

/// The server's health for `grpc.health.v1`; the service name makes no difference, as upstream.
pub(super) async fn health(shard: &Shard) -> ServingStatus {
    serving(match health_readiness(shard) {
        ReadinessAnswer::Known(is_ready) => is_ready,
        ReadinessAnswer::Asked(probe) => api::ProbeWithTimeout::new(probe).await,
    })
}

fn health_readiness(shard: &Shard) -> ReadinessAnswer {
    if shard.is_draining() {
        return ReadinessAnswer::Known(false);
    }
    shard.server.readiness()
}

fn serving(is_ready: bool) -> ServingStatus {
    if is_ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

pub(super) fn health_response(health: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: health.into(),
    }
}
