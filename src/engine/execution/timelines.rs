//! What the instances of a core did in the last second, for an operator who looks on.
//!
//! Nothing is recorded until somebody asks ([`InstanceTimelines::read`]), nor after
//! [`InstanceTimelines::end_watch`]: an execution pays for one load then. While it is watched, it
//! pays for two looks at the clock and a few stores. A cell is one word, written by the thread that
//! executes there, of which there is one at a time; readers see each cell whole.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::request::instance_timeline::{
    InstanceTimeline, TIMELINE_CELL_NS as CELL_NS, TIMELINE_CELLS as SHOWN_CELLS,
};

/// Cells that are kept: the shown ones, the one that is being written, and some for a reader that
/// is late.
const KEPT_CELLS: u64 = 128;
const CELL_US: u64 = CELL_NS / 1_000;
const BUSY_BITS: u32 = 16;
const COUNT_BITS: u32 = 16;

/// Those of the instances of one core.
pub(crate) struct InstanceTimelines {
    names: Vec<Box<str>>,
    is_watched: AtomicBool,
    /// One for each name, made when somebody first asks.
    rows: OnceLock<Box<[Timeline]>>,
}

struct Timeline {
    /// Monotonic ns; 0: it does not execute, or nobody looked when it began.
    begun_ns: AtomicU64,
    /// Each a [`TimelineCell`], at the place that its number has modulo their count.
    cells: Box<[AtomicU64]>,
}

/// What happened in 10 ms: a number that counts them, microseconds of execution, and executions
/// that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimelineCell {
    number: u64,
    busy_us: u64,
    count: u64,
}

impl InstanceTimelines {
    /// For the instances with these names.
    pub(crate) fn new(names: Vec<Box<str>>) -> InstanceTimelines {
        InstanceTimelines {
            names,
            is_watched: AtomicBool::new(false),
            rows: OnceLock::new(),
        }
    }

    /// The instance begins to execute.
    #[inline]
    pub(crate) fn begin(&self, instance: usize, now_ns: impl FnOnce() -> u64) {
        // Relaxed: an execution at the moment of the change may be on either side of it.
        if !self.is_watched.load(Ordering::Relaxed) {
            return;
        }
        if let Some(row) = self.row(instance) {
            row.begun_ns.store(now_ns(), Ordering::Relaxed);
        }
    }

    /// It has executed.
    #[inline]
    pub(crate) fn end(&self, instance: usize, now_ns: impl FnOnce() -> u64) {
        if self.is_watched.load(Ordering::Relaxed)
            && let Some(row) = self.row(instance)
        {
            row.end(now_ns());
        }
    }

    /// Whatever executed here does so no more.
    #[inline]
    pub(crate) fn end_all(&self, now_ns: impl Fn() -> u64) {
        if self.is_watched.load(Ordering::Relaxed) {
            for instance in 0..self.names.len() {
                self.end(instance, &now_ns);
            }
        }
    }

    /// The last second, and watches on. Called by one reader.
    pub(crate) fn read(&self, now_ns: u64) -> Vec<InstanceTimeline> {
        let rows = self.rows.get_or_init(|| {
            let names = self.names.iter();
            names.map(|_| Timeline::new()).collect()
        });
        if !self.is_watched.load(Ordering::Relaxed) {
            // What began before the end of an earlier watch has ended since, for all that is known.
            for row in rows {
                row.begun_ns.store(0, Ordering::Relaxed);
            }
            self.is_watched.store(true, Ordering::Relaxed);
        }
        let shown = self.names.iter().zip(rows);
        shown.map(|(name, row)| row.read(name, now_ns)).collect()
    }

    /// Nobody looks any more.
    pub(crate) fn end_watch(&self) {
        self.is_watched.store(false, Ordering::Relaxed);
    }

    fn row(&self, instance: usize) -> Option<&Timeline> {
        self.rows.get()?.get(instance)
    }
}

