//! Inputs of a batch, joined for one run.

use std::ffi::CStr;

use super::plan::FeedPlan;
use crate::{Batch, Error, Gathered, element_count};

/// The joined inputs of the batch.
///
/// # Errors
/// `InvalidArgument` if an input that the model needs is not given, or not by all requests.
pub(super) fn gather<'f>(
    feeds: &'f mut [FeedPlan],
    model_name: &str,
    batch: &'f Batch<'_>,
) -> Result<Vec<(&'f CStr, Gathered<'f>)>, Error> {
    let mut gathered = Vec::with_capacity(feeds.len());
    for feed in feeds {
        let (is_scalar, is_optional) = (feed.is_scalar, feed.is_optional);
        let tensor = match &feed.batch_input {
            Some(input) => Some(feed.gather.describe(batch, input)?),
            None => feed.gather.collect(batch, &feed.name, feed.join)?,
        };
        match tensor {
            Some(mut tensor) => {
                clear_if_scalar(is_scalar, &mut tensor.shape);
                gathered.push((&*feed.name, tensor));
            }
            None if is_optional => {}
            None => return Err(not_given(&feed.name, model_name)),
        }
    }
    Ok(gathered)
}

/// The shape of a scalar, which the configuration calls `[1]`.
pub(super) fn clear_if_scalar(is_scalar: bool, shape: &mut Vec<i64>) {
    if is_scalar && element_count(shape) == Some(1) {
        shape.clear();
    }
}

/// That no request has an input that the model needs.
pub(super) fn not_given(name: &CStr, model_name: &str) -> Error {
    Error::invalid(format!(
        "no request gives input '{}' of model '{model_name}'",
        name.to_string_lossy()
    ))
}

/// Counts the rows of each request into `rows`; returns their sum.
///
/// # Errors
/// `Internal` if the batch has more rows than the model takes.
pub(super) fn count_rows(
    model_name: &str,
    batch: &Batch<'_>,
    rows: &mut Vec<usize>,
) -> Result<usize, Error> {
    rows.clear();
    for request in batch.requests() {
        rows.push(batch.rows_of(request)?);
    }
    let total: usize = rows.iter().sum();
    let max_batch_size = usize::try_from(batch.max_batch_size()).unwrap_or(0).max(1);
    if total > max_batch_size {
        return Err(Error::internal(format!(
            "batch size {total} for '{model_name}', max allowed is {max_batch_size}"
        )));
    }
    Ok(total)
}
