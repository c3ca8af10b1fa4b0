//! The shared-memory extension over gRPC: register, unregister, status.

use std::sync::Arc;

use bytes::Bytes;
use conch_engine::Regions;
use conch_engine::regions::{Kind, RegionStatus};
use conch_proto::inference as proto;
use conch_proto::inference::system_shared_memory_status_response::RegionStatus as Row;

use super::body::{Charged, framed};
use super::control::decode;
use super::status::Status;
use crate::api::regions::{self, Location, RegionAction};
use crate::shard::Shard;
use crate::shard::offload::SYSTEM_CALLS_COST;

/// Answers `message` to one of these methods, framed for the wire. Off the shard: the kernel maps and unmaps, others may be at it, and there
/// may be many regions.
pub(super) async fn answer(
    shard: &Shard,
    kind: Kind,
    action: RegionAction,
    message: Charged,
) -> Result<Bytes, Status> {
    let regions = Arc::clone(regions::of(shard));
    let cost_bytes = SYSTEM_CALLS_COST + message.len() as u64;
    shard
        .offload(cost_bytes, move || match kind {
            Kind::System => system(&regions, action, &message),
            Kind::Cuda => cuda(&regions, action, &message),
        })
        .await
}

fn system(regions: &Regions, action: RegionAction, message: &[u8]) -> Result<Bytes, Status> {
    Ok(match action {
        RegionAction::Status => {
            let request: proto::SystemSharedMemoryStatusRequest = decode(message)?;
            let rows = regions::status(regions, Kind::System, &request.name)?;
            framed(&list(rows))
        }
        RegionAction::Register => {
            let request: proto::SystemSharedMemoryRegisterRequest = decode(message)?;
            let location = Location {
                key: request.key,
                offset: request.offset,
                byte_size: request.byte_size,
            };
            regions::register(regions, Kind::System, &request.name, || Ok(location))?;
            framed(&proto::SystemSharedMemoryRegisterResponse {})
        }
        RegionAction::Unregister => {
            let request: proto::SystemSharedMemoryUnregisterRequest = decode(message)?;
            regions::unregister(regions, Kind::System, &request.name)?;
            framed(&proto::SystemSharedMemoryUnregisterResponse {})
        }
    })
}

fn cuda(regions: &Regions, action: RegionAction, message: &[u8]) -> Result<Bytes, Status> {
    Ok(match action {
        RegionAction::Status => {
            let request: proto::CudaSharedMemoryStatusRequest = decode(message)?;
            regions::status(regions, Kind::Cuda, &request.name)?;
            framed(&proto::CudaSharedMemoryStatusResponse::default())
        }
        RegionAction::Register => {
            let request: proto::CudaSharedMemoryRegisterRequest = decode(message)?;
            let location = || Ok(Location::default());
            regions::register(regions, Kind::Cuda, &request.name, location)?;
            framed(&proto::CudaSharedMemoryRegisterResponse {})
        }
        RegionAction::Unregister => {
            let request: proto::CudaSharedMemoryUnregisterRequest = decode(message)?;
            regions::unregister(regions, Kind::Cuda, &request.name)?;
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
