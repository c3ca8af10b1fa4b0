//! Work of a backend's own kernels, on ranges of device memory.

use super::ranges::DeviceRange;
use super::work::DeviceWork;
use crate::Error;
use crate::device::kernel::{DeviceKernel, KernelArgument};
use crate::device::memory::{MemorySource, MemoryTarget};
use crate::device::plan::{PlannedCopy, Stage};

impl<'m> DeviceWork<'m> {
    /// An input of the request `owner`, in `parts`. A single part on the device is used where it
    /// is, if its address is a multiple of `alignment`; else the parts are copied into the
    /// workspace, behind those of the same `group` that came before: inputs of several requests are
    /// then one range.
    pub fn input(
        &mut self,
        owner: usize,
        parts: &[MemorySource<'m>],
        group: usize,
        alignment: usize,
    ) -> DeviceRange {
        let place = self.place();
        let len = parts.iter().map(MemorySource::len).sum();
        let in_place = match parts {
            [part] => Some(part),
            _ => None,
        };
        let in_place = in_place.filter(|part| part.place() == place);
        let address = in_place.map(MemorySource::address);
        let range = self.ranges.add(group, alignment, len, address);
        if self.ranges.is_to_be_placed(range) {
            let mut offset = 0;
            for part in parts.iter().filter(|part| !part.is_empty()) {
                let copy = PlannedCopy {
                    stage: Stage::In,
                    owner,
                    target: offset,
                    target_place: place,
                    source: Some((part.address(), part.place())),
                    len: part.len(),
                };
                offset += part.len() as u64;
                self.ranges.copies.push((range.0, copy));
            }
        }
        range
    }

    /// An output of the request `owner`: written in place if it lies on the device, else in the
    /// workspace and then copied there.
    pub fn output(
        &mut self,
        owner: usize,
        mut target: MemoryTarget<'m>,
        group: usize,
        alignment: usize,
    ) -> DeviceRange {
        let (place, target_place) = (self.place(), target.place());
        let (at, len) = target.take_rest();
        let address = (target_place == place).then_some(at);
        let range = self.ranges.add(group, alignment, len, address);
        if self.ranges.is_to_be_placed(range) && len > 0 {
            let copy = PlannedCopy {
                stage: Stage::Out,
                owner,
                target: at,
                target_place,
                source: Some((0, place)),
                len,
            };
            self.ranges.copies.push((range.0, copy));
        }
        range
    }

    /// Finds room for all ranges and enqueues the copies of inputs.
    ///
    /// # Errors
    /// `Unavailable` if the device has no room; `Internal` for what the driver refuses.
    pub fn place_ranges(&mut self) -> Result<(), Error> {
        let (offsets, end) = self.ranges.layout()?;
        let base = match end {
            0 => 0,
            end => self.memory.workspace.reserve(end)?,
        };
        let copies = self.ranges.place(offsets, base);
        self.copies.planned.extend(copies);
        self.begin_compute()
    }

    /// The address of a range, or 0 before it has one.
    pub fn address(&self, range: DeviceRange) -> u64 {
        self.ranges.address(range).unwrap_or_default()
    }

    /// Enqueues a kernel behind what was enqueued so far: `rows` rows of threads (`%ctaid.y`), in
    /// each one for each of `count` elements.
    ///
    /// # Safety
    /// `arguments` are the kernel's parameters. With them it ends, reads only inside of inputs of
    /// this work and of constants that outlive the [`DeviceBatches`](crate::DeviceBatches), and
    /// writes only inside of its outputs.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub unsafe fn launch(
        &mut self,
        kernel: &DeviceKernel,
        count: u32,
        rows: u32,
        arguments: &[KernelArgument<'_>],
    ) -> Result<(), Error> {
        self.begin_compute()?;
        let stream = self.streams.compute.stream();
        // SAFETY: by this function's contract; the ranges stay until the batch is done.
        let launched = unsafe { kernel.launch(stream, count, rows, arguments) };
        launched.map_err(|error| self.streams.refusal(&error))
    }
}
