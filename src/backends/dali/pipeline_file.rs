//! A serialised pipeline: a message of protocol buffers, of which only some numbers at its top are
//! read here.

use conch_backend_sdk::Error;

/// Numbers of fields of `PipelineDef` in DALI's `dali.proto`.
const BATCH_SIZE: u64 = 2;
const DEVICE_ID: u64 = 8;

/// Kinds of values on the wire.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

/// The device id by which a serialised pipeline says that it runs on CPUs.
const CPU_ONLY: i64 = -99_999;

/// A serialised pipeline, whole as far as its top goes.
#[derive(Clone, Debug)]
pub struct PipelineFile {
    bytes: Vec<u8>,
    batch_size: i64,
}

impl PipelineFile {
    /// # Errors
    /// `InvalidArgument` if the bytes are no serialised pipeline, or only a part of one.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let batch_size = batch_size(&bytes).ok_or_else(|| {
            Error::invalid("the file is not a pipeline that DALI serialised, or a part of one")
        })?;
        Ok(PipelineFile { bytes, batch_size })
    }

    /// Samples that a batch of the pipeline may have.
    pub fn batch_size(&self) -> i64 {
        self.batch_size
    }

    /// As DALI reads it for a GPU, whose number the options of the pipeline replace.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As DALI reads it for CPUs. The options of a pipeline have no value for them, so the field is
    /// written behind the others: of a field that is there twice, the last counts.
    pub fn bytes_for_cpu(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        write_varint(&mut bytes, DEVICE_ID << 3 | VARINT);
        write_varint(&mut bytes, CPU_ONLY.cast_unsigned());
        bytes
    }
}

/// Walks over the fields at the top; `None` if they do not end where the bytes end, or the batch
/// size is missing, which every pipeline has.
fn batch_size(mut bytes: &[u8]) -> Option<i64> {
    let mut batch_size = None;
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes)?;
        let skipped = match key & 7 {
            VARINT => {
                let value = read_varint(&mut bytes)?;
                if key >> 3 == BATCH_SIZE {
                    batch_size = Some(value.cast_signed());
                }
                0
            }
            FIXED_64 => 8,
            BYTES => usize::try_from(read_varint(&mut bytes)?).ok()?,
            FIXED_32 => 4,
            _ => return None,
        };
        bytes = bytes.get(skipped..)?;
    }
    batch_size
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_batch_size() {
        for (bytes, expected) in [
            (&[0x10, 8][..], Some(8)),
            // Behind threads, an operator of three bytes, and a device id.
            (
                &[0x08, 2, 0x2a, 3, 1, 2, 3, 0x40, 0, 0x10, 0x80, 2],
                Some(256),
            ),
            (&[0x10, 8, 0x10, 16], Some(16)),
            (&[0x0d, 1, 2, 3, 4, 0x10, 1], Some(1)),
            (&[0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x10, 1], Some(1)),
            // Not there, cut short, of kinds that are not used, not ending.
            (&[], None),
            (&[0x08, 2], None),
            (&[0x10], None),
            (&[0x10, 8, 0x2a, 3, 1], None),
            (&[0x10, 8, 0x2a], None),
            (&[0x10, 8, 0x0b], None),
            (
                &[
                    0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
                ],
                None,
            ),
            (b"junk", None),
        ] {
            let parsed = PipelineFile::parse(bytes.to_vec());
            let found = parsed.ok().map(|file| file.batch_size());
            assert_eq!(found, expected, "{bytes:?}");
        }
    }

    #[test]
    fn the_last_device_counts() {
        let file = PipelineFile::parse(vec![0x10, 8, 0x40, 0]).unwrap();
        assert_eq!(file.bytes(), [0x10, 8, 0x40, 0]);
        assert_eq!(
            file.bytes_for_cpu(),
            [
                0x10, 8, 0x40, 0, 0x40, 0xe1, 0xf2, 0xf9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1
            ]
        );
    }
}
