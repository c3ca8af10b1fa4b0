//! One executable copy of a model: joins a batch's inputs, runs it once, and cuts the outputs
//! apart.

use std::ffi::{CStr, CString};

use conch_backend_sdk as sdk;
use sdk::{
    Batch, BatchInput, BatchOutput, Error, Gather, Gathered, Join, ModelConfig, Response, Scatter,
    element_count,
};

use crate::engine::{Contents, Output, Session};
use crate::tensor::{Feed, Memory, Target, TensorInfo};

/// A session, and how batches are brought to it.
pub struct Instance {
    session: Session,
    feeds: Vec<FeedPlan>,
    outputs: Vec<OutputPlan>,
    /// Rows of each request of the batch, kept for its memory.
    rows: Vec<usize>,
}

/// How one of the model's inputs is fed.
struct FeedPlan {
    name: CString,
    join: Join,
    /// It describes the batch, and no request has it.
    batch_input: Option<BatchInput>,
    /// The model wants a scalar where the configuration says `[1]`.
    is_scalar: bool,
    is_optional: bool,
    gather: Gather,
}

/// What becomes of one of the model's outputs.
struct OutputPlan {
    info: TensorInfo,
    /// Clients may ask for it.
    is_response: bool,
    /// It is the next value of an implicit state.
    is_state: bool,
    /// It is cut apart by the shapes of the requests' inputs.
    batch_output: Option<BatchOutput>,
    /// What the configuration says of an output that is a scalar in the model.
    scalar_dims: Option<Vec<i64>>,
}

impl Instance {
    /// # Errors
    /// What the configuration has wrong.
    pub fn new(config: &ModelConfig, session: Session) -> Result<Instance, Error> {
        Ok(Instance {
            feeds: feed_plans(config, &session)?,
            outputs: output_plans(config, &session)?,
            session,
            rows: Vec::new(),
        })
    }

    /// Runs a batch and sends its responses.
    ///
    /// # Errors
    /// What ends the whole batch; requests without a response yet get it.
    pub fn run(&mut self, model_name: &str, batch: &Batch<'_>) -> Result<(), Error> {
        let total = self.count_rows(model_name, batch)?;
        let gathered = gather(&mut self.feeds, model_name, batch)?;
        let feeds: Vec<_> = gathered
            .iter()
            .map(|(name, tensor)| Feed {
                name,
                data_type: tensor.data_type,
                shape: &tensor.shape,
                bytes: tensor.bytes,
            })
            .collect();
        let wanted = wanted_outputs(&self.outputs, batch)?;
        let mut responses = batch
            .requests()
            .map(|request| request.respond().map(Some))
            .collect::<Result<Vec<_>, Error>>()?;

        batch.begin_compute();
        let outputs = if wanted.is_empty() {
            Vec::new()
        } else {
            let mut targets = targets(&self.session, batch, &responses, &wanted, total)?;
            self.session.run(&feeds, &mut targets)?
        };
        batch.end_compute();

        for (plan, output) in wanted.iter().zip(outputs) {
            if let Some(output) = output {
                deliver(plan, &output, batch, &self.rows, &mut responses)?;
            }
        }
        for response in responses.into_iter().flatten() {
            if let Err(error) = response.send() {
                sdk::error!("failed to send a response of model '{model_name}': {error}");
            }
        }
        Ok(())
    }

    /// Counts the rows of each request; returns their sum.
    fn count_rows(&mut self, model_name: &str, batch: &Batch<'_>) -> Result<usize, Error> {
        self.rows.clear();
        for request in batch.requests() {
            self.rows.push(batch.rows_of(request)?);
        }
        let total: usize = self.rows.iter().sum();
        let max_batch_size = usize::try_from(batch.max_batch_size()).unwrap_or(0).max(1);
        if total > max_batch_size {
            return Err(Error::internal(format!(
                "batch size {total} for '{model_name}', max allowed is {max_batch_size}"
            )));
        }
        Ok(total)
    }
}

