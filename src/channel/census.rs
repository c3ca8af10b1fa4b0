//! How many of each key are present, for any number of keys in constant memory.
//!
//! A key has a place of its own while one of it is present: a word that holds a tag of the key and the count. Places lie in buckets, and a
//! key belongs into one of these; where all places of a bucket are taken, the keys that find none share one count. Who comes
//! of a key that is known only looks for its tag and adds one; who leaves only takes one away. A key that is not known takes a place over that
//! nobody uses, under the bucket's mark, so that a key never has two; who finds the mark set waits for nobody, and shares.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// With the mark, a cache line.
#[cfg(not(loom))]
const PLACES: usize = 7;
#[cfg(loom)]
const PLACES: usize = 2;
/// The rest of a word is the tag.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// See the module.
#[derive(Debug)]
pub struct Census {
    buckets: Box<[Bucket]>,
    /// Of all that have no place of their own.
    shared: AtomicU64,
    max: u64,
}

#[derive(Debug)]
#[cfg_attr(not(loom), repr(align(64)))]
struct Bucket {
    places: [AtomicU64; PLACES],
    /// Somebody takes a place over.
    is_marked: AtomicBool,
}

/// Where one of a key is counted.
#[derive(Debug, PartialEq, Eq)]
pub struct Seat(Option<(u32, u8)>);

/// As many of the key are present as may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Census {
    /// The most that can be counted of one key.
    pub const COUNT_MAX: u64 = COUNT_MASK;

    /// Room for seven keys per bucket, `max` of each.
    pub fn new(bucket_count: u32, max: u64) -> Census {
        let bucket = |_| Bucket {
            places: std::array::from_fn(|_| AtomicU64::new(0)),
            is_marked: AtomicBool::new(false),
        };
        Census {
            buckets: (0..bucket_count.max(1)).map(bucket).collect(),
            shared: AtomicU64::new(0),
            max: max.min(Census::COUNT_MAX),
        }
    }

    /// Counts one of `key`, which is a hash: its upper bits choose the bucket, the lower ones are the tag. Does not wait.
    ///
    /// # Errors
    /// If as many are present as may be.
    pub fn enter(&self, key: u64) -> Result<Seat, Full> {
        // Fewer than 2^32 buckets, so the product's upper half is one's number.
        let number = ((key >> 32) * self.buckets.len() as u64) >> 32;
        // No tag is 0, as that of a place that was never used.
        let tag = (key << COUNT_BITS) | (1 << COUNT_BITS);
        let number = u32::try_from(number).expect("less than the number of buckets");
        let Some(bucket) = self.buckets.get(number as usize) else {
            return self.share();
        };
        let found = bucket
            .join(tag, self.max)
            .or_else(|| bucket.settle(tag, self.max));
        match found {
            Some(Ok(place)) => Ok(Seat(Some((number, place)))),
            Some(Err(full)) => Err(full),
            None => self.share(),
        }
    }

    /// One less. Does not wait. Once per seat.
    pub fn leave(&self, seat: &Seat) {
        let word = match seat.0 {
            None => Some(&self.shared),
            Some((number, place)) => self
                .buckets
                .get(number as usize)
                .and_then(|bucket| bucket.places.get(usize::from(place))),
        };
        if let Some(word) = word {
            // Release: whoever enters in its stead sees what it did.
            let before = word.fetch_sub(1, Ordering::Release);
            debug_assert!(before & COUNT_MASK > 0);
        }
    }

    fn share(&self) -> Result<Seat, Full> {
        let entered = self
            .shared
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |count| {
                (count < self.max).then_some(count + 1)
            });
        entered.map(|_| Seat(None)).map_err(|_| Full)
    }
}

