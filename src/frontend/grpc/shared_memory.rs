//! The shared-memory extension over gRPC: register, unregister, status.

use std::sync::Arc;

use bytes::Bytes;
use conch_engine::gpus::{IPC_HANDLE_BYTES, IpcHandle};
use conch_engine::shared_memory::{RegionKind, RegionSource, RegionStatus};
use conch_engine::{Error, Regions};
use conch_proto::inference as proto;
use conch_proto::inference::cuda_shared_memory_status_response::RegionStatus as CudaRow;
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
            framed(&list(regions.status(RegionKind::System, &request.name)?))
        }
        RegionAction::Register => {
            let request: proto::SystemSharedMemoryRegisterRequest = decode(message)?;
            let location = RegionLocation::System {
                key: request.key,
                offset: request.offset,
                byte_size: request.byte_size,
            };
            regions::register(regions, &request.name, || Ok(location))?;
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
            framed(&list_cuda(regions.status(RegionKind::Cuda, &request.name)?))
        }
        RegionAction::Register => {
            let request: proto::CudaSharedMemoryRegisterRequest = decode(message)?;
            regions.check_enabled()?;
            regions.check_cuda(&request.name)?;
            regions::register(regions, &request.name, || {
                let handle = <[u8; IPC_HANDLE_BYTES]>::try_from(&request.raw_handle[..]);
                let handle = handle.map_err(|_| {
                    Error::invalid("'raw_handle' must be a valid cudaIpcMemHandle_t")
                })?;
                Ok(RegionLocation::Cuda {
                    handle: IpcHandle(handle),
                    device_id: request.device_id,
                    byte_size: request.byte_size,
                })
            })?;
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
        let RegionSource::System { key, offset } = row.source else {
            return None;
        };
        let name = row.name.to_string();
        let row = Row {
            name: name.clone(),
            key: key.into(),
            offset,
            byte_size: row.byte_size,
        };
        Some((name, row))
    };
    proto::SystemSharedMemoryStatusResponse {
        regions: rows.into_iter().filter_map(named).collect(),
    }
}

fn list_cuda(rows: Vec<RegionStatus>) -> proto::CudaSharedMemoryStatusResponse {
    let named = |row: RegionStatus| {
        let RegionSource::Cuda { device_id } = row.source else {
            return None;
        };
        let name = row.name.to_string();
        let row = CudaRow {
            name: name.clone(),
            // Of a device that is there: never negative.
            device_id: device_id.unsigned_abs(),
            byte_size: row.byte_size,
        };
        Some((name, row))
    };
    proto::CudaSharedMemoryStatusResponse {
        regions: rows.into_iter().filter_map(named).collect(),
    }
}
