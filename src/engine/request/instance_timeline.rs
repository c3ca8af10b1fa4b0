//! What an instance did in the last second, as whoever executes requests tells it.

/// How long a cell of a timeline is, ns.
pub const TIMELINE_CELL_NS: u64 = 10_000_000;
/// Cells of a timeline: a second of them.
pub const TIMELINE_CELLS: usize = 100;

/// One instance in the last second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceTimeline {
    pub name: Box<str>,
    /// Microseconds of each cell for which it executed, the oldest first.
    pub busy_us: Vec<u16>,
    /// Executions that ended meanwhile.
    pub execution_count: u64,
}
