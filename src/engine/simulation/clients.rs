//! Clients: they send requests, and cancel some of them.

use std::collections::HashMap;
use std::sync::Arc;

use conch_scheduler::testing::Random;
use conch_scheduler::{SchedulingParams, SequenceContext, SequenceKey, rejection_ns};
use conch_sync::{Claim, ClaimReason, NEVER_NS};

use crate::response_order::OrderedCompletion;
use crate::simulation::RuleResult;
use crate::simulation::request::{SimulatedHandle, SimulatedPayload, SimulatedRequest};
use crate::simulation::version::SimulatedVersion;
use crate::simulation::world::{ExpectedAnswer, RequestRecord, SimulatedEvent, Simulation};

impl Simulation {
    /// A client sends a request to one of the models: it is admitted now, and reaches the inbox now
    /// or a little later.
    pub(super) fn arrive(&mut self) {
        self.event_count += 1;
        let number = self.requests.len();
        let index = self.random.one_of(&self.current);
        let version = &mut self.versions[index];
        let setup = &version.setup;
        let rows_max = match setup.sequences() {
            // As admission demands.
            Some(_) => 1,
            None => u64::from(setup.batch_size_max.min(3)),
        };
        let facts = SchedulingParams {
            batch_count: 1 + self.random.below(rows_max) as u32,
            level: setup.level(&mut self.random),
            queued_ns: self.now_ns,
            timeout_us: self.random.below(2) * self.random.below(150),
            deadline_ns: match self.random.chance(1, 2) {
                true => self.now_ns + self.random.below(400_000),
                false => NEVER_NS,
            },
            signature: [self.random.below(setup.shape_count) as i64]
                .into_iter()
                .collect(),
        };
        let level = facts.level;
        let max = version.pending_max(level);
        let pending = version.pending.entry(level).or_default();
        if max != 0 && *pending >= max {
            return;
        }
        let is_iterative = version
            .setup
            .sequences()
            .map(|settings| settings.is_iterative);
        let member = is_iterative
            .map(|is_iterative| member(&mut self.random, &mut version.begun, is_iterative, number));
        self.trace.tell(self.now_ns, || {
            format!(
                "{number} arrives at {index}: {} rows, level {level}, timeout {} us, deadline {}, \
                 shape {:?}, {member:?}",
                facts.batch_count,
                facts.timeout_us,
                facts.deadline_ns / 1_000,
                facts.signature
            )
        });
        self.admit(index, facts, member);
        if self.random.chance(1, 4) {
            let delay_ns = self.random.below(3_000);
            self.agenda
                .plan(self.now_ns + delay_ns, SimulatedEvent::Submit { number });
        } else {
            self.submit(number);
        }
    }

    /// A request takes its places.
    pub(super) fn admit(
        &mut self,
        index: usize,
        facts: SchedulingParams,
        member: Option<SequenceContext>,
    ) {
        let version = &mut self.versions[index];
        *version.pending.entry(facts.level).or_default() += 1;
        version.live_count += 1;
        let completion: Arc<dyn crate::Completion> = self.receiver.clone();
        let request = SimulatedRequest {
            number: self.requests.len(),
            facts,
            member,
            turn: version
                .order
                .as_ref()
                .map(|order| OrderedCompletion::new(order, &completion)),
            receiver: Arc::clone(&self.receiver),
        };
        let handle = Claim::new(request, SimulatedPayload);
        self.requests.push(RequestRecord {
            known: Arc::clone(&handle),
            handle: Some(handle),
            version: index,
            answer: None,
            is_final: false,
            is_submitted: false,
            has_begun: false,
        });
    }

    pub(super) fn submit(&mut self, number: usize) {
        let record = &self.requests[number];
        let Some(handle) = record.handle.clone() else {
            return;
        };
        let index = record.version;
        let version = &mut self.versions[index];
        let rejection_ns = match version.setup.dynamic() {
            Some(settings) => rejection_ns(settings, &handle.shared().facts),
            None if version.setup.sequences().is_some() => expires_ns(&handle.shared().facts),
            None => NEVER_NS,
        };
        self.requests[number].is_submitted = true;
        let version = &mut self.versions[index];
        let was_empty = version.inbox.is_empty();
        version.inbox.push(handle);
        if was_empty {
            self.ring(index);
        }
        self.watch(index, rejection_ns);
    }

