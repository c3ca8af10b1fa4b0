//! Batches of a session in main memory.

use super::delivery::{deliver, send};
use super::inputs::{count_rows, gather};
use super::parts::Parts;
use super::session::Session;
use super::targets::{targets, wanted_outputs};
use super::tensor::{Feed, FeedData};
use crate::{Batch, Error};

/// Runs a batch and sends its responses.
///
/// # Errors
/// What ends the whole batch; requests without a response yet get it.
pub(super) fn run<S: Session>(
    parts: &mut Parts<S>,
    model_name: &str,
    batch: &Batch<'_>,
) -> Result<(), Error> {
    let total = count_rows(model_name, batch, &mut parts.rows)?;
    let gathered = gather(&mut parts.feeds, model_name, batch)?;
    let feeds: Vec<_> = gathered
        .iter()
        .map(|(name, tensor)| Feed {
            name,
            data_type: tensor.data_type,
            shape: &tensor.shape,
            data: FeedData::Host(tensor.bytes),
        })
        .collect();
    let wanted = wanted_outputs(&parts.outputs, batch)?;
    let mut responses = batch
        .requests()
        .map(|request| request.respond().map(Some))
        .collect::<Result<Vec<_>, Error>>()?;

    batch.begin_compute();
    let outputs = if wanted.is_empty() {
        Vec::new()
    } else {
        let in_place = parts.session.writes_in_place();
        let mut targets = targets(in_place, batch, &responses, &wanted, total)?;
        parts
            .compute
            .run(&mut parts.session, batch, &feeds, &mut targets)?
    };
    batch.end_compute();

    for (plan, output) in wanted.iter().zip(outputs) {
        if let Some(output) = output {
            deliver(plan, &output, batch, &parts.rows, &mut responses)?;
        }
    }
    send(responses, model_name);
    Ok(())
}
