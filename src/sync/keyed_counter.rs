//! Counts concurrent holders per key, for any number of keys in constant memory.
//!
//! A key with holders has a slot of its own: a word with a tag of the key and the count. Slots lie
//! in buckets, and each key belongs to one bucket; where all slots of a bucket are in use, further
//! keys share one count. A new holder of a known key finds its tag and adds one; a holder that
//! leaves subtracts one. A new key takes an unused slot over, under the bucket's mark, so that no
//! key has two slots; a thread that finds the mark set does not wait but uses the shared count.

use crate::primitives::{AtomicBool, AtomicU64, Ordering};

/// With the mark, a cache line.
#[cfg(not(loom))]
const SLOTS: usize = 7;
#[cfg(loom)]
const SLOTS: usize = 2;
/// The rest of a word is the tag.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// The counters of all keys.
#[derive(Debug)]
pub struct KeyedCounter {
    buckets: Box<[Bucket]>,
    /// Holders of the keys that have no slot of their own.
    shared: AtomicU64,
    max: u64,
}

#[derive(Debug)]
#[cfg_attr(not(loom), repr(align(64)))]
struct Bucket {
    slots: [AtomicU64; SLOTS],
    /// A thread is taking a slot over.
    is_marked: AtomicBool,
}

/// Where one holder is counted.
#[derive(Debug, PartialEq, Eq)]
pub struct CounterSlot(Option<(u32, u8)>);

/// The key has as many holders as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl KeyedCounter {
    /// The most holders per key that a slot can count.
    pub const COUNT_MAX: u64 = COUNT_MASK;

    /// Room for seven keys per bucket, `max` of each.
    pub fn new(bucket_count: u32, max: u64) -> KeyedCounter {
        let bucket = |_| Bucket {
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
            is_marked: AtomicBool::new(false),
        };
        KeyedCounter {
            buckets: (0..bucket_count.max(1)).map(bucket).collect(),
            shared: AtomicU64::new(0),
            max: max.min(KeyedCounter::COUNT_MAX),
        }
    }

    /// Counts a holder of `key`, a hash: its upper bits choose the bucket, the lower ones are the
    /// tag. Does not block.
    ///
    /// # Errors
    /// If the key has the most holders that it may have.
    pub fn acquire(&self, key: u64) -> Result<CounterSlot, Full> {
        // Fewer than 2^32 buckets, so the product's upper half is one's number.
        let number = ((key >> 32) * self.buckets.len() as u64) >> 32;
        // No tag is 0, the value of a slot that was never used.
        let tag = (key << COUNT_BITS) | (1 << COUNT_BITS);
        let number = u32::try_from(number).expect("less than the number of buckets");
        let Some(bucket) = self.buckets.get(number as usize) else {
            return self.share();
        };
        let found = bucket
            .join(tag, self.max)
            .or_else(|| bucket.claim_slot(tag, self.max));
        match found {
            Some(Ok(slot)) => Ok(CounterSlot(Some((number, slot)))),
            Some(Err(full)) => Err(full),
            None => self.share(),
        }
    }

    /// Counts one holder less. Once per [`CounterSlot`]. Does not block.
    pub fn release(&self, slot: &CounterSlot) {
        let word = match slot.0 {
            None => Some(&self.shared),
            Some((number, slot)) => self
                .buckets
                .get(number as usize)
                .and_then(|bucket| bucket.slots.get(usize::from(slot))),
        };
        if let Some(word) = word {
            // Release: the next holder in this slot sees what this one did.
            let before = word.fetch_sub(1, Ordering::Release);
            debug_assert!(before & COUNT_MASK > 0);
        }
    }

    fn share(&self) -> Result<CounterSlot, Full> {
        let entered = self
            .shared
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |count| {
                (count < self.max).then_some(count + 1)
            });
        entered.map(|_| CounterSlot(None)).map_err(|_| Full)
    }
}

impl Bucket {
    /// Adds a holder to the slot that has `tag`, if one has.
    fn join(&self, tag: u64, max: u64) -> Option<Result<u8, Full>> {
        for (number, slot) in (0..).zip(&self.slots) {
            let mut word = slot.load(Ordering::Relaxed);
            while word & !COUNT_MASK == tag {
                if word & COUNT_MASK >= max {
                    return Some(Err(Full));
                }
                // Fails if a holder came or left, or if the last one left and another key took the
                // slot over.
                match slot.compare_exchange_weak(
                    word,
                    word + 1,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some(Ok(number)),
                    Err(seen) => word = seen,
                }
            }
        }
        None
    }

