//! Which core drives which models on one device. No thread, no clock.
//!
//! ```text
//!            join                     holds up others
//!   (none) ────────► on the open core ─────────────────► on a core of its own
//!                           │                                   │
//!                           └──────────── leave ────────────────┴──► (none)
//! ```
//!
//! A device has one open core, which takes all that come, and one more for each that blocked or
//! occupied it ([`CallTimes`]). What comes and goes is an instance of a model, with its own place
//! in the model's queue. Where the thread is still inside the call that blocks, that instance keeps
//! the thread and all others get a new one; where the call has returned, it is the instance that
//! gets it.

/// Of a device; none is used twice.
pub(crate) type CoreId = u64;
/// Of a model on a device.
pub(crate) type MemberId = u64;

/// How long a call may block until its model gets a core of its own, and how long calls that block
/// may take together.
pub(crate) const BLOCKED_NS_MAX: u64 = 250_000_000;
/// A call that takes longer than that blocks, which it must not.
pub(crate) const CALL_NS_MAX: u64 = 10_000_000;
/// What part of the time that passes is forgotten of calls that block: a model that blocks for less
/// of its time than that keeps its place.
const BLOCKED_DECAY_DIVISOR: u64 = 16;
/// How long calls may take together until their instance gets a core of its own, though none
/// blocks.
pub(crate) const OCCUPIED_NS_MAX: u64 = 250_000_000;
/// A call that takes longer than that occupies the thread: many of them are no reason for another
/// thread as long as they are shorter.
pub(crate) const LONG_CALL_NS: u64 = 50_000;
/// As [`BLOCKED_DECAY_DIVISOR`], of calls that occupy the thread: it is shared by those that take
/// less than a quarter of it.
pub(crate) const OCCUPIED_DECAY_DIVISOR: u64 = 4;

/// The cores of one device, and the models that each drives.
#[derive(Debug, Default)]
pub(crate) struct CoreSharing {
    cores: Vec<SharingCore>,
    next_core: CoreId,
}

#[derive(Debug)]
struct SharingCore {
    id: CoreId,
    /// In the order of their turns.
    members: Vec<MemberId>,
    /// It takes those that come.
    is_open: bool,
}

impl CoreSharing {
    /// A number for a core that is about to be.
    pub(crate) fn new_core(&mut self) -> CoreId {
        self.next_core += 1;
        self.next_core
    }

    /// The core that takes those that come, if there is one.
    pub(crate) fn open_core(&self) -> Option<CoreId> {
        let mut cores = self.cores.iter();
        cores.find(|core| core.is_open).map(|core| core.id)
    }

    /// `member` comes, on the open core, or on `core`, which becomes that.
    pub(crate) fn join(&mut self, core: CoreId, member: MemberId) {
        match self.find(core) {
            Some(found) => found.members.push(member),
            None => self.cores.push(SharingCore {
                id: core,
                members: vec![member],
                is_open: true,
            }),
        }
    }

    /// `member` goes.
    pub(crate) fn leave(&mut self, member: MemberId) {
        for core in &mut self.cores {
            core.members.retain(|other| *other != member);
        }
    }

    /// The models of `core`.
    pub(crate) fn members(&self, core: CoreId) -> &[MemberId] {
        let mut cores = self.cores.iter();
        let found = cores.find(|other| other.id == core);
        found.map_or(&[], |core| &*core.members)
    }

    /// Forgets `core` if it drives nothing; whether it did.
    pub(crate) fn end(&mut self, core: CoreId) -> bool {
        let before = self.cores.len();
        self.cores
            .retain(|other| other.id != core || !other.members.is_empty());
        self.cores.len() < before
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }

    /// Whether `core` drives others beside `member`.
    pub(crate) fn has_others(&self, core: CoreId, member: MemberId) -> bool {
        self.members(core).iter().any(|other| *other != member)
    }

    /// `core` is inside a call of `blocking` and does not come back: that keeps it, all others move
    /// to `successor`, which takes those that come from now on. False if there are no others: then
    /// the next one that comes gets a new core.
    pub(crate) fn leave_behind(
        &mut self,
        core: CoreId,
        blocking: MemberId,
        successor: CoreId,
    ) -> bool {
        let Some(found) = self.find(core) else {
            return false;
        };
        let was_open = std::mem::replace(&mut found.is_open, false);
        let (stays, moves) = std::mem::take(&mut found.members)
            .into_iter()
            .partition(|member| *member == blocking);
        found.members = stays;
        self.add(successor, moves, was_open)
    }

