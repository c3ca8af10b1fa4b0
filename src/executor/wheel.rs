//! Timers by time: a hierarchical wheel.
//!
//! Time is cut into ticks of 16 us. Level 0 has a slot for each of the next 64 ticks, level 1 one
//! for each 64 ticks of the next 4,096, and so on: eight levels reach further than the clock. A
//! timer moves to a lower level when its slot's time comes, at most seven times. Inserting,
//! removing and finding the next one take constant time. Deadlines keep their nanoseconds: a tick
//! only says in which slot a timer waits.

use std::task::Waker;

const TICK_BITS: u32 = 14;
const SLOT_BITS: u32 = 6;
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const LEVEL_COUNT: usize = 8;
/// Further away is never.
const TICK_MAX: u64 = (1 << (SLOT_BITS * LEVEL_COUNT as u32)) - 1;

/// Names a timer, also after it has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerKey {
    index: usize,
    number: u64,
}

struct TimerEntry {
    number: u64,
    deadline_ns: u64,
    waker: Waker,
    place: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// The timers of one thread.
pub(crate) struct Wheel {
    entries: slab::Slab<TimerEntry>,
    /// The first entry of each slot, level by level.
    heads: Box<[Option<usize>]>,
    /// Slots with entries, as bits.
    occupied: [u64; LEVEL_COUNT],
    /// All earlier ticks are over.
    tick: u64,
    next_number: u64,
}

impl Wheel {
    pub(crate) fn new(now_ns: u64) -> Wheel {
        Wheel {
            entries: slab::Slab::new(),
            heads: vec![None; LEVEL_COUNT * SLOT_COUNT].into(),
            occupied: [0; LEVEL_COUNT],
            tick: tick_of(now_ns),
            next_number: 0,
        }
    }

    pub(crate) fn insert(&mut self, deadline_ns: u64, waker: Waker) -> TimerKey {
        let number = self.next_number;
        self.next_number += 1;
        let index = self.entries.insert(TimerEntry {
            number,
            deadline_ns,
            waker,
            place: 0,
            before: None,
            after: None,
        });
        self.link(index);
        TimerKey { index, number }
    }

    /// Has the timer wake `waker`; false if it has fired.
    pub(crate) fn renew(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.entries.get_mut(key.index) {
            Some(entry) if entry.number == key.number => {
                entry.waker.clone_from(waker);
                true
            }
            _ => false,
        }
    }

    /// Its waker, if it has not fired.
    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        let entry = self.entries.get(key.index)?;
        (entry.number == key.number).then(|| self.take(key.index))
    }

    /// When [`Wheel::advance`] should be called next: at a deadline or before it; none without
    /// timers.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let (level, slot, tick) = self.next_slot()?;
        if level > 0 {
            return Some(tick << TICK_BITS);
        }
        let mut next = self.heads[slot];
        let mut next_ns = u64::MAX;
        while let Some(index) = next {
            let entry = &self.entries[index];
            next_ns = next_ns.min(entry.deadline_ns);
            next = entry.after;
        }
        Some(next_ns)
    }

    /// Moves the wakers of all timers that are due into `due`.
    pub(crate) fn advance(&mut self, now_ns: u64, due: &mut Vec<Waker>) {
        let now_tick = tick_of(now_ns);
        while let Some((level, slot, tick)) = self.next_slot() {
            if tick > now_tick {
                break;
            }
            self.tick = self.tick.max(tick);
            let mut next = self.heads[level * SLOT_COUNT + slot];
            while let Some(index) = next {
                let entry = &self.entries[index];
                next = entry.after;
                if entry.deadline_ns <= now_ns {
                    due.push(self.take(index));
                } else if level > 0 {
                    self.unlink(index);
                    self.link(index);
                }
            }
            if level == 0 && tick == now_tick {
                // What is left in this slot is due later in this tick.
                break;
            }
        }
        self.tick = self.tick.max(now_tick);
    }

    /// The slot whose time comes next, and its first tick.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        // A lower level's slots are all over before the next one of a higher level begins.
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        let shift = SLOT_BITS * level as u32;
        let current = (self.tick >> shift) & (SLOT_COUNT as u64 - 1);
        let ahead = self.occupied[level]
            .rotate_right(current as u32)
            .trailing_zeros();
        let slot = (current + u64::from(ahead)) & (SLOT_COUNT as u64 - 1);
        let base = (self.tick >> shift >> SLOT_BITS) << SLOT_BITS;
        Some((level, slot as usize, (base | slot) << shift))
    }

    fn link(&mut self, index: usize) {
        let tick = tick_of(self.entries[index].deadline_ns).max(self.tick);
        // The highest digit (of 64) in which the two differ.
        let level = (63 - ((tick ^ self.tick) | 1).leading_zeros()) / SLOT_BITS;
        let slot = (tick >> (SLOT_BITS * level)) as usize % SLOT_COUNT;
        let place = level as usize * SLOT_COUNT + slot;
        let after = self.heads[place].replace(index);
        if let Some(after) = after {
            self.entries[after].before = Some(index);
        }
        let entry = &mut self.entries[index];
        (entry.place, entry.before, entry.after) = (place, None, after);
        self.occupied[level as usize] |= 1 << slot;
    }

    fn unlink(&mut self, index: usize) {
        let TimerEntry {
            place,
            before,
            after,
            ..
        } = self.entries[index];
        match before {
            Some(before) => self.entries[before].after = after,
            None => self.heads[place] = after,
        }
        if let Some(after) = after {
            self.entries[after].before = before;
        }
        if self.heads[place].is_none() {
            self.occupied[place / SLOT_COUNT] &= !(1 << (place % SLOT_COUNT));
        }
    }

    fn take(&mut self, index: usize) -> Waker {
        self.unlink(index);
        self.entries.remove(index).waker
    }
}

