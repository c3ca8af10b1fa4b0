//! What a turn spends its time on, as tasks and the root future tell.
//!
//! The executor knows no protocol: a stage is a number of the caller's. To enter one costs two
//! instructions or three, so every poll may. Time is measured only by those who know it anyway.

use std::cell::Cell;

/// Stages that a thread can tell apart.
pub const STAGES_MAX: usize = 8;

thread_local! {
    /// A bit for each stage that was entered since the last look.
    static ENTERED: Cell<u8> = const { Cell::new(0) };
    /// Nanoseconds of this turn that are known to be of a stage.
    static SPENT_NS: [Cell<u64>; STAGES_MAX] = const { [const { Cell::new(0) }; STAGES_MAX] };
    static HAS_SPENT: Cell<bool> = const { Cell::new(false) };
}

/// Notes that what comes now is of `stage`, below [`STAGES_MAX`].
pub fn enter_stage(stage: usize) {
    ENTERED.set(ENTERED.get() | bit(stage));
}

/// Notes that this turn spent `duration_ns` in `stage`, below [`STAGES_MAX`].
pub fn note_spent(stage: usize, duration_ns: u64) {
    SPENT_NS.with(|spent_ns| {
        if let Some(sum_ns) = spent_ns.get(stage) {
            sum_ns.set(sum_ns.get().saturating_add(duration_ns));
        }
    });
    HAS_SPENT.set(true);
}

/// The stages that were entered since the last call.
pub(crate) fn take_entered() -> StageSet {
    StageSet(ENTERED.take())
}

/// What was spent since the last call.
pub(crate) fn take_spent() -> [u64; STAGES_MAX] {
    match HAS_SPENT.take() {
        true => SPENT_NS.with(|spent_ns| std::array::from_fn(|stage| spent_ns[stage].take())),
        false => [0; STAGES_MAX],
    }
}

/// Some stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSet(u8);

impl StageSet {
    pub fn of(stages: &[usize]) -> StageSet {
        StageSet(stages.iter().fold(0, |bits, stage| bits | bit(*stage)))
    }

    /// The stage, if it is one alone.
    pub fn only(self) -> Option<usize> {
        self.0
            .is_power_of_two()
            .then(|| self.0.trailing_zeros() as usize)
    }
}

fn bit(stage: usize) -> u8 {
    debug_assert!(stage < STAGES_MAX, "stage {stage}");
    1_u8.checked_shl(stage as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_tells_what_it_was_at() {
        assert_eq!(take_entered().only(), None, "nothing yet");
        enter_stage(7);
        assert_eq!(take_entered().only(), Some(7));
        enter_stage(0);
        enter_stage(0);
        assert_eq!(take_entered().only(), Some(0));
        enter_stage(0);
        enter_stage(3);
        let both = take_entered();
        assert_eq!((both, both.only()), (StageSet::of(&[3, 0]), None));
        assert_eq!(take_entered(), StageSet::default());
        assert_eq!(take_spent(), [0; STAGES_MAX]);
        note_spent(2, 10);
        note_spent(2, 5);
        note_spent(7, u64::MAX);
        note_spent(7, 1);
        assert_eq!(take_spent(), [0, 0, 15, 0, 0, 0, 0, u64::MAX]);
        assert_eq!(take_spent(), [0; STAGES_MAX]);
    }
}
