//! The shared-memory extension over gRPC: register, unregister, status.

use std::sync::Arc;

use bytes::Bytes;
use conch_engine::Regions;
use conch_engine::shared_memory::{RegionKind, RegionStatus};
use conch_proto::inference as proto;
use conch_proto::inference::system_shared_memory_status_response::RegionStatus as Row;

use super::body::{ChargedBytes, framed};
use super::control::decode;
use super::status::GrpcStatus;
use crate::api::regions::{self, RegionAction, RegionLocation};
use crate::shard::Shard;
use crate::shard::offload::SYSTEM_CALLS_COST;

/// Answers `message` to one of these methods, framed for the wire. Off the shard: the kernel maps
/// and unmaps, others may be at it, and there may be many regions.
pub(super) async fn answer(
    shard: &Shard,
    kind: RegionKind,
    action: RegionAction,
    message: ChargedBytes,
) -> Result<Bytes, GrpcStatus> {
    let regions = Arc::clone(regions::of(shard));
    let cost_bytes = SYSTEM_CALLS_COST + message.len() as u64;
    shard
        .offload(cost_bytes, move || match kind {
            RegionKind::System => system(&regions, action, &message),
            RegionKind::Cuda => cuda(&regions, action, &message),
        })
        .await
}

fn system(regions: &Regions, action: RegionAction, message: &[u8]) -> Result<Bytes, GrpcStatus> {
    Ok(match action {
        RegionAction::Status => {
            let request: proto::SystemSharedMemoryStatusRequest = decode(message)?;
            let rows = regions::status(regions, RegionKind::System, &request.name)?;
            framed(&list(rows))
        }
        RegionAction::Register => {
            let request: proto::SystemSharedMemoryRegisterRequest = decode(message)?;
            let location = RegionLocation {
                key: request.key,
                offset: request.offset,
                byte_size: request.byte_size,
            };
            regions::register(regions, RegionKind::System, &request.name, || Ok(location))?;
            framed(&proto::SystemSharedMemoryRegisterResponse {})
        }
        RegionAction::Unregister => {
            let request: proto::SystemSharedMemoryUnregisterRequest = decode(message)?;
            regions::unregister(regions, RegionKind::System, &request.name)?;
            framed(&proto::SystemSharedMemoryUnregisterResponse {})
        }
    })
}

fn cuda(regions: &Regions, action: RegionAction, message: &[u8]) -> Result<Bytes, GrpcStatus> {
    Ok(match action {
        RegionAction::Status => {
            let request: proto::CudaSharedMemoryStatusRequest = decode(message)?;
            regions::status(regions, RegionKind::Cuda, &request.name)?;
            framed(&proto::CudaSharedMemoryStatusResponse::default())
        }
        RegionAction::Register => {
            let request: proto::CudaSharedMemoryRegisterRequest = decode(message)?;
            let location = || Ok(RegionLocation::default());
            regions::register(regions, RegionKind::Cuda, &request.name, location)?;
            framed(&proto::CudaSharedMemoryRegisterResponse {})
        }
        RegionAction::Unregister => {
            let request: proto::CudaSharedMemoryUnregisterRequest = decode(message)?;
            regions::unregister(regions, RegionKind::Cuda, &request.name)?;
            framed(&proto::CudaSharedMemoryUnregisterResponse {})
        }
    })
}

fn list(rows: Vec<RegionStatus>) -> proto::SystemSharedMemoryStatusResponse {
    let named = |row: RegionStatus| {
        let name = row.name.to_string();
        let row = Row {
            name: name.clone(),
            key: row.key.into(),
            offset: row.offset,
            byte_size: row.byte_size,
        };
        (name, row)
    };
    proto::SystemSharedMemoryStatusResponse {
        regions: rows.into_iter().map(named).collect(),
    }
}
