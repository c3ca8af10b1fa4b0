//! Outputs of a run as responses.

use std::ffi::CString;
use std::ops::Range;

use conch_backend_sdk as sdk;
use sdk::{Error, Request, Response, shape_text};

use crate::capi::{OutputList, Outputs};
use crate::feed::BatchEntry;

/// What becomes of an output of the pipeline, which has the same place in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPlan {
    /// The configuration's, which need not be the pipeline's.
    pub name: CString,
    /// Its samples are cut along their first dimension, which becomes part of the batch.
    pub is_split: bool,
}

/// Makes a response for each request, with its samples of every output that it wants. A request
/// whose samples make no tensor is answered with that error, and has no response.
///
/// # Errors
/// What concerns all of them: what DALI says, or a pipeline that makes more or fewer samples than
/// it got.
pub fn responses<'b>(
    outputs: &Outputs<'_>,
    plans: &[OutputPlan],
    entries: &[BatchEntry<'b>],
) -> Result<Vec<Option<Response<'b>>>, Error> {
    let lists = (0..plans.len())
        .map(|index| outputs.list(index))
        .collect::<Result<Vec<_>, Error>>()?;
    let total: usize = entries.iter().map(|entry| entry.sample_count).sum();
    for (list, plan) in lists.iter().zip(plans) {
        if list.sample_count != total {
            return Err(Error::internal(format!(
                "the pipeline made {} samples of output '{}' from {total}",
                list.sample_count,
                plan.name.to_string_lossy()
            )));
        }
    }
    let mut first = 0;
    let mut responses = Vec::with_capacity(entries.len());
    for entry in entries {
        let samples = first..first + entry.sample_count;
        first = samples.end;
        let response = response(&lists, plans, entry, &samples);
        responses.push(response.map_err(|error| entry.request.fail(error)).ok());
    }
    Ok(responses)
}

/// A response with all samples of every output, however many there are.
///
/// # Errors
/// What DALI says, or samples that make no tensor.
pub fn whole<'b>(
    outputs: &Outputs<'_>,
    plans: &[OutputPlan],
    request: Request<'b>,
) -> Result<Response<'b>, Error> {
    let response = request.respond()?;
    for (index, plan) in plans.iter().enumerate() {
        if request.wants(&plan.name)? {
            let list = outputs.list(index)?;
            write(&list, plan, &(0..list.sample_count), &response)?;
        }
    }
    Ok(response)
}

fn response<'b>(
    lists: &[OutputList<'_>],
    plans: &[OutputPlan],
    entry: &BatchEntry<'b>,
    samples: &Range<usize>,
) -> Result<Response<'b>, Error> {
    let response = entry.request.respond()?;
    for (list, plan) in lists.iter().zip(plans) {
        if entry.request.wants(&plan.name)? {
            write(list, plan, samples, &response)?;
        }
    }
    Ok(response)
}

fn write(
    list: &OutputList<'_>,
    plan: &OutputPlan,
    samples: &Range<usize>,
    response: &Response<'_>,
) -> Result<(), Error> {
    let sample_shapes = samples.clone().map(|index| list.shape(index));
    let sample_shapes = sample_shapes.collect::<Result<Vec<_>, Error>>()?;
    let shape = if plan.is_split {
        split_shape(&sample_shapes)
    } else {
        joined_shape(&sample_shapes)
    };
    let shape = shape.map_err(|what| {
        Error::invalid(format!("output '{}': {what}", plan.name.to_string_lossy()))
    })?;
    let mut byte_count = 0usize;
    for index in samples.clone() {
        byte_count = byte_count.saturating_add(list.bytes(index)?.len());
    }
    let mut buffer = response.output(&plan.name, list.data_type, &shape, byte_count)?;
    for index in samples.clone() {
        buffer.write(list.bytes(index)?)?;
    }
    Ok(())
}

/// The shape of the tensor whose rows are the samples, which must be of one shape.
fn joined_shape(samples: &[&[i64]]) -> Result<Vec<i64>, String> {
    let first = samples.first().copied().unwrap_or_default();
    if let Some(other) = samples.iter().find(|shape| **shape != first) {
        return Err(different(first, other));
    }
    let count = i64::try_from(samples.len()).map_err(|_| "too many samples".to_owned())?;
    Ok([&[count], first].concat())
}

/// The shape of the tensor whose rows are those of all samples, which must be of one shape behind
/// their first dimension.
fn split_shape(samples: &[&[i64]]) -> Result<Vec<i64>, String> {
    let mut rest: Option<&[i64]> = None;
    let mut count = 0i64;
    for shape in samples {
        let Some((rows, others)) = shape.split_first() else {
            return Err("samples without dimensions cannot be split".to_owned());
        };
        if *rest.get_or_insert(others) != others {
            return Err(different(rest.unwrap_or_default(), others));
        }
        count = count.saturating_add(*rows);
    }
    Ok([&[count], rest.unwrap_or_default()].concat())
}

fn different(one: &[i64], other: &[i64]) -> String {
    format!(
        "samples of a request have different shapes, {} and {}, and make no tensor; send them in \
         requests of their own",
        shape_text(one),
        shape_text(other)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_samples_of_one_shape() {
        for (samples, expected) in [
            (&[&[2i64, 3][..], &[2, 3]][..], Some(vec![2, 2, 3])),
            (&[&[2, 3]], Some(vec![1, 2, 3])),
            (&[&[], &[]], Some(vec![2])),
            (&[&[2, 3], &[2, 4]], None),
            (&[&[0], &[0]], Some(vec![2, 0])),
        ] {
            assert_eq!(joined_shape(samples).ok(), expected, "{samples:?}");
        }
        assert_eq!(
            joined_shape(&[&[2], &[3]]).unwrap_err(),
            "samples of a request have different shapes, [2] and [3], and make no tensor; send \
             them in requests of their own"
        );
    }

    #[test]
    fn splits_samples_along_their_first_dimension() {
        for (samples, expected) in [
            (&[&[5i64, 3][..], &[2, 3]][..], Some(vec![7, 3])),
            (&[&[5], &[0]], Some(vec![5])),
            (&[&[5, 3], &[2, 4]], None),
            (&[&[]], None),
        ] {
            assert_eq!(split_shape(samples).ok(), expected, "{samples:?}");
        }
    }
}
