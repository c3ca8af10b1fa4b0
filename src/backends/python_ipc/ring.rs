//! Offsets of blocks, from any thread of one process to one thread of another.

use std::time::Duration;

use crate::bell::{AtomicU32, AtomicU64, Bell, Ordering, fence};
#[cfg(not(loom))]
use crate::{RING_AT, SharedSegment};

/// Offsets that may be on their way.
#[cfg(not(loom))]
const CAPACITY: u32 = 1024;

#[cfg(not(loom))]
impl OffsetRing<'_> {
    /// Offsets that may be on their way.
    pub const CAPACITY: u32 = CAPACITY;
}

/// The other side wrote what it cannot have meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFault;

/// A bounded queue in the control area of a segment. Producers take turns by a lock of their own.
#[derive(Clone, Copy, Debug)]
pub struct OffsetRing<'s> {
    /// Rung for the consumer, and by whoever wants it to look at its condition.
    bell: &'s AtomicU32,
    /// Rung for producers that wait for room.
    room_bell: &'s AtomicU32,
    /// Offsets that were ever pushed, and taken.
    tail: &'s AtomicU32,
    head: &'s AtomicU32,
    /// The consumer sleeps, or is about to; producers need not ring otherwise.
    is_idle: &'s AtomicU32,
    /// As many words as the capacity, a power of two.
    entries: Entries<'s>,
}

#[cfg(not(loom))]
type Entries<'s> = &'s SharedSegment;
#[cfg(loom)]
type Entries<'s> = &'s [AtomicU64];

