//! Work on the streams of a device: whose it is, what failed of it, and what the CPU does when the
//! device is done.

use std::{mem, ptr};

use conch_cuda::{CudaError, DeviceAddress, Stream};

use super::memory::copy_on_host;
use super::plan::{DeviceCopy, PINNED, PlannedCopy, StagedOutput, is_staged, runs, staged_bytes};
use super::refusal::refusal;
use super::staging::Staging;
use crate::Error;

/// What was enqueued for the requests of a batch, their owners by number.
#[derive(Default)]
pub(super) struct PendingWork {
    /// Owners with work on a stream, each perhaps several times.
    owners: Vec<usize>,
    /// Likewise.
    failures: Vec<(usize, Error)>,
    staged: Vec<StagedOutput>,
}

impl PendingWork {
    /// Enqueues copies: neighbours as one, pageable host memory through `staging`. What lies in
    /// host memory on both sides is copied at once.
    ///
    /// # Safety
    /// All memory of the copies, and `staging`, stay until the stream is done with them, or was
    /// waited for; nobody else uses what is written. That others write what is read is provided
    /// for.
    pub(super) unsafe fn enqueue<'c>(
        &mut self,
        stream: &Stream,
        planned: impl Iterator<Item = &'c PlannedCopy> + Clone,
        staging: &mut Staging,
    ) {
        let mut block = staging.take(staged_bytes(planned.clone()));
        let mut copies = Vec::new();
        for piece in planned {
            let Some((source, source_place)) = piece.source else {
                // SAFETY: by this function's contract.
                unsafe { self.zero(stream, piece) };
                continue;
            };
            if !piece.is_for_device() {
                // SAFETY: by this function's contract.
                unsafe { copy_on_host(piece.target, source, piece.len) };
                continue;
            }
            let mut copy = DeviceCopy {
                owner: piece.owner,
                target: piece.target,
                target_place: piece.target_place,
                source,
                source_place,
                len: piece.len,
            };
            let staged = is_staged(piece).then(|| block.take(piece.len)).flatten();
            match staged {
                None => {}
                Some(staged) if source_place.is_host() => {
                    // SAFETY: the block has that many bytes, which nobody else uses; the source is
                    // readable by this function's contract.
                    unsafe { copy_on_host(staged, source, piece.len) };
                    (copy.source, copy.source_place) = (staged, PINNED);
                }
                Some(staged) => {
                    self.staged.push(StagedOutput {
                        owner: piece.owner,
                        target: piece.target,
                        source: staged,
                        len: piece.len,
                    });
                    (copy.target, copy.target_place) = (staged, PINNED);
                }
            }
            copies.push(copy);
        }
        for run in runs(&copies) {
            // SAFETY: by this function's contract; staging memory is as long as planned.
            unsafe { self.enqueue_run(stream, run) };
        }
    }

    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    unsafe fn zero(&mut self, stream: &Stream, piece: &PlannedCopy) {
        if piece.target_place.is_host() {
            let target = ptr::with_exposed_provenance_mut::<u8>(piece.target as usize);
            // SAFETY: writable for that many bytes by this function's contract.
            unsafe { target.write_bytes(0, piece.len) };
            return;
        }
        // SAFETY: by this function's contract.
        let filled = unsafe { stream.fill(DeviceAddress(piece.target), 0, piece.len) };
        self.note(stream, piece.owner, filled);
    }

    /// Enqueues one copy for all of a run. A run that the driver refuses is tried copy by copy: no
    /// copy may cross from one allocation into the next, though the two lie side by side, and a
    /// request must not fail for another one's copy.
    ///
    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    unsafe fn enqueue_run(&mut self, stream: &Stream, run: &[DeviceCopy]) {
        let copy = |first: &DeviceCopy, len| {
            let (target, source) = (DeviceAddress(first.target), DeviceAddress(first.source));
            // SAFETY: by this function's contract; a run is contiguous on both sides.
            unsafe { stream.copy(target, source, len) }
        };
        let Some(first) = run.first() else { return };
        let copied = copy(first, run.iter().map(|copy| copy.len).sum());
        let is_tried_apart = copied.is_err() && run.len() > 1;
        for single in run {
            let outcome = match is_tried_apart {
                true => copy(single, single.len),
                false => copied,
            };
            self.note(stream, single.owner, outcome);
        }
    }

    /// Notes the outcome of a call for `owner`.
    fn note(&mut self, stream: &Stream, owner: usize, outcome: Result<(), CudaError>) {
        match outcome {
            Ok(()) if self.owners.last() == Some(&owner) => {}
            Ok(()) => self.owners.push(owner),
            Err(error) => self.fail(owner, refusal(stream.device(), &error)),
        }
    }

    /// All `count` requests have work on a stream.
    pub(super) fn own_all(&mut self, count: usize) {
        self.owners.extend(0..count);
    }

    pub(super) fn has_work(&self) -> bool {
        !self.owners.is_empty()
    }

    pub(super) fn failures(&self) -> &[(usize, Error)] {
        &self.failures
    }

    pub(super) fn fail(&mut self, owner: usize, error: Error) {
        self.failures.push((owner, error));
    }

    /// Fails all owners with work: the driver does not tell whose failed.
    pub(super) fn fail_owners(&mut self, error: &Error) {
        let owners = mem::take(&mut self.owners).into_iter();
        let failures = owners.map(|owner| (owner, error.clone()));
        self.failures.extend(failures);
    }

    /// Copies on the CPU what was staged on its way out, but for owners that failed. Returns the
    /// failures.
    ///
    /// # Safety
    /// Nothing of the work is on a stream any more; the targets and the staging memory are still
    /// there.
    pub(super) unsafe fn finish(self) -> Vec<(usize, Error)> {
        for out in &self.staged {
            if self.failures.iter().any(|(owner, _)| *owner == out.owner) {
                continue;
            }
            // SAFETY: by this function's contract; both are as long, and the target is host memory.
            unsafe { copy_on_host(out.target, out.source, out.len) };
        }
        self.failures
    }
}
