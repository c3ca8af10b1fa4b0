//! The copies of one batch: planned, merged into runs, enqueued together, waited for once.

use std::marker::PhantomData;
use std::mem;
use std::ptr;

use conch_cuda::{CudaError, DeviceAddress, Event, Stream};
use conch_memory::MemoryPlace;

use super::memory::copy_on_host;
use super::memory::{MemorySource, MemoryTarget};
use super::plan::{DeviceCopy, PINNED, PlannedCopy, StagedOutput, is_staged, runs, staged_bytes};
use super::staging::{Staging, StagingBlock};
use super::stream::DeviceStream;
use crate::Error;

/// Copies that are planned for one batch. Sources and targets are borrowed until
/// [`run`](Self::run), so that no response leaves before its bytes are there. Dropped instead,
/// nothing is copied.
pub struct Copies<'m> {
    stream: &'m mut DeviceStream,
    planned: Vec<PlannedCopy>,
    memory: PhantomData<&'m mut u8>,
}

impl DeviceStream {
    /// Begins the copies of a batch. Nothing is copied before [`Copies::run`].
    pub fn copies<'m>(&'m mut self) -> Copies<'m> {
        let mut planned = mem::take(&mut self.planned);
        planned.clear();
        Copies {
            stream: self,
            planned,
            memory: PhantomData,
        }
    }
}

impl<'m> Copies<'m> {
    /// The memory that the instance computes in.
    pub fn place(&self) -> MemoryPlace {
        self.stream.place()
    }

    /// Plans to copy `source` behind what `target` is filled with. `owner` is the caller's number
    /// of the request.
    ///
    /// # Errors
    /// `Internal` if it does not fit.
    pub fn add(
        &mut self,
        owner: usize,
        source: MemorySource<'m>,
        target: &mut MemoryTarget<'m>,
    ) -> Result<(), Error> {
        let address = target.take(source.len())?;
        if !source.is_empty() {
            self.planned.push(PlannedCopy {
                owner,
                target: address,
                target_place: target.place(),
                source: Some((source.address(), source.place())),
                len: source.len(),
            });
        }
        Ok(())
    }

    /// Plans to fill what is left of `target` with zeros.
    pub fn zero_rest(&mut self, owner: usize, target: &mut MemoryTarget<'m>) {
        let (address, len) = target.take_rest();
        if len > 0 {
            self.planned.push(PlannedCopy {
                owner,
                target: address,
                target_place: target.place(),
                source: None,
                len,
            });
        }
    }

    /// Copies everything and blocks until it is there; waits for the instance's stream alone. Host
    /// memory that is not pinned passes through pinned memory, as far as the server gives some.
    ///
    /// Returns the owners whose copies failed with the errors, `GPU 0: ...`, an owner perhaps
    /// several times. When the copies fail after they were enqueued, all owners with a copy on the
    /// device fail, as the driver does not tell which. In every case nothing is in flight any more.
    pub fn run(self) -> Vec<(usize, Error)> {
        let Copies {
            stream, planned, ..
        } = self;
        let block = stream.staging.reserve(staged_bytes(&planned));
        let mut enqueued = Enqueued::new(stream);
        let (copies, outs) = enqueued.prepare(&planned, block);
        for run in runs(&copies) {
            enqueued.copy(run);
        }
        let failures = enqueued.finish();
        // SAFETY: the staging block is this batch's, and the targets are borrowed until this
        // function returns.
        unsafe { copy_out(&outs, &failures) };
        stream.planned = planned;
        failures
    }

    /// Whether anything of it is the device's to do.
    pub(super) fn has_device_work(&self) -> bool {
        let mut planned = self.planned.iter();
        planned.any(|copy| {
            let is_on_device = |place: MemoryPlace| !place.is_host();
            is_on_device(copy.target_place)
                || copy.source.is_some_and(|(_, place)| is_on_device(place))
        })
    }

    /// The stream that they go to.
    pub(super) fn stream(&self) -> &DeviceStream {
        self.stream
    }

    /// Enqueues everything, in the order in which bytes go to the device, stay there, and leave it,
    /// and marks where each stage begins and ends. Does not wait.
    ///
    /// # Safety
    /// What was planned stays borrowed until the last of `marks` is reached, or the stream was
    /// waited for; so long nobody else uses the memory of `staging`. [`CopiesInFlight::finish`] is
    /// called while it is still borrowed.
    pub(super) unsafe fn enqueue(
        self,
        staging: &mut Staging,
        marks: &StageMarks,
    ) -> CopiesInFlight {
        let Copies {
            stream, planned, ..
        } = self;
        let block = staging.reserve(staged_bytes(&planned));
        let mut enqueued = Enqueued::new(stream);
        let mut marked = enqueued.mark(&marks.begin);
        let (mut copies, outs) = enqueued.prepare(&planned, block);
        copies.sort_by_key(Stage::of);
        for stage in [Stage::In, Stage::Within, Stage::Out] {
            let of_stage: Vec<DeviceCopy> = copies
                .iter()
                .filter(|copy| Stage::of(copy) == stage)
                .copied()
                .collect();
            for run in runs(&of_stage) {
                enqueued.copy(run);
            }
            marked &= enqueued.mark(marks.end_of(stage));
        }
        if !marked {
            // Without a mark nobody could tell when it is over.
            let failures = enqueued.synchronize();
            enqueued.failures.extend(failures);
        }
        let in_flight = CopiesInFlight {
            owners: mem::take(&mut enqueued.owners),
            failures: mem::take(&mut enqueued.failures),
            outs,
            is_marked: marked,
        };
        enqueued.is_waiting = false;
        drop(enqueued);
        stream.planned = planned;
        in_flight
    }
}

