//! A serialised pipeline: a message of protocol buffers, of which only some numbers at its top are
//! read here, and what DALI would stumble over.

use conch_backend_sdk::Error;

use crate::arguments;
use crate::wire::{self, FieldValue, MessageFields};

/// Numbers of fields of `PipelineDef` in DALI's `dali.proto`.
const BATCH_SIZE: u64 = 2;
const OPERATOR: u64 = 5;
const DEVICE_ID: u64 = 8;

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
        for (number, value) in MessageFields::of(&bytes).flatten() {
            if let (OPERATOR, FieldValue::Bytes(operator)) = (number, value) {
                arguments::check(operator)?;
            }
        }
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
        wire::write_varint(&mut bytes, DEVICE_ID << 3 | wire::VARINT);
        wire::write_varint(&mut bytes, CPU_ONLY.cast_unsigned());
        bytes
    }
}

/// Walks over the fields at the top; `None` if they do not end where the bytes end, or the batch
/// size is missing, which every pipeline has.
fn batch_size(bytes: &[u8]) -> Option<i64> {
    let mut batch_size = None;
    for field in MessageFields::of(bytes) {
        if let (BATCH_SIZE, FieldValue::Varint(value)) = field? {
            batch_size = Some(value.cast_signed());
        }
    }
    batch_size
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
                &[0x08, 2, 0x2a, 3, 0x0a, 1, b'A', 0x40, 0, 0x10, 0x80, 2],
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

    /// Changes of a small pipeline, by a linear congruence: none may panic.
    #[test]
    fn any_bytes_are_read_or_refused() {
        let argument = b"\x0a\x06device\x12\x06string*\x03cpu@\x00";
        let operator = [b"\x0a\x06Resize\x22\x17", &argument[..]].concat();
        let whole = [b"\x08\x02\x10\x08*\x21", &operator[..], b"@\x00"].concat();
        assert!(PipelineFile::parse(whole.clone()).is_ok());
        let (mut seed, mut accepted) = (1u64, 0);
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % below
        };
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..draw(4) {
                let place = draw(bytes.len());
                bytes[place] = u8::try_from(draw(256)).unwrap();
            }
            bytes.truncate(whole.len() - draw(2) * draw(whole.len()));
            accepted += usize::from(PipelineFile::parse(bytes).is_ok());
        }
        assert!((1000..19_000).contains(&accepted), "{accepted}");
    }
}
