//! Inputs of a batch: their shapes, and their way to the device.

use conch_backend_sdk as sdk;
use sdk::{
    Batch, DataType, DeviceBlock, DeviceWork, Error, Gather, Input, MemorySource, element_count,
};

use crate::facts::{Facts, Tensor};
use crate::profiles::InputShape;
use crate::roles::{InputRole, TensorRole};

/// What TensorRT asks of addresses on a device. The driver's own allocations are multiples of it.
pub const ALIGNMENT: u64 = sdk::DEVICE_ALIGNMENT;

/// The inputs of a batch, as far as they are known before anything is copied.
pub struct BatchInputs {
    /// Rows of each request.
    pub rows: Vec<usize>,
    pub total: usize,
    pub given: Vec<InputShape>,
    /// Tensors that describe the batch, by the number of their input.
    made: Vec<(usize, Vec<u8>)>,
}

impl BatchInputs {
    /// Reads shapes and values.
    ///
    /// # Errors
    /// `InvalidArgument` for what the requests have wrong; whatever the server reports.
    pub fn read(
        batch: &Batch<'_>,
        facts: &Facts,
        roles: &[TensorRole],
        instance: &str,
    ) -> Result<Self, Error> {
        let is_batching = batch.max_batch_size() > 0;
        let rows = batch
            .requests()
            .map(|request| rows_of(request, facts, is_batching))
            .collect::<Result<Vec<_>, Error>>()?;
        let total: usize = rows.iter().sum();
        let limit = usize::try_from(batch.max_batch_size().max(1)).unwrap_or(1);
        if total > limit {
            return Err(Error::internal(format!(
                "batch size {total} for '{instance}', max allowed is {limit}"
            )));
        }
        let mut inputs = BatchInputs {
            rows,
            total,
            given: Vec::new(),
            made: Vec::new(),
        };
        for (index, (tensor, role)) in facts.tensors.iter().zip(roles).enumerate() {
            if let TensorRole::Input(role) = role {
                let given = inputs.read_one(batch, index, tensor, role)?;
                inputs.given.push(given);
            }
        }
        Ok(inputs)
    }

    fn read_one(
        &mut self,
        batch: &Batch<'_>,
        index: usize,
        tensor: &Tensor,
        role: &InputRole,
    ) -> Result<InputShape, Error> {
        let is_batching = batch.max_batch_size() > 0;
        let total = dimension(self.total)?;
        let mut values = None;
        let dims = match role {
            InputRole::Rows => joined_shape(batch, tensor, total, is_batching)?,
            // One element per sequence, in as many dimensions as the engine has.
            InputRole::Control => {
                let rest = tensor.dims.len().saturating_sub(1);
                std::iter::once(total)
                    .chain(std::iter::repeat_n(1, rest))
                    .collect()
            }
            InputRole::Ragged => {
                let mut sum = 0_i64;
                for request in batch.requests() {
                    let count = element_count(request.input(&tensor.name)?.shape());
                    let count = count.and_then(|count| i64::try_from(count).ok());
                    sum = count
                        .and_then(|count| sum.checked_add(count))
                        .ok_or_else(|| too_large(tensor))?;
                }
                vec![sum]
            }
            InputRole::Shapes(input) => {
                let mut gather = Gather::default();
                let made = gather.describe(batch, input)?;
                self.made.push((index, made.bytes.to_vec()));
                made.shape
            }
            InputRole::Shape => {
                values = Some(self.shape_values(batch, tensor, is_batching)?);
                tensor.dims.clone()
            }
        };
        Ok(InputShape {
            tensor: index,
            dims,
            values,
        })
    }

    /// The values of a shape tensor: those of the first request, as the scheduler puts only
    /// requests with the same into a batch. With batching the batch comes first, and requests leave
    /// it out.
    fn shape_values(
        &self,
        batch: &Batch<'_>,
        tensor: &Tensor,
        is_batching: bool,
    ) -> Result<Vec<i64>, Error> {
        let Some(request) = batch.requests().next() else {
            return Ok(Vec::new());
        };
        let input = request.input(&tensor.name)?;
        let given = decode(&input, tensor)?;
        let count = tensor.dims.first().copied().unwrap_or(1);
        let count = usize::try_from(count).unwrap_or(0);
        if !is_batching {
            return Ok(given);
        }
        let own = count.saturating_sub(1);
        let rows = self.rows.first().copied().unwrap_or(1);
        let values = match given.len() {
            len if len == own => given.get(..),
            // With a place for the batch.
            len if len == count => given.get(1..),
            // A row for each of the request's.
            len if own > 0 && Some(len) == own.checked_mul(rows) => given.get(..own),
            _ => None,
        };
        let values = values.ok_or_else(|| {
            let width = input.data_type().element_bytes().unwrap_or(1);
            Error::invalid(format!(
                "shape tensor for input '{}' expected byte size is {} [ or {} if input includes \
                 batch shape value] , got {}",
                tensor.name(),
                own * width,
                count * width,
                input.byte_count()
            ))
        })?;
        let batch_value = [dimension(self.total)?];
        Ok(batch_value.iter().chain(values).copied().collect())
    }

