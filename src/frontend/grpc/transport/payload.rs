//! Bytes of messages in the form in which h2 sends them.
//!
//! h2 hands the transport slices, which live no longer than the call. The transport keeps large
//! ones beyond it without a copy: a payload notes which memory its slice lies in, and the write
//! that follows takes the note. Both happen on the shard's thread, within one call of h2.

use std::cell::Cell;

use bytes::{Buf, Bytes};

/// Smaller slices are copied where they are kept.
pub(super) const SHARED_BYTES_MIN: usize = 4 << 10;

thread_local! {
    /// The payload of which h2 has last asked for a slice.
    static NOTED: Cell<Option<Bytes>> = const { Cell::new(None) };
}

/// What a call sends: part of a message.
pub(in crate::grpc) struct Payload(Bytes);

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload(bytes)
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        self.0.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.0.len() >= SHARED_BYTES_MIN {
            NOTED.set(Some(self.0.clone()));
        }
        &self.0
    }

    fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }
}

/// The payload that was noted last, if the transport has not taken it yet.
pub(super) fn take_noted() -> Option<Bytes> {
    NOTED.take()
}

/// Whether `piece` is large and lies in `noted`.
pub(super) fn is_part(noted: &Bytes, piece: &[u8]) -> bool {
    let (outer, inner) = (noted.as_ptr_range(), piece.as_ptr_range());
    piece.len() >= SHARED_BYTES_MIN && outer.start <= inner.start && inner.end <= outer.end
}

/// `piece` as a handle of its own, if it is large and lies in `noted`.
pub(super) fn share(noted: Option<&Bytes>, piece: &[u8]) -> Option<Bytes> {
    let noted = noted.filter(|noted| is_part(noted, piece))?;
    Some(noted.slice_ref(piece))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;

    #[test]
    fn a_slice_is_shared_where_it_lies() {
        let bytes = Bytes::from(vec![7; 20_000]);
        let mut payload = Payload::from(bytes.clone());
        payload.advance(1000);
        // As h2 does: a frame's part of the payload, in a list of slices.
        let part = payload.take(16_384);
        let mut pieces = [IoSlice::new(&[]); 4];
        assert_eq!(part.chunks_vectored(&mut pieces), 1);
        let noted = take_noted();
        assert!(take_noted().is_none(), "a note is taken once");
        let shared = share(noted.as_ref(), &pieces[0]).expect("it lies in the payload");
        assert_eq!(
            shared.as_ptr_range(),
            bytes.slice(1000..17_384).as_ptr_range()
        );
    }

    #[test]
    fn what_is_small_or_lies_elsewhere_is_not_shared() {
        let noted = Bytes::from(vec![7; SHARED_BYTES_MIN * 2]);
        let other = vec![7; SHARED_BYTES_MIN];
        assert!(share(Some(&noted), &other).is_none());
        assert!(share(Some(&noted), &noted[..SHARED_BYTES_MIN - 1]).is_none());
        assert!(share(None, &noted).is_none());
        assert!(share(Some(&noted.slice(1..)), &noted).is_none());
        assert!(share(Some(&noted), &noted[SHARED_BYTES_MIN..]).is_some());
        let small = Payload::from(Bytes::from(vec![7; SHARED_BYTES_MIN - 1]));
        assert_eq!(small.chunk().len(), SHARED_BYTES_MIN - 1);
        assert!(take_noted().is_none());
    }
}
