//! How long turns last, and what is known of those that last too long.
//!
//! The clock is read anyway. The thread's CPU time is a system call, so it is read once in
//! [`MARK_NS`] of busy time, however many turns and requests that is, and after a long turn. What a
//! long turn used is thus known but for the turns since the last reading, which are short; their
//! length is taken off.

use conch_net::ThreadUsage;

use crate::stages::{self, STAGES_MAX, StageSet};

/// A turn that lasts so long is told of: ten times as long as one may be.
pub const LONG_TURN_NS: u64 = 1_000_000;
/// Busy time between two readings of what the thread has used.
const MARK_NS: u64 = 500_000;
/// What the way into the kernel and out of it takes between two turns, about: of small turns it is
/// a good part.
const ENTER_NS: u64 = 5_000;

/// A turn of at least [`LONG_TURN_NS`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LongTurn {
    pub duration_ns: u64,
    /// What the thread used meanwhile, with an error of some hundred microseconds at most.
    pub usage: ThreadUsage,
    /// Nanoseconds that were noted, by stage.
    pub spent_ns: [u64; STAGES_MAX],
    /// The stages that were entered in its longest part between two looks at the clock: a few tasks
    /// at most.
    pub longest_part: StageSet,
}

/// Takes what is to be told of long turns, on their thread.
pub type LongTurnObserver = Box<dyn Fn(&LongTurn)>;

/// Of one thread.
#[derive(Default)]
pub(crate) struct TurnMeter {
    observer: Option<LongTurnObserver>,
    begin_ns: u64,
    /// The last look at the clock.
    look_ns: u64,
    longest_ns: u64,
    longest_part: StageSet,
    mark: ThreadUsage,
    /// Since the mark.
    busy_ns: u64,
}

impl TurnMeter {
    pub(crate) fn new(observer: Option<LongTurnObserver>) -> TurnMeter {
        let mut meter = TurnMeter {
            observer,
            ..TurnMeter::default()
        };
        meter.mark();
        meter
    }

