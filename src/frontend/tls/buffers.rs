//! Buffers for records on their way, one pair per thread for all of its connections.
//!
//! A connection keeps nothing of it: what waits for the peer or for the socket is copied to memory
//! of its own, which has just that size.

use std::cell::RefCell;
use std::io::{self, IoSlice};

use conch_memory::try_extend;

/// Of the plain text of a record.
pub(super) const RECORD_BYTES_MAX: usize = 16 << 10;
/// Head, content type, nonce and tag of a record, and a change of keys in front of it.
const RECORD_OVERHEAD_BYTES: usize = 512;
/// Encrypted bytes that are sent, or received, at a time.
const WIRE_BYTES: usize = 64 << 10;
/// Plain bytes that fit there, with records that are full.
pub(super) const PLAIN_BYTES_MAX: usize =
    WIRE_BYTES / (RECORD_BYTES_MAX + RECORD_OVERHEAD_BYTES) * RECORD_BYTES_MAX;

#[derive(Default)]
pub(super) struct RecordBuffers {
    wire: Vec<u8>,
    gathered: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<RecordBuffers> = RefCell::default();
}

impl RecordBuffers {
    /// Lets `work` have this thread's memory for encrypted bytes, and that to gather a record in.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn with<T>(
        work: impl FnOnce(&mut [u8], &mut Vec<u8>) -> io::Result<T>,
    ) -> io::Result<T> {
        BUFFERS.with_borrow_mut(|buffers| {
            if buffers.wire.is_empty() {
                let reserved = buffers.wire.try_reserve_exact(WIRE_BYTES);
                let reserved = reserved.and(buffers.gathered.try_reserve_exact(RECORD_BYTES_MAX));
                reserved.map_err(|_| io::ErrorKind::OutOfMemory)?;
                buffers.wire.resize(WIRE_BYTES, 0);
            }
            work(&mut buffers.wire, &mut buffers.gathered)
        })
    }
}

/// The first bytes of `pieces`, at most a record: as they lie, or gathered if they lie apart.
pub(super) fn next_record<'a>(
    pieces: &'a [IoSlice<'_>],
    mut skip: usize,
    gathered: &'a mut Vec<u8>,
) -> &'a [u8] {
    gathered.clear();
    for (index, piece) in pieces.iter().enumerate() {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let rest = piece.get(skipped..).unwrap_or_default();
        let room = RECORD_BYTES_MAX - gathered.len();
        let part = rest.get(..rest.len().min(room)).unwrap_or_default();
        let is_last = pieces.iter().skip(index + 1).all(|piece| piece.is_empty());
        if gathered.is_empty() && (part.len() == RECORD_BYTES_MAX || is_last) {
            return part;
        }
        gathered.extend_from_slice(part);
        if gathered.len() == RECORD_BYTES_MAX {
            break;
        }
    }
    gathered
}

/// Bytes that wait, in memory of their size; none while nothing waits.
#[derive(Default)]
pub(super) struct ByteQueue {
    bytes: Vec<u8>,
    taken: usize,
}

impl ByteQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn get(&self) -> &[u8] {
        self.bytes.get(self.taken..).unwrap_or_default()
    }

    pub(super) fn get_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.taken..).unwrap_or_default()
    }

    /// Puts `bytes` behind what waits.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        try_extend(&mut self.bytes, bytes).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// Forgets the first `count` bytes.
    pub(super) fn take(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.bytes.len() {
            *self = ByteQueue::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_gathered_where_pieces_are_small() {
        // Lengths of pieces, and those of the records.
        let table: [(&[usize], &[usize]); 6] = [
            (&[5], &[5]),
            (&[5, 0, 7, 0], &[12]),
            (
                &[9, 100_000],
                &[16384, 16384, 16384, 16384, 16384, 16384, 1705],
            ),
            (
                &[100_000, 9],
                &[16384, 16384, 16384, 16384, 16384, 16384, 1705],
            ),
            (&[16384, 16384], &[16384, 16384]),
            (&[1; 40], &[40]),
        ];
        for (lengths, expected) in table {
            let whole: Vec<u8> = (0..lengths.iter().sum::<usize>())
                .map(|index| (index % 251) as u8)
                .collect();
            let mut rest = &whole[..];
            let pieces: Vec<IoSlice<'_>> = lengths
                .iter()
                .map(|length| {
                    let (own, others) = rest.split_at(*length);
                    rest = others;
                    IoSlice::new(own)
                })
                .collect();
            let (mut gathered, mut seen, mut found) = (Vec::new(), Vec::new(), Vec::new());
            while seen.len() < whole.len() {
                let record = next_record(&pieces, seen.len(), &mut gathered);
                assert!(!record.is_empty());
                found.push(record.len());
                seen.extend_from_slice(record);
            }
            assert!(seen == whole);
            assert_eq!(found, expected);
            assert!(next_record(&pieces, whole.len(), &mut gathered).is_empty());
        }
    }

    #[test]
    fn waiting_bytes_hold_no_memory_once_they_are_gone() {
        let mut waiting = ByteQueue::default();
        let (mut pushed, mut taken) = (0_u8, 0_u8);
        for (more, less) in [(3, 1), (9, 10), (0, 1), (20, 7), (2, 15)] {
            for _ in 0..more {
                waiting.push(&[pushed]).unwrap();
                pushed += 1;
            }
            assert_eq!(waiting.get(), (taken..pushed).collect::<Vec<_>>());
            waiting.take(less);
            taken += less as u8;
            assert_eq!(waiting.is_empty(), taken == pushed);
            assert_eq!(waiting.bytes.capacity() == 0, taken == pushed);
        }
    }
}
