//! Outputs of a run on their way to the requests.

use super::plan::OutputPlan;
use super::states::update_states;
use super::tensor::{Contents, OutputData};
use crate::{Batch, Error, Response, Scatter};

/// A response for each request of the batch.
///
/// # Errors
/// Whatever the server reports.
pub(super) fn open_responses<'b>(batch: &'b Batch<'_>) -> Result<Vec<Option<Response<'b>>>, Error> {
    let responses = batch.requests().map(|request| request.respond().map(Some));
    responses.collect()
}

/// Hands an output in main memory to the requests that want it, and to their sequences' states.
///
/// # Errors
/// `Internal` for an output on a device, or one that cannot be cut into the requests' rows.
pub(super) fn deliver(
    plan: &OutputPlan,
    contents: Contents<'_>,
    batch: &Batch<'_>,
    rows: &[usize],
    responses: &mut [Option<Response<'_>>],
) -> Result<(), Error> {
    let Contents {
        data_type,
        mut shape,
        data: OutputData::Host(bytes),
    } = contents
    else {
        return Err(Error::internal("an output is in GPU memory"));
    };
    if let (true, Some(dims)) = (shape.is_empty(), &plan.scalar_dims) {
        shape.clone_from(dims);
    }
    let scatter = Scatter {
        name: &plan.info.name,
        data_type,
        shape: &shape,
        bytes: &bytes,
    };
    if let Some(batch_output) = &plan.batch_output {
        let shares = batch_output.shares(batch, data_type, bytes.len())?;
        scatter.write_shares(batch, shares, responses);
    } else if plan.is_response {
        scatter.write(batch, rows, responses)?;
    }
    if plan.is_state {
        update_states(&scatter, batch, rows, responses)?;
    }
    Ok(())
}

/// Sends the responses that are not answered with an error yet.
pub(super) fn send(responses: Vec<Option<Response<'_>>>, model_name: &str) {
    for response in responses.into_iter().flatten() {
        if let Err(error) = response.send() {
            crate::error!("failed to send a response of model '{model_name}': {error}");
        }
    }
}