impl Bucket {
    /// Counts one more in the place that has `tag`, if one has.
    fn join(&self, tag: u64, max: u64) -> Option<Result<u8, Full>> {
        for (number, place) in (0..).zip(&self.places) {
            let mut word = place.load(Ordering::Relaxed);
            while word & !COUNT_MASK == tag {
                if word & COUNT_MASK >= max {
                    return Some(Err(Full));
                }
                // Fails if somebody came or left, or, of the last who left, took the place over.
                match place.compare_exchange_weak(
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

    /// Takes a place over for `tag`, unless it has one by now. None: there is none to be had, or somebody else is at it.
    fn settle(&self, tag: u64, max: u64) -> Option<Result<u8, Full>> {
        if self.is_marked.swap(true, Ordering::Acquire) {
            return None;
        }
        // Tags change under the mark only: what is not found now is not there.
        let found = self.join(tag, max).or_else(|| self.take_over(tag, max));
        // Release: who marks it next sees the tag.
        self.is_marked.store(false, Ordering::Release);
        found
    }

    fn take_over(&self, tag: u64, max: u64) -> Option<Result<u8, Full>> {
        if max == 0 {
            return Some(Err(Full));
        }
        for (number, place) in (0..).zip(&self.places) {
            let word = place.load(Ordering::Relaxed);
            let is_idle = word & COUNT_MASK == 0;
            // Fails if one of the tag's own comes back at this moment.
            if is_idle
                && place
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

    /// A key of the only bucket there is.
    fn key(number: u64) -> u64 {
        number << 1
    }

    #[test]
    fn each_key_has_its_own_count() {
        let census = Census::new(1, 2);
        let seats: Vec<Seat> = (0..PLACES as u64)
            .flat_map(|number| [number; 2])
            .map(|number| census.enter(key(number)).unwrap())
            .collect();
        for number in 0..PLACES as u64 {
            assert_eq!(census.enter(key(number)), Err(Full), "{number}");
        }
        // The bucket is full: others share two places, whoever they are.
        let shared = [census.enter(key(20)), census.enter(key(21))].map(Result::unwrap);
        assert_eq!(shared, [Seat(None), Seat(None)]);
        assert_eq!(census.enter(key(22)), Err(Full));
        for seat in shared.into_iter().chain(seats) {
            census.leave(&seat);
        }
        // All of them are free again, for others, too.
        for number in 30..30 + PLACES as u64 {
            assert_ne!(census.enter(key(number)), Ok(Seat(None)));
        }
    }

    #[test]
    fn a_place_is_taken_over_only_from_who_is_gone() {
        let census = Census::new(1, 8);
        let stays = census.enter(key(1)).unwrap();
        for number in 2..100 {
            let seat = census.enter(key(number)).unwrap();
            assert_ne!(seat, Seat(None), "{number}");
            census.leave(&seat);
        }
        let again = census.enter(key(1)).unwrap();
        assert_eq!(again, stays, "it kept its place");
        census.leave(&again);
        census.leave(&stays);
    }

    #[test]
    fn every_key_finds_its_bucket() {
        let census = Census::new(3, 1);
        for key in [0, 1, u64::MAX, u64::MAX << 32, 1 << 31, 1 << 32, 1 << 63] {
            let seat = census.enter(key).unwrap();
            assert_eq!(census.enter(key), Err(Full), "{key:x}");
            census.leave(&seat);
        }
        assert_eq!(Census::new(1, 0).enter(7), Err(Full));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two of a key that nobody knows, and one of another that leaves its place: never are two of a key in places of its own where one
    /// may be, and in the end nobody is there.
    #[test]
    fn a_key_never_has_two_places() {
        loom::model(|| {
            let census = Arc::new(Census::new(1, 1));
            let gone = census.enter(2).expect("nobody was there");
            let present = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (census, present) = (Arc::clone(&census), Arc::clone(&present));
                    thread::spawn(move || {
                        let Ok(seat) = census.enter(4) else { return };
                        let is_own = seat.0.is_some();
                        if is_own {
                            assert_eq!(present.fetch_add(1, Ordering::Relaxed), 0);
                            present.fetch_sub(1, Ordering::Relaxed);
                        }
                        census.leave(&seat);
                    })
                })
                .collect();
            census.leave(&gone);
            for thread in threads {
                thread.join().expect("none panics");
            }
            let counts = census.buckets[0].places.iter();
            let left: u64 = counts
                .map(|place| place.load(Ordering::Relaxed) & COUNT_MASK)
                .sum();
            assert_eq!(left + census.shared.load(Ordering::Relaxed), 0);
        });
    }
}
