//! The blocks of a segment, as the side that allocates them keeps account of them. Nothing of that
//! lies in the segment, so the other side cannot upset it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_memory::FreeRanges;

use crate::{BlockHeader, BlockState, CONTROL_BYTES, SharedSegment};

/// Pages are taken in such steps, and such a beginning of a segment is kept while it is idle.
const STEP_BYTES: u64 = 1 << 20;

/// Lent blocks whose state one allocation looks at.
const LOOKS: usize = 32;

/// What bounds the pages of segments beyond their lengths.
pub trait PageBound: std::fmt::Debug + Send + Sync {
    /// Takes `bytes` more; false if there is no room for them.
    fn add(&self, bytes: u64) -> bool;

    /// Gives `bytes` back.
    fn sub(&self, bytes: u64);
}

/// Nothing but the length of the segment.
impl PageBound for () {
    fn add(&self, _bytes: u64) -> bool {
        true
    }

    fn sub(&self, _bytes: u64) {}
}

/// Allocates blocks. Usable from every thread.
#[derive(Debug)]
pub struct BlockAllocator {
    segment: Arc<SharedSegment>,
    bound: Arc<dyn PageBound>,
    state: Mutex<AllocatorState>,
}

#[derive(Debug)]
struct AllocatorState {
    ranges: FreeRanges,
    /// Pages up to here are taken.
    committed_end: u64,
    /// Where blocks ended at most since the last [`BlockAllocator::trim`].
    peak_end: u64,
    /// Blocks that the other side gives back by their headers.
    lent: VecDeque<u64>,
}

/// Bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUsage {
    pub used_bytes: u64,
    pub committed_bytes: u64,
}

impl BlockAllocator {
    /// The pages that it takes count in `bound`.
    pub fn new(segment: Arc<SharedSegment>, bound: Arc<dyn PageBound>) -> BlockAllocator {
        let mut ranges = FreeRanges::new(segment.len());
        // The control area lies at the beginning, and stays.
        let control = ranges.take(CONTROL_BYTES);
        debug_assert_eq!(control, Some(0));
        BlockAllocator {
            segment,
            bound,
            state: Mutex::new(AllocatorState {
                ranges,
                committed_end: 0,
                peak_end: CONTROL_BYTES,
                lent: VecDeque::new(),
            }),
        }
    }

    pub fn segment(&self) -> &Arc<SharedSegment> {
        &self.segment
    }

    /// A block of `len` bytes, its header included; its offset. None without room or memory.
    pub fn take(&self, len: u64) -> Option<u64> {
        let mut state = self.state();
        self.reclaim(&mut state, LOOKS);
        let mut taken = state.ranges.take(len);
        if taken.is_none() {
            self.reclaim(&mut state, usize::MAX);
            taken = state.ranges.take(len);
        }
        let offset = taken?;
        let end = offset + state.ranges.used_at(offset).unwrap_or(0);
        if !self.commit(&mut state, end) {
            state.ranges.give_back(offset);
            return None;
        }
        state.peak_end = state.peak_end.max(end);
        Some(offset)
    }

    /// Takes a block back that the other side does not know, or is done with.
    pub fn give_back(&self, offset: u64) {
        let was_taken = self.state().ranges.give_back(offset);
        debug_assert!(was_taken, "no block at {offset}");
    }

    /// Leaves it to the other side to give the block back, by [`BlockHeader::finish`].
    pub fn lend(&self, offset: u64) {
        self.state().lent.push_back(offset);
    }

    /// Whether the other side has blocks that it may give back.
    pub fn has_lent(&self) -> bool {
        !self.state().lent.is_empty()
    }

    /// Gives pages back that were not used since the last call.
    pub fn trim(&self) {
        let mut state = self.state();
        self.reclaim(&mut state, usize::MAX);
        let peak = state.peak_end.max(STEP_BYTES);
        let kept_end = peak.next_multiple_of(STEP_BYTES).min(self.segment.len());
        state.peak_end = state.ranges.used_end();
        if kept_end < state.committed_end {
            let excess = state.committed_end - kept_end;
            if self.segment.discard(kept_end, excess).is_ok() {
                state.committed_end = kept_end;
                self.bound.sub(excess);
            }
        }
    }

    /// Whether there is nothing that [`BlockAllocator::trim`] could give back.
    pub fn is_trimmed(&self) -> bool {
        self.state().committed_end <= STEP_BYTES
    }

    pub fn usage(&self) -> BlockUsage {
        let state = self.state();
        BlockUsage {
            used_bytes: state.ranges.used_bytes(),
            committed_bytes: state.committed_end,
        }
    }

