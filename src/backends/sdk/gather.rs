//! Inputs of all requests of a batch, joined along the first dimension.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use crate::data_type::{element_count, shape_text};
use crate::{Batch, BatchInput, DataType, Error, Input, Request, TensorBytes};

/// Joined input of a batch.
#[derive(Clone, Debug)]
pub struct Gathered<'a> {
    pub data_type: DataType,
    /// Rows of all requests first, where the model batches.
    pub shape: Vec<i64>,
    pub bytes: TensorBytes<'a>,
}

/// How the inputs of several requests are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Along the first dimension; the other dimensions must be equal.
    Rows,
    /// Element after element into one dimension, whatever the shapes.
    Ragged,
}

/// Memory in which inputs are joined, kept between batches.
#[derive(Default)]
pub struct Gather {
    buffer: Aligned,
}

impl Gather {
    /// Joins the input `name` of all requests. A single request's input is not copied if it lies in
    /// one piece, aligned to its elements. `None` if no request has the input.
    ///
    /// # Errors
    /// `InvalidArgument` if only some requests have it or their types or shapes differ; otherwise
    /// whatever the server reports.
    pub fn collect<'a>(
        &'a mut self,
        batch: &'a Batch<'_>,
        name: &CStr,
        join: Join,
    ) -> Result<Option<Gathered<'a>>, Error> {
        let Some(first) = first_input(batch, name)? else {
            return Ok(None);
        };
        let data_type = first.data_type();
        if batch.len() == 1 {
            let shape = join_shapes(name, join, std::iter::once(Ok(first.shape())))?;
            if let Some(bytes) = first.contiguous()?
                && bytes.is_aligned_to(data_type.element_bytes().unwrap_or(1))
            {
                return Ok(Some(Gathered {
                    data_type,
                    shape,
                    bytes,
                }));
            }
            let bytes = self
                .buffer
                .fill(first.byte_count(), |target| append(&first, target))?;
            return Ok(Some(Gathered {
                data_type,
                shape,
                bytes: bytes.into(),
            }));
        }

        let mut byte_count = 0usize;
        let shape = shape_of_all(batch, name, join, data_type, |input| {
            byte_count = byte_count
                .checked_add(input.byte_count())
                .ok_or_else(|| Error::internal("batch larger than memory"))?;
            Ok(())
        })?;
        let bytes = self.buffer.fill(byte_count, |target| {
            for request in batch.requests() {
                append(&request.input(name)?, target)?;
            }
            Ok(())
        })?;
        Ok(Some(Gathered {
            data_type,
            shape,
            bytes: bytes.into(),
        }))
    }
}

impl Gather {
    /// A tensor that describes the batch.
    ///
    /// # Errors
    /// `InvalidArgument` if a request lacks the input that it is made from, or a number is too
    /// large for its type.
    pub fn describe<'a>(
        &'a mut self,
        batch: &Batch<'_>,
        input: &BatchInput,
    ) -> Result<Gathered<'a>, Error> {
        let (shape, numbers) = input.make(batch)?;
        let byte_count = 4 * numbers.len();
        let bytes = self.buffer.fill(byte_count, |target| {
            for number in numbers {
                target.write((&input.encode(number)?).into())?;
            }
            Ok(())
        })?;
        Ok(Gathered {
            data_type: input.data_type,
            shape,
            bytes: bytes.into(),
        })
    }
}

/// The input `name` of the first request; `None` if no request has it.
///
/// # Errors
/// As [`Gather::collect`].
pub(crate) fn first_input<'a>(
    batch: &'a Batch<'_>,
    name: &CStr,
) -> Result<Option<Input<'a>>, Error> {
    let mut requests = batch.requests();
    let Some(first_request) = requests.next() else {
        return Ok(None);
    };
    // A request without the input is told from a failure by looking at its names, which is off the
    // usual path.
    match first_request.input(name) {
        Ok(input) => Ok(Some(input)),
        Err(error) => {
            for request in batch.requests() {
                if has_input(request, name)? {
                    return Err(error);
                }
            }
            Ok(None)
        }
    }
}

/// The shape of the joined inputs `name` of all requests, each of which `visit` is shown.
///
/// # Errors
/// As [`Gather::collect`], and those of `visit`.
pub(crate) fn shape_of_all<'a>(
    batch: &'a Batch<'_>,
    name: &CStr,
    join: Join,
    data_type: DataType,
    mut visit: impl FnMut(&Input<'a>) -> Result<(), Error>,
) -> Result<Vec<i64>, Error> {
    join_shapes(
        name,
        join,
        batch.requests().map(|request| {
            let input = request.input(name)?;
            if input.data_type() != data_type {
                return Err(Error::invalid(format!(
                    "requests of a batch have different data types for input '{}'",
                    name.to_string_lossy()
                )));
            }
            visit(&input)?;
            Ok(input.shape())
        }),
    )
}

