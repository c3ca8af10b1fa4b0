//! How many batches an instance may have in flight. No clock of its own.
//!
//! Requests should wait in the scheduler, where priorities, timeouts and batching still work, and
//! not on a stream. So an instance gets the fewest batches that keep its device busy: two to begin
//! with; one more when the device ran out of work though requests waited; one less when the batches
//! leave no faster than with one less.

/// Batches that end while the instance has as many as it may, over which their pace is measured.
const WINDOW: u32 = 32;
/// Ends of windows after which a depth that gained nothing may be tried again.
const HOLD_WINDOWS: u32 = 32;
/// Times the device ran out of work in a window that show a depth to be too small.
const IDLE_MIN: u32 = 4;

#[derive(Debug)]
pub(crate) struct Depth {
    current: usize,
    max: usize,
    /// By depth, from 1: how long after one another batches end; 0: not measured.
    pace_ns: Vec<u64>,
    /// Since when all batches ended while the instance was full, and how many.
    window: Option<(u64, u32)>,
    idle_count: u32,
    /// Ends since the idle times were looked at.
    since_judged: u32,
    /// Windows until the depth may grow.
    hold: u32,
}

impl Depth {
    /// At most `max`, which is at least 1.
    pub(crate) fn new(max: usize) -> Depth {
        let max = max.clamp(1, DEPTH_MAX);
        Depth {
            current: max.min(2),
            max,
            pace_ns: vec![0; max],
            window: None,
            idle_count: 0,
            since_judged: 0,
            hold: 0,
        }
    }

    pub(crate) fn current(&self) -> usize {
        self.current
    }

    /// The device ran out of work, and the next batch could be formed at once.
    pub(crate) fn note_idle(&mut self) {
        self.idle_count += 1;
    }

    /// `count` batches ended. `was_full`: the instance had as many as it may until then;
    /// `alone_ns`: how long one took that had the device for itself, with the call that enqueued
    /// it, which for many small kernels takes as long as they do.
    pub(crate) fn note_ended(
        &mut self,
        now_ns: u64,
        count: usize,
        was_full: bool,
        alone_ns: Option<u64>,
    ) {
        if let (Some(alone_ns), Some(pace_ns)) = (alone_ns, self.pace_ns.first_mut()) {
            *pace_ns = match *pace_ns {
                0 => alone_ns,
                known_ns => (known_ns * 7 + alone_ns) / 8,
            };
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.since_judged = self.since_judged.saturating_add(count);
        self.window = match self.window {
            _ if !was_full => None,
            None => Some((now_ns, 0)),
            Some((start_ns, ended)) => Some((start_ns, ended.saturating_add(count))),
        };
        if let Some((start_ns, ended)) = self.window
            && ended >= WINDOW
        {
            self.window = Some((now_ns, 0));
            self.judge_pace(now_ns.saturating_sub(start_ns) / u64::from(ended));
        }
        if self.since_judged >= WINDOW {
            self.judge_idleness();
        }
    }

    /// One less if batches leave as fast with that.
    fn judge_pace(&mut self, pace_ns: u64) {
        if self.gains_nothing(pace_ns) {
            self.set(self.current - 1);
            self.hold = HOLD_WINDOWS;
        } else if let Some(known_ns) = self.pace_ns.get_mut(self.current - 1) {
            *known_ns = pace_ns;
        }
    }

    /// One more if the device ran out of work.
    fn judge_idleness(&mut self) {
        let was_idle = self.idle_count >= IDLE_MIN;
        if was_idle && self.hold == 0 && self.current < self.max {
            self.set(self.current + 1);
        }
        self.hold = self.hold.saturating_sub(1);
        (self.idle_count, self.since_judged) = (0, 0);
    }

    fn set(&mut self, depth: usize) {
        self.current = depth;
        self.window = None;
    }

    /// Whether batches leave no faster than with one less in flight: less than 3 % faster.
    fn gains_nothing(&self, pace_ns: u64) -> bool {
        let below = self.current.checked_sub(2);
        let below_ns = below.and_then(|below| self.pace_ns.get(below));
        below_ns.is_some_and(|below_ns| {
            *below_ns > 0 && u128::from(pace_ns) * 100 >= u128::from(*below_ns) * 97
        })
    }
}

/// More than any device overlaps; a backend may name any number.
const DEPTH_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that has `stages` stages of 100 us each, of which different batches use different
    /// ones at the same time, and a core that fills it for `count` batches: each enters as soon as
    /// the depth allows.
    fn saturate(depth: &mut Depth, stages: usize, count: usize) {
        const STAGE_NS: u64 = 100_000;
        let mut free_ns = vec![0u64; stages];
        let mut in_flight = std::collections::VecDeque::new();
        let mut now_ns = 0;
        for _ in 0..count {
            while in_flight.len() >= depth.current() {
                let was_full = in_flight.len() == depth.current();
                let (began_ns, end_ns, was_alone) = in_flight.pop_front().unwrap();
                now_ns = now_ns.max(end_ns);
                let alone_ns = (was_alone && in_flight.is_empty()).then(|| now_ns - began_ns);
                depth.note_ended(now_ns, 1, was_full, alone_ns);
                if in_flight.is_empty() {
                    depth.note_idle();
                }
            }
            let mut at_ns = now_ns;
            for free_ns in &mut free_ns {
                at_ns = at_ns.max(*free_ns) + STAGE_NS;
                *free_ns = at_ns;
            }
            in_flight.push_back((now_ns, at_ns, in_flight.is_empty()));
        }
    }

    #[test]
    fn begins_at_two_and_never_exceeds_its_bound() {
        assert_eq!(Depth::new(1).current(), 1);
        assert_eq!(Depth::new(9).current(), 2);
        assert_eq!(Depth::new(0).current(), 1);
        let mut depth = Depth::new(3);
        for now_ns in 0..1_000 {
            for _ in 0..9 {
                depth.note_idle();
            }
            depth.note_ended(now_ns, 1, false, None);
            assert!((1..=3).contains(&depth.current()));
        }
        assert_eq!(depth.current(), 3, "it always ran out of work");
    }

    #[test]
    fn what_gains_nothing_is_given_up() {
        // Known from a batch that was alone: one after the other is as fast.
        let mut depth = Depth::new(4);
        depth.note_ended(0, 1, false, Some(100_000));
        saturate(&mut depth, 1, 40);
        assert_eq!(depth.current(), 1);
        // It is tried again only after long.
        saturate(&mut depth, 1, 900);
        assert_eq!(depth.current(), 1);
    }

    #[test]
    fn what_overlaps_stays() {
        let mut depth = Depth::new(4);
        depth.note_ended(0, 1, false, Some(200_000));
        saturate(&mut depth, 2, 2_000);
        assert_eq!(depth.current(), 2);
    }
}