impl<'s> OffsetRing<'s> {
    /// The ring of a segment's owner.
    ///
    /// # Panics
    /// Not with a segment of at least the control area.
    #[cfg(not(loom))]
    pub fn of(segment: &'s SharedSegment) -> OffsetRing<'s> {
        // A cache line each: both sides write.
        let word = |line: u64| {
            segment
                .word(RING_AT + 64 * line)
                .expect("in the control area")
        };
        OffsetRing {
            bell: word(0),
            room_bell: word(1),
            tail: word(2),
            head: word(3),
            is_idle: word(4),
            entries: segment,
        }
    }

    #[cfg(not(loom))]
    fn entry(&self, count: u32) -> (&AtomicU64, u32) {
        const ENTRIES_AT: u64 = RING_AT + 4096;
        let at = ENTRIES_AT + u64::from(count % CAPACITY) * 8;
        let entry = self.entries.long_word(at).expect("in the control area");
        (entry, CAPACITY)
    }

    #[cfg(loom)]
    fn entry(&self, count: u32) -> (&AtomicU64, u32) {
        let capacity = self.entries.len() as u32;
        (&self.entries[(count % capacity) as usize], capacity)
    }

    /// Appends an offset; false without room. One producer at a time.
    pub fn try_push(&self, offset: u64) -> bool {
        let tail = self.tail.load(Ordering::Relaxed);
        let (entry, capacity) = self.entry(tail);
        // Acquire: the consumer has read what it took.
        if tail.wrapping_sub(self.head.load(Ordering::Acquire)) >= capacity {
            return false;
        }
        entry.store(offset, Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        // Pairs with that of `wait`: either this sees that the consumer is idle, or the consumer
        // sees the new tail.
        fence(Ordering::SeqCst);
        if self.is_idle.load(Ordering::Relaxed) != 0 {
            Bell::new(self.bell).ring();
        }
        true
    }

    /// Appends an offset once there is room. One producer at a time.
    pub fn push(&self, offset: u64) {
        let bell = Bell::new(self.room_bell);
        loop {
            let seen = bell.count();
            if self.try_push(offset) {
                return;
            }
            bell.wait(seen, None);
        }
    }

    /// The next offset, if there is one. One consumer.
    ///
    /// # Errors
    /// If the words of the other side make no sense.
    pub fn pop(&self) -> Result<Option<u64>, RingFault> {
        let head = self.head.load(Ordering::Relaxed);
        let count = self.tail.load(Ordering::Acquire).wrapping_sub(head);
        if count == 0 {
            return Ok(None);
        }
        let (entry, capacity) = self.entry(head);
        if count > capacity {
            return Err(RingFault);
        }
        let offset = entry.load(Ordering::Relaxed);
        self.head.store(head.wrapping_add(1), Ordering::Release);
        if count == capacity {
            Bell::new(self.room_bell).ring();
        }
        Ok(Some(offset))
    }

    /// Blocks until there is an offset, `is_over` says that there will be none, or `timeout` has
    /// passed.
    pub fn wait(&self, timeout: Option<Duration>, is_over: impl Fn() -> bool) {
        let bell = Bell::new(self.bell);
        let seen = bell.count();
        self.is_idle.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let head = self.head.load(Ordering::Relaxed);
        if self.tail.load(Ordering::Acquire) == head && !is_over() {
            bell.wait(seen, timeout);
        }
        self.is_idle.store(0, Ordering::Relaxed);
    }

    /// Has a consumer that waits look at its `is_over`.
    pub fn interrupt(&self) {
        Bell::new(self.bell).ring();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    #[test]
    fn every_offset_comes_once_and_each_producers_in_order() {
        const EACH: u64 = 20_000;
        let segment = Arc::new(SharedSegment::create("ring", crate::CONTROL_BYTES).unwrap());
        let turn = Arc::new(Mutex::new(()));
        let producers: Vec<_> = (0..3)
            .map(|producer| {
                let (segment, turn) = (Arc::clone(&segment), Arc::clone(&turn));
                thread::spawn(move || {
                    for number in 0..EACH {
                        let _turn = turn.lock().unwrap();
                        OffsetRing::of(&segment).push(producer * EACH + number);
                    }
                })
            })
            .collect();
        let ring = OffsetRing::of(&segment);
        let mut next = [0; 3];
        while next.iter().sum::<u64>() < 3 * EACH {
            match ring.pop().unwrap() {
                Some(offset) => {
                    let (producer, number) = (offset / EACH, offset % EACH);
                    assert_eq!(next[producer as usize], number);
                    next[producer as usize] += 1;
                }
                None => ring.wait(None, || false),
            }
        }
        assert_eq!(ring.pop(), Ok(None));
        producers.into_iter().for_each(|it| it.join().unwrap());
    }

    #[test]
    fn a_wild_tail_is_a_fault() {
        let segment = SharedSegment::create("ring", crate::CONTROL_BYTES).unwrap();
        let ring = OffsetRing::of(&segment);
        for wild in [CAPACITY + 1, u32::MAX] {
            ring.tail.store(wild, Ordering::SeqCst);
            assert_eq!(ring.pop(), Err(RingFault));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Words {
        words: [AtomicU32; 5],
        entries: Vec<AtomicU64>,
    }

    impl Words {
        fn ring(&self) -> OffsetRing<'_> {
            let [bell, room_bell, tail, head, is_idle] = &self.words;
            OffsetRing {
                bell,
                room_bell,
                tail,
                head,
                is_idle,
                entries: &self.entries,
            }
        }
    }

    /// With room for one offset both sides wait for each other; a wake that is missed is a
    /// deadlock, which loom reports.
    #[test]
    fn no_wake_is_missed() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let words = Arc::new(Words {
                words: std::array::from_fn(|_| AtomicU32::new(0)),
                entries: vec![AtomicU64::new(0)],
            });
            let producer = thread::spawn({
                let words = Arc::clone(&words);
                move || (1..=2).for_each(|offset| words.ring().push(offset))
            });
            let ring = words.ring();
            let mut taken = Vec::new();
            while taken.len() < 2 {
                match ring.pop().unwrap() {
                    Some(offset) => taken.push(offset),
                    None => ring.wait(None, || false),
                }
            }
            assert_eq!(taken, [1, 2]);
            producer.join().unwrap();
        });
    }
}