    /// `blocking`, which `core` drives among others, moves to `successor`, which takes no others.
    /// False if there are no others: then it stays.
    pub(crate) fn set_apart(
        &mut self,
        core: CoreId,
        blocking: MemberId,
        successor: CoreId,
    ) -> bool {
        let Some(found) = self.find(core) else {
            return false;
        };
        if found.members.len() < 2 || !found.members.contains(&blocking) {
            return false;
        }
        found.members.retain(|member| *member != blocking);
        self.add(successor, vec![blocking], false)
    }

    fn add(&mut self, core: CoreId, members: Vec<MemberId>, is_open: bool) -> bool {
        if members.is_empty() {
            return false;
        }
        self.cores.push(SharingCore {
            id: core,
            members,
            is_open,
        });
        true
    }

    fn find(&mut self, core: CoreId) -> Option<&mut SharingCore> {
        self.cores.iter_mut().find(|other| other.id == core)
    }
}

/// What a look at a core's count of turns shows, a while after the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoreActivity {
    Active,
    /// It sleeps.
    Dormant,
    /// It is inside one model's turn.
    Blocked,
}

impl CoreActivity {
    /// The count is odd during a turn.
    pub(crate) fn between(seen: u64, turn: u64) -> CoreActivity {
        match (seen == turn, turn % 2 == 1) {
            (false, _) => CoreActivity::Active,
            (true, false) => CoreActivity::Dormant,
            (true, true) => CoreActivity::Blocked,
        }
    }
}

/// Why a model, or one of its instances, is to have a core of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApartReason {
    /// Its calls block.
    Blocks,
    /// Its calls take much of the thread's time, as those of engines do that launch many kernels.
    Occupies,
}

/// How long the calls of an instance lately took that hold up others.
#[derive(Debug, Default)]
pub(crate) struct CallTimes {
    blocked: DecayingTime,
    occupied: DecayingTime,
}

impl CallTimes {
    /// A call that ended at `now_ns` took so long.
    pub(crate) fn note(&mut self, now_ns: u64, duration_ns: u64) {
        if duration_ns > CALL_NS_MAX {
            self.blocked.add(now_ns, duration_ns, BLOCKED_DECAY_DIVISOR);
        }
        if duration_ns > LONG_CALL_NS {
            self.occupied
                .add(now_ns, duration_ns, OCCUPIED_DECAY_DIVISOR);
        }
    }

    /// Why it is to have a core of its own, if it is.
    pub(crate) fn apart_reason(&self) -> Option<ApartReason> {
        if self.blocked.sum_ns >= BLOCKED_NS_MAX {
            return Some(ApartReason::Blocks);
        }
        (self.occupied.sum_ns >= OCCUPIED_NS_MAX).then_some(ApartReason::Occupies)
    }
}

/// A sum of durations, of which a part of the time that passes is forgotten.
#[derive(Debug, Default)]
struct DecayingTime {
    sum_ns: u64,
    noted_ns: u64,
}

impl DecayingTime {
    fn add(&mut self, now_ns: u64, duration_ns: u64, decay_divisor: u64) {
        let passed_ns = now_ns.saturating_sub(self.noted_ns);
        let left_ns = self.sum_ns.saturating_sub(passed_ns / decay_divisor);
        (self.sum_ns, self.noted_ns) = (left_ns.saturating_add(duration_ns), now_ns);
    }
}

/// One round of turns by round robin: every model has one, in order.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    next: usize,
    is_busy: bool,
}

