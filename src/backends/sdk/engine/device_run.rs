//! Batches of a session on a GPU: inputs joined there, outputs written or copied from there.
//!
//! All copies of a stage are enqueued together and waited for once, on the stream of the instance.

use super::delivery::{deliver, send};
use super::device_delivery::DeviceOutputs;
use super::device_inputs::gather;
use super::inputs::count_rows;
use super::parts::Parts;
use super::plan::OutputPlan;
use super::session::{Output as _, Session};
use super::targets::{known_size, wanted_outputs};
use super::tensor::{Bytes, Contents, Memory, Room, Target};
use crate::{
    Batch, Buffer, DEVICE_ALIGNMENT, DeviceStream, Error, MemoryPlace, MemoryTarget, Response,
};

/// Runs a batch and sends its responses.
///
/// # Errors
/// What ends the whole batch; requests without a response yet get it.
pub(super) fn run<S: Session>(
    parts: &mut Parts<S>,
    stream: &mut DeviceStream,
    model_name: &str,
    batch: &Batch<'_>,
) -> Result<(), Error> {
    let total = count_rows(model_name, batch, &mut parts.rows)?;
    let place = stream.place();
    let mut copies = stream.copies();
    let gathered = gather(&mut parts.feeds, model_name, batch, &mut copies)?;
    // One input serves all requests, and so fails them all.
    if let Some((_, error)) = copies.run().pop() {
        return Err(error);
    }
    let feeds: Vec<_> = gathered.iter().map(|tensor| tensor.feed()).collect();
    let wanted = wanted_outputs(&parts.outputs, batch)?;
    let mut responses = batch
        .requests()
        .map(|request| request.respond().map(Some))
        .collect::<Result<Vec<_>, Error>>()?;

    batch.begin_compute();
    let single = match &responses[..] {
        [Some(response)] if parts.session.writes_in_place() => Some(response),
        _ => None,
    };
    let mut targets = Vec::with_capacity(wanted.len());
    let mut late = Vec::with_capacity(wanted.len());
    for plan in &wanted {
        let room = match single {
            Some(response) => room_of(plan, response, batch, total, place)?,
            None => None,
        };
        let (memory, rest) = match room {
            Some(Planned::Now(memory)) => (Some(memory), None),
            Some(Planned::Late(shape, target)) => (None, Some((shape, target))),
            None => (None, None),
        };
        let info = &plan.info;
        targets.push(Target { info, memory });
        late.push(rest);
    }
    let outputs = match wanted.is_empty() {
        true => Vec::new(),
        false => parts
            .compute
            .run(&mut parts.session, batch, &feeds, &mut targets)?,
    };
    batch.end_compute();
    drop(targets);

    let mut on_device = DeviceOutputs::new(place, &parts.rows);
    let mut on_host = Vec::new();
    for ((plan, output), late) in wanted.iter().zip(&outputs).zip(late) {
        let Some(output) = output else { continue };
        match output.read()? {
            Contents {
                data_type,
                shape,
                bytes: Bytes::Device(source),
            } => on_device.add(plan, data_type, shape, source, late),
            _ => on_host.push((*plan, output)),
        }
    }
    let failures = on_device.copy(stream, batch, &responses)?;
    for (index, error) in failures {
        if let Some(open) = responses.get_mut(index).and_then(Option::take) {
            open.fail(error);
        }
    }
    for (plan, output) in on_host {
        deliver(plan, output, batch, &parts.rows, &mut responses)?;
    }
    send(responses, model_name);
    Ok(())
}

/// Memory of a response for an output whose size is known before the run.
enum Planned<'r> {
    /// The engine writes it.
    Now(Memory<'r>),
    /// Of this shape. It lies where the engine cannot write: what it made is copied there.
    Late(Vec<i64>, MemoryTarget<'r>),
}

fn room_of<'r>(
    plan: &OutputPlan,
    response: &'r Response<'_>,
    batch: &Batch<'_>,
    rows: usize,
    place: MemoryPlace,
) -> Result<Option<Planned<'r>>, Error> {
    if plan.is_state || plan.batch_output.is_some() {
        return Ok(None);
    }
    let Some((shape, len)) = known_size(&plan.info, batch.max_batch_size() > 0, rows) else {
        return Ok(None);
    };
    let info = &plan.info;
    let target = response.output_in(&info.name, info.data_type, &shape, len, place)?;
    let is_aligned = target.address().is_multiple_of(DEVICE_ALIGNMENT);
    let room = match Buffer::on_host(target) {
        Ok(buffer) => Room::Host(buffer),
        Err(target) if target.place() == place && is_aligned => Room::Device(target),
        Err(target) => return Ok(Some(Planned::Late(shape, target))),
    };
    Ok(Some(Planned::Now(Memory { shape, room })))
}
