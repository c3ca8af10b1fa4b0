//! Executions of KIND_GPU instances. Several batches are in flight, each on a stream of its own.
//!
//! Inputs on the device are read where they are, those elsewhere are copied beside each other;
//! outputs are written where the server has them, if that is on the device. Requests whose inputs
//! and outputs follow each other are one launch, whether the server or the copies put them so.

use std::collections::VecDeque;

use conch_backend_sdk as sdk;
use sdk::{
    Batch, DetachedBatch, DeviceConstants, DeviceKernel, DeviceRange, DeviceSlot, DeviceStream,
    DeviceWork, Error, InstanceContext, KernelArgument, Request,
};

use crate::geometry::{ELEMENTS_MAX, Geometry};
use crate::prepared::Prepared;
use crate::ptx;
use crate::signature::Signature;

/// Batches in flight: one that is copied in, one that is computed, one that is copied out.
pub const DEPTH: usize = 3;

/// Ranges of a batch that lie beside each other: the inputs, and the outputs.
const OUTPUT_LANE: usize = 2;

/// An instance on a GPU.
pub struct OnDevice {
    /// First, as their work reads the rest.
    slots: Vec<DeviceSlot>,
    /// Slots with a batch, oldest first.
    busy: VecDeque<usize>,
    kernel: DeviceKernel,
    table: Option<DeviceConstants>,
}

impl OnDevice {
    /// None if the instance is not on a GPU. Blocks while the driver compiles the kernel.
    ///
    /// # Errors
    /// `Unavailable` without a driver that has kernels; what the driver refuses.
    pub fn open(
        signature: &Signature,
        context: &InstanceContext,
        priority: i32,
    ) -> Result<Option<OnDevice>, Error> {
        let Some(mut stream) = DeviceStream::open(context, priority)? else {
            return Ok(None);
        };
        let kernel = stream.compile(&ptx::text(&signature.formula), ptx::NAME)?;
        let table = match signature.formula.operation.table() {
            None => None,
            Some(bytes) => Some(stream.constants(&bytes)?),
        };
        let mut slots = vec![DeviceSlot::new(stream)?];
        while slots.len() < DEPTH {
            let more = DeviceStream::open(context, priority)?;
            slots.extend(more.map(DeviceSlot::new).transpose()?);
        }
        Ok(Some(OnDevice {
            slots,
            busy: VecDeque::with_capacity(DEPTH),
            kernel,
            table,
        }))
    }

    /// Takes over a batch and enqueues its work. Does not wait for the device.
    pub fn enqueue(&mut self, signature: &Signature, batch: DetachedBatch) {
        let free = self.slots.iter_mut().enumerate();
        let free = free.into_iter().find(|(_, slot)| slot.is_free());
        let Some((place, slot)) = free else {
            batch.finish(|_| Err(Error::unavailable("too many batches are in flight")));
            return;
        };
        let table = self.table.as_ref().map_or(0, DeviceConstants::address);
        let kernel = &self.kernel;
        // SAFETY: `plan` keeps the response of every output that it adds, and nothing here takes
        // one back.
        unsafe {
            slot.begin(batch, |batch, work| {
                enqueue_all(signature, kernel, table, batch, work)
            });
        }
        if !slot.is_free() {
            self.busy.push_back(place);
        }
    }

    /// Answers the batches that the device is done with, in order. Returns how many are in flight.
    pub fn poll(&mut self) -> usize {
        while let Some(place) = self.busy.front() {
            let is_done = self.slots.get_mut(*place).is_none_or(DeviceSlot::poll);
            if !is_done {
                break;
            }
            self.busy.pop_front();
        }
        self.busy.len()
    }
}

fn enqueue_all<'m>(
    signature: &Signature,
    kernel: &DeviceKernel,
    table: u64,
    batch: &'m Batch<'m>,
    work: &mut DeviceWork<'m>,
) -> Result<(), Error> {
    let mut planned = Vec::with_capacity(batch.len());
    for request in batch.requests() {
        match plan(signature, request, work) {
            Ok(elements) => planned.extend(elements),
            Err(error) => request.fail(error),
        }
    }
    work.place()?;
    let launches = planned.iter().map(|elements| elements.launch(work));
    let launches = merged(launches.collect(), signature);
    for launch in launches {
        let number = |value: usize| KernelArgument::U32(u32::try_from(value).unwrap_or(u32::MAX));
        let Geometry {
            count,
            inner,
            channels,
        } = launch.geometry;
        let arguments = [
            KernelArgument::Address(launch.inputs[0]),
            KernelArgument::Address(launch.inputs[1]),
            KernelArgument::Address(launch.output),
            KernelArgument::Address(table),
            number(count),
            number(inner),
            number(channels),
        ];
        let threads = u32::try_from(count).unwrap_or(u32::MAX);
        // SAFETY: these are the parameters of every text of `ptx`. A thread below `count` reads one
        // element of each input, at a place below `count`, and writes one of the output, all of
        // which have `count` elements by `Prepared` and `merged`; of the table it reads two values
        // of one of the channels that it has. It has no loop.
        unsafe { work.launch(kernel, threads, &arguments) }?;
    }
    Ok(())
}

