//! Outputs of a batch, cut apart into the requests' rows.

use std::ffi::CStr;
use std::ops::Range;

use crate::data_type::{element_count, shape_text};
use crate::{Batch, DataType, Error, Response};

/// Where a request's rows lie in the bytes of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub range: Range<usize>,
    pub shape: Vec<i64>,
}

/// An output of a batch, to be cut into the requests' shares.
#[derive(Clone, Copy, Debug)]
pub struct Scatter<'a> {
    pub name: &'a CStr,
    pub data_type: DataType,
    pub shape: &'a [i64],
    pub bytes: &'a [u8],
}

impl Scatter<'_> {
    /// Writes each request's rows into its response, if it wants this output. A request whose share
    /// cannot be written is answered with that error, and its response is gone afterwards.
    ///
    /// # Errors
    /// `Internal` if the output does not have as many rows as the batch, or not as many bytes as
    /// its shape says.
    pub fn write(
        &self,
        batch: &Batch<'_>,
        rows: &[usize],
        responses: &mut [Option<Response<'_>>],
    ) -> Result<(), Error> {
        let shares = self.shares(batch.max_batch_size() > 0, rows)?;
        self.write_shares(batch, shares, responses);
        Ok(())
    }

    /// Writes each request's share, cut elsewhere, as [`write`](Self::write) does.
    pub fn write_shares(
        &self,
        batch: &Batch<'_>,
        shares: Vec<Share>,
        responses: &mut [Option<Response<'_>>],
    ) {
        for ((request, response), share) in batch.requests().zip(responses).zip(shares) {
            let Some(open) = response.as_mut() else {
                continue;
            };
            let written = (|| {
                if !request.wants(self.name)? {
                    return Ok(());
                }
                let bytes = self
                    .bytes
                    .get(share.range)
                    .ok_or_else(|| Error::internal("share outside of its output"))?;
                open.output(self.name, self.data_type, &share.shape, bytes.len())?
                    .write(bytes)
            })();
            if let Err(error) = written
                && let Some(open) = response.take()
            {
                open.fail(error);
            }
        }
    }

    /// Byte range and shape of each request's rows.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn shares(&self, is_batching: bool, rows: &[usize]) -> Result<Vec<Share>, Error> {
        let ends = |elements| RowEnds::new(self.data_type, elements, self.bytes);
        shares(self.name, self.shape, ends, is_batching, rows)
    }
}

/// Byte range and shape of each request's rows in an output of elements of one size, wherever it
/// lies.
///
/// # Errors
/// As [`Scatter::write`]; `Internal` for BYTES.
pub(crate) fn shares_of_size(
    name: &CStr,
    data_type: DataType,
    shape: &[i64],
    byte_count: usize,
    is_batching: bool,
    rows: &[usize],
) -> Result<Vec<Share>, Error> {
    if data_type.element_bytes().is_none() {
        return Err(Error::internal("strings on a device"));
    }
    let ends = |elements| RowEnds {
        len: byte_count,
        ..RowEnds::new(data_type, elements, &[])
    };
    shares(name, shape, ends, is_batching, rows)
}

/// `ends` walks over rows of so many elements.
fn shares<'a>(
    name: &CStr,
    shape: &[i64],
    ends: impl Fn(usize) -> RowEnds<'a>,
    is_batching: bool,
    rows: &[usize],
) -> Result<Vec<Share>, Error> {
    let wrong =
        |what: String| Error::internal(format!("output '{}': {what}", name.to_string_lossy()));
    if !is_batching {
        return match rows.len() {
            1 => Ok(vec![Share {
                range: 0..ends(0).len,
                shape: shape.to_vec(),
            }]),
            count => Err(wrong(format!(
                "{count} requests in a batch of a model that does not batch"
            ))),
        };
    }
    let total: usize = rows.iter().sum();
    let Some((&first, rest)) = shape.split_first() else {
        return Err(wrong("no batch dimension".to_owned()));
    };
    if usize::try_from(first) != Ok(total) {
        return Err(wrong(format!(
            "shape {} does not have the batch's {total} rows",
            shape_text(shape)
        )));
    }
    let row_elements =
        element_count(rest).ok_or_else(|| wrong(format!("bad shape {}", shape_text(shape))))?;
    let mut ends = ends(row_elements);
    let mut start = 0;
    let mut shares = Vec::with_capacity(rows.len());
    for &count in rows {
        let end = ends
            .advance(count)
            .ok_or_else(|| wrong("fewer bytes than its shape says".to_owned()))?;
        let mut share = Share {
            range: start..end,
            shape: shape.to_vec(),
        };
        if let Some(dimension) = share.shape.first_mut() {
            *dimension = count as i64;
        }
        shares.push(share);
        start = end;
    }
    if start != ends.len {
        return Err(wrong("more bytes than its shape says".to_owned()));
    }
    Ok(shares)
}

