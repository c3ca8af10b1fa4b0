//! Inputs of a batch, joined for one run: in main memory, or on the GPU of the session.

use std::ffi::CStr;

use super::plan::FeedPlan;
use super::tensor::{Feed, FeedData};
use crate::gather::{first_input, shape_of_all};
use crate::{
    Batch, CopyPlan, DataType, DeviceGather, Error, Gathered, Join, MemorySource, element_count,
};

/// An input of all requests of a batch.
pub(super) struct JoinedInput<'f> {
    name: &'f CStr,
    data_type: DataType,
    shape: Vec<i64>,
    data: FeedData<'f>,
}

impl<'f> JoinedInput<'f> {
    fn on_host(name: &'f CStr, tensor: Gathered<'f>) -> Self {
        JoinedInput {
            name,
            data_type: tensor.data_type,
            shape: tensor.shape,
            data: FeedData::Host(tensor.bytes),
        }
    }

    pub(super) fn feed(&self) -> Feed<'_> {
        self.with_shape(&self.shape)
    }

    /// The same with a shape that lives as long as the bytes, which is that of `take_shape`.
    pub(super) fn with_shape<'s>(&self, shape: &'s [i64]) -> Feed<'s>
    where
        'f: 's,
    {
        Feed {
            name: self.name,
            data_type: self.data_type,
            shape,
            data: self.data,
        }
    }

    /// Its shape, which is empty from then on.
    pub(super) fn take_shape(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.shape)
    }
}

/// The joined inputs of the batch. With `copies`, those that the session takes on its GPU may be
/// read there once the copies have run.
///
/// # Errors
/// `InvalidArgument` if an input that the model needs is not given, or not by all requests;
/// `Unavailable` if the device has no room.
pub(super) fn gather<'f>(
    feeds: &'f mut [FeedPlan],
    model_name: &str,
    batch: &'f Batch<'_>,
    mut copies: Option<&mut CopyPlan<'f>>,
) -> Result<Vec<JoinedInput<'f>>, Error> {
    let mut gathered = Vec::with_capacity(feeds.len());
    for feed in feeds {
        let FeedPlan {
            name,
            join,
            batch_input,
            is_scalar,
            is_optional,
            gather,
            device_gather,
            ..
        } = feed;
        let found = match (batch_input, device_gather, copies.as_deref_mut()) {
            (Some(input), ..) => Some(JoinedInput::on_host(name, gather.describe(batch, input)?)),
            (None, Some(gather), Some(copies)) => {
                join_on_device(gather, name, *join, batch, copies)?
            }
            _ => gather
                .collect(batch, name, *join)?
                .map(|tensor| JoinedInput::on_host(name, tensor)),
        };
        match found {
            Some(mut input) => {
                // The model has a scalar where the configuration says `[1]`.
                if *is_scalar && element_count(&input.shape) == Some(1) {
                    input.shape.clear();
                }
                gathered.push(input);
            }
            None if *is_optional => {}
            None => {
                return Err(Error::invalid(format!(
                    "no request gives input '{}' of model '{model_name}'",
                    name.to_string_lossy()
                )));
            }
        }
    }
    Ok(gathered)
}

/// Joins the input `name` of all requests on the device; `None` if no request has it.
fn join_on_device<'f>(
    gather: &'f mut DeviceGather,
    name: &'f CStr,
    join: Join,
    batch: &'f Batch<'_>,
    copies: &mut CopyPlan<'f>,
) -> Result<Option<JoinedInput<'f>>, Error> {
    let Some(first) = first_input(batch, name)? else {
        return Ok(None);
    };
    let data_type = first.data_type();
    let place = copies.place();
    let mut parts: Vec<MemorySource<'f>> = Vec::with_capacity(batch.len());
    let shape = shape_of_all(batch, name, join, data_type, |input| {
        for index in 0..input.buffer_count() {
            let part = input.memory(index, place)?;
            if !part.is_empty() {
                parts.push(part);
            }
        }
        Ok(())
    })?;
    let source = gather.plan(&parts, copies)?;
    Ok(Some(JoinedInput {
        name,
        data_type,
        shape,
        data: FeedData::Device(source),
    }))
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
