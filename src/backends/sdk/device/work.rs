//! The work of one batch on a device: ranges that kernels read and write, the copies that bring
//! them there and back, and launches between these. Nothing here waits for the device.

use std::marker::PhantomData;

use conch_cuda::{CudaError, DeviceAddress, Event, Stream};
use conch_memory::MemoryPlace;

use super::copies::StageMarks;
use super::kernel::{DeviceKernel, KernelArgument};
use super::memory::{MemorySource, MemoryTarget, copy_on_host};
use super::plan::{DeviceCopy, PINNED, PlannedCopy, StagedOutput, is_staged, runs, staged_bytes};
use super::room::Room;
use super::staging::StagingBlock;
use super::stream::DeviceStream;
use crate::Error;

/// Where a lane begins in the room of a batch: what devices read in one piece.
const LANE_ALIGNMENT: usize = 256;

/// A range of device memory that a kernel of the batch reads or writes: memory of the request
/// itself, or room of the slot. It has an address when the work was [placed](DeviceWork::place).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange(usize);

struct Range {
    lane: usize,
    alignment: usize,
    len: usize,
    /// Where it is, if it needs no room; later where it is in any case.
    address: Option<u64>,
}

/// What is to be enqueued for a batch, and then what was. Dropped with work on the stream that
/// nobody took over, it waits for it.
pub struct DeviceWork<'m> {
    stream: &'m Stream,
    marks: &'m StageMarks,
    place: MemoryPlace,
    room: &'m mut Room,
    ranges: Vec<Range>,
    /// Copies into ranges, whose targets are their numbers until they have addresses.
    gathered: Vec<(usize, PlannedCopy)>,
    /// Copies out of ranges, likewise.
    scattered: Vec<(usize, PlannedCopy)>,
    block: StagingBlock,
    staged: usize,
    outs: Vec<StagedOutput>,
    is_enqueued: bool,
    memory: PhantomData<&'m mut u8>,
}

impl<'m> DeviceWork<'m> {
    pub(super) fn new(stream: &'m DeviceStream, marks: &'m StageMarks, room: &'m mut Room) -> Self {
        DeviceWork {
            stream: &stream.stream,
            marks,
            place: stream.place(),
            room,
            ranges: Vec::new(),
            gathered: Vec::new(),
            scattered: Vec::new(),
            block: StagingBlock::default(),
            staged: 0,
            outs: Vec::new(),
            is_enqueued: false,
            memory: PhantomData,
        }
    }

    /// Where the batch is computed: what inputs and outputs are best asked for.
    pub fn memory_place(&self) -> MemoryPlace {
        self.place
    }

    /// An input in `parts`. A single part on the device is used where it is, if its address is a
    /// multiple of `alignment`; else the parts are copied into room, behind those of the same
    /// `lane` that came before: inputs of several requests are then one range.
    pub fn input(
        &mut self,
        parts: &[MemorySource<'m>],
        lane: usize,
        alignment: usize,
    ) -> DeviceRange {
        let number = self.ranges.len();
        let len = parts.iter().map(MemorySource::len).sum();
        let address = match parts {
            [part] => self.usable(part.address(), part.place(), alignment),
            _ => None,
        };
        if address.is_none() {
            let mut offset = 0;
            for part in parts.iter().filter(|part| !part.is_empty()) {
                let copy = PlannedCopy {
                    owner: 0,
                    target: offset,
                    target_place: self.place,
                    source: Some((part.address(), part.place())),
                    len: part.len(),
                };
                offset += part.len() as u64;
                self.gathered.push((number, copy));
            }
        }
        self.add(lane, alignment, len, address)
    }

    /// An output: written in place if it lies on the device, else in room and then copied there.
    /// That its response is kept is promised to [`DeviceSlot::begin`](super::DeviceSlot::begin).
    pub fn output(
        &mut self,
        mut target: MemoryTarget<'_>,
        lane: usize,
        alignment: usize,
    ) -> DeviceRange {
        let number = self.ranges.len();
        let target_place = target.place();
        let (at, len) = target.take_rest();
        let address = self.usable(at, target_place, alignment);
        if address.is_none() && len > 0 {
            let copy = PlannedCopy {
                owner: 0,
                target: at,
                target_place,
                source: Some((0, self.place)),
                len,
            };
            self.scattered.push((number, copy));
        }
        self.add(lane, alignment, len, address)
    }

    fn usable(&self, address: u64, place: MemoryPlace, alignment: usize) -> Option<u64> {
        let is_near = place == self.place;
        (is_near && address.is_multiple_of(alignment as u64)).then_some(address)
    }

    fn add(
        &mut self,
        lane: usize,
        alignment: usize,
        len: usize,
        address: Option<u64>,
    ) -> DeviceRange {
        self.ranges.push(Range {
            lane,
            alignment,
            len,
            address,
        });
        DeviceRange(self.ranges.len() - 1)
    }

    /// Finds room for all ranges and enqueues the copies of inputs.
    ///
    /// # Errors
    /// `Unavailable` if the device has no room; `Internal` for what the driver refuses.
    pub fn place(&mut self) -> Result<(), Error> {
        let too_large = || Error::internal("batch larger than memory");
        let mut order: Vec<usize> = (0..self.ranges.len()).collect();
        order.retain(|number| self.ranges[*number].address.is_none());
        // Stable: in a lane as they came.
        order.sort_by_key(|number| self.ranges[*number].lane);
        let (mut end, mut lane) = (0_usize, None);
        let mut offsets = Vec::with_capacity(order.len());
        for number in order {
            let range = &self.ranges[number];
            let alignment = match lane.replace(range.lane) == Some(range.lane) {
                true => range.alignment,
                false => LANE_ALIGNMENT,
            };
            let start = end
                .checked_next_multiple_of(alignment)
                .ok_or_else(too_large)?;
            offsets.push((number, start as u64));
            end = start.checked_add(range.len).ok_or_else(too_large)?;
        }
        let base = if end > 0 { self.room.reserve(end)? } else { 0 };
        for (number, offset) in offsets {
            self.ranges[number].address = Some(base + offset);
        }
        let gathered = std::mem::take(&mut self.gathered);
        let planned = gathered
            .iter()
            .chain(&self.scattered)
            .map(|(_, copy)| *copy);
        let planned: Vec<PlannedCopy> = planned.collect();
        self.block = self.room.staging(staged_bytes(&planned));
        let mut copies = Vec::with_capacity(gathered.len());
        for (number, mut copy) in gathered {
            copy.target += self.ranges[number].address.unwrap_or_default();
            let (source, source_place) = copy.source.unwrap_or((0, self.place));
            let mut ready = device_copy(&copy, source, source_place);
            if let Some(staging) = self.stage(&copy) {
                // SAFETY: the block has that many bytes left and is used by nobody else; the
                // source is readable by its contract.
                unsafe { copy_on_host(staging, source, copy.len) };
                (ready.source, ready.source_place) = (staging, PINNED);
            }
            copies.push(ready);
        }
        self.mark(&self.marks.begin)?;
        self.copy(&copies)?;
        self.mark(&self.marks.staged_in)
    }

    /// Room in the staging block for a copy that passes through it, if there is some.
    fn stage(&mut self, copy: &PlannedCopy) -> Option<u64> {
        if !is_staged(copy) || copy.len > self.block.len - self.staged {
            return None;
        }
        let address = self.block.address + self.staged as u64;
        self.staged += copy.len;
        Some(address)
    }

    /// The address of a range, or 0 before it has one.
    pub fn address(&self, range: DeviceRange) -> u64 {
        let range = self.ranges.get(range.0);
        range.and_then(|range| range.address).unwrap_or_default()
    }

    /// Enqueues a kernel with a thread for each of `count` elements, behind what was enqueued so
    /// far.
    ///
    /// # Safety
    /// `arguments` are the kernel's parameters. With them it ends, reads only inside of inputs of
    /// this work and of constants that outlive the slot, and writes only inside of its outputs.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub unsafe fn launch(
        &mut self,
        kernel: &DeviceKernel,
        count: u32,
        arguments: &[KernelArgument],
    ) -> Result<(), Error> {
        // SAFETY: by this function's contract; the ranges stay until the slot's event is reached.
        let launched = unsafe { kernel.launch(self.stream, count, arguments) };
        self.note(launched)
    }

