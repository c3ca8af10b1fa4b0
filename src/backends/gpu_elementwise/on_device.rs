//! Executions of KIND_GPU instances. Several batches are in flight, each on a stream of its own.
//!
//! Inputs on the device are read where they are, those elsewhere are copied beside each other;
//! outputs are written where the server has them, if that is on the device. Requests of a batch are
//! few launches, of which each costs the CPU as much.

use conch_backend_sdk as sdk;
use sdk::{
    BatchStreams, DetachedBatch, DeviceAddress, DeviceBatches, DeviceConstants, DeviceKernel,
    DeviceRange, DeviceStream, DeviceWork, Error, InstanceContext, KernelArgument, Request,
    Response,
};

use crate::geometry::Geometry;
use crate::launch::launches;
use crate::prepared::Prepared;
use crate::ptx;
use crate::signature::Signature;

/// Batches in flight: one that is copied in, one that is computed, one that is copied out.
const DEPTH: usize = 3;

/// The outputs of a batch, which lie beside each other as the first and the second inputs do.
const OUTPUT_GROUP: usize = 2;

/// An instance on a GPU.
pub struct OnDevice {
    /// First, as their work reads the rest.
    batches: DeviceBatches,
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
        let mut batches = DeviceBatches::new(&stream)?;
        for _ in 0..DEPTH {
            let own = stream.another(priority)?;
            batches.add_slot(BatchStreams::one(&own), ())?;
        }
        Ok(Some(OnDevice {
            batches,
            kernel,
            table,
        }))
    }

    /// Batches that may be in flight.
    pub fn depth_max(&self) -> usize {
        self.batches.depth_max()
    }

    /// Takes over a batch and enqueues its work. Does not wait for the device.
    pub fn enqueue(&mut self, signature: &Signature, batch: DetachedBatch) {
        let table = self.table.as_ref().map_or(0, DeviceConstants::address);
        let kernel = &self.kernel;
        self.batches.enqueue(
            batch,
            |request| request.respond(),
            |(), work| enqueue_all(signature, kernel, table, work),
        );
    }

    /// Answers the batches that the device is done with, in order. Returns how many are in flight.
    pub fn poll(&mut self) -> usize {
        self.batches.poll()
    }
}

fn enqueue_all(
    signature: &Signature,
    kernel: &DeviceKernel,
    table: u64,
    work: &mut DeviceWork<'_>,
) -> Result<(), Error> {
    let mut planned = Vec::with_capacity(work.batch().len());
    for (owner, request, response) in work.requests() {
        match plan(signature, owner, request, response, work) {
            Ok(elements) => planned.extend(elements),
            Err(error) => work.fail(owner, error),
        }
    }
    if planned.is_empty() {
        return Ok(());
    }
    work.place_ranges()?;
    let requests = planned.iter().map(|elements| elements.place(work));
    let address = |address| KernelArgument::Address(DeviceAddress(address));
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    for launch in launches(requests, &signature.formula, signature.inputs.len()) {
        let segments = launch.parameter();
        let arguments = [
            KernelArgument::Bytes(&segments),
            address(table),
            KernelArgument::U32(number(launch.inner)),
            KernelArgument::U32(number(launch.channels)),
        ];
        let (count, rows) = (number(launch.count()), number(launch.rows()));
        // SAFETY: these are the parameters of every text of `ptx`, and there are as many rows as
        // segments. A thread below the `count` of its segment reads one element of each input, at a
        // place below `count`, and writes one of the output, all of which have `count` elements by
        // `Prepared` and `launches`; of the table it reads two values of one of the channels that
        // it has. It has no loop.
        unsafe { work.launch(kernel, count, rows, &arguments) }?;
    }
    Ok(())
}

/// A request whose ranges are in the work.
struct Planned {
    inputs: [Option<DeviceRange>; 2],
    output: DeviceRange,
    geometry: Geometry,
}

impl Planned {
    /// Addresses of inputs and output.
    fn place(&self, work: &DeviceWork<'_>) -> ([u64; 2], u64, Geometry) {
        let address = |range: Option<DeviceRange>| range.map_or(0, |range| work.address(range));
        let inputs = self.inputs.map(address);
        (inputs, work.address(self.output), self.geometry)
    }
}

/// Adds inputs and output of a request to the work. None: there is nothing to compute.
fn plan<'m>(
    signature: &Signature,
    owner: usize,
    request: Request<'m>,
    response: &'m Response<'m>,
    work: &mut DeviceWork<'m>,
) -> Result<Option<Planned>, Error> {
    if !request.wants(&signature.output)? {
        return Ok(None);
    }
    let formula = &signature.formula;
    let prepared = Prepared::new(signature, request)?;
    let place = work.place();
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
    for (group, (range, parts)) in inputs.iter_mut().zip(&parts).enumerate() {
        *range = Some(work.input(owner, parts, group, formula.element_bytes));
    }
    let output = work.output(owner, target, OUTPUT_GROUP, formula.output_bytes);
    let planned = Planned {
        inputs,
        output,
        geometry: prepared.geometry,
    };
    Ok((prepared.geometry.count > 0).then_some(planned))
}