    /// Plans the copies of an input into its block, or finds the one place where it lies on the
    /// device already.
    ///
    /// # Errors
    /// `InvalidArgument`, in upstream's words, if the requests have another number of bytes.
    pub fn place<'w>(
        &self,
        work: &mut DeviceWork<'w>,
        (index, tensor): (usize, &Tensor),
        block: &'w DeviceBlock,
        (dims, may_stay, model_name): (&[i64], bool, &str),
    ) -> Result<Option<MemorySource<'w>>, Error> {
        if let Some((_, bytes)) = self.made.iter().find(|(made, _)| *made == index) {
            work.write_in(bytes.clone(), block)?;
            return Ok(None);
        }
        let mut parts = Vec::new();
        for (owner, request) in work.batch().requests().enumerate() {
            let input = request.input(&tensor.name)?;
            for number in 0..input.buffer_count() {
                parts.push((owner, input.memory(number, work.place())?));
            }
        }
        let given = parts.iter().map(|(_, part)| part.len()).sum::<usize>();
        let expected = tensor.byte_count(dims).ok_or_else(|| too_large(tensor))?;
        if given != expected {
            return Err(Error::invalid(format!(
                "input byte size mismatch for input '{}' for model '{model_name}'. Expected \
                 {expected}, got {given}",
                tensor.name()
            )));
        }
        if let ([(_, part)], true) = (&parts[..], may_stay)
            && part.place() == work.place()
            && part.address().is_multiple_of(ALIGNMENT)
        {
            return Ok(Some(*part));
        }
        let mut start = 0;
        for (owner, part) in parts {
            work.copy_in(owner, part, block, start)?;
            start += part.len();
        }
        Ok(None)
    }
}

/// Rows of a request: the first dimension of its first input, other than shape tensors, which have
/// no batch.
fn rows_of(request: sdk::Request<'_>, facts: &Facts, is_batching: bool) -> Result<usize, Error> {
    if !is_batching {
        return Ok(1);
    }
    for index in 0..request.input_count()? {
        let input = request.input_at(index)?;
        let is_shape = |tensor: &Tensor| tensor.is_shape;
        let found = facts.find(input.name());
        if !found.is_some_and(|(_, tensor)| is_shape(tensor)) {
            let rows = input.shape().first().copied().unwrap_or(1);
            return usize::try_from(rows).map_err(|_| Error::internal("negative batch dimension"));
        }
    }
    Ok(1)
}

/// The shape of a tensor that is joined along the batch.
fn joined_shape(
    batch: &Batch<'_>,
    tensor: &Tensor,
    total: i64,
    is_batching: bool,
) -> Result<Vec<i64>, Error> {
    let mut joined: Option<Vec<i64>> = None;
    for request in batch.requests() {
        let input = request.input(&tensor.name)?;
        let mut shape = input.shape().to_vec();
        if let (true, Some(first)) = (is_batching, shape.first_mut()) {
            *first = total;
        }
        match &joined {
            None => joined = Some(shape),
            Some(known) if *known == shape => {}
            Some(_) => {
                return Err(Error::invalid(format!(
                    "requests of a batch have different shapes for input '{}'",
                    tensor.name()
                )));
            }
        }
    }
    Ok(joined.unwrap_or_default())
}

fn decode(input: &Input<'_>, tensor: &Tensor) -> Result<Vec<i64>, Error> {
    let on_host = |_| {
        Error::invalid(format!(
            "shape tensor for input '{}' must be in single contiguous buffer on CPU",
            tensor.name()
        ))
    };
    let bytes = input.to_vec().map_err(on_host)?;
    match input.data_type() {
        DataType::Int32 => Ok(bytes
            .chunks_exact(4)
            .filter_map(|chunk| chunk.try_into().ok())
            .map(|chunk| i64::from(i32::from_ne_bytes(chunk)))
            .collect()),
        DataType::Int64 => Ok(bytes
            .chunks_exact(8)
            .filter_map(|chunk| chunk.try_into().ok())
            .map(i64::from_ne_bytes)
            .collect()),
        _ => Err(Error::invalid(
            "Unsupported data type received for Shape tensor",
        )),
    }
}

fn dimension(count: usize) -> Result<i64, Error> {
    i64::try_from(count).map_err(|_| Error::internal("batch larger than memory"))
}

fn too_large(tensor: &Tensor) -> Error {
    Error::invalid(format!(
        "shapes of input '{}' in a batch are too large",
        tensor.name()
    ))
}