/// The shape of joined tensors.
fn join_shapes<'s>(
    name: &CStr,
    join: Join,
    mut shapes: impl Iterator<Item = Result<&'s [i64], Error>>,
) -> Result<Vec<i64>, Error> {
    let overflow = || {
        Error::invalid(format!(
            "shapes of input '{}' in a batch are too large",
            name.to_string_lossy()
        ))
    };
    if join == Join::Ragged {
        let mut total = 0i64;
        for shape in shapes {
            let count = element_count(shape?).and_then(|count| i64::try_from(count).ok());
            total = count
                .and_then(|count| total.checked_add(count))
                .ok_or_else(overflow)?;
        }
        return Ok(vec![total]);
    }
    let mut joined = shapes.next().transpose()?.unwrap_or_default().to_vec();
    for shape in shapes {
        let shape = shape?;
        let (Some((rows, rest)), Some((first, others))) =
            (joined.split_first_mut(), shape.split_first())
        else {
            return Err(Error::invalid(format!(
                "input '{}' has no batch dimension",
                name.to_string_lossy()
            )));
        };
        if rest != others {
            return Err(Error::invalid(format!(
                "requests of a batch have different shapes for input '{}': [.,{}] and {}",
                name.to_string_lossy(),
                shape_text(rest).trim_start_matches('['),
                shape_text(shape)
            )));
        }
        *rows = rows.checked_add(*first).ok_or_else(overflow)?;
    }
    Ok(joined)
}

fn append(input: &Input<'_>, target: &mut Target<'_>) -> Result<(), Error> {
    input.for_each_buffer(|piece| target.write(piece))
}

fn has_input(request: Request<'_>, name: &CStr) -> Result<bool, Error> {
    for index in 0..request.input_count()? {
        if request.input_at(index)?.name() == name {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Room for bytes that starts on a cache line, which suits every element type and vector
/// instruction.
#[derive(Default)]
struct Aligned {
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([MaybeUninit<u8>; 64]);

impl Aligned {
    /// Makes room for `byte_count` bytes and has `fill` write them, all of them.
    ///
    /// # Errors
    /// `Unavailable` without memory for them; those of `fill`.
    fn fill(
        &mut self,
        byte_count: usize,
        fill: impl FnOnce(&mut Target<'_>) -> Result<(), Error>,
    ) -> Result<&[u8], Error> {
        let line_count = byte_count.div_ceil(64);
        if self.lines.len() < line_count {
            // Nothing of the old contents is worth moving.
            self.lines = Vec::new();
            self.lines
                .try_reserve_exact(line_count)
                .map_err(|_| Error::out_of_memory(byte_count))?;
            self.lines
                .resize(line_count, Line([MaybeUninit::uninit(); 64]));
        }
        let base = self.lines.as_mut_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: the vector owns at least that many bytes, of a type that asks nothing of them,
        // borrowed through `self`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base, byte_count) };
        let mut target = Target { bytes, filled: 0 };
        fill(&mut target)?;
        if target.filled != byte_count {
            return Err(Error::internal(format!(
                "an input has {} bytes instead of {byte_count}",
                target.filled
            )));
        }
        // SAFETY: all of them were written, by the check above.
        Ok(unsafe { std::slice::from_raw_parts(base.cast::<u8>(), byte_count) })
    }
}

struct Target<'t> {
    bytes: &'t mut [MaybeUninit<u8>],
    filled: usize,
}

impl Target<'_> {
    fn write(&mut self, source: TensorBytes<'_>) -> Result<(), Error> {
        let end = self.filled.checked_add(source.len());
        let room = end.and_then(|end| self.bytes.get_mut(self.filled..end));
        let Some(room) = room else {
            return Err(Error::internal("an input is longer than its size"));
        };
        source.copy_to(room);
        self.filled += source.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(join: Join, shapes: &[&[i64]]) -> Result<Vec<i64>, Error> {
        join_shapes(c"X", join, shapes.iter().map(|shape| Ok(*shape)))
    }

    #[test]
    fn joins_shapes_along_the_first_dimension() {
        for (shapes, expected) in [
            (&[&[2, 3][..]][..], Some(vec![2, 3])),
            (&[&[2, 3], &[1, 3], &[4, 3]], Some(vec![7, 3])),
            (&[&[2], &[0]], Some(vec![2])),
            (&[&[]], Some(vec![])),
            (&[&[2, 3], &[2, 4]], None),
            (&[&[2, 3], &[2]], None),
            (&[&[], &[]], None),
            (&[&[i64::MAX], &[1]], None),
        ] {
            assert_eq!(joined(Join::Rows, shapes).ok(), expected, "{shapes:?}");
        }
    }

    #[test]
    fn joins_ragged_shapes_into_one_dimension() {
        for (shapes, expected) in [
            (&[&[1, 3][..], &[2, 5]][..], Some(vec![13])),
            (&[&[1, 0], &[1]], Some(vec![1])),
            (&[&[i64::MAX], &[1]], None),
            (&[&[-1]], None),
        ] {
            assert_eq!(joined(Join::Ragged, shapes).ok(), expected, "{shapes:?}");
        }
    }

    #[test]
    fn aligned_memory_is_aligned_and_filled_exactly() {
        let mut aligned = Aligned::default();
        for size in [0usize, 1, 63, 64, 65, 1000] {
            let piece = vec![7u8; size];
            let bytes = aligned
                .fill(size, |target| target.write((&piece).into()))
                .unwrap();
            assert_eq!(bytes, piece);
            assert!(bytes.as_ptr().addr().is_multiple_of(64));
        }
        assert!(
            aligned
                .fill(4, |target| target.write((&[1, 2, 3]).into()))
                .is_err()
        );
        assert!(
            aligned
                .fill(2, |target| target.write((&[1, 2, 3]).into()))
                .is_err()
        );
    }
}