/// A request whose ranges are in the work.
struct Planned {
    inputs: [Option<DeviceRange>; 2],
    output: DeviceRange,
    geometry: Geometry,
}

/// Addresses and elements of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Launch {
    inputs: [u64; 2],
    output: u64,
    geometry: Geometry,
}

impl Planned {
    fn launch(&self, work: &DeviceWork<'_>) -> Launch {
        let address = |range: Option<DeviceRange>| range.map_or(0, |range| work.address(range));
        Launch {
            inputs: self.inputs.map(address),
            output: work.address(self.output),
            geometry: self.geometry,
        }
    }
}

/// Begins the response, and adds inputs and output to the work. None: there is nothing to compute.
fn plan<'m>(
    signature: &Signature,
    request: Request<'m>,
    work: &mut DeviceWork<'m>,
) -> Result<Option<Planned>, Error> {
    let response = request.respond()?;
    if !request.wants(&signature.output)? {
        response.keep();
        return Ok(None);
    }
    let formula = &signature.formula;
    let prepared = Prepared::new(signature, request)?;
    let place = work.memory_place();
    let (data_type, shape) = (formula.output_type, &prepared.shape);
    let target = response.output_in(
        &signature.output,
        data_type,
        shape,
        prepared.byte_count,
        place,
    )?;
    let mut parts = Vec::with_capacity(prepared.inputs.len());
    for input in &prepared.inputs {
        let pieces = (0..input.buffer_count()).map(|index| input.memory(index, place));
        parts.push(pieces.collect::<Result<Vec<_>, _>>()?);
    }
    let mut inputs = [None; 2];
    for (lane, (range, parts)) in inputs.iter_mut().zip(&parts).enumerate() {
        *range = Some(work.input(parts, lane, formula.element_bytes));
    }
    let output = work.output(target, OUTPUT_LANE, formula.output_bytes);
    response.keep();
    let planned = Planned {
        inputs,
        output,
        geometry: prepared.geometry,
    };
    Ok((prepared.geometry.count > 0).then_some(planned))
}

/// Joins launches whose inputs and outputs follow each other, in the same groups of elements.
fn merged(launches: Vec<Launch>, signature: &Signature) -> Vec<Launch> {
    let formula = &signature.formula;
    let input_count = signature.inputs.len();
    let mut joined: Vec<Launch> = Vec::with_capacity(launches.len());
    for launch in launches {
        if let Some(last) = joined.last_mut() {
            let (sum, more) = (last.geometry.count, launch.geometry.count);
            let follows = |before: u64, address: u64, bytes: usize| {
                before.checked_add((sum * bytes) as u64) == Some(address)
            };
            let mut inputs = last.inputs.iter().zip(launch.inputs).take(input_count);
            let is_next = last.geometry.inner == launch.geometry.inner
                && last.geometry.channels == launch.geometry.channels
                && sum + more <= ELEMENTS_MAX
                && inputs.all(|(before, address)| follows(*before, address, formula.element_bytes))
                && follows(last.output, launch.output, formula.output_bytes);
            if is_next {
                last.geometry.count += more;
                continue;
            }
        }
        joined.push(launch);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formula::Formula;
    use crate::operation::Operation;

    #[test]
    fn neighbours_are_one_launch() {
        let formula = Formula::new(Operation::Add, sdk::DataType::Fp16, sdk::DataType::Fp16);
        let signature = Signature {
            model_name: "m".to_owned(),
            formula: formula.unwrap(),
            inputs: vec![c"A".to_owned(), c"B".to_owned()],
            output: c"O".to_owned(),
            is_batching: true,
        };
        let launch = |a: u64, b: u64, output: u64, count: usize, inner: usize| Launch {
            inputs: [a, b],
            output,
            geometry: Geometry {
                count,
                inner,
                channels: 1,
            },
        };
        for (launches, expected) in [
            (vec![], vec![]),
            (
                vec![
                    launch(0, 100, 200, 3, 1),
                    launch(6, 106, 206, 2, 1),
                    launch(10, 110, 210, 1, 1),
                ],
                vec![launch(0, 100, 200, 6, 1)],
            ),
            (
                vec![launch(0, 100, 200, 3, 1), launch(6, 107, 206, 2, 1)],
                vec![launch(0, 100, 200, 3, 1), launch(6, 107, 206, 2, 1)],
            ),
            (
                vec![launch(0, 100, 200, 3, 1), launch(6, 106, 300, 2, 1)],
                vec![launch(0, 100, 200, 3, 1), launch(6, 106, 300, 2, 1)],
            ),
            (
                vec![launch(0, 100, 200, 3, 1), launch(6, 106, 206, 2, 2)],
                vec![launch(0, 100, 200, 3, 1), launch(6, 106, 206, 2, 2)],
            ),
        ] {
            assert_eq!(merged(launches, &signature), expected);
        }
    }
}