/// Walks over the rows of a tensor's bytes.
struct RowEnds<'a> {
    /// Read for the lengths of BYTES elements alone.
    bytes: &'a [u8],
    len: usize,
    /// `None`: BYTES, whose elements carry their length in front.
    row_bytes: Option<usize>,
    row_elements: usize,
    position: usize,
}

impl<'a> RowEnds<'a> {
    fn new(data_type: DataType, row_elements: usize, bytes: &'a [u8]) -> Self {
        let row_bytes = data_type
            .element_bytes()
            .map(|element_bytes| element_bytes.saturating_mul(row_elements));
        RowEnds {
            bytes,
            len: bytes.len(),
            row_bytes,
            row_elements,
            position: 0,
        }
    }

    /// The end of the next `rows` rows; `None` if the bytes do not reach that far.
    fn advance(&mut self, rows: usize) -> Option<usize> {
        match self.row_bytes {
            Some(row_bytes) => {
                self.position = self.position.checked_add(row_bytes.checked_mul(rows)?)?;
            }
            None => {
                for _ in 0..self.row_elements.checked_mul(rows)? {
                    let rest = self.bytes.get(self.position..)?;
                    let length = u32::from_le_bytes(*rest.first_chunk()?);
                    let length = usize::try_from(length).ok()?;
                    self.position = self.position.checked_add(4)?.checked_add(length)?;
                }
            }
        }
        (self.position <= self.len).then_some(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(range: Range<usize>, shape: &[i64]) -> Share {
        Share {
            range,
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn cuts_outputs_into_the_requests_rows() {
        let check = |data_type, shape: &[i64], bytes: &[u8], rows: &[usize]| {
            let scatter = Scatter {
                name: c"Y",
                data_type,
                shape,
                bytes,
            };
            let found = scatter.shares(true, rows).ok();
            if data_type != DataType::Bytes {
                let size = bytes.len();
                let by_size = shares_of_size(c"Y", data_type, shape, size, true, rows);
                assert_eq!(by_size.ok(), found);
            }
            found
        };
        let bytes: Vec<u8> = (0..24).collect();
        assert_eq!(
            check(DataType::Int16, &[3, 4], &bytes, &[1, 2]),
            Some(vec![share(0..8, &[1, 4]), share(8..24, &[2, 4])])
        );
        assert_eq!(
            check(DataType::Uint8, &[2, 0], &[], &[1, 1]),
            Some(vec![share(0..0, &[1, 0]), share(0..0, &[1, 0])])
        );
        // Rows, bytes and dimensions that do not fit.
        assert_eq!(check(DataType::Int16, &[3, 4], &bytes, &[1, 1]), None);
        assert_eq!(check(DataType::Int16, &[3, 3], &bytes, &[1, 2]), None);
        assert_eq!(check(DataType::Int16, &[3, 5], &bytes, &[1, 2]), None);
        assert_eq!(check(DataType::Int16, &[], &bytes, &[1]), None);
        let strings = b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c";
        assert_eq!(
            check(DataType::Bytes, &[3], strings, &[1, 2]),
            Some(vec![share(0..6, &[1]), share(6..15, &[2])])
        );
        assert_eq!(check(DataType::Bytes, &[3], &strings[..14], &[1, 2]), None);
        assert_eq!(check(DataType::Bytes, &[2], strings, &[1, 1]), None);
    }

    #[test]
    fn passes_whole_outputs_of_models_that_do_not_batch() {
        let check = |rows: &[usize]| shares_of_size(c"Y", DataType::Uint8, &[2], 2, false, rows);
        assert_eq!(check(&[1]), Ok(vec![share(0..2, &[2])]));
        assert!(check(&[1, 1]).is_err());
        assert!(shares_of_size(c"Y", DataType::Bytes, &[2], 2, true, &[2]).is_err());
    }
}