    /// A client loses patience with one of the requests that have no answer.
    pub(super) fn cancel(&mut self) -> RuleResult {
        self.event_count += 1;
        if self.requests.is_empty() {
            return Ok(());
        }
        // Mostly one of the last: of the others hardly any is left.
        let count = self.requests.len() as u64;
        let among = if self.random.chance(3, 4) { 16 } else { count };
        let number = (count - 1 - self.random.below(among.min(count))) as usize;
        let Some(handle) = self.requests[number].handle.clone() else {
            return Ok(());
        };
        if handle.shared().member.is_some() {
            self.give_notice(number, handle);
            return Ok(());
        }
        let was_waiting = handle.is_queued();
        let claimed = Claim::claim(&handle, ClaimReason::Cancel, None);
        if was_waiting && claimed.is_none() {
            return Err(format!("{number} waits, and cannot be cancelled"));
        }
        self.trace.tell(self.now_ns, || {
            let when = if claimed.is_some() {
                "while it waits"
            } else {
                "too late"
            };
            format!("{number} is cancelled {when}")
        });
        if let Some(live) = claimed {
            drop(live);
            let index = self.requests[number].version;
            leave(&mut self.versions[index], handle.shared());
            self.versions[index].model.remove(number);
            self.versions[index].is_disturbed = true;
            self.answer(&handle, ExpectedAnswer::Cancelled)?;
        }
        Ok(())
    }

    /// The scheduler of its sequence is told that a request is cancelled, and decides.
    fn give_notice(&mut self, number: usize, handle: SimulatedHandle) {
        self.trace
            .tell(self.now_ns, || format!("{number} is to be cancelled"));
        handle.request_cancel();
        if !handle.is_queued() || !self.requests[number].is_submitted {
            return;
        }
        // Meanwhile it may be executed, and come back.
        let delay_ns = self.random.below(2) * self.random.below(5_000);
        match delay_ns {
            0 => self.notify(number),
            _ => self
                .agenda
                .plan(self.now_ns + delay_ns, SimulatedEvent::Notice { number }),
        }
    }

    /// A request that is to be cancelled reaches the inbox, unless it lies somewhere.
    pub(super) fn notify(&mut self, number: usize) {
        let record = &self.requests[number];
        let index = record.version;
        let version = &mut self.versions[index];
        if !version.has(&record.known) {
            version.inbox.push(Arc::clone(&record.known));
        }
        // Who sees to it needs a moment.
        let delay_ns = self.random.below(4) * 500;
        self.watch(index, self.now_ns + delay_ns);
    }
}

/// A request waits no longer.
pub(super) fn leave(version: &mut SimulatedVersion, request: &SimulatedRequest) {
    if let Some(pending) = version.pending.get_mut(&request.facts.level) {
        *pending -= 1;
    }
}

/// When a request of a sequence that waits for a slot has waited for too long.
fn expires_ns(facts: &SchedulingParams) -> u64 {
    match facts.timeout_us {
        0 => NEVER_NS,
        timeout_us => facts.queued_ns + timeout_us * 1_000,
    }
}

/// A request's part in a sequence: of an honest client mostly, who starts what is not begun.
fn member(
    random: &mut Random,
    begun: &mut HashMap<u64, bool>,
    is_iterative: bool,
    number: usize,
) -> SequenceContext {
    if is_iterative && random.chance(1, 2) {
        return SequenceContext::new(SequenceKey::Generated(number as u64), true, false);
    }
    let id = 1 + random.below(9);
    let begun = begun.entry(id).or_default();
    let is_start = match *begun {
        true => random.chance(1, 30),
        false => random.chance(19, 20),
    };
    let is_end = random.chance(1, 4);
    *begun = !is_end && (is_start || *begun);
    SequenceContext::new(SequenceKey::Unsigned(id), is_start, is_end)
}
