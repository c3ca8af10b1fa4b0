//! gRPC's message framing: a compressed flag, a 32-bit length, the message.

use crate::coding::ContentCoding;
use crate::grpc::status::{GrpcCode, GrpcStatus};

/// What upstream accepts and sends: the largest int32.
pub(super) const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;
/// Flag and length.
pub(super) const PREFIX_BYTES: usize = 5;

/// The prefix of a message that arrives, perhaps in parts.
#[derive(Debug, Default)]
pub(super) struct MessagePrefix {
    bytes: [u8; PREFIX_BYTES],
    len: usize,
    packed: Option<ContentCoding>,
}

impl MessagePrefix {
    /// Whether no byte of it has come.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How the message is compressed, once its length is known.
    pub(super) fn packed(&self) -> Option<ContentCoding> {
        self.packed
    }

    /// Takes what it needs from the start of `bytes`; returns the message's length once it is
    /// known, and the rest. `coding` is what the call's messages are compressed with if they say
    /// so.
    ///
    /// # Errors
    /// A message that says it is compressed where nothing was agreed on, or that is longer than
    /// `length_max`.
    pub(super) fn take<'a>(
        &mut self,
        bytes: &'a [u8],
        length_max: usize,
        coding: Option<ContentCoding>,
    ) -> Result<(Option<usize>, &'a [u8]), GrpcStatus> {
        let (own, rest) = bytes.split_at(bytes.len().min(PREFIX_BYTES - self.len));
        for byte in own {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
        if self.len < PREFIX_BYTES {
            return Ok((None, rest));
        }
        let [flag, length @ ..] = self.bytes;
        match flag {
            0 => {}
            1 if coding.is_some() => self.packed = coding,
            1 => {
                let message = "message is compressed, but the call has no grpc-encoding";
                return Err(GrpcStatus::new(GrpcCode::Internal, message));
            }
            _ => {
                return Err(GrpcStatus::new(
                    GrpcCode::Internal,
                    format!("invalid compressed flag {flag} of a message"),
                ));
            }
        }
        let length = u32::from_be_bytes(length);
        match usize::try_from(length) {
            Ok(length) if length <= length_max => Ok((Some(length), rest)),
            _ => {
                let message =
                    format!("Received message larger than max ({length} vs. {length_max})");
                Err(GrpcStatus::new(GrpcCode::ResourceExhausted, message))
            }
        }
    }
}

/// Writes the prefix of a message of `length` bytes into the first bytes of `out`, which holds at
/// least [`PREFIX_BYTES`].
pub(super) fn put_prefix(out: &mut [u8], length: usize) {
    let length = u32::try_from(length).expect("messages are bounded by an int32");
    let place = out.get_mut(1..PREFIX_BYTES).expect("room for the prefix");
    place.copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_arrive_in_any_pieces() {
        let wire = [0, 0, 0, 1, 2, 9, 9];
        for first in 0..=wire.len() {
            let (a, b) = wire.split_at(first);
            let mut prefix = MessagePrefix::default();
            let (length, rest) = prefix.take(a, 1000, None).unwrap();
            if first < PREFIX_BYTES {
                assert_eq!((length, rest.len()), (None, 0));
                assert_eq!(
                    prefix.take(b, 1000, None).unwrap(),
                    (Some(258), &[9, 9][..])
                );
            } else {
                assert_eq!((length, rest), (Some(258), &wire[5..first]));
            }
        }
    }

    #[test]
    fn refusals() {
        let table = [
            ([1, 0, 0, 0, 1], GrpcCode::Internal),
            ([2, 0, 0, 0, 1], GrpcCode::Internal),
            ([0, 0x80, 0, 0, 0], GrpcCode::ResourceExhausted),
            ([0, 0xff, 0xff, 0xff, 0xff], GrpcCode::ResourceExhausted),
        ];
        for (wire, code) in table {
            let status = MessagePrefix::default()
                .take(&wire, MESSAGE_BYTES_MAX, None)
                .unwrap_err();
            assert_eq!(status.code, code, "{wire:?}");
        }
        let largest = [0, 0x7f, 0xff, 0xff, 0xff];
        assert_eq!(
            MessagePrefix::default()
                .take(&largest, MESSAGE_BYTES_MAX, None)
                .unwrap()
                .0,
            Some(MESSAGE_BYTES_MAX)
        );
    }

    #[test]
    fn compressed_messages_say_so() {
        let gzip = Some(ContentCoding::Gzip);
        for (wire, expected) in [([1, 0, 0, 0, 5], gzip), ([0, 0, 0, 0, 5], None)] {
            let mut prefix = MessagePrefix::default();
            assert_eq!(prefix.take(&wire, 1000, gzip).unwrap().0, Some(5));
            assert_eq!(prefix.packed(), expected);
        }
    }
}