/// What a copy is to its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    In,
    Within,
    Out,
}

impl Stage {
    fn of(copy: &DeviceCopy) -> Stage {
        match (copy.source_place.is_host(), copy.target_place.is_host()) {
            (true, _) => Stage::In,
            (false, true) => Stage::Out,
            (false, false) => Stage::Within,
        }
    }
}

/// Marks in the stream of a batch: where its work begins, and where each stage ends.
pub(super) struct StageMarks {
    pub(super) begin: Event,
    pub(super) staged_in: Event,
    pub(super) computed: Event,
    pub(super) staged_out: Event,
}

impl StageMarks {
    pub(super) fn new(stream: &DeviceStream) -> Result<StageMarks, Error> {
        let device = stream.stream.device();
        let event = || Event::timed(device).map_err(|error| stream.refused(error));
        Ok(StageMarks {
            begin: event()?,
            staged_in: event()?,
            computed: event()?,
            staged_out: event()?,
        })
    }

    fn end_of(&self, stage: Stage) -> &Event {
        match stage {
            Stage::In => &self.staged_in,
            Stage::Within => &self.computed,
            Stage::Out => &self.staged_out,
        }
    }
}

/// The copies of a batch on the stream, and what is left to do when they are done.
pub(super) struct CopiesInFlight {
    /// Owners with work on the stream.
    owners: Vec<usize>,
    failures: Vec<(usize, Error)>,
    outs: Vec<StagedOutput>,
    /// The marks were recorded; else nothing is in flight any more.
    pub(super) is_marked: bool,
}

impl CopiesInFlight {
    /// Of a batch that left nothing on the device.
    pub(super) fn ended(failures: Vec<(usize, Error)>) -> CopiesInFlight {
        CopiesInFlight {
            owners: Vec::new(),
            failures,
            outs: Vec::new(),
            is_marked: false,
        }
    }

    /// Owners that fail whatever becomes of the copies.
    pub(super) fn fail(&mut self, failures: Vec<(usize, Error)>) {
        self.failures.extend(failures);
    }

    /// Copies on the CPU what was staged on its way out, and returns the failures, as
    /// [`Copies::run`] does. `outcome`: what the last mark said.
    ///
    /// # Safety
    /// The last mark is reached, or the stream was waited for, and the targets and the staging
    /// memory are still there.
    pub(super) unsafe fn finish(mut self, outcome: Result<(), Error>) -> Vec<(usize, Error)> {
        if let Err(error) = outcome {
            let owners = self.owners.into_iter();
            self.failures
                .extend(owners.map(|owner| (owner, error.clone())));
        }
        // SAFETY: by this function's contract.
        unsafe { copy_out(&self.outs, &self.failures) };
        self.failures
    }
}

/// Copies what passed through staging memory to where it is wanted, but for owners that failed.
///
/// # Safety
/// The staging memory holds it, and the targets are writable host memory.
unsafe fn copy_out(outs: &[StagedOutput], failures: &[(usize, Error)]) {
    for out in outs {
        if failures.iter().any(|(owner, _)| *owner == out.owner) {
            continue;
        }
        // SAFETY: by this function's contract; the staging block is as long.
        unsafe { copy_on_host(out.target, out.source, out.len) };
    }
}

/// Work of a batch on the stream. Whatever happens, nothing is in flight when it is gone.
struct Enqueued<'s> {
    stream: &'s Stream,
    event: &'s Event,
    is_waiting: bool,
    /// Owners with work on the stream.
    owners: Vec<usize>,
    failures: Vec<(usize, Error)>,
}

impl<'s> Enqueued<'s> {
    fn new(stream: &'s DeviceStream) -> Self {
        Enqueued {
            stream: &stream.stream,
            event: &stream.event,
            is_waiting: false,
            owners: Vec::new(),
            failures: Vec::new(),
        }
    }

    fn error(&self, error: CudaError) -> Error {
        let ordinal = self.stream.device().ordinal();
        Error::internal(format!("GPU {ordinal}: {error}"))
    }

