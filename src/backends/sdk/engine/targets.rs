//! Outputs wanted of a run, and where they are to be written.

use super::plan::OutputPlan;
use super::tensor::{Memory, OutputBuffer, Target, TensorInfo};
use crate::{Batch, Error, Response};

/// Outputs that a request or a state wants.
///
/// # Errors
/// Whatever the server reports.
pub(super) fn wanted_outputs<'p>(
    outputs: &'p [OutputPlan],
    batch: &Batch<'_>,
) -> Result<Vec<&'p OutputPlan>, Error> {
    let mut wanted = Vec::with_capacity(outputs.len());
    for output in outputs {
        let mut is_wanted = output.is_state;
        for request in batch.requests() {
            is_wanted = is_wanted || (output.is_response && request.wants(&output.info.name)?);
        }
        if is_wanted {
            wanted.push(output);
        }
    }
    Ok(wanted)
}

/// The run's outputs. Where the session writes in place, those of a single request whose size is
/// known beforehand are written straight into its response.
///
/// # Errors
/// Whatever the server reports.
pub(super) fn targets<'p, 'r>(
    writes_in_place: bool,
    batch: &Batch<'_>,
    responses: &'r [Option<Response<'_>>],
    wanted: &[&'p OutputPlan],
    rows: usize,
) -> Result<Vec<Target<'p, 'r>>, Error> {
    let single = match responses {
        [Some(response)] if writes_in_place => Some(response),
        _ => None,
    };
    wanted
        .iter()
        .map(|plan| {
            let memory = match single {
                Some(response) if !plan.is_state && plan.batch_output.is_none() => {
                    memory_of(plan, response, batch.max_batch_size() > 0, rows)?
                }
                _ => None,
            };
            Ok(Target {
                info: &plan.info,
                memory,
            })
        })
        .collect()
}

/// Memory of the response for an output of known size; `None` where the size is not known or the
/// memory does not suit.
fn memory_of<'r>(
    plan: &OutputPlan,
    response: &'r Response<'_>,
    is_batching: bool,
    rows: usize,
) -> Result<Option<Memory<'r>>, Error> {
    let Some((shape, byte_count)) = known_size(&plan.info, is_batching, rows) else {
        return Ok(None);
    };
    let buffer = response.output(&plan.info.name, plan.info.data_type, &shape, byte_count)?;
    let buffer = OutputBuffer::Host(buffer);
    Ok(Some(Memory { shape, buffer }))
}

/// Shape and bytes of an output, if every dimension but the batch's is fixed in the model.
pub(super) fn known_size(
    info: &TensorInfo,
    is_batching: bool,
    rows: usize,
) -> Option<(Vec<i64>, usize)> {
    let mut shape = info.dims.clone();
    if is_batching {
        *shape.first_mut()? = i64::try_from(rows).ok()?;
    }
    // A scalar is shown to the client as its configuration says, so its shape here is not the
    // response's.
    if shape.is_empty() {
        return None;
    }
    let byte_count = info.data_type.byte_count(&shape)?;
    (byte_count > 0).then_some((shape, byte_count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataType;

    #[test]
    fn knows_sizes_where_only_the_batch_is_open() {
        let check = |data_type, dims: &[i64], is_batching, rows| {
            let info = TensorInfo {
                name: c"Y".to_owned(),
                data_type,
                dims: dims.to_vec(),
            };
            known_size(&info, is_batching, rows)
        };
        for (data_type, dims, is_batching, rows, expected) in [
            (
                DataType::Fp32,
                &[-1, 16][..],
                true,
                2,
                Some((vec![2, 16], 128)),
            ),
            (DataType::Fp32, &[3, 16], false, 1, Some((vec![3, 16], 192))),
            (DataType::Fp32, &[-1, 16], false, 1, None),
            (DataType::Fp32, &[-1, -1], true, 2, None),
            (DataType::Bytes, &[-1, 16], true, 2, None),
            (DataType::Fp32, &[-1, 16], true, 0, None),
            (DataType::Fp32, &[], false, 1, None),
            (DataType::Fp32, &[], true, 1, None),
            (DataType::Fp32, &[-1, i64::MAX, 4], true, 1, None),
        ] {
            assert_eq!(
                check(data_type, dims, is_batching, rows),
                expected,
                "{dims:?}"
            );
        }
    }
}
