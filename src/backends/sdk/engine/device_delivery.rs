//! Outputs on a GPU on their way to the requests: cut into shares, which are all copied together.

use super::plan::OutputPlan;
use crate::scatter::shares_of_size;
use crate::{
    Batch, DataType, DeviceStream, Error, MemoryPlace, MemorySource, MemoryTarget, Response, Share,
    State,
};

/// Outputs of one run.
pub(super) struct DeviceOutputs<'o> {
    place: MemoryPlace,
    rows: &'o [usize],
    outputs: Vec<DeviceOutput<'o>>,
}

struct DeviceOutput<'o> {
    plan: &'o OutputPlan,
    data_type: DataType,
    shape: Vec<i64>,
    source: MemorySource<'o>,
    /// Memory of the only response, and the shape that it was made for.
    made: Option<(Vec<i64>, MemoryTarget<'o>)>,
}

/// The next value of a state, to be copied and then to take effect.
struct NextState<'b, 'o> {
    index: usize,
    state: State<'b>,
    source: MemorySource<'o>,
}

impl<'o> DeviceOutputs<'o> {
    pub(super) fn new(place: MemoryPlace, rows: &'o [usize]) -> Self {
        DeviceOutputs {
            place,
            rows,
            outputs: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        plan: &'o OutputPlan,
        data_type: DataType,
        mut shape: Vec<i64>,
        source: MemorySource<'o>,
        made: Option<(Vec<i64>, MemoryTarget<'o>)>,
    ) {
        if let (true, Some(dims)) = (shape.is_empty(), &plan.scalar_dims) {
            shape.clone_from(dims);
        }
        self.outputs.push(DeviceOutput {
            plan,
            data_type,
            shape,
            source,
            made,
        });
    }

    /// Copies every request's shares into its response and states, and blocks until they are
    /// there. Returns the requests that failed, by index, each perhaps several times.
    ///
    /// # Errors
    /// What ends the whole batch: an output that cannot be cut into the requests' rows.
    pub(super) fn copy(
        self,
        stream: &mut DeviceStream,
        batch: &Batch<'_>,
        responses: &[Option<Response<'_>>],
    ) -> Result<Vec<(usize, Error)>, Error> {
        let DeviceOutputs {
            place,
            rows,
            outputs,
        } = self;
        if outputs.is_empty() {
            return Ok(Vec::new());
        }
        let is_batching = batch.max_batch_size() > 0;
        let mut failures = Vec::new();
        let mut states = Vec::new();
        let mut copies = Vec::new();
        for output in outputs {
            let by_rows = output.shares(is_batching, rows);
            let to_states = output.plan.is_state.then(|| by_rows.clone()).transpose()?;
            for (index, share) in to_states.into_iter().flatten().enumerate() {
                match output.next_state(batch, index, &share) {
                    Ok(state) => states.push(state),
                    Err(error) => failures.push((index, error)),
                }
            }
            let (plan, data_type, source) = (output.plan, output.data_type, output.source);
            if let Some((shape, target)) = output.made {
                if shape != output.shape {
                    return Err(Error::internal(format!(
                        "output '{}' has another shape than the model says",
                        plan.info.name.to_string_lossy()
                    )));
                }
                copies.push((0, source, target));
                continue;
            }
            let shares = match &plan.batch_output {
                Some(cut) => cut.shares(batch, data_type, source.len())?,
                None if plan.is_response => by_rows?,
                None => continue,
            };
            let open = batch.requests().zip(responses).enumerate().zip(shares);
            for ((index, (request, response)), share) in open {
                let Some(response) = response else { continue };
                let planned = (|| {
                    if !request.wants(&plan.info.name)? {
                        return Ok(None);
                    }
                    let part = source.get(share.range).ok_or_else(outside)?;
                    let (name, len) = (&plan.info.name, part.len());
                    let target = response.output_in(name, data_type, &share.shape, len, place)?;
                    Ok(Some((index, part, target)))
                })();
                match planned {
                    Ok(copy) => copies.extend(copy),
                    Err(error) => failures.push((index, error)),
                }
            }
        }
        failures.extend(run(stream, place, copies, &mut states));
        for NextState { index, state, .. } in states {
            // The state of a request that failed stays as it was.
            if failures.iter().any(|(failed, _)| *failed == index) {
                continue;
            }
            if let Err(error) = state.update() {
                failures.push((index, error));
            }
        }
        Ok(failures)
    }
}

impl<'o> DeviceOutput<'o> {
    fn shares(&self, is_batching: bool, rows: &[usize]) -> Result<Vec<Share>, Error> {
        let (name, len) = (&self.plan.info.name, self.source.len());
        shares_of_size(name, self.data_type, &self.shape, len, is_batching, rows)
    }

    /// A state with the share of the request number `index`.
    fn next_state<'b>(
        &self,
        batch: &'b Batch<'_>,
        index: usize,
        share: &Share,
    ) -> Result<NextState<'b, 'o>, Error> {
        let request = batch.requests().nth(index).ok_or_else(outside)?;
        let name = &self.plan.info.name;
        Ok(NextState {
            index,
            state: request.state(name, self.data_type, &share.shape)?,
            source: self.source.get(share.range.clone()).ok_or_else(outside)?,
        })
    }
}

/// Enqueues all copies and waits for them. Returns the requests whose copies failed.
fn run<'m, 'o: 'm>(
    stream: &'m mut DeviceStream,
    place: MemoryPlace,
    planned: Vec<(usize, MemorySource<'m>, MemoryTarget<'m>)>,
    states: &'m mut [NextState<'_, 'o>],
) -> Vec<(usize, Error)> {
    let mut failures = Vec::new();
    let mut copies = stream.copies();
    for (index, source, mut target) in planned {
        if let Err(error) = copies.add(index, source, &mut target) {
            failures.push((index, error));
        }
    }
    for NextState {
        index,
        state,
        source,
    } in states
    {
        let added = state
            .buffer_in(source.len(), place)
            .and_then(|mut target| copies.add(*index, *source, &mut target));
        if let Err(error) = added {
            failures.push((*index, error));
        }
    }
    failures.extend(copies.run());
    failures
}

fn outside() -> Error {
    Error::internal("share outside of its output")
}