    /// Notes the outcome of a call for `owner`.
    fn note(&mut self, owner: usize, outcome: Result<(), CudaError>) {
        match outcome {
            Ok(()) => {
                self.is_waiting = true;
                if self.owners.last() != Some(&owner) {
                    self.owners.push(owner);
                }
            }
            Err(error) => self.failures.push((owner, self.error(error))),
        }
    }

    /// Copies what lies in host memory on both sides, enqueues the fillings, and fills the staging
    /// block. Returns what is left for the device and, after it, for the CPU.
    fn prepare(
        &mut self,
        planned: &[PlannedCopy],
        block: StagingBlock,
    ) -> (Vec<DeviceCopy>, Vec<StagedOutput>) {
        let mut copies = Vec::with_capacity(planned.len());
        let mut outs = Vec::new();
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
                self.zero(piece);
                continue;
            };
            if source_place.is_host() && target_place.is_host() {
                // SAFETY: both are that long by the contracts of source and target, which are
                // borrowed until the batch is done.
                unsafe { copy_on_host(target, source, len) };
                continue;
            }
            let mut copy = DeviceCopy {
                owner,
                target,
                target_place,
                source,
                source_place,
                len,
            };
            if is_staged(piece) && len <= block.len - used {
                let staging = block.address + used as u64;
                used += len;
                if source_place.is_host() {
                    // SAFETY: the block has that many bytes left and is used by nobody else; the
                    // source is readable by its contract.
                    unsafe { copy_on_host(staging, source, len) };
                    (copy.source, copy.source_place) = (staging, PINNED);
                } else {
                    outs.push(StagedOutput {
                        owner,
                        target,
                        source: staging,
                        len,
                    });
                    (copy.target, copy.target_place) = (staging, PINNED);
                }
            }
            copies.push(copy);
        }
        (copies, outs)
    }

    fn zero(&mut self, piece: &PlannedCopy) {
        if piece.target_place.is_host() {
            let target = ptr::with_exposed_provenance_mut::<u8>(piece.target as usize);
            // SAFETY: writable for that many bytes by the contract of the target.
            unsafe { target.write_bytes(0, piece.len) };
            return;
        }
        // SAFETY: writable for that many bytes by the contract of the target, which is borrowed
        // until `finish` has waited.
        let filled = unsafe { self.stream.fill(DeviceAddress(piece.target), 0, piece.len) };
        self.note(piece.owner, filled);
    }

    /// Enqueues one copy for all of a run. A run that the driver refuses is tried copy by copy: no
    /// copy may cross from one allocation into the next, though the two lie side by side, and a
    /// request must not fail for another one's copy.
    fn copy(&mut self, copies: &[DeviceCopy]) {
        let Some(first) = copies.first() else { return };
        let len = copies.iter().map(|copy| copy.len).sum();
        let copied = self.enqueue(first, len);
        if copied.is_err() && copies.len() > 1 {
            for copy in copies {
                let copied = self.enqueue(copy, copy.len);
                self.note(copy.owner, copied);
            }
            return;
        }
        for copy in copies {
            self.note(copy.owner, copied);
        }
    }

    fn enqueue(&self, copy: &DeviceCopy, len: usize) -> Result<(), CudaError> {
        let (target, source) = (DeviceAddress(copy.target), DeviceAddress(copy.source));
        // SAFETY: both are that long: sources and targets by their contracts, staging memory by its
        // plan. They are borrowed until `finish` has waited. That clients change what they share is
        // provided for.
        unsafe { self.stream.copy(target, source, len) }
    }

    /// Marks this place of the stream; false if the driver refuses.
    fn mark(&self, event: &Event) -> bool {
        self.stream.record(event).is_ok()
    }

    /// Waits for the stream. All owners fail if that does.
    fn synchronize(&mut self) -> Vec<(usize, Error)> {
        match self.stream.synchronize() {
            Ok(()) => Vec::new(),
            Err(error) => {
                let error = self.error(error);
                let owners = mem::take(&mut self.owners).into_iter();
                owners.map(|owner| (owner, error.clone())).collect()
            }
        }
    }

    /// Waits for everything, once. Returns what failed.
    fn finish(mut self) -> Vec<(usize, Error)> {
        if self.is_waiting {
            let waited = match self.stream.record(self.event) {
                Ok(()) => self.event.wait(),
                Err(_) => self.stream.synchronize(),
            };
            // After an error the stream is waited for when this is dropped.
            self.is_waiting = waited.is_err();
            if let Err(error) = waited {
                let error = self.error(error);
                let owners = mem::take(&mut self.owners);
                self.failures
                    .extend(owners.into_iter().map(|owner| (owner, error.clone())));
            }
        }
        mem::take(&mut self.failures)
    }
}

impl Drop for Enqueued<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            // A stream that cannot be waited for is one whose context is gone, and its work with
            // it.
            let _ = self.stream.synchronize();
        }
    }
}