fn tick_of(ns: u64) -> u64 {
    (ns >> TICK_BITS).min(TICK_MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use super::*;

    struct Fired(AtomicU64);

    impl Wake for Fired {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// The wheel beside a sorted map: the same timers fire at the same calls, and it never asks to
    /// be called after a deadline.
    #[test]
    fn fires_what_a_sorted_map_fires() {
        for seed in 1..=200 {
            let mut state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(seed);
            let mut now_ns = random(&mut state) >> (random(&mut state) % 50 + 8);
            let mut wheel = Wheel::new(now_ns);
            let mut plain: BTreeMap<u64, (u64, TimerKey, Arc<Fired>)> = BTreeMap::new();
            let mut due = Vec::new();
            for id in 0..400 {
                match random(&mut state) % 8 {
                    0..4 => {
                        let ahead_ns = random(&mut state) >> (random(&mut state) % 56 + 8);
                        let deadline_ns = now_ns.saturating_add(ahead_ns).saturating_sub(1000);
                        let fired = Arc::new(Fired(AtomicU64::new(0)));
                        let key = wheel.insert(deadline_ns, Arc::clone(&fired).into());
                        plain.insert(id, (deadline_ns, key, fired));
                    }
                    4 => {
                        let count = plain.len() as u64;
                        let place = random(&mut state) % count.max(1);
                        if let Some(id) = plain.keys().nth(place as usize).copied() {
                            let (_, key, _) = plain.remove(&id).unwrap();
                            assert!(wheel.remove(key).is_some());
                            assert!(wheel.remove(key).is_none(), "it is gone");
                        }
                    }
                    5 => {
                        if let Some(next_ns) = wheel.next_ns() {
                            now_ns = now_ns.max(next_ns);
                        }
                    }
                    _ => now_ns += random(&mut state) >> (random(&mut state) % 40 + 24),
                }
                let earliest_ns = plain.values().map(|one| one.0).min();
                assert_eq!(wheel.next_ns().is_some(), earliest_ns.is_some());
                if let (Some(next_ns), Some(earliest_ns)) = (wheel.next_ns(), earliest_ns) {
                    assert!(next_ns <= earliest_ns.max(now_ns), "seed {seed}");
                }
                wheel.advance(now_ns, &mut due);
                due.drain(..).for_each(Waker::wake);
                plain.retain(|_, (deadline_ns, key, fired)| {
                    let has_fired = fired.0.load(Ordering::Relaxed);
                    assert_eq!(has_fired, u64::from(*deadline_ns <= now_ns), "seed {seed}");
                    assert_eq!(wheel.renew(*key, Waker::noop()), has_fired == 0);
                    wheel.renew(*key, &Arc::clone(fired).into());
                    has_fired == 0
                });
                assert_eq!(wheel.entries.len(), plain.len());
            }
        }
    }

    #[test]
    fn a_deadline_beyond_the_last_level_is_kept() {
        let mut wheel = Wheel::new(5);
        let key = wheel.insert(u64::MAX, Waker::noop().clone());
        let mut due = Vec::new();
        wheel.advance(u64::MAX - 1, &mut due);
        assert!(due.is_empty());
        assert!(wheel.next_ns().is_some() && wheel.remove(key).is_some());
        assert_eq!(wheel.next_ns(), None);
    }
}
