//! Tensors that describe a batch as a whole: `batch_input` and `batch_output` of a configuration.
//!
//! A model whose ragged inputs are joined element after element learns from a batch input where
//! each request's elements end, and a batch output is cut apart by the shapes of the requests'
//! inputs.

use std::ffi::CString;

use crate::data_type::element_count;
use crate::{Batch, DataType, Error, Request, Share};

/// An input that is made from the shapes of the requests' inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInput {
    pub kind: BatchInputKind,
    /// FP32 or INT32.
    pub data_type: DataType,
    /// The model's inputs that get it.
    pub targets: Vec<CString>,
    /// The input whose shapes tell it.
    pub source: CString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchInputKind {
    /// Elements of each request: `[requests]`.
    ElementCount,
    /// Elements of each request and all before it: `[requests]`.
    AccumulatedElementCount,
    /// The same behind a zero: `[requests + 1]`.
    AccumulatedElementCountWithZero,
    /// A tensor as long as the largest request has elements. Its contents mean nothing: they are
    /// zero.
    MaxElementCountAsShape,
    /// The shape of each row, without the batch dimension: `[rows, dimensions]`.
    ItemShape,
    /// The same in one dimension.
    ItemShapeFlatten,
}

impl BatchInputKind {
    pub(crate) fn parse(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "BATCH_ELEMENT_COUNT" => BatchInputKind::ElementCount,
            "BATCH_ACCUMULATED_ELEMENT_COUNT" => BatchInputKind::AccumulatedElementCount,
            "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO" => {
                BatchInputKind::AccumulatedElementCountWithZero
            }
            "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE" => BatchInputKind::MaxElementCountAsShape,
            "BATCH_ITEM_SHAPE" => BatchInputKind::ItemShape,
            "BATCH_ITEM_SHAPE_FLATTEN" => BatchInputKind::ItemShapeFlatten,
            other => {
                return Err(Error::invalid(format!(
                    "unexpected batch input kind '{other}'"
                )));
            }
        })
    }
}

impl BatchInput {
    /// Its shape and numbers for a batch.
    ///
    /// # Errors
    /// `InvalidArgument` if a request lacks the source input, or a number is too large for the data
    /// type; whatever the server reports.
    pub(crate) fn make(&self, batch: &Batch<'_>) -> Result<(Vec<i64>, Vec<i64>), Error> {
        let mut made = BatchInputBuilder::new(self.kind);
        for request in batch.requests() {
            made.add(request.input(&self.source)?.shape())
                .ok_or_else(|| self.overflow())?;
        }
        made.finish().ok_or_else(|| self.overflow())
    }

    /// A number as bytes of the data type.
    pub(crate) fn encode(&self, number: i64) -> Result<[u8; 4], Error> {
        match self.data_type {
            DataType::Fp32 => Ok((number as f32).to_ne_bytes()),
            _ => i32::try_from(number)
                .map(i32::to_ne_bytes)
                .map_err(|_| self.overflow()),
        }
    }

    fn overflow(&self) -> Error {
        Error::invalid(format!(
            "shapes of input '{}' in a batch are too large",
            self.source.to_string_lossy()
        ))
    }
}

/// A batch input as the requests' shapes come.
struct BatchInputBuilder {
    kind: BatchInputKind,
    numbers: Vec<i64>,
    /// Of all requests so far, or the most of one.
    total: i64,
    rows: i64,
    dimension_count: i64,
}

impl BatchInputBuilder {
    fn new(kind: BatchInputKind) -> BatchInputBuilder {
        let numbers = match kind {
            BatchInputKind::AccumulatedElementCountWithZero => vec![0],
            _ => Vec::new(),
        };
        BatchInputBuilder {
            kind,
            numbers,
            total: 0,
            rows: 0,
            dimension_count: 0,
        }
    }

    /// None if a number is too large.
    fn add(&mut self, shape: &[i64]) -> Option<()> {
        let count = i64::try_from(element_count(shape)?).ok()?;
        match self.kind {
            BatchInputKind::ElementCount => self.numbers.push(count),
            BatchInputKind::AccumulatedElementCount
            | BatchInputKind::AccumulatedElementCountWithZero => {
                self.total = self.total.checked_add(count)?;
                self.numbers.push(self.total);
            }
            BatchInputKind::MaxElementCountAsShape => self.total = self.total.max(count),
            BatchInputKind::ItemShape | BatchInputKind::ItemShapeFlatten => {
                let (rows, dims) = shape.split_first()?;
                self.dimension_count = i64::try_from(dims.len()).ok()?;
                self.rows = self.rows.checked_add(*rows)?;
                // Rows come from the batch, which has a bound.
                for _ in 0..*rows {
                    self.numbers.extend_from_slice(dims);
                }
            }
        }
        Some(())
    }

    fn finish(self) -> Option<(Vec<i64>, Vec<i64>)> {
        let mut numbers = self.numbers;
        let shape = match self.kind {
            BatchInputKind::ItemShape => vec![self.rows, self.dimension_count],
            BatchInputKind::MaxElementCountAsShape => {
                numbers.resize(usize::try_from(self.total).ok()?, 0);
                vec![self.total]
            }
            _ => vec![i64::try_from(numbers.len()).ok()?],
        };
        Some((shape, numbers))
    }
}

