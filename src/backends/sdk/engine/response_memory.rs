//! Memory of the only response of a run, for outputs whose size is known before it.

use super::device_delivery::CopyTarget;
use super::plan::OutputPlan;
use super::targets::known_size;
use super::tensor::{Memory, OutputBuffer};
use crate::{Batch, Buffer, DEVICE_ALIGNMENT, Error, MemoryPlace, Response};

/// Memory of the response that an output gets.
pub(super) enum ResponseMemory<'r> {
    /// The session writes it.
    InPlace(Memory<'r>),
    /// It lies where the session cannot write.
    ByCopy(CopyTarget<'r>),
}

/// Where a session on the GPU of a place writes outputs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reach {
    /// There, and in main memory, for which it waits.
    Everywhere(MemoryPlace),
    /// There alone.
    Device(MemoryPlace),
}

/// None: the size is not known before the run.
///
/// # Errors
/// Whatever the server reports.
pub(super) fn response_memory<'r>(
    plan: &OutputPlan,
    response: &'r Response<'_>,
    batch: &Batch<'_>,
    rows: usize,
    reach: Reach,
) -> Result<Option<ResponseMemory<'r>>, Error> {
    if plan.is_state || plan.batch_output.is_some() {
        return Ok(None);
    }
    let Some((shape, len)) = known_size(&plan.info, batch.max_batch_size() > 0, rows) else {
        return Ok(None);
    };
    let info = &plan.info;
    let (Reach::Everywhere(place) | Reach::Device(place)) = reach;
    let target = response.output_in(&info.name, info.data_type, &shape, len, place)?;
    let is_aligned = target.address().is_multiple_of(DEVICE_ALIGNMENT);
    if target.place() == place && is_aligned {
        let buffer = OutputBuffer::Device(target);
        return Ok(Some(ResponseMemory::InPlace(Memory { shape, buffer })));
    }
    let target = match reach {
        Reach::Everywhere(_) => match Buffer::on_host(target) {
            Ok(buffer) => {
                let buffer = OutputBuffer::Host(buffer);
                return Ok(Some(ResponseMemory::InPlace(Memory { shape, buffer })));
            }
            Err(target) => target,
        },
        Reach::Device(_) => target,
    };
    Ok(Some(ResponseMemory::ByCopy(CopyTarget { shape, target })))
}
