//! Planned copies on their way to a stream.

use std::ptr;

use conch_cuda::{CudaError, DeviceAddress, Stream};

use crate::device::plan::{
    DeviceCopy, PINNED, PlannedCopy, StagedOutput, is_staged, runs, staged_bytes,
};
use crate::device::staging::Staging;

/// Enqueues copies on `stream`: neighbours as one, pageable host memory through pinned memory of
/// `staging`, of which nothing else is in flight. Returns what is to be copied by
/// [`copy_on_host`] when the stream is done.
///
/// # Errors
/// What the driver refuses. Parts may be in flight then.
///
/// # Safety
/// All memory of the copies stays until the stream is done with them, or was waited for, and
/// nobody else uses what is written. That others write what is read is provided for.
pub(super) unsafe fn enqueue(
    stream: &Stream,
    planned: &[PlannedCopy],
    staging: &mut Staging,
) -> Result<Vec<StagedOutput>, CudaError> {
    let block = staging.reserve(staged_bytes(planned));
    let (mut copies, mut outputs) = (Vec::with_capacity(planned.len()), Vec::new());
    let mut used = 0;
    for piece in planned {
        let PlannedCopy {
            owner,
            target,
            target_place,
            len,
            ..
        } = *piece;
        let Some((source, source_place)) = piece.source else {
            continue;
        };
        let mut copy = DeviceCopy {
            owner,
            target,
            target_place,
            source,
            source_place,
            len,
        };
        if is_staged(piece) && len <= block.len - used {
            let staged = block.address + used as u64;
            used += len;
            if source_place.is_host() {
                // SAFETY: the block has that many bytes left and is used by nobody else; the
                // source is readable by this function's contract.
                unsafe { copy_on_host(staged, source, len) };
                (copy.source, copy.source_place) = (staged, PINNED);
            } else {
                outputs.push(StagedOutput {
                    owner,
                    target,
                    source: staged,
                    len,
                });
                (copy.target, copy.target_place) = (staged, PINNED);
            }
        }
        copies.push(copy);
    }
    for run in runs(&copies) {
        let len = run.iter().map(|copy| copy.len).sum();
        let Some(first) = run.first() else { continue };
        // SAFETY: by this function's contract; a run is contiguous on both sides.
        let copied = unsafe { copy(stream, first, len) };
        if copied.is_err() && run.len() > 1 {
            // No copy may cross from one allocation into the next, though the two lie side by side.
            for single in run {
                // SAFETY: as above.
                unsafe { copy(stream, single, single.len)? };
            }
        } else {
            copied?;
        }
    }
    Ok(outputs)
}

/// # Safety
/// As for [`enqueue`].
unsafe fn copy(stream: &Stream, copy: &DeviceCopy, len: usize) -> Result<(), CudaError> {
    let (target, source) = (DeviceAddress(copy.target), DeviceAddress(copy.source));
    // SAFETY: by this function's contract.
    unsafe { stream.copy(target, source, len) }
}

/// # Safety
/// `source` is readable and `target` writable host memory of that length. They may overlap, and
/// others may write both meanwhile, which leaves some mixture of bytes.
pub(super) unsafe fn copy_on_host(target: u64, source: u64, len: usize) {
    let source = ptr::with_exposed_provenance::<u8>(source as usize);
    let target = ptr::with_exposed_provenance_mut::<u8>(target as usize);
    // SAFETY: by this function's contract.
    unsafe { ptr::copy(source, target, len) };
}
