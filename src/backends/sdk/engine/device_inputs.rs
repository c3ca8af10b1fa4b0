//! Inputs of a batch, joined on the GPU of a session.

use std::ffi::CStr;

use super::inputs::{clear_if_scalar, not_given};
use super::plan::FeedPlan;
use super::session::Session;
use super::tensor::{Feed, FeedData};
use crate::gather::{first_input, shape_of_all};
use crate::{
    Batch, Copies, DataType, DeviceGather, DeviceStream, Error, Gathered, Join, MemorySource,
};

/// A joined input, and who it belongs to.
pub(super) struct DeviceFeed<'f> {
    name: &'f CStr,
    data_type: DataType,
    shape: Vec<i64>,
    data: FeedData<'f>,
}

impl DeviceFeed<'_> {
    pub(super) fn feed(&self) -> Feed<'_> {
        Feed {
            name: self.name,
            data_type: self.data_type,
            shape: &self.shape,
            data: self.data,
        }
    }
}

/// Gives the inputs that a session takes on the GPU of `stream` their memory there.
pub(super) fn place_feeds(feeds: &mut [FeedPlan], stream: &DeviceStream, session: &impl Session) {
    for feed in feeds {
        let is_there = feed.may_be_on_device() && session.takes_on_device(feed.data_type);
        feed.device_gather = is_there.then(|| DeviceGather::new(stream));
    }
}

/// The joined inputs of the batch. Those on the device may be read there once `copies` have run.
///
/// # Errors
/// `InvalidArgument` if an input that the model needs is not given, or not by all requests;
/// `Unavailable` if the device has no room.
pub(super) fn gather<'f>(
    feeds: &'f mut [FeedPlan],
    model_name: &str,
    batch: &'f Batch<'_>,
    copies: &mut Copies<'f>,
) -> Result<Vec<DeviceFeed<'f>>, Error> {
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
        let found = match (batch_input, device_gather) {
            (Some(input), _) => Some(on_host(name, gather.describe(batch, input)?)),
            (None, None) => {
                let tensor = gather.collect(batch, name, *join)?;
                tensor.map(|tensor| on_host(name, tensor))
            }
            (None, Some(gather)) => join_on_device(gather, name, *join, batch, copies)?,
        };
        match found {
            Some(mut tensor) => {
                clear_if_scalar(*is_scalar, &mut tensor.shape);
                gathered.push(tensor);
            }
            None if *is_optional => {}
            None => return Err(not_given(name, model_name)),
        }
    }
    Ok(gathered)
}

fn on_host<'f>(name: &'f CStr, tensor: Gathered<'f>) -> DeviceFeed<'f> {
    DeviceFeed {
        name,
        data_type: tensor.data_type,
        shape: tensor.shape,
        data: FeedData::Host(tensor.bytes),
    }
}

/// Joins the input `name` of all requests on the device; `None` if no request has it.
fn join_on_device<'f>(
    gather: &'f mut DeviceGather,
    name: &'f CStr,
    join: Join,
    batch: &'f Batch<'_>,
    copies: &mut Copies<'f>,
) -> Result<Option<DeviceFeed<'f>>, Error> {
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
    Ok(Some(DeviceFeed {
        name,
        data_type,
        shape,
        data: FeedData::Device(source),
    }))
}
