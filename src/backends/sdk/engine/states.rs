//! Implicit states of sequences.

use crate::{Batch, Error, Response, Scatter};

/// Makes each request's share of an output the next value of its sequence's state. A request whose
/// state cannot be updated is answered with that error, and its response is gone afterwards.
///
/// # Errors
/// `Internal` if the output does not have as many rows as the batch.
pub(super) fn update_states(
    scatter: &Scatter<'_>,
    batch: &Batch<'_>,
    rows: &[usize],
    responses: &mut [Option<Response<'_>>],
) -> Result<(), Error> {
    let shares = scatter.shares(batch.max_batch_size() > 0, rows)?;
    for ((request, response), share) in batch.requests().zip(responses).zip(shares) {
        if response.is_none() {
            continue;
        }
        let updated = (|| {
            let bytes = scatter
                .bytes
                .get(share.range)
                .ok_or_else(|| Error::internal("share outside of its output"))?;
            let mut state = request.state(scatter.name, scatter.data_type, &share.shape)?;
            state.buffer(bytes.len())?.write(bytes)?;
            state.update()
        })();
        if let Err(error) = updated
            && let Some(open) = response.take()
        {
            open.fail(error);
        }
    }
    Ok(())
}