impl Timeline {
    fn new() -> Timeline {
        Timeline {
            begun_ns: AtomicU64::new(0),
            cells: (0..KEPT_CELLS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn end(&self, now_ns: u64) {
        let begun_ns = self.begun_ns.load(Ordering::Relaxed);
        if begun_ns == 0 {
            return;
        }
        self.begun_ns.store(0, Ordering::Relaxed);
        let last = now_ns / CELL_NS;
        // Cells before those that are kept are nobody's any more.
        let first = (begun_ns / CELL_NS).max(last.saturating_sub(KEPT_CELLS - 1));
        for number in first..=last {
            let busy_us = busy_us_in(number, begun_ns, now_ns);
            self.add(number, busy_us, u64::from(number == last));
        }
    }

    fn add(&self, number: u64, busy_us: u64, count: u64) {
        let Some(word) = self.cells.get((number % KEPT_CELLS) as usize) else {
            return;
        };
        let mut cell = TimelineCell::of(word.load(Ordering::Relaxed));
        if cell.number != number & NUMBER_MAX {
            cell = TimelineCell {
                number: number & NUMBER_MAX,
                busy_us: 0,
                count: 0,
            };
        }
        cell.busy_us = (cell.busy_us + busy_us).min(CELL_US);
        cell.count = (cell.count + count).min((1 << COUNT_BITS) - 1);
        word.store(cell.word(), Ordering::Relaxed);
    }

    fn read(&self, name: &str, now_ns: u64) -> InstanceTimeline {
        let begun_ns = self.begun_ns.load(Ordering::Relaxed);
        let end = now_ns / CELL_NS;
        let mut timeline = InstanceTimeline {
            name: name.into(),
            busy_us: Vec::with_capacity(SHOWN_CELLS),
            execution_count: 0,
        };
        for number in end.saturating_sub(SHOWN_CELLS as u64)..end {
            let word = self.cells.get((number % KEPT_CELLS) as usize);
            let cell = TimelineCell::of(word.map_or(0, |word| word.load(Ordering::Relaxed)));
            let mut busy_us = 0;
            if cell.number == number & NUMBER_MAX {
                busy_us = cell.busy_us;
                timeline.execution_count += cell.count;
            }
            if begun_ns != 0 {
                busy_us += busy_us_in(number, begun_ns, now_ns);
            }
            let busy_us = busy_us.min(CELL_US);
            timeline
                .busy_us
                .push(u16::try_from(busy_us).unwrap_or(u16::MAX));
        }
        timeline
    }
}

/// How much of a cell lies between two times.
fn busy_us_in(number: u64, begun_ns: u64, ended_ns: u64) -> u64 {
    let (from_ns, until_ns) = (number * CELL_NS, (number + 1) * CELL_NS);
    let busy_ns = ended_ns.min(until_ns).saturating_sub(begun_ns.max(from_ns));
    // What is brief is seen all the same.
    busy_ns.div_ceil(1_000)
}

/// The numbers of cells that a word can tell apart: 500 days of them.
const NUMBER_MAX: u64 = (1 << (64 - BUSY_BITS - COUNT_BITS)) - 1;

impl TimelineCell {
    fn of(word: u64) -> TimelineCell {
        TimelineCell {
            number: word >> (BUSY_BITS + COUNT_BITS),
            busy_us: (word >> COUNT_BITS) & ((1 << BUSY_BITS) - 1),
            count: word & ((1 << COUNT_BITS) - 1),
        }
    }

    fn word(self) -> u64 {
        (self.number << (BUSY_BITS + COUNT_BITS)) | (self.busy_us << COUNT_BITS) | self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// When the tests begin: the start of a cell.
    const START_NS: u64 = 7_000 * CELL_NS;

    fn watched() -> InstanceTimelines {
        let timelines = InstanceTimelines::new(vec!["m_0".into(), "m_1".into()]);
        timelines.read(START_NS);
        timelines
    }

    fn execute(timelines: &InstanceTimelines, instance: usize, from_ns: u64, until_ns: u64) {
        timelines.begin(instance, || from_ns);
        timelines.end(instance, || until_ns);
    }

    /// The cells that are not idle, with their times in us, and how many executions ended.
    fn seen(
        timelines: &InstanceTimelines,
        instance: usize,
        now_ns: u64,
    ) -> (Vec<(usize, u16)>, u64) {
        let timeline = timelines.read(now_ns).swap_remove(instance);
        assert_eq!(timeline.busy_us.len(), SHOWN_CELLS);
        let cells = timeline.busy_us.into_iter().enumerate();
        let busy = cells.filter(|(_, busy_us)| *busy_us > 0).collect();
        (busy, timeline.execution_count)
    }

    #[test]
    fn executions_fill_the_cells_that_they_lie_in() {
        let timelines = watched();
        execute(&timelines, 0, START_NS + 2 * MS, START_NS + 5 * MS);
        execute(&timelines, 0, START_NS + 6 * MS, START_NS + 23 * MS);
        execute(&timelines, 1, START_NS + 990 * MS, START_NS + 990 * MS + 1);
        let now_ns = START_NS + 1_000 * MS;
        assert_eq!(
            seen(&timelines, 0, now_ns),
            (vec![(0, 7_000), (1, 10_000), (2, 3_000)], 2)
        );
        assert_eq!(seen(&timelines, 1, now_ns), (vec![(99, 1)], 1));
        // Two cells later.
        assert_eq!(seen(&timelines, 0, now_ns + 20 * MS), (vec![(0, 3_000)], 1));
        assert_eq!(seen(&timelines, 0, now_ns + 5_000 * MS), (vec![], 0));
    }

    #[test]
    fn what_executes_now_is_seen_before_it_ends() {
        let timelines = watched();
        timelines.begin(0, || START_NS + 985 * MS);
        let now_ns = START_NS + 1_003 * MS;
        assert_eq!(
            seen(&timelines, 0, now_ns),
            (vec![(98, 5_000), (99, 10_000)], 0)
        );
        // One that takes longer than is kept.
        let late_ns = START_NS + 5_000 * MS;
        let (cells, _) = seen(&timelines, 0, late_ns);
        assert!(cells.len() == SHOWN_CELLS && cells.iter().all(|cell| cell.1 == 10_000));
        timelines.end_all(|| late_ns);
        assert_eq!(seen(&timelines, 0, late_ns), (cells, 0));
        assert_eq!(seen(&timelines, 0, late_ns + 10 * MS).1, 1);
    }

    #[test]
    fn nothing_is_recorded_while_nobody_looks() {
        let never = || unreachable!("nobody looks");
        let timelines = InstanceTimelines::new(vec!["m_0".into()]);
        timelines.begin(0, never);
        timelines.end(0, never);
        assert!(timelines.rows.get().is_none());
        timelines.read(START_NS);
        timelines.begin(0, || START_NS + MS);
        timelines.end_watch();
        timelines.end_all(never);
        // An execution of the first watch is none of the next one's.
        assert_eq!(seen(&timelines, 0, START_NS + 900 * MS), (vec![], 0));
        timelines.end(0, || START_NS + 950 * MS);
        assert_eq!(seen(&timelines, 0, START_NS + 1_000 * MS), (vec![], 0));
    }

    #[test]
    fn a_cell_is_one_word() {
        for cell in [
            TimelineCell {
                number: NUMBER_MAX,
                busy_us: CELL_US,
                count: (1 << COUNT_BITS) - 1,
            },
            TimelineCell {
                number: 0,
                busy_us: 1,
                count: 0,
            },
        ] {
            assert_eq!(TimelineCell::of(cell.word()), cell);
        }
    }
}
