//! The calls that ask about the server and its models: decode with prost, ask the engine, encode.

use bytes::Bytes;
use conch_engine::model::stats;
use conch_engine::model::stats::CountAndTime;
use conch_memory::MemoryKind;
use conch_proto::inference::model_metadata_response::TensorMetadata;
use conch_proto::{Message, inference as proto};

use super::body::framed;
use super::method::GrpcMethod;
use super::status::GrpcStatus;
use super::{logging, trace};
use crate::access::GuardedRoute;
use crate::api;
use crate::auth::CallerRights;
use crate::shard::Shard;

/// Answers `message` to `method`, framed for the wire, if `rights` let it name its model. Does not
/// block.
pub(super) fn answer(
    shard: &Shard,
    method: GrpcMethod,
    message: &[u8],
    rights: &CallerRights,
) -> Result<Bytes, GrpcStatus> {
    let server = &shard.server;
    Ok(match method {
        GrpcMethod::ServerLive => {
            decode::<proto::ServerLiveRequest>(message)?;
            framed(&proto::ServerLiveResponse {
                live: server.is_live(),
            })
        }
        GrpcMethod::ServerMetadata => {
            decode::<proto::ServerMetadataRequest>(message)?;
            let metadata = server.metadata();
            framed(&proto::ServerMetadataResponse {
                name: metadata.name.clone(),
                version: metadata.version.to_owned(),
                extensions: metadata
                    .extensions
                    .iter()
                    .map(|extension| (*extension).to_owned())
                    .collect(),
            })
        }
        GrpcMethod::ModelMetadata => {
            let request: proto::ModelMetadataRequest = decode(message)?;
            rights.check(method.access(), &request.name)?;
            framed(&model_metadata(shard, &request)?)
        }
        GrpcMethod::ModelConfig => {
            let request: proto::ModelConfigRequest = decode(message)?;
            rights.check(method.access(), &request.name)?;
            let model = shard.find(&request.name, api::parse_version(&request.version)?)?;
            framed(&proto::ModelConfigResponse {
                config: Some((*model.reported_config().message).clone()),
            })
        }
        GrpcMethod::ModelStatistics => {
            let request: proto::ModelStatisticsRequest = decode(message)?;
            rights.check(method.access(), &request.name)?;
            framed(&statistics(shard, &request)?)
        }
        GrpcMethod::TraceSetting => {
            let request: proto::TraceSettingRequest = decode(message)?;
            rights.check(method.access(), &request.model_name)?;
            framed(&trace::answer(shard, &request)?)
        }
        GrpcMethod::LogSettings => framed(&logging::answer(&decode(message)?)?),
        GrpcMethod::RepositoryIndex
        | GrpcMethod::RepositoryModelLoad
        | GrpcMethod::RepositoryModelUnload
        | GrpcMethod::ServerReady
        | GrpcMethod::ModelReady
        | GrpcMethod::HealthCheck
        | GrpcMethod::ModelInfer
        | GrpcMethod::SharedMemory(..)
        | GrpcMethod::ModelStreamInfer
        | GrpcMethod::HealthWatch
        | GrpcMethod::Reflection => {
            unreachable!("answered elsewhere")
        }
    })
}

pub(super) fn decode<M: Message + Default>(message: &[u8]) -> Result<M, GrpcStatus> {
    M::decode(message).map_err(|_| GrpcStatus::unparsable())
}

fn model_metadata(
    shard: &Shard,
    request: &proto::ModelMetadataRequest,
) -> Result<proto::ModelMetadataResponse, GrpcStatus> {
    let wanted = api::parse_version(&request.version)?;
    let model = shard.find(&request.name, wanted)?;
    let metadata = api::model_metadata(&shard.server, &model, wanted)?;
    let tensors = |tensors: Vec<api::TensorMetadata<'_>>| {
        tensors
            .into_iter()
            .map(|tensor| TensorMetadata {
                name: tensor.name.to_owned(),
                datatype: tensor.data_type.to_owned(),
                shape: tensor.shape,
            })
            .collect()
    };
    Ok(proto::ModelMetadataResponse {
        name: metadata.name.to_owned(),
        versions: metadata.versions.iter().map(i64::to_string).collect(),
        platform: metadata.platform.to_owned(),
        inputs: tensors(metadata.inputs),
        outputs: tensors(metadata.outputs),
    })
}

fn statistics(
    shard: &Shard,
    request: &proto::ModelStatisticsRequest,
) -> Result<proto::ModelStatisticsResponse, GrpcStatus> {
    let version = api::parse_version(&request.version)?;
    let found = api::statistics(&shard.server, &request.name, version)?;
    Ok(proto::ModelStatisticsResponse {
        model_stats: found.into_iter().map(model_statistics).collect(),
    })
}

fn model_statistics(model: stats::ModelStatistics) -> proto::ModelStatistics {
    let inference = &model.inference;
    proto::ModelStatistics {
        name: model.name.to_string(),
        version: model.version.to_string(),
        last_inference: model.last_inference_ms,
        inference_count: model.inference_count,
        execution_count: model.execution_count,
        inference_stats: Some(proto::InferStatistics {
            success: duration(inference.success),
            fail: duration(inference.fail),
            queue: duration(inference.queue),
            compute_input: duration(inference.compute_input),
            compute_infer: duration(inference.compute_infer),
            compute_output: duration(inference.compute_output),
            cache_hit: duration(inference.cache_hit),
            cache_miss: duration(inference.cache_miss),
        }),
        batch_stats: model
            .batches
            .iter()
            .map(|batch| proto::InferBatchStatistics {
                batch_size: batch.batch_size,
                compute_input: duration(batch.compute_input),
                compute_infer: duration(batch.compute_infer),
                compute_output: duration(batch.compute_output),
            })
            .collect(),
        memory_usage: model
            .memory_usage
            .iter()
            .map(|usage| proto::MemoryUsage {
                r#type: match usage.kind {
                    MemoryKind::Cpu => "CPU",
                    MemoryKind::CpuPinned => "CPU_PINNED",
                    MemoryKind::Gpu => "GPU",
                }
                .to_owned(),
                id: usage.id,
                byte_size: usage.bytes,
            })
            .collect(),
        response_stats: model
            .responses
            .iter()
            .map(|(index, response)| {
                let statistics = proto::InferResponseStatistics {
                    compute_infer: duration(response.compute_infer),
                    compute_output: duration(response.compute_output),
                    success: duration(response.success),
                    fail: duration(response.fail),
                    empty_response: duration(response.empty_response),
                    cancel: duration(response.cancel),
                };
                (index.to_string(), statistics)
            })
            .collect(),
    }
}

fn duration(tally: CountAndTime) -> Option<proto::StatisticDuration> {
    Some(proto::StatisticDuration {
        count: tally.count,
        ns: tally.duration_ns,
    })
}