impl RoundRobin {
    /// Whose turn it is; none once all had theirs.
    pub(crate) fn next<'m, M>(&mut self, members: &'m [M]) -> Option<&'m M> {
        let member = members.get(self.next)?;
        self.next += 1;
        Some(member)
    }

    /// The one whose turn it was may have more to do at once.
    pub(crate) fn note_busy(&mut self) {
        self.is_busy = true;
    }

    /// Whether another round follows without a wait.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose open core, number 1, drives these models.
    fn shared(members: &[MemberId]) -> CoreSharing {
        let mut sharing = CoreSharing::default();
        let core = sharing.new_core();
        assert_eq!((core, sharing.open_core()), (1, None));
        for member in members {
            sharing.join(core, *member);
            assert_eq!(sharing.open_core(), Some(1));
        }
        sharing
    }

    #[test]
    fn all_that_come_share_the_open_core_until_the_last_has_gone() {
        let mut sharing = shared(&[7, 8]);
        assert_eq!(sharing.members(1), [7, 8]);
        sharing.leave(7);
        assert!(!sharing.end(1), "it drives another");
        sharing.leave(8);
        assert!(!sharing.is_empty());
        assert!(sharing.end(1) && sharing.is_empty());
        assert!(!sharing.end(1));
    }

    #[test]
    fn one_that_blocks_keeps_its_core_and_the_others_get_a_new_one() {
        let mut sharing = shared(&[7, 8, 9]);
        assert!(sharing.leave_behind(1, 8, 2));
        assert_eq!(sharing.members(1), [8]);
        assert_eq!(sharing.members(2), [7, 9]);
        assert_eq!(sharing.open_core(), Some(2));
        // Of a core that is one model's alone nothing more can be taken.
        assert!(!sharing.leave_behind(1, 8, 3));
        assert_eq!(sharing.open_core(), Some(2));
        assert!(!sharing.leave_behind(4, 8, 5), "no such core");
    }

    #[test]
    fn nobody_joins_one_that_blocks_alone() {
        let mut sharing = shared(&[7]);
        assert!(!sharing.leave_behind(1, 7, 2));
        assert_eq!(sharing.open_core(), None);
        sharing.join(2, 8);
        assert_eq!(
            (sharing.members(1), sharing.members(2)),
            (&[7][..], &[8][..])
        );
    }

    #[test]
    fn one_that_blocked_is_set_apart() {
        let mut sharing = shared(&[7, 8, 9]);
        assert!(sharing.set_apart(1, 8, 2));
        assert_eq!(sharing.members(1), [7, 9]);
        assert_eq!(sharing.members(2), [8]);
        assert_eq!(sharing.open_core(), Some(1), "it takes no others");
        assert!(!sharing.set_apart(2, 8, 3), "it has its core already");
        assert!(!sharing.set_apart(1, 8, 3), "it is driven by another");
        sharing.leave(8);
        assert!(sharing.end(2));
    }

    #[test]
    fn a_core_that_does_not_leave_a_turn_blocks() {
        for (seen, turn, activity) in [
            (4, 4, CoreActivity::Dormant),
            (5, 5, CoreActivity::Blocked),
            (4, 5, CoreActivity::Active),
            (5, 6, CoreActivity::Active),
            (5, 7, CoreActivity::Active),
        ] {
            assert_eq!(CoreActivity::between(seen, turn), activity, "{seen} {turn}");
        }
    }

    #[test]
    fn calls_that_hold_up_others_add_up_and_are_forgotten() {
        use ApartReason::{Blocks, Occupies};
        const US: u64 = 1_000;
        // Each call's length and how long after one another they are, in us; after how many it gets
        // a core of its own, and why.
        for (call_us, apart_us, expected) in [
            (250_000, 1_000_000, Some((1, Blocks))),
            (100_000, 1_000_000, Some((5, Blocks))),
            (20_000, 1_000_000, None),
            (9_000, 10_000, Some((39, Occupies))),
            (1_000, 1_100, Some((345, Occupies))),
            (1_000, 3_500, Some((1_993, Occupies))),
            (1_000, 4_000, None),
            (60, 100, Some((7_143, Occupies))),
            (50, 51, None),
        ] {
            let mut times = CallTimes::default();
            let found = (1..20_000).find_map(|count| {
                times.note(count * apart_us * US, call_us * US);
                times.apart_reason().map(|reason| (count, reason))
            });
            assert_eq!(found, expected, "{call_us} us each {apart_us} us");
        }
    }

    #[test]
    fn everyone_has_a_turn_in_each_round() {
        let mut round = RoundRobin::default();
        let mut turns = Vec::new();
        while let Some(member) = round.next(&[7, 8, 9]) {
            turns.push(*member);
            if *member == 8 {
                round.note_busy();
            }
        }
        assert_eq!(turns, [7, 8, 9]);
        assert!(round.is_busy() && !RoundRobin::default().is_busy());
    }
}
