//! Received bytes that are not used yet.

use crate::shard::SpareBuffers;

/// Room for the head of an ordinary request.
const SMALL_BYTES: usize = 8 << 10;

/// A growing window of received bytes.
#[derive(Default)]
pub(crate) struct InputBuffer {
    /// All of it initialised; `start..end` is received and unused.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl InputBuffer {
    /// Gives the memory back while nothing unused is in it; it comes again with
    /// [`InputBuffer::room_mut`].
    pub(crate) fn release(&mut self, spares: &SpareBuffers) {
        if self.is_empty() {
            let bytes = std::mem::take(&mut self.bytes);
            if bytes.len() == SMALL_BYTES {
                spares.give_input(bytes);
            }
        }
    }

    /// What has been received, to be normalized before it is parsed.
    pub(crate) fn unused_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or(&mut [])
    }

    pub(crate) fn unused(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or(&[])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Marks `count` bytes as used.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    fn spare_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.end..).unwrap_or(&mut [])
    }

    /// Room to receive into, growing towards `bytes_max` unused bytes in all; empty only when that
    /// is reached. With 0 it does not grow.
    pub(crate) fn room_mut(&mut self, bytes_max: usize, spares: &SpareBuffers) -> &mut [u8] {
        if self.is_empty() && self.bytes.len() != SMALL_BYTES {
            self.bytes = spares.take_input(SMALL_BYTES);
        }
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.end == self.bytes.len() {
                let grown = (self.bytes.len() * 2).min(bytes_max).max(self.bytes.len());
                self.bytes.resize(grown, 0);
            }
        }
        self.spare_mut()
    }

    /// Counts `count` bytes of the room as received.
    pub(crate) fn received(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_bound_and_shrinks_when_empty() {
        let (mut input, spares) = (InputBuffer::default(), SpareBuffers::default());
        let mut expected = Vec::new();
        for round in 0u8.. {
            let room = input.room_mut(20_000, &spares);
            if room.is_empty() {
                break;
            }
            let count = room.len().min(3000);
            room[..count].fill(round);
            expected.extend(std::iter::repeat_n(round, count));
            input.received(count);
        }
        assert_eq!(input.unused(), expected);
        assert_eq!(expected.len(), 20_000);
        input.consume(19_999);
        assert_eq!(input.unused().len(), 1);
        assert!(
            !input.room_mut(20_000, &spares).is_empty(),
            "used bytes make room"
        );
        input.consume(1);
        assert_eq!(input.room_mut(20_000, &spares).len(), SMALL_BYTES);
        input.release(&spares);
        assert!(input.spare_mut().is_empty());
        assert_eq!(input.room_mut(0, &spares).len(), SMALL_BYTES);
        input.received(SMALL_BYTES);
        assert!(
            input.room_mut(0, &spares).is_empty(),
            "full, and may not grow"
        );
    }
}
