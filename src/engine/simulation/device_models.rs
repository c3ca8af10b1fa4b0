//! The models of the simulated device, each with what its device has of it, and the rules for one.

use std::collections::VecDeque;

use crate::execution::streams::in_flight::InFlightBatches;
use crate::execution::streams::sharing::{
    BLOCKED_NS_MAX, CALL_NS_MAX, CallTimes, CoreId, OCCUPIED_DECAY_DIVISOR, OCCUPIED_NS_MAX,
};
use crate::simulation::RuleResult;

/// One model on a device, and who drives it.
pub(super) struct SimulatedModel {
    pub(super) core: CoreId,
    /// The thread that has its turn.
    pub(super) holder: Option<CoreId>,
    pub(super) waiting: VecDeque<u64>,
    pub(super) in_flight: InFlightBatches,
    /// Until when each batch is on the device.
    pub(super) on_device: VecDeque<(u64, u64)>,
    pub(super) submitted_count: u64,
    pub(super) answered_count: u64,
    pub(super) is_leaving: bool,
    pub(super) has_ended: bool,
    /// The longest of its calls that block; 0: none does.
    pub(super) block_ms_max: u64,
    /// How long it takes to enqueue a batch.
    pub(super) launch_us: u64,
    pub(super) call_times: CallTimes,
    /// When its calls blocked a core with others, and for how long.
    pub(super) blocked_others: Vec<(u64, u64)>,
    /// Likewise of calls that only took long, and their sum.
    occupied_others: VecDeque<(u64, u64)>,
    occupied_others_ns: u64,
    /// When it got its last turn, and came into the rounds of its core, by number.
    pub(super) turn_stamp: u64,
    pub(super) core_stamp: u64,
    /// Since when it waits for a turn.
    pub(super) due_ns: Option<u64>,
}

/// Batches that a model may have in flight.
const DEPTH: usize = 2;
/// Over which calls that block are added up, and how long they may be together: what is too long,
/// what is forgotten meanwhile, and the last of them.
const BLOCK_WINDOW_NS: u64 = 4_000_000_000;
const BLOCKED_OTHERS_NS_MAX: u64 = BLOCKED_NS_MAX + BLOCK_WINDOW_NS / 16 + 2 * BLOCKED_NS_MAX;

/// The same of calls that take long: until the last of them is noted.
const OCCUPIED_OTHERS_NS_MAX: u64 =
    OCCUPIED_NS_MAX + BLOCK_WINDOW_NS / OCCUPIED_DECAY_DIVISOR + 2 * CALL_NS_MAX;

impl SimulatedModel {
    pub(super) fn new(core: CoreId, block_ms_max: u64, launch_us: u64) -> SimulatedModel {
        SimulatedModel {
            core,
            holder: None,
            waiting: VecDeque::new(),
            in_flight: InFlightBatches::new(false),
            on_device: VecDeque::new(),
            submitted_count: 0,
            answered_count: 0,
            is_leaving: false,
            has_ended: false,
            block_ms_max,
            launch_us,
            call_times: CallTimes::default(),
            blocked_others: Vec::new(),
            occupied_others: VecDeque::new(),
            occupied_others_ns: 0,
            turn_stamp: 0,
            core_stamp: 0,
            due_ns: None,
        }
    }

    /// Whether a turn would have it do something.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        let is_done = self
            .on_device
            .front()
            .is_some_and(|(end_ns, _)| *end_ns <= now_ns);
        !self.has_ended && (is_done || self.takes_batch())
    }

    pub(super) fn takes_batch(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight.count() < DEPTH
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_leaving && self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// A call that does not block, of a core that drives others as well.
    pub(super) fn note_occupied(&mut self, now_ns: u64, duration_ns: u64) {
        self.occupied_others.push_back((now_ns, duration_ns));
        self.occupied_others_ns += duration_ns;
    }

    /// Answers what the device has done.
    pub(super) fn poll(&mut self, now_ns: u64) -> RuleResult {
        let is_done = |(end_ns, _): &&(u64, u64)| *end_ns <= now_ns;
        let count = self.on_device.iter().take_while(is_done).count();
        if !self.in_flight.is_empty() {
            self.in_flight.look(now_ns, self.on_device.len() - count);
        }
        for (_, number) in self.on_device.drain(..count) {
            if number != self.answered_count {
                return Err(format!(
                    "{number} is answered before {}",
                    self.answered_count
                ));
            }
            self.answered_count += 1;
        }
        Ok(())
    }

    /// Unless its own calls block it has its turn within `late_ns_max`, and it does not block
    /// others for long.
    pub(super) fn check(&mut self, now_ns: u64, late_ns_max: u64) -> RuleResult {
        self.due_ns = match self.is_due(now_ns) && self.block_ms_max == 0 {
            true => self.due_ns.or(Some(now_ns)),
            false => None,
        };
        if self.holder.is_none()
            && let Some(due_ns) = self.due_ns
            && due_ns + late_ns_max < now_ns
        {
            return Err(format!("waits since {due_ns}"));
        }
        let is_recent = |(at_ns, _): &(u64, u64)| *at_ns + BLOCK_WINDOW_NS > now_ns;
        self.blocked_others.retain(is_recent);
        let blocked = self.blocked_others.iter().map(|(_, duration)| duration);
        let blocked_ns: u64 = blocked.sum();
        if blocked_ns > BLOCKED_OTHERS_NS_MAX {
            return Err(format!("blocks others for {blocked_ns} ns"));
        }
        while let Some((_, duration_ns)) =
            self.occupied_others.pop_front_if(|call| !is_recent(call))
        {
            self.occupied_others_ns -= duration_ns;
        }
        if self.occupied_others_ns > OCCUPIED_OTHERS_NS_MAX {
            return Err(format!(
                "occupies a core with others for {} ns",
                self.occupied_others_ns
            ));
        }
        Ok(())
    }
}
