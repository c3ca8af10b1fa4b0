//! Outputs of a batch on their way to responses and states.

use conch_backend_sdk as sdk;
use sdk::{DataType, DeviceWork, Error, MemorySource, MemoryTarget, Request};

use crate::facts::{Tensor, text};
use crate::inputs::{ALIGNMENT, BatchInputs};
use crate::roles::OutputRole;

/// An output as the engine made it.
pub struct EngineOutput<'m> {
    pub tensor: &'m Tensor,
    pub output_role: &'m OutputRole,
    pub data_type: DataType,
    /// As the engine made it: of a graph perhaps more rows than the batch has.
    pub dims: &'m [i64],
    pub byte_count: usize,
}

/// Memory of the response of the only request for an output, on the device, which the engine can
/// write itself. None if the request does not want it, or the server has it elsewhere: then there
/// may be memory that is to be filled by a copy.
pub struct OwnTarget<'w> {
    pub target: MemoryTarget<'w>,
    pub is_direct: bool,
}

impl EngineOutput<'_> {
    /// Asks the response of the only request of a batch for memory.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn own_target<'w>(&self, work: &DeviceWork<'w>) -> Result<Option<OwnTarget<'w>>, Error> {
        let batch = work.batch();
        let OutputRole {
            is_response,
            is_state,
            cut,
        } = self.output_role;
        if batch.len() != 1 || !is_response || *is_state || cut.is_some() {
            return Ok(None);
        }
        let Some(request) = batch.requests().next() else {
            return Ok(None);
        };
        if !request.wants(&self.tensor.name)? {
            return Ok(None);
        }
        let place = work.place();
        let Some(response) = work.response(0) else {
            return Ok(None);
        };
        let target = response.output_in(
            &self.tensor.name,
            self.data_type,
            self.dims,
            self.byte_count,
            place,
        )?;
        let is_direct = target.place() == place
            && target.address().is_multiple_of(ALIGNMENT)
            && !target.is_empty();
        Ok(Some(OwnTarget { target, is_direct }))
    }

    /// Plans the copies of each request's share out of `source`, which the engine fills.
    ///
    /// # Errors
    /// `Internal` if the output does not have the rows of the batch; whatever the server reports.
    pub fn deliver<'w>(
        &self,
        work: &mut DeviceWork<'w>,
        inputs: &BatchInputs,
        source: MemorySource<'w>,
    ) -> Result<(), Error> {
        let shares = self.shares(work, inputs)?;
        let requests = work.batch().requests().enumerate();
        for ((index, request), (start, len, shape)) in requests.zip(shares) {
            let share = share_of(source, start, len)?;
            if self.output_role.is_response {
                self.respond(work, (index, request), share, &shape)?;
            }
            if self.output_role.is_state {
                let state = (self.tensor.name.as_c_str(), self.data_type, &shape[..]);
                work.keep_state(index, request, state, share)?;
            }
        }
        Ok(())
    }

    fn respond<'w>(
        &self,
        work: &mut DeviceWork<'w>,
        (index, request): (usize, Request<'w>),
        share: MemorySource<'w>,
        shape: &[i64],
    ) -> Result<(), Error> {
        let name = &self.tensor.name;
        let Some(response) = work.response(index) else {
            return Ok(());
        };
        if !request.wants(name)? {
            return Ok(());
        }
        let place = work.place();
        match response.output_in(name, self.data_type, shape, share.len(), place) {
            Ok(mut target) => work.copy_out(index, share, &mut target),
            // The memory of one response is its own matter.
            Err(error) => {
                work.fail(index, error);
                Ok(())
            }
        }
    }

    /// Where each request's bytes begin, how many there are, and their shape.
    fn shares(
        &self,
        work: &DeviceWork<'_>,
        inputs: &BatchInputs,
    ) -> Result<Vec<(usize, usize, Vec<i64>)>, Error> {
        let batch = work.batch();
        if let Some(cut) = &self.output_role.cut {
            let shares = cut.shares(batch, self.data_type, self.byte_count)?;
            let shares = shares.into_iter();
            return Ok(shares
                .map(|share| (share.range.start, share.range.len(), share.shape))
                .collect());
        }
        if batch.max_batch_size() <= 0 {
            return Ok(vec![(0, self.byte_count, self.dims.to_vec())]);
        }
        let first = self
            .dims
            .first()
            .and_then(|first| usize::try_from(*first).ok());
        let made = first.filter(|made| *made >= inputs.total && *made > 0);
        let Some(made) = made else {
            return Err(Error::internal(format!(
                "failed to split the output tensor '{}' in responses: expected batch size of at \
                 least {} in model output, got shape {}",
                self.tensor.name(),
                inputs.total,
                text(self.dims)
            )));
        };
        let row_bytes = self.byte_count / made;
        let mut start = 0;
        let share = |rows: &usize| {
            let len = rows * row_bytes;
            let mut shape = self.dims.to_vec();
            if let Some(first) = shape.first_mut() {
                *first = i64::try_from(*rows).unwrap_or(i64::MAX);
            }
            let share = (start, len, shape);
            start += len;
            share
        };
        Ok(inputs.rows.iter().map(share).collect())
    }
}

/// The bytes of one request in what the engine fills.
///
/// # Errors
/// `Internal` if they do not lie inside.
pub fn share_of(
    source: MemorySource<'_>,
    start: usize,
    len: usize,
) -> Result<MemorySource<'_>, Error> {
    let range = start..start.saturating_add(len);
    source.get(range).ok_or_else(|| {
        let room = source.len();
        Error::internal(format!("{len} bytes from {start} on are not in {room}"))
    })
}

/// Puts the values of a shape tensor that the engine made into the responses.
///
/// # Errors
/// `Internal`, in upstream's words, if they are not those of the batch; whatever the server
/// reports.
pub fn deliver_values(
    work: &mut DeviceWork<'_>,
    tensor: &Tensor,
    inputs: &BatchInputs,
    values: &[i64],
    instance: &str,
) -> Result<(), Error> {
    if tensor.data_type != Some(DataType::Int64) {
        return Err(Error::internal(format!(
            "Expected data type of output shape tensor to be INT64 for binding '{instance}', got \
             {}",
            tensor.data_type.map_or("<invalid>", DataType::name)
        )));
    }
    let is_batching = work.batch().max_batch_size() > 0;
    let own = match (is_batching, values) {
        (false, values) => values,
        (true, [batch, own @ ..]) if usize::try_from(*batch).ok() == Some(inputs.total) => own,
        (true, _) => {
            return Err(Error::internal(format!(
                "failed to retrieve the output shape values from binding '{instance}'"
            )));
        }
    };
    let count = i64::try_from(own.len()).unwrap_or(i64::MAX);
    let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let requests = work.batch().requests().enumerate();
    for ((index, request), rows) in requests.zip(&inputs.rows) {
        let Some(response) = work.response(index) else {
            continue;
        };
        if !request.wants(&tensor.name)? {
            continue;
        }
        let copies = if is_batching { *rows } else { 1 };
        let batch = is_batching.then(|| i64::try_from(*rows).unwrap_or(i64::MAX));
        let shape: Vec<i64> = batch.into_iter().chain([count]).collect();
        let len = copies * bytes.len();
        let mut buffer = response.output(&tensor.name, DataType::Int64, &shape, len)?;
        for _ in 0..copies {
            buffer.write(&bytes[..])?;
        }
    }
    Ok(())
}
