//! Tensors in registered memory, and the calls that register it.

use std::sync::Arc;

use conch_config::DataType;
use conch_engine::gpus::{GpuHost, IpcHandle};
use conch_engine::shared_memory::{RegionKind, Regions};
use conch_engine::{Error, ModelVersion, validation};
use conch_memory::{Block, Budget, ByteView, Charge};
use smallvec::SmallVec;

use crate::shard::offload::SYSTEM_CALLS_COST;
use crate::shard::{Shard, yield_now};

/// Bytes of registered memory copied before the rest of the shard gets its turn: some 50 us, pages
/// that must be found included.
const SLICE_BYTES: usize = 256 << 10;

/// What is asked of the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionAction {
    Status,
    Register,
    Unregister,
}

/// Where a region lies, as a client says it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RegionLocation {
    System {
        key: String,
        offset: u64,
        byte_size: u64,
    },
    Cuda {
        handle: IpcHandle,
        device_id: i64,
        byte_size: u64,
    },
}

/// Registers a region. Blocks.
///
/// # Errors
/// In upstream's words.
pub(crate) fn register(
    regions: &Regions,
    name: &str,
    location: impl FnOnce() -> Result<RegionLocation, Error>,
) -> Result<(), Error> {
    regions.check_enabled()?;
    match location()? {
        RegionLocation::System {
            key,
            offset,
            byte_size,
        } => regions.register(name, &key, offset, byte_size),
        RegionLocation::Cuda {
            handle,
            device_id,
            byte_size,
        } => regions.register_cuda(name, handle, device_id, byte_size),
    }
}

/// Gives up one region, or all of a kind for an empty name. Blocks.
///
/// # Errors
/// UNSUPPORTED unless clients may register regions.
pub(crate) fn unregister(regions: &Regions, kind: RegionKind, name: &str) -> Result<(), Error> {
    match name {
        "" => regions.unregister_all(kind),
        name => regions.unregister(kind, name),
    }
}

/// Whether an input in registered memory must be copied before it is used: admission looks at its
/// bytes, which must not change afterwards, or it is not aligned to its elements.
pub(crate) fn must_copy(
    model: &ModelVersion,
    name: &str,
    data_type: DataType,
    view: &ByteView,
) -> bool {
    let is_shape_tensor = model
        .config
        .input(name)
        .is_some_and(|(_, spec)| spec.is_shape_tensor);
    let is_aligned = data_type
        .element_bytes()
        .is_none_or(|bytes| view.as_ptr().addr().is_multiple_of(bytes));
    view.is_shared() && (!is_aligned || validation::is_content_checked(data_type, is_shape_tensor))
}

/// Copies the bytes of an input in registered memory where that must be. Yields between slices.
///
/// # Errors
/// UNAVAILABLE if the budget has no room.
pub(crate) async fn copy_where_needed(
    (shard, budget): (&Shard, &Arc<Budget>),
    model: &ModelVersion,
    name: &str,
    data_type: DataType,
    chunks: &mut SmallVec<[ByteView; 1]>,
) -> Result<(), Error> {
    for chunk in chunks {
        if must_copy(model, name, data_type, chunk) {
            *chunk = copy(shard, budget, chunk).await?;
        }
    }
    Ok(())
}

/// A copy of `view`, charged to `budget`. Yields between slices.
///
/// # Errors
/// UNAVAILABLE if the budget has no room.
pub(crate) async fn copy(
    shard: &Shard,
    budget: &Arc<Budget>,
    view: &ByteView,
) -> Result<ByteView, Error> {
    let mut charge = Charge::empty(budget);
    charge.cover(view.len() as u64)?;
    let mut block = shard.pool.try_take(view.len())?;
    block.set_charge(charge);
    if !view.place().is_host() {
        return copy_from_gpu(shard, view.clone(), block).await;
    }
    while block.len() < view.len() {
        let start = block.len();
        let end = view.len().min(start + SLICE_BYTES);
        let slice = view.slice(start, end).unwrap_or_else(ByteView::empty);
        slice.read(0, &mut block);
        if end < view.len() {
            yield_now().await;
        }
    }
    Ok(ByteView::from(block))
}

/// A copy of `view`, which lies on a GPU, in `block`. Off the shard, as the device is waited for.
///
/// # Errors
/// INTERNAL, what the driver refuses.
async fn copy_from_gpu(shard: &Shard, view: ByteView, mut block: Block) -> Result<ByteView, Error> {
    let cost_bytes = SYSTEM_CALLS_COST + view.len() as u64;
    let copied = move || {
        GpuHost::read(&view, &mut block)?;
        Ok(ByteView::from(block))
    };
    shard.offload(cost_bytes, copied).await
}

/// The regions of the server that a shard belongs to.
pub(crate) fn of(shard: &Shard) -> &Arc<Regions> {
    shard.server.regions()
}