    /// A turn begins.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.begin_ns = now_ns;
        self.look_ns = now_ns;
        self.longest_ns = 0;
    }

    /// A turn begins where the last one ended.
    pub(crate) fn begin_at_look(&mut self) {
        self.begin(self.look_ns);
    }

    /// Since the turn began.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.look_ns.saturating_sub(self.begin_ns)
    }

    /// The clock was looked at, between two tasks.
    pub(crate) fn look(&mut self, now_ns: u64) {
        let part = stages::take_entered();
        let part_ns = now_ns.saturating_sub(self.look_ns);
        if part_ns > self.longest_ns {
            (self.longest_ns, self.longest_part) = (part_ns, part);
        }
        self.look_ns = now_ns;
    }

    /// The turn has ended, at the last look. The thread looked for work for `spin_ns` since.
    pub(crate) fn end(&mut self, spin_ns: u64) {
        let duration_ns = self.elapsed_ns();
        let spent_ns = stages::take_spent();
        let before_ns = self.busy_ns;
        let after_ns = spin_ns.saturating_add(ENTER_NS);
        self.busy_ns = before_ns
            .saturating_add(duration_ns)
            .saturating_add(after_ns);
        if self.busy_ns < MARK_NS {
            return;
        }
        let mut usage = self.mark();
        if duration_ns < LONG_TURN_NS {
            return;
        }
        usage.cpu_ns = usage
            .cpu_ns
            .saturating_sub(before_ns.saturating_add(after_ns));
        if let Some(observer) = &self.observer {
            observer(&LongTurn {
                duration_ns,
                usage,
                spent_ns,
                longest_part: self.longest_part,
            });
        }
    }

    /// Reads what the thread has used. Returns what that is since the last time.
    fn mark(&mut self) -> ThreadUsage {
        self.busy_ns = 0;
        if self.observer.is_none() {
            return ThreadUsage::default();
        }
        // No error is known; without a figure all turns look idle.
        let now = ThreadUsage::of_current_thread().unwrap_or(self.mark);
        let used = now.since(self.mark);
        self.mark = now;
        used
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::{Duration, Instant};

    use super::*;

    fn meter() -> (TurnMeter, Rc<RefCell<Vec<LongTurn>>>) {
        let seen = Rc::<RefCell<Vec<LongTurn>>>::default();
        let told = Rc::clone(&seen);
        let observer = move |turn: &LongTurn| told.borrow_mut().push(*turn);
        (TurnMeter::new(Some(Box::new(observer))), seen)
    }

    #[test]
    fn long_turns_are_told_with_their_longest_part() {
        let (mut meter, seen) = meter();
        meter.begin(1_000);
        stages::enter_stage(1);
        meter.look(401_000);
        stages::enter_stage(2);
        stages::note_spent(4, 7);
        meter.look(1_001_000);
        stages::enter_stage(3);
        meter.look(1_500_000);
        meter.end(0);
        let [turn] = seen.borrow()[..] else {
            panic!("one turn was long");
        };
        assert_eq!(turn.duration_ns, 1_499_000);
        assert_eq!(turn.longest_part.only(), Some(2));
        assert_eq!(turn.spent_ns, [0, 0, 0, 0, 7, 0, 0, 0]);
        // What was noted in one turn is not of the next.
        meter.begin(2_000_000);
        meter.look(2_000_000 + LONG_TURN_NS);
        meter.end(0);
        assert_eq!(seen.borrow()[1].spent_ns, [0; STAGES_MAX]);
        assert_eq!(seen.borrow()[1].longest_part, StageSet::default());
    }

    #[test]
    fn short_turns_are_not_told_however_many_they_are() {
        let (mut meter, seen) = meter();
        for number in 0..1_000 {
            let begin_ns = number * LONG_TURN_NS;
            meter.begin(begin_ns);
            meter.look(begin_ns + LONG_TURN_NS - 1);
            meter.end(0);
        }
        assert_eq!(seen.borrow().len(), 0);
    }

    #[test]
    fn usage_is_read_once_in_a_while() {
        let (mut meter, _) = meter();
        let mut marks = vec![meter.mark.cpu_ns];
        for number in 0..250 {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(10) {}
            meter.begin(number * 20_000);
            // With the way into the kernel it is 10 us each: a mark is due after every 50th.
            meter.look(number * 20_000 + 10_000 - ENTER_NS);
            meter.end(0);
            if marks.last() != Some(&meter.mark.cpu_ns) {
                marks.push(meter.mark.cpu_ns);
            }
        }
        assert_eq!(marks.len(), 6);
    }

    #[test]
    fn what_short_turns_used_is_taken_off() {
        let (mut meter, seen) = meter();
        let spin = |duration: Duration| {
            let begin = ThreadUsage::of_current_thread().unwrap();
            let used = || {
                ThreadUsage::of_current_thread()
                    .unwrap()
                    .since(begin)
                    .cpu_ns
            };
            while u128::from(used()) < duration.as_nanos() {}
        };
        meter.begin(0);
        spin(Duration::from_micros(200));
        meter.look(200_000);
        meter.end(0);
        // A turn that says it was long, in which nothing was done.
        meter.begin(1_000_000);
        meter.look(6_000_000);
        meter.end(0);
        // And one that computed all the time.
        meter.begin(10_000_000);
        spin(Duration::from_millis(5));
        meter.look(15_000_000);
        meter.end(0);
        let seen = seen.borrow();
        let used_ns: Vec<u64> = seen.iter().map(|turn| turn.usage.cpu_ns).collect();
        assert!(used_ns[0] < 2_500_000, "{used_ns:?}");
        assert!(used_ns[1] >= 4_900_000, "{used_ns:?}");
    }

    #[test]
    fn without_an_observer_nothing_is_read() {
        let mut meter = TurnMeter::new(None);
        meter.begin(0);
        meter.look(5_000_000);
        meter.end(0);
        assert_eq!(meter.mark, ThreadUsage::default());
    }
}