    /// Finds or takes over a slot for `tag`. None: all slots are in use, or another thread holds
    /// the mark.
    fn claim_slot(&self, tag: u64, max: u64) -> Option<Result<u8, Full>> {
        if self.is_marked.swap(true, Ordering::Acquire) {
            return None;
        }
        // Tags change under the mark only: a tag that is not found now is not there.
        let found = self.join(tag, max).or_else(|| self.take_over(tag, max));
        // Release: the next thread with the mark sees the tag.
        self.is_marked.store(false, Ordering::Release);
        found
    }

    fn take_over(&self, tag: u64, max: u64) -> Option<Result<u8, Full>> {
        if max == 0 {
            return Some(Err(Full));
        }
        for (number, slot) in (0..).zip(&self.slots) {
            let word = slot.load(Ordering::Relaxed);
            let is_idle = word & COUNT_MASK == 0;
            // Fails if a holder of the same tag comes back at this moment.
            if is_idle
                && slot
                    .compare_exchange(word, tag | 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Some(Ok(number));
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A key that falls into the only bucket.
    fn key(number: u64) -> u64 {
        number << 1
    }

    #[test]
    fn each_key_has_its_own_count() {
        let keyed_counter = KeyedCounter::new(1, 2);
        let slots: Vec<CounterSlot> = (0..SLOTS as u64)
            .flat_map(|number| [number; 2])
            .map(|number| keyed_counter.acquire(key(number)).unwrap())
            .collect();
        for number in 0..SLOTS as u64 {
            assert_eq!(keyed_counter.acquire(key(number)), Err(Full), "{number}");
        }
        // The bucket is full: further keys share one count of two.
        let shared = [
            keyed_counter.acquire(key(20)),
            keyed_counter.acquire(key(21)),
        ]
        .map(Result::unwrap);
        assert_eq!(shared, [CounterSlot(None), CounterSlot(None)]);
        assert_eq!(keyed_counter.acquire(key(22)), Err(Full));
        for slot in shared.into_iter().chain(slots) {
            keyed_counter.release(&slot);
        }
        // All slots are free again, for other keys too.
        for number in 30..30 + SLOTS as u64 {
            assert_ne!(keyed_counter.acquire(key(number)), Ok(CounterSlot(None)));
        }
    }

    #[test]
    fn a_slot_is_taken_over_only_when_unused() {
        let keyed_counter = KeyedCounter::new(1, 8);
        let stays = keyed_counter.acquire(key(1)).unwrap();
        for number in 2..100 {
            let slot = keyed_counter.acquire(key(number)).unwrap();
            assert_ne!(slot, CounterSlot(None), "{number}");
            keyed_counter.release(&slot);
        }
        let again = keyed_counter.acquire(key(1)).unwrap();
        assert_eq!(again, stays, "it kept its slot");
        keyed_counter.release(&again);
        keyed_counter.release(&stays);
    }

    #[test]
    fn every_key_finds_its_bucket() {
        let keyed_counter = KeyedCounter::new(3, 1);
        for key in [0, 1, u64::MAX, u64::MAX << 32, 1 << 31, 1 << 32, 1 << 63] {
            let slot = keyed_counter.acquire(key).unwrap();
            assert_eq!(keyed_counter.acquire(key), Err(Full), "{key:x}");
            keyed_counter.release(&slot);
        }
        assert_eq!(KeyedCounter::new(1, 0).acquire(7), Err(Full));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two holders of a new key beside one of another key that leaves its slot: the new key never
    /// has two slots, and in the end none is in use.
    #[test]
    fn a_key_never_has_two_slots() {
        loom::model(|| {
            let keyed_counter = Arc::new(KeyedCounter::new(1, 1));
            let gone = keyed_counter.acquire(2).expect("no holder yet");
            let present = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (keyed_counter, present) =
                        (Arc::clone(&keyed_counter), Arc::clone(&present));
                    thread::spawn(move || {
                        let Ok(slot) = keyed_counter.acquire(4) else {
                            return;
                        };
                        let is_own = slot.0.is_some();
                        if is_own {
                            assert_eq!(present.fetch_add(1, Ordering::Relaxed), 0);
                            present.fetch_sub(1, Ordering::Relaxed);
                        }
                        keyed_counter.release(&slot);
                    })
                })
                .collect();
            keyed_counter.release(&gone);
            for thread in threads {
                thread.join().expect("none panics");
            }
            let counts = keyed_counter.buckets[0].slots.iter();
            let left: u64 = counts
                .map(|slot| slot.load(Ordering::Relaxed) & COUNT_MASK)
                .sum();
            assert_eq!(left + keyed_counter.shared.load(Ordering::Relaxed), 0);
        });
    }
}
