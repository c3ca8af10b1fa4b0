//! Batches of a session on a GPU: inputs joined there, outputs written or copied from there.
//!
//! All copies of a stage are enqueued together and waited for once, on the stream of the instance.

use super::delivery::{deliver, open_responses, send};
use super::device_delivery::DeviceOutputs;
use super::inputs::{JoinedInput, count_rows, gather};
use super::response_memory::{WritableMemory, device_targets};
use super::runner_parts::{RunnerParts, run_session};
use super::session::{Output as _, Session};
use super::targets::wanted_outputs;
use super::tensor::OutputData;
use crate::{Batch, DeviceStream, Error};

/// Runs a batch and sends its responses.
///
/// # Errors
/// What ends the whole batch; requests without a response yet get it.
pub(super) fn run<S: Session>(
    parts: &mut RunnerParts<S>,
    stream: &mut DeviceStream,
    model_name: &str,
    batch: &Batch<'_>,
) -> Result<(), Error> {
    let total = count_rows(model_name, batch, &mut parts.rows)?;
    let place = stream.place();
    let mut copies = stream.copies();
    let gathered = gather(&mut parts.feeds, model_name, batch, Some(&mut copies))?;
    // One input serves all requests, and so fails them all.
    if let Some((_, error)) = copies.run().pop() {
        return Err(error);
    }
    let feeds: Vec<_> = gathered.iter().map(JoinedInput::feed).collect();
    let wanted = wanted_outputs(&parts.outputs, batch)?;
    let mut responses = open_responses(batch)?;

    batch.begin_compute();
    let single = match &responses[..] {
        [Some(response)] if parts.session.writes_in_place() => Some(response),
        _ => None,
    };
    let writable = WritableMemory::DeviceAndHost(place);
    let (mut targets, copy_targets) = device_targets(&wanted, single, batch, total, writable)?;
    let outputs = if wanted.is_empty() {
        Vec::new()
    } else {
        let watch = parts.watch.as_ref();
        run_session(&mut parts.session, watch, batch, &feeds, &mut targets)?
    };
    batch.end_compute();
    drop(targets);

    let mut on_device = DeviceOutputs::new(place, &parts.rows);
    let mut on_host = Vec::new();
    for ((plan, output), copy_target) in wanted.iter().zip(&outputs).zip(copy_targets) {
        let Some(output) = output else { continue };
        let contents = output.read()?;
        match contents.data {
            OutputData::Device(source) => {
                let (data_type, shape) = (contents.data_type, contents.shape);
                on_device.add(plan, data_type, shape, source, copy_target);
            }
            OutputData::Host(_) => on_host.push((*plan, contents)),
        }
    }
    let failures = on_device.copy(stream, batch, &responses)?;
    for (index, error) in failures {
        if let Some(open) = responses.get_mut(index).and_then(Option::take) {
            open.fail(error);
        }
    }
    for (plan, contents) in on_host {
        deliver(plan, contents, batch, &parts.rows, &mut responses)?;
    }
    send(responses, model_name);
    Ok(())
}
