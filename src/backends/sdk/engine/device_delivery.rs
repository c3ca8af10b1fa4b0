//! Outputs on a GPU on their way to the requests: cut into shares, which are all copied together.

use super::plan::OutputPlan;
use crate::scatter::shares_of_size;
use crate::{
    Batch, DataType, DeviceStream, Error, MemoryPlace, MemorySource, MemoryTarget, Response, Share,
    State,
};

/// Outputs of one run that lie on a GPU.
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
    copy_target: Option<CopyTarget<'o>>,
}

/// Memory of the only response that an output is copied to.
pub(super) struct CopyTarget<'r> {
    /// The shape that the response has for it.
    pub(super) shape: Vec<i64>,
    pub(super) target: MemoryTarget<'r>,
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
        copy_target: Option<CopyTarget<'o>>,
    ) {
        if let (true, Some(dims)) = (shape.is_empty(), &plan.scalar_dims) {
            shape.clone_from(dims);
        }
        self.outputs.push(DeviceOutput {
            plan,
            data_type,
            shape,
            source,
            copy_target,
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
        if self.outputs.is_empty() {
            return Ok(Vec::new());
        }
        let mut planned = PlannedDelivery::default();
        for output in self.outputs {
            if output.plan.is_state {
                planned.add_states(&output, batch, self.rows)?;
            }
            planned.add_responses(output, batch, self.rows, self.place, responses)?;
        }
        Ok(planned.copy(stream, self.place))
    }
}

impl DeviceOutput<'_> {
    /// The requests' rows of it.
    fn shares(&self, batch: &Batch<'_>, rows: &[usize]) -> Result<Vec<Share>, Error> {
        let (name, len) = (&self.plan.info.name, self.source.len());
        let is_batching = batch.max_batch_size() > 0;
        shares_of_size(name, self.data_type, &self.shape, len, is_batching, rows)
    }
}

/// Shares of outputs, to be copied together.
#[derive(Default)]
struct PlannedDelivery<'o, 'b> {
    /// The request's index, its share, and the memory of its response.
    to_responses: Vec<(usize, MemorySource<'o>, MemoryTarget<'o>)>,
    to_states: Vec<NextState<'o, 'b>>,
    /// Requests that failed so far.
    failures: Vec<(usize, Error)>,
}

/// The next value of a state, to be copied and then to take effect.
struct NextState<'o, 'b> {
    index: usize,
    state: State<'b>,
    source: MemorySource<'o>,
}

impl<'o, 'b> PlannedDelivery<'o, 'b> {
    fn add_states(
        &mut self,
        output: &DeviceOutput<'o>,
        batch: &'b Batch<'_>,
        rows: &[usize],
    ) -> Result<(), Error> {
        let shares = output.shares(batch, rows)?;
        for ((index, request), share) in batch.requests().enumerate().zip(shares) {
            let name = &output.plan.info.name;
            let next = (|| {
                Ok(NextState {
                    index,
                    state: request.state(name, output.data_type, &share.shape)?,
                    source: output.source.get(share.range).ok_or_else(outside)?,
                })
            })();
            match next {
                Ok(next) => self.to_states.push(next),
                Err(error) => self.failures.push((index, error)),
            }
        }
        Ok(())
    }

    fn add_responses(
        &mut self,
        mut output: DeviceOutput<'o>,
        batch: &Batch<'_>,
        rows: &[usize],
        place: MemoryPlace,
        responses: &'o [Option<Response<'_>>],
    ) -> Result<(), Error> {
        let (plan, data_type, source) = (output.plan, output.data_type, output.source);
        let name = &plan.info.name;
        if let Some(copy) = output.copy_target.take() {
            if copy.shape != output.shape {
                return Err(Error::internal(format!(
                    "output '{}' has another shape than the model says",
                    name.to_string_lossy()
                )));
            }
            self.to_responses.push((0, source, copy.target));
            return Ok(());
        }
        let shares = match &plan.batch_output {
            Some(cut) => cut.shares(batch, data_type, source.len())?,
            None if plan.is_response => output.shares(batch, rows)?,
            None => return Ok(()),
        };
        let open = batch.requests().zip(responses).enumerate().zip(shares);
        for ((index, (request, response)), share) in open {
            let Some(response) = response else { continue };
            let target = (|| {
                if !request.wants(name)? {
                    return Ok(None);
                }
                let part = source.get(share.range).ok_or_else(outside)?;
                let target =
                    response.output_in(name, data_type, &share.shape, part.len(), place)?;
                Ok(Some((index, part, target)))
            })();
            match target {
                Ok(copy) => self.to_responses.extend(copy),
                Err(error) => self.failures.push((index, error)),
            }
        }
        Ok(())
    }

    /// Enqueues all copies, waits for them, and has the states take effect. Returns the requests
    /// that failed.
    fn copy(self, stream: &mut DeviceStream, place: MemoryPlace) -> Vec<(usize, Error)> {
        let PlannedDelivery {
            to_responses,
            mut to_states,
            mut failures,
        } = self;
        let mut copies = stream.copies();
        for (index, source, mut target) in to_responses {
            if let Err(error) = copies.add(index, source, &mut target) {
                failures.push((index, error));
            }
        }
        for next in &mut to_states {
            let added = next
                .state
                .buffer_in(next.source.len(), place)
                .and_then(|mut target| copies.add(next.index, next.source, &mut target));
            if let Err(error) = added {
                failures.push((next.index, error));
            }
        }
        failures.extend(copies.run());
        for NextState { index, state, .. } in to_states {
            // The state of a request that failed stays as it was.
            if failures.iter().any(|(failed, _)| *failed == index) {
                continue;
            }
            if let Err(error) = state.update() {
                failures.push((index, error));
            }
        }
        failures
    }
}

fn outside() -> Error {
    Error::internal("share outside of its output")
}