/// An output that is cut apart by the shapes of the requests' inputs
/// (BATCH_SCATTER_WITH_INPUT_SHAPE), one request's elements after the other's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOutput {
    pub target: CString,
    /// The input whose shapes tell the open dimensions.
    pub source: CString,
    /// As the configuration has it, with the batch dimension; -1 is open.
    pub dims: Vec<i64>,
}

impl BatchOutput {
    /// Each request's bytes of an output, and their shape.
    ///
    /// # Errors
    /// `Internal` if the output has fewer bytes than the requests' shapes ask for, or elements
    /// without a size; whatever the server reports.
    pub fn shares(
        &self,
        batch: &Batch<'_>,
        data_type: DataType,
        byte_count: usize,
    ) -> Result<Vec<Share>, Error> {
        let mut start = 0;
        batch
            .requests()
            .map(|request| self.share(request, data_type, &mut start, byte_count))
            .collect()
    }

    fn share(
        &self,
        request: Request<'_>,
        data_type: DataType,
        start: &mut usize,
        byte_count: usize,
    ) -> Result<Share, Error> {
        let source = request.input(&self.source)?;
        let (shape, end) = cut(&self.dims, source.shape(), data_type, *start)
            .filter(|(_, end)| *end <= byte_count)
            .ok_or_else(|| {
                Error::internal(format!(
                    "output '{}' has {byte_count} bytes, which the shapes of input '{}' do not fit",
                    self.target.to_string_lossy(),
                    self.source.to_string_lossy()
                ))
            })?;
        let range = std::mem::replace(start, end)..end;
        Ok(Share { range, shape })
    }
}

/// The shape of a share that begins at byte `start`, and where it ends.
fn cut(
    dims: &[i64],
    source: &[i64],
    data_type: DataType,
    start: usize,
) -> Option<(Vec<i64>, usize)> {
    let shape = dims
        .iter()
        .enumerate()
        .map(|(place, &dim)| match dim {
            -1 => source.get(place).copied(),
            dim => Some(dim),
        })
        .collect::<Option<Vec<i64>>>()?;
    let bytes = data_type.byte_count(&shape)?;
    Some((shape, start.checked_add(bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_inputs_describe_the_requests() {
        // Three requests of a ragged input.
        let shapes: [&[i64]; 3] = [&[1, 3], &[2, 2], &[1, 1]];
        for (name, shape, numbers) in [
            ("BATCH_ELEMENT_COUNT", vec![3], vec![3, 4, 1]),
            ("BATCH_ACCUMULATED_ELEMENT_COUNT", vec![3], vec![3, 7, 8]),
            (
                "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
                vec![4],
                vec![0, 3, 7, 8],
            ),
            (
                "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
                vec![4],
                vec![0, 0, 0, 0],
            ),
            ("BATCH_ITEM_SHAPE", vec![4, 1], vec![3, 2, 2, 1]),
            ("BATCH_ITEM_SHAPE_FLATTEN", vec![4], vec![3, 2, 2, 1]),
        ] {
            let mut made = BatchInputBuilder::new(BatchInputKind::parse(name).unwrap());
            for shape in shapes {
                made.add(shape).unwrap();
            }
            assert_eq!(made.finish().unwrap(), (shape, numbers), "{name}");
        }
        assert!(BatchInputKind::parse("BATCH_OF_SOMETHING").is_err());
    }

    #[test]
    fn numbers_too_large_are_refused() {
        let mut made = BatchInputBuilder::new(BatchInputKind::AccumulatedElementCount);
        assert!(made.add(&[i64::MAX]).is_some());
        assert!(made.add(&[1]).is_none());
        assert!(
            BatchInputBuilder::new(BatchInputKind::ItemShape)
                .add(&[])
                .is_none(),
            "no batch dimension"
        );
        let input = |data_type| BatchInput {
            kind: BatchInputKind::ElementCount,
            data_type,
            targets: vec![c"n".to_owned()],
            source: c"x".to_owned(),
        };
        assert!(input(DataType::Int32).encode(1 << 31).is_err());
        assert_eq!(
            input(DataType::Int32).encode(7).unwrap(),
            7_i32.to_ne_bytes()
        );
        assert_eq!(
            input(DataType::Fp32).encode(7).unwrap(),
            7_f32.to_ne_bytes()
        );
    }

    #[test]
    fn batch_outputs_take_open_dimensions_from_the_input() {
        for (dims, source, data_type, expected) in [
            (
                &[-1, -1][..],
                &[2, 3][..],
                DataType::Fp32,
                Some((vec![2, 3], 34)),
            ),
            (&[-1, 2], &[2, 3], DataType::Int8, Some((vec![2, 2], 14))),
            (&[-1, -1, -1], &[2, 3], DataType::Fp32, None),
            (&[-1, -1], &[2, 3], DataType::Bytes, None),
            (&[-1, -1], &[i64::MAX, 3], DataType::Fp32, None),
        ] {
            assert_eq!(cut(dims, source, data_type, 10), expected, "{dims:?}");
        }
    }
}