    /// Takes back what is done with among the first lent blocks; the others go to the end of the
    /// line.
    fn reclaim(&self, state: &mut AllocatorState, looks: usize) {
        for _ in 0..looks.min(state.lent.len()) {
            let Some(offset) = state.lent.pop_front() else {
                return;
            };
            let header = BlockHeader::at(&self.segment, offset);
            if header.is_none_or(|header| header.state() == BlockState::Done) {
                state.ranges.give_back(offset);
            } else {
                state.lent.push_back(offset);
            }
        }
    }

    fn commit(&self, state: &mut AllocatorState, end: u64) -> bool {
        if end <= state.committed_end {
            return true;
        }
        let target = end.next_multiple_of(STEP_BYTES).min(self.segment.len());
        let missing = target - state.committed_end;
        if !self.bound.add(missing) {
            return false;
        }
        let committed = self.segment.commit(state.committed_end, missing);
        match committed {
            Ok(()) => state.committed_end = target,
            Err(_) => self.bound.sub(missing),
        }
        committed.is_ok()
    }

    fn state(&self) -> MutexGuard<'_, AllocatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BlockAllocator {
    fn drop(&mut self) {
        self.bound.sub(self.state().committed_end);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// At most 64 MiB.
    #[derive(Debug, Default)]
    struct Limit(AtomicU64);

    impl PageBound for Limit {
        fn add(&self, bytes: u64) -> bool {
            let fits = self.0.load(Ordering::Relaxed) + bytes <= 64 << 20;
            if fits {
                self.0.fetch_add(bytes, Ordering::Relaxed);
            }
            fits
        }

        fn sub(&self, bytes: u64) {
            self.0.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn pages_are_bounded_and_given_back() {
        let limit = Arc::new(Limit::default());
        let segment = || Arc::new(SharedSegment::create("bounded", 1 << 30).unwrap());
        let first = BlockAllocator::new(segment(), Arc::clone(&limit) as _);
        let second = BlockAllocator::new(segment(), Arc::clone(&limit) as _);
        let large = first.take(40 << 20).unwrap();
        assert_eq!(second.take(40 << 20), None);
        assert!(second.take(1 << 20).is_some());
        first.give_back(large);
        first.trim();
        first.trim();
        let left = first.usage().committed_bytes + second.usage().committed_bytes;
        assert_eq!(limit.0.load(Ordering::Relaxed), left);
        assert!(second.take(40 << 20).is_some());
        drop((first, second));
        assert_eq!(limit.0.load(Ordering::Relaxed), 0);
    }

    fn allocator(len: u64) -> BlockAllocator {
        let segment = SharedSegment::create("blocks", len).expect("memory");
        BlockAllocator::new(Arc::new(segment), Arc::new(()))
    }

    #[test]
    fn blocks_come_back_by_their_headers() {
        let allocator = allocator(1 << 20);
        let empty = allocator.usage().used_bytes;
        let offset = allocator.take(1000).unwrap();
        assert!(offset >= CONTROL_BYTES);
        let header = BlockHeader::at(allocator.segment(), offset).unwrap();
        header.begin(10);
        allocator.lend(offset);
        allocator.trim();
        assert!(allocator.usage().used_bytes > empty, "still in use");
        header.finish(0);
        assert!(header.wait(None));
        allocator.trim();
        assert_eq!(allocator.usage().used_bytes, empty);
    }

    #[test]
    fn what_was_lent_makes_room() {
        let allocator = allocator(4 << 20);
        let blocks: Vec<u64> = std::iter::from_fn(|| allocator.take(64 << 10)).collect();
        assert!(blocks.len() > 50, "{}", blocks.len());
        for offset in &blocks {
            let header = BlockHeader::at(allocator.segment(), *offset).unwrap();
            header.begin(0);
            allocator.lend(*offset);
        }
        assert_eq!(allocator.take(1), None);
        let last = BlockHeader::at(allocator.segment(), blocks[blocks.len() - 1]);
        last.unwrap().finish(0);
        assert!(allocator.take(64 << 10).is_some());
    }

    #[test]
    fn pages_follow_the_use() {
        let allocator = allocator(1 << 30);
        let offset = allocator.take(100 << 20).unwrap();
        let resident = || allocator.segment().resident_bytes().unwrap();
        assert!(resident() >= 100 << 20);
        allocator.give_back(offset);
        allocator.trim();
        assert!(resident() >= 100 << 20, "used since the last look");
        allocator.trim();
        assert_eq!(resident(), STEP_BYTES);
        assert!(allocator.take(100 << 20).is_some());
        assert!(allocator.take(1 << 30).is_none(), "more than there is");
    }
}