    /// Enqueues the copies of outputs that are not on the device.
    pub(super) fn scatter(&mut self) -> Result<(), Error> {
        let mut copies = Vec::with_capacity(self.scattered.len());
        for (number, copy) in std::mem::take(&mut self.scattered) {
            let source = self.ranges[number].address.unwrap_or_default();
            let mut ready = device_copy(&copy, source, self.place);
            if let Some(staging) = self.stage(&copy) {
                self.outs.push(StagedOutput {
                    owner: 0,
                    target: copy.target,
                    source: staging,
                    len: copy.len,
                });
                (ready.target, ready.target_place) = (staging, PINNED);
            }
            copies.push(ready);
        }
        self.mark(&self.marks.computed)?;
        self.copy(&copies)
    }

    /// Marks a stage on the stream.
    fn mark(&self, mark: &Event) -> Result<(), Error> {
        self.stream
            .record(mark)
            .map_err(|error| self.refused(&error))
    }

    /// What is left for the CPU when the device is done. Whoever takes it waits for the device.
    pub(super) fn take_over(mut self) -> (Vec<StagedOutput>, bool) {
        let is_enqueued = std::mem::take(&mut self.is_enqueued);
        (std::mem::take(&mut self.outs), is_enqueued)
    }

    /// Enqueues copies, neighbours as one; a run that the driver refuses is tried copy by copy, as
    /// none may cross from one allocation into the next.
    fn copy(&mut self, copies: &[DeviceCopy]) -> Result<(), Error> {
        for run in runs(copies) {
            let Some(first) = run.first() else { continue };
            let len = run.iter().map(|copy| copy.len).sum();
            let copied = self.enqueue(first, len);
            if copied.is_ok() || run.len() == 1 {
                self.note(copied)?;
                continue;
            }
            for copy in run {
                let copied = self.enqueue(copy, copy.len);
                self.note(copied)?;
            }
        }
        Ok(())
    }

    fn enqueue(&self, copy: &DeviceCopy, len: usize) -> Result<(), CudaError> {
        let (target, source) = (DeviceAddress(copy.target), DeviceAddress(copy.source));
        // SAFETY: both are that long: sources and targets by their contracts, room and staging
        // memory by their plans. The slot keeps them until its event is reached.
        unsafe { self.stream.copy(target, source, len) }
    }

    fn note(&mut self, outcome: Result<(), CudaError>) -> Result<(), Error> {
        self.is_enqueued |= outcome.is_ok();
        outcome.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &CudaError) -> Error {
        let ordinal = self.stream.device().ordinal();
        Error::internal(format!("GPU {ordinal}: {error}"))
    }
}

impl Drop for DeviceWork<'_> {
    fn drop(&mut self) {
        if self.is_enqueued {
            // A stream that cannot be waited for is one whose context is gone, and its work with
            // it.
            let _ = self.stream.synchronize();
        }
    }
}

fn device_copy(copy: &PlannedCopy, source: u64, source_place: MemoryPlace) -> DeviceCopy {
    DeviceCopy {
        owner: copy.owner,
        target: copy.target,
        target_place: copy.target_place,
        source,
        source_place,
        len: copy.len,
    }
}