/// The joined inputs of the batch.
fn gather<'f>(
    feeds: &'f mut [FeedPlan],
    model_name: &str,
    batch: &'f Batch<'_>,
) -> Result<Vec<(&'f CStr, Gathered<'f>)>, Error> {
    let mut gathered = Vec::with_capacity(feeds.len());
    for feed in feeds {
        let tensor = match &feed.batch_input {
            Some(input) => Some(feed.gather.describe(batch, input)?),
            None => feed.gather.collect(batch, &feed.name, feed.join)?,
        };
        match tensor {
            Some(mut tensor) => {
                if feed.is_scalar && element_count(&tensor.shape) == Some(1) {
                    tensor.shape.clear();
                }
                gathered.push((&*feed.name, tensor));
            }
            None if feed.is_optional => {}
            None => {
                return Err(Error::invalid(format!(
                    "no request gives input '{}' of model '{model_name}'",
                    feed.name.to_string_lossy()
                )));
            }
        }
    }
    Ok(gathered)
}

/// Outputs that a request or a state wants.
fn wanted_outputs<'p>(
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

/// The run's outputs. Those of a single request whose size is known beforehand are written straight
/// into its response.
fn targets<'p, 'r>(
    session: &Session,
    batch: &Batch<'_>,
    responses: &'r [Option<Response<'_>>],
    wanted: &[&'p OutputPlan],
    rows: usize,
) -> Result<Vec<Target<'p, 'r>>, Error> {
    let single = match responses {
        [Some(response)] if session.writes_in_place() => Some(response),
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
    Ok(Some(Memory { shape, buffer }))
}

/// Shape and bytes of an output, if every dimension but the batch's is fixed in the model.
fn known_size(info: &TensorInfo, is_batching: bool, rows: usize) -> Option<(Vec<i64>, usize)> {
    let mut shape = info.dims.clone();
    if is_batching {
        *shape.first_mut()? = i64::try_from(rows).ok()?;
    }
    // A scalar is shown to the client as its configuration says, so its shape here is not the
    // response's.
    if shape.is_empty() {
        return None;
    }
    let byte_count = element_count(&shape)?.checked_mul(info.data_type.element_bytes()?)?;
    (byte_count > 0).then_some((shape, byte_count))
}

/// Hands an output in the engine's memory to the requests that want it, and to their sequences'
/// states.
fn deliver(
    plan: &OutputPlan,
    output: &Output,
    batch: &Batch<'_>,
    rows: &[usize],
    responses: &mut [Option<Response<'_>>],
) -> Result<(), Error> {
    let Contents {
        data_type,
        mut shape,
        bytes,
    } = output.read()?;
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

fn update_states(
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

fn feed_plans(config: &ModelConfig, session: &Session) -> Result<Vec<FeedPlan>, Error> {
    let configured = config.inputs()?;
    let batch_inputs = config.batch_inputs()?;
    let find = |name: &CStr| configured.iter().find(|input| *input.name == *name);
    let signature = session.signature();
    let plan = |info: &TensorInfo, is_initializer: bool| {
        let input = find(&info.name);
        FeedPlan {
            name: info.name.clone(),
            join: if input.is_some_and(|input| input.is_ragged) {
                Join::Ragged
            } else {
                Join::Rows
            },
            batch_input: batch_inputs
                .iter()
                .find(|input| input.targets.contains(&info.name))
                .cloned(),
            is_scalar: info.dims.is_empty(),
            is_optional: is_initializer || input.is_some_and(|input| input.is_optional),
            gather: Gather::default(),
        }
    };
    let inputs = signature.inputs.iter().map(|info| plan(info, false));
    // Weights are only looked for where the configuration offers them as inputs.
    let initializers = signature
        .initializers
        .iter()
        .filter(|info| find(&info.name).is_some())
        .map(|info| plan(info, true));
    Ok(inputs.chain(initializers).collect())
}

fn output_plans(config: &ModelConfig, session: &Session) -> Result<Vec<OutputPlan>, Error> {
    let configured = config.outputs()?;
    let states = config.states()?;
    let batch_outputs = config.batch_outputs()?;
    let signature = session.signature();
    Ok(signature
        .outputs
        .iter()
        .filter_map(|info| {
            let output = configured.iter().find(|output| output.name == info.name);
            let is_state = states.iter().any(|state| state.output == info.name);
            (output.is_some() || is_state).then(|| OutputPlan {
                info: info.clone(),
                is_response: output.is_some(),
                is_state,
                batch_output: batch_outputs
                    .iter()
                    .find(|output| output.target == info.name)
                    .cloned(),
                scalar_dims: output.map(|output| output.model_dims().to_vec()),
            })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use sdk::DataType;

    use super::*;

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
