//! Inputs of requests as one list of samples.

use std::mem::MaybeUninit;

use conch_backend_sdk as sdk;
use sdk::{Error, Input, Request, TensorBytes, shape_text};

use crate::capi::{InputList, Port, Runtime};

/// A request of a batch, and how many samples it has.
#[derive(Clone, Copy)]
pub struct BatchEntry<'b> {
    pub request: Request<'b>,
    pub sample_count: usize,
}

impl<'b> BatchEntry<'b> {
    /// # Errors
    /// `InvalidArgument` if the request's inputs differ in their first dimension, or have no
    /// samples.
    pub fn new(request: Request<'b>) -> Result<Self, Error> {
        let mut sample_count = None;
        for index in 0..request.input_count()? {
            let input = request.input_at(index)?;
            let first = input.shape().first().copied().unwrap_or(0);
            if *sample_count.get_or_insert(first) != first {
                return Err(Error::invalid(
                    "Each input in a request must have the same batch size.",
                ));
            }
        }
        let sample_count = sample_count
            .and_then(|count| usize::try_from(count).ok())
            .filter(|count| *count > 0)
            .ok_or_else(|| Error::invalid("a request must have at least one sample"))?;
        Ok(BatchEntry {
            request,
            sample_count,
        })
    }
}

/// The samples that the requests have for an input, one after the other: each with its own shape,
/// copied into DALI's memory.
///
/// # Errors
/// `InvalidArgument` if the requests differ in type or number of dimensions; what DALI says.
pub fn list<'r>(
    runtime: &'r Runtime,
    port: &Port,
    entries: &[BatchEntry<'_>],
) -> Result<InputList<'r>, Error> {
    let inputs = entries
        .iter()
        .map(|entry| Ok((entry.sample_count, entry.request.input(&port.name)?)))
        .collect::<Result<Vec<_>, Error>>()?;
    let Some((_, first)) = inputs.first() else {
        return Err(Error::internal("a batch without requests"));
    };
    let (data_type, dim_count) = (first.data_type(), first.shape().len().saturating_sub(1));
    let sample_count = entries.iter().map(|entry| entry.sample_count).sum();
    let shapes = shapes(port, dim_count, &inputs)?;
    if inputs
        .iter()
        .any(|(_, input)| input.data_type() != data_type)
    {
        return Err(Error::invalid(format!(
            "requests of a batch have different data types for input '{}'",
            port.name()
        )));
    }
    let mut list = InputList::new(
        runtime,
        data_type,
        sample_count,
        dim_count,
        &shapes,
        // A layout names each dimension, or is wrong.
        port.layout
            .as_deref()
            .filter(|layout| layout.count_bytes() == dim_count),
    )?;
    let mut sample = 0;
    for (count, input) in &inputs {
        fill(&mut list, sample, *count, input)?;
        sample += count;
    }
    Ok(list)
}

fn shapes(port: &Port, dim_count: usize, inputs: &[(usize, Input<'_>)]) -> Result<Vec<i64>, Error> {
    let mut shapes = Vec::new();
    for (count, input) in inputs {
        let shape = match input.shape().split_first() {
            Some((_, shape)) if shape.len() == dim_count => shape,
            _ => {
                return Err(Error::invalid(format!(
                    "requests of a batch have different numbers of dimensions for input '{}': \
                     {dim_count} and those of {}",
                    port.name(),
                    shape_text(input.shape())
                )));
            }
        };
        let more = count.saturating_mul(dim_count);
        shapes
            .try_reserve(more)
            .map_err(|_| Error::out_of_memory(more.saturating_mul(8)))?;
        for _ in 0..*count {
            shapes.extend_from_slice(shape);
        }
    }
    Ok(shapes)
}

/// Copies an input's bytes into its samples.
fn fill(
    list: &mut InputList<'_>,
    first: usize,
    count: usize,
    input: &Input<'_>,
) -> Result<(), Error> {
    let mut pieces = (0..input.buffer_count()).map(|index| input.buffer(index));
    let mut piece = TensorBytes::default();
    for index in first..first + count {
        let mut room: &mut [MaybeUninit<u8>] = list.sample(index)?;
        while !room.is_empty() {
            if piece.is_empty() {
                piece = pieces
                    .next()
                    .ok_or_else(|| Error::internal("an input is shorter than its shape"))??;
                continue;
            }
            let len = room.len().min(piece.len());
            let (Some((now, rest)), Some((target, behind))) =
                (piece.split_at_checked(len), room.split_at_mut_checked(len))
            else {
                return Err(Error::internal("an input cannot be cut"));
            };
            now.copy_to(target);
            (piece, room) = (rest, behind);
        }
    }
    Ok(())
}
