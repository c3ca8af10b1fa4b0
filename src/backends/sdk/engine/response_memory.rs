//! Memory of the outputs of a run on a GPU: that of the only response, where their size is known
//! before it.

use super::device_delivery::CopyTarget;
use super::plan::OutputPlan;
use super::targets::known_size;
use super::tensor::{Memory, OutputBuffer, Target};
use crate::{Batch, Buffer, DEVICE_ALIGNMENT, Error, MemoryPlace, Response};

/// Where a session on the GPU of a place can write outputs.
#[derive(Clone, Copy, Debug)]
pub(super) enum WritableMemory {
    /// There, and in main memory, for which it waits.
    DeviceAndHost(MemoryPlace),
    /// There alone.
    Device(MemoryPlace),
}

/// The outputs of a run, and where those are to be copied that the session cannot write into their
/// response: both in the order of `wanted`. `single` is the response of the only request, for a
/// session that writes in place.
///
/// # Errors
/// Whatever the server reports.
pub(super) fn device_targets<'p, 'r>(
    wanted: &[&'p OutputPlan],
    single: Option<&'r Response<'_>>,
    batch: &Batch<'_>,
    rows: usize,
    writable: WritableMemory,
) -> Result<(Vec<Target<'p, 'r>>, Vec<Option<CopyTarget<'r>>>), Error> {
    let mut targets = Vec::with_capacity(wanted.len());
    let mut copy_targets = Vec::with_capacity(wanted.len());
    for plan in wanted {
        let memory = match single {
            Some(response) => response_memory(plan, response, batch, rows, writable)?,
            None => None,
        };
        let (memory, copy_target) = match memory {
            Some(ResponseMemory::InPlace(memory)) => (Some(memory), None),
            Some(ResponseMemory::ByCopy(target)) => (None, Some(target)),
            None => (None, None),
        };
        let info = &plan.info;
        targets.push(Target { info, memory });
        copy_targets.push(copy_target);
    }
    Ok((targets, copy_targets))
}

/// Memory of the response that an output gets.
enum ResponseMemory<'r> {
    /// The session writes it.
    InPlace(Memory<'r>),
    /// It lies where the session cannot write.
    ByCopy(CopyTarget<'r>),
}

/// None: the size is not known before the run.
fn response_memory<'r>(
    plan: &OutputPlan,
    response: &'r Response<'_>,
    batch: &Batch<'_>,
    rows: usize,
    writable: WritableMemory,
) -> Result<Option<ResponseMemory<'r>>, Error> {
    if plan.is_state || plan.batch_output.is_some() {
        return Ok(None);
    }
    let Some((shape, len)) = known_size(&plan.info, batch.max_batch_size() > 0, rows) else {
        return Ok(None);
    };
    let info = &plan.info;
    let (WritableMemory::DeviceAndHost(place) | WritableMemory::Device(place)) = writable;
    let target = response.output_in(&info.name, info.data_type, &shape, len, place)?;
    let is_aligned = target.address().is_multiple_of(DEVICE_ALIGNMENT);
    if target.place() == place && is_aligned {
        let buffer = OutputBuffer::Device(target);
        return Ok(Some(ResponseMemory::InPlace(Memory { shape, buffer })));
    }
    let target = match writable {
        WritableMemory::DeviceAndHost(_) => match Buffer::on_host(target) {
            Ok(buffer) => {
                let buffer = OutputBuffer::Host(buffer);
                return Ok(Some(ResponseMemory::InPlace(Memory { shape, buffer })));
            }
            Err(target) => target,
        },
        WritableMemory::Device(_) => target,
    };
    Ok(Some(ResponseMemory::ByCopy(CopyTarget { shape, target })))
}
