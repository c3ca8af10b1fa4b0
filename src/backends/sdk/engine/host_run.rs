//! Batches of a session in main memory.

use super::delivery::{deliver, open_responses, send};
use super::inputs::{JoinedInput, count_rows, gather};
use super::runner_parts::{RunnerParts, run_session};
use super::session::{Output as _, Session};
use super::targets::{targets, wanted_outputs};
use crate::{Batch, Error};

/// Runs a batch and sends its responses.
///
/// # Errors
/// What ends the whole batch; requests without a response yet get it.
pub(super) fn run<S: Session>(
    parts: &mut RunnerParts<S>,
    model_name: &str,
    batch: &Batch<'_>,
) -> Result<(), Error> {
    let total = count_rows(model_name, batch, &mut parts.rows)?;
    let gathered = gather(&mut parts.feeds, model_name, batch, None)?;
    let feeds: Vec<_> = gathered.iter().map(JoinedInput::feed).collect();
    let wanted = wanted_outputs(&parts.outputs, batch)?;
    let mut responses = open_responses(batch)?;

    batch.begin_compute();
    let outputs = if wanted.is_empty() {
        Vec::new()
    } else {
        let in_place = parts.session.writes_in_place();
        let mut targets = targets(in_place, batch, &responses, &wanted, total)?;
        let watch = parts.watch.as_ref();
        run_session(&mut parts.session, watch, batch, &feeds, &mut targets)?
    };
    batch.end_compute();

    for (plan, output) in wanted.iter().zip(outputs) {
        if let Some(output) = output {
            deliver(plan, output.read()?, batch, &parts.rows, &mut responses)?;
        }
    }
    send(responses, model_name);
    Ok(())
}
