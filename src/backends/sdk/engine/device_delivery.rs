//! Outputs on a GPU on their way to the requests: cut into shares, which are all copied together,
//! or with the work that made them.

use super::plan::OutputPlan;
use crate::scatter::shares_of_size;
use crate::{
    Batch, DataType, DeviceStream, DeviceWork, Error, MemoryPlace, MemorySource, MemoryTarget,
    Response, Share, State,
};

/// Outputs of one run that lie on a GPU: what a plan `'p` says of them, in memory of `'o`.
pub(super) struct DeviceOutputs<'p, 'o> {
    place: MemoryPlace,
    rows: &'p [usize],
    outputs: Vec<DeviceOutput<'p, 'o>>,
}

struct DeviceOutput<'p, 'o> {
    plan: &'p OutputPlan,
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

/// A share of an output for one request: the request's index, the share, and the memory of its
/// response. An error is the request's answer.
type ResponseShare<'o> = (usize, Result<(MemorySource<'o>, MemoryTarget<'o>), Error>);

impl<'p, 'o> DeviceOutputs<'p, 'o> {
    pub(super) fn new(place: MemoryPlace, rows: &'p [usize]) -> Self {
        DeviceOutputs {
            place,
            rows,
            outputs: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        plan: &'p OutputPlan,
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
        batch: &'o Batch<'_>,
        responses: &'o [Option<Response<'_>>],
    ) -> Result<Vec<(usize, Error)>, Error> {
        if self.outputs.is_empty() {
            return Ok(Vec::new());
        }
        let (place, rows) = (self.place, self.rows);
        let mut planned = PlannedDelivery::default();
        for output in self.outputs {
            if output.plan.is_state {
                planned.add_states(&output, batch, rows)?;
            }
            let response = |index: usize| responses.get(index)?.as_ref();
            planned.add_responses(output.response_shares(batch, rows, place, response)?);
        }
        Ok(planned.copy(stream, place))
    }

    /// Plans the copies of every request's shares behind the work that makes the outputs. States
    /// take effect when it is done. A request that fails gets its error then.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(super) fn enqueue(self, work: &mut DeviceWork<'o>) -> Result<(), Error> {
        let batch = work.batch();
        for output in self.outputs {
            if output.plan.is_state {
                output.keep_states(work, self.rows)?;
            }
            let response = |index: usize| work.response(index);
            let shares = output.response_shares(batch, self.rows, self.place, response)?;
            for (index, share) in shares {
                let planned = share
                    .and_then(|(source, mut target)| work.copy_out(index, source, &mut target));
                if let Err(error) = planned {
                    work.fail(index, error);
                }
            }
        }
        Ok(())
    }
}

impl<'o> DeviceOutput<'_, 'o> {
    /// The requests' rows of it.
    fn shares(&self, batch: &Batch<'_>, rows: &[usize]) -> Result<Vec<Share>, Error> {
        let (name, len) = (&self.plan.info.name, self.source.len());
        let is_batching = batch.max_batch_size() > 0;
        shares_of_size(name, self.data_type, &self.shape, len, is_batching, rows)
    }

    /// What the responses that want it get of it.
    fn response_shares(
        mut self,
        batch: &Batch<'_>,
        rows: &[usize],
        place: MemoryPlace,
        response: impl Fn(usize) -> Option<&'o Response<'o>>,
    ) -> Result<Vec<ResponseShare<'o>>, Error> {
        let (plan, data_type, source) = (self.plan, self.data_type, self.source);
        let name = &plan.info.name;
        if let Some(copy) = self.copy_target.take() {
            if copy.shape != self.shape {
                return Err(Error::internal(format!(
                    "output '{}' has another shape than the model says",
                    name.to_string_lossy()
                )));
            }
            return Ok(vec![(0, Ok((source, copy.target)))]);
        }
        let shares = match &plan.batch_output {
            Some(cut) => cut.shares(batch, data_type, source.len())?,
            None if plan.is_response => self.shares(batch, rows)?,
            None => return Ok(Vec::new()),
        };
        let mut found = Vec::with_capacity(shares.len());
        for ((index, request), share) in batch.requests().enumerate().zip(shares) {
            let Some(response) = response(index) else {
                continue;
            };
            match request.wants(name) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(error) => {
                    found.push((index, Err(error)));
                    continue;
                }
            }
            let part = source.get(share.range).ok_or_else(outside);
            let target = part.and_then(|part| {
                let target =
                    response.output_in(name, data_type, &share.shape, part.len(), place)?;
                Ok((part, target))
            });
            found.push((index, target));
        }
        Ok(found)
    }

    /// Makes the requests' shares the next values of their states, once the work is done.
    fn keep_states(&self, work: &mut DeviceWork<'o>, rows: &[usize]) -> Result<(), Error> {
        let batch = work.batch();
        let name = &self.plan.info.name;
        let shares = self.shares(batch, rows)?;
        for ((index, request), share) in batch.requests().enumerate().zip(shares) {
            let part = self.source.get(share.range).ok_or_else(outside);
            let kept = part.and_then(|part| {
                let state = (name.as_c_str(), self.data_type, &share.shape[..]);
                work.keep_state(index, request, state, part)
            });
            if let Err(error) = kept {
                work.fail(index, error);
            }
        }
        Ok(())
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
        output: &DeviceOutput<'_, 'o>,
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

    fn add_responses(&mut self, shares: Vec<ResponseShare<'o>>) {
        for (index, share) in shares {
            match share {
                Ok((source, target)) => self.to_responses.push((index, source, target)),
                Err(error) => self.failures.push((index, error)),
            }
        }
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
