//! A reference model of the sequence batcher: which request of which sequence may execute in which
//! slot.

use std::collections::HashMap;
use std::sync::Arc;

use conch_config::{SequenceBatching, SequenceStrategy};
use conch_scheduler::{Dismissal, SequenceBatcher, SequenceContext};

use crate::simulation::request::{SimulatedHandle, SimulatedOwned};

#[derive(Clone)]
pub(super) struct ReferenceSequences {
    settings: SequenceBatching,
    batch_size_max: u32,
    /// All that were taken in, in order.
    taken: Vec<SimulatedHandle>,
    /// Those that wait, in order.
    waiting: Vec<SimulatedHandle>,
    /// What executes.
    out: Vec<SimulatedHandle>,
    /// Where each run of a sequence executes: core, instance of the core, row.
    places: HashMap<u64, (usize, usize, usize)>,
    /// When each run last got or gave something.
    active_ns: HashMap<u64, u64>,
    /// Runs of which a request was dismissed: only these, which were before it, are still executed.
    ended: HashMap<u64, Vec<SimulatedHandle>>,
}

impl ReferenceSequences {
    pub(super) fn new(settings: &SequenceBatching, batch_size_max: u32) -> ReferenceSequences {
        ReferenceSequences {
            settings: settings.clone(),
            batch_size_max,
            taken: Vec::new(),
            waiting: Vec::new(),
            out: Vec::new(),
            places: HashMap::new(),
            active_ns: HashMap::new(),
            ended: HashMap::new(),
        }
    }

    fn is_oldest(&self) -> bool {
        matches!(self.settings.strategy, SequenceStrategy::Oldest(_))
    }

    pub(super) fn is_empty(&self) -> bool {
        let awaits = self.is_oldest() || self.settings.is_iterative;
        self.waiting.is_empty() && (!awaits || self.out.is_empty())
    }

    /// An arrival; one that has arrived before tells of its cancellation, and may be how it comes
    /// back.
    pub(super) fn accept(&mut self, handle: &SimulatedHandle, now_ns: u64) {
        if !contains(&self.taken, handle) {
            self.taken.push(SimulatedHandle::clone(handle));
            self.waiting.push(SimulatedHandle::clone(handle));
            return;
        }
        let member = handle.shared().member.as_ref();
        if handle.is_queued() || member.is_some_and(SequenceContext::is_back) {
            self.come_back(handle, now_ns);
        }
    }

    /// A request came back, to run again or for good.
    pub(super) fn come_back(&mut self, handle: &SimulatedHandle, now_ns: u64) {
        if !remove(&mut self.out, handle) {
            return;
        }
        self.note(handle, now_ns);
        if handle.is_queued() {
            self.waiting.push(SimulatedHandle::clone(handle));
        }
    }

    /// Something happened to the run of `handle`.
    pub(super) fn note(&mut self, handle: &SimulatedHandle, now_ns: u64) {
        if let Some(run) = run(handle) {
            self.active_ns.insert(run, now_ns);
        }
    }

    /// Nobody waits for a slot for longer than the timeout of one of its requests, and the oldest
    /// gets the next one.
    pub(super) fn check_backlog(
        &self,
        sequence: &SequenceBatcher<SimulatedHandle>,
        now_ns: u64,
    ) -> Result<(), String> {
        let mut first = u64::MAX;
        let mut last = 0;
        for handle in &self.waiting {
            let Some(run) = run(handle) else { continue };
            if sequence.has_slot(run) {
                last = last.max(run);
                continue;
            }
            first = first.min(run);
            if is_late(handle, now_ns) {
                return Err(format!("{} has waited too long", handle.shared().number));
            }
        }
        if first < last {
            return Err(format!("run {last} has a slot before run {first}"));
        }
        Ok(())
    }

    /// What `core` is about to execute on its `instance`.
    pub(super) fn begin(
        &mut self,
        core: usize,
        instance: usize,
        batch: &[SimulatedOwned],
        (rows, row_count): (&[usize], usize),
        now_ns: u64,
    ) -> Result<(), String> {
        if rows.len() != batch.len() {
            return Err(format!("{} requests in {} rows", batch.len(), rows.len()));
        }
        if !self.is_oldest() && !rows.is_sorted_by(|one, next| one < next) {
            return Err(format!("rows {rows:?}"));
        }
        let slot_count = self.settings.slot_count as usize;
        let needed = rows.last().map_or(0, |last| last + 1);
        if !self.is_oldest() && !batch.is_empty() && !(needed..=slot_count).contains(&row_count) {
            return Err(format!("{row_count} rows for {rows:?} of {slot_count}"));
        }
        if batch.len() > self.batch_size_max as usize {
            return Err(format!("a batch of {}", batch.len()));
        }
        let first = batch.first().map(|live| &live.shared().facts.signature);
        for (live, row) in batch.iter().zip(rows) {
            let number = live.shared().number;
            if *row >= slot_count {
                return Err(format!("{number} is in slot {row}"));
            }
            if Some(&live.shared().facts.signature) != first {
                return Err(format!("{number} has another shape than the batch"));
            }
            self.begin_one(live.handle(), (core, instance, *row))?;
            self.note(live.handle(), now_ns);
        }
        Ok(())
    }

    fn begin_one(
        &mut self,
        handle: &SimulatedHandle,
        place: (usize, usize, usize),
    ) -> Result<(), String> {
        let number = handle.shared().number;
        let Some(run) = run(handle) else {
            return Err(format!("{number} is of no sequence"));
        };
        let first = self
            .waiting
            .iter()
            .find(|other| self::run(other) == Some(run));
        if first.is_none_or(|first| !Arc::ptr_eq(first, handle)) {
            let first = first.map(|first| first.shared().number);
            return Err(format!("{number} overtakes {first:?}"));
        }
        remove(&mut self.waiting, handle);
        if self
            .ended
            .get(&run)
            .is_some_and(|left| !contains(left, handle))
        {
            return Err(format!("{number} executes, and its sequence is over"));
        }
        self.check_run(handle, run)?;
        if let Some(beside) = self.out.iter().find(|other| self::run(other) == Some(run)) {
            return Err(format!("{number} beside {}", beside.shared().number));
        }
        let before = *self.places.entry(run).or_insert(place);
        if before != place {
            return Err(format!(
                "{number} executes at {place:?}, its sequence at {before:?}"
            ));
        }
        let others = self.waiting.iter().chain(&self.out);
        for other in others.filter(|other| self::run(other) != Some(run)) {
            let at = self::run(other).and_then(|other| self.places.get(&other));
            if at == Some(&place) {
                let other = other.shared().number;
                return Err(format!("{number} is in slot {place:?} of {other}"));
            }
        }
        self.out.push(SimulatedHandle::clone(handle));
        Ok(())
    }

    /// Who does not start a sequence is of the same one as the request of that name before it.
    fn check_run(&self, handle: &SimulatedHandle, run: u64) -> Result<(), String> {
        let request = handle.shared();
        let Some(member) = request.member.as_ref().filter(|member| !member.is_start) else {
            return Ok(());
        };
        let before = self.before(handle, member);
        let expected = before.and_then(self::run);
        if expected == Some(run) {
            return Ok(());
        }
        Err(format!(
            "{} is of run {run}, not {expected:?}",
            request.number
        ))
    }

    /// Whether there is no sequence that `handle`, which starts none, could be of.
    fn is_unknown(&self, handle: &SimulatedHandle, now_ns: u64) -> bool {
        let Some(member) = handle.shared().member.as_ref() else {
            return false;
        };
        let before = self.before(handle, member);
        let is_over = match before.and_then(|before| Some((before, run(before)?))) {
            None => true,
            Some((before, run)) => {
                let is_idle = !self.out.iter().any(|other| self::run(other) == Some(run))
                    && self.active_ns.get(&run).is_some_and(|active_ns| {
                        now_ns - active_ns >= self.settings.idle_us * 1_000
                    });
                let is_end = |member: &SequenceContext| member.is_end;
                is_idle
                    || self.ended.contains_key(&run)
                    || before.shared().member.as_ref().is_some_and(is_end)
            }
        };
        !member.is_start && is_over
    }

    /// The request of the same name that came before `handle`.
    fn before(&self, handle: &SimulatedHandle, own: &SequenceContext) -> Option<&SimulatedHandle> {
        let taken = self.taken.iter().rev();
        let mut before = taken
            .skip_while(|other| !Arc::ptr_eq(other, handle))
            .skip(1);
        let is_of_name = |other: &&SimulatedHandle| {
            let other = other.shared().member.as_ref();
            other.is_some_and(|other| other.key == own.key)
        };
        before.find(is_of_name)
    }

    /// A request is answered without having been executed.
    pub(super) fn dismiss(
        &mut self,
        handle: &SimulatedHandle,
        why: Dismissal,
        now_ns: u64,
    ) -> Result<(), String> {
        let request = handle.shared();
        let number = request.number;
        let run = run(handle);
        let ahead = self
            .waiting
            .iter()
            .take_while(|other| !Arc::ptr_eq(other, handle));
        // What executes may run again.
        let left: Vec<SimulatedHandle> = ahead
            .chain(&self.out)
            .filter(|other| self::run(other) == run)
            .cloned()
            .collect();
        if !remove(&mut self.waiting, handle) {
            return Err(format!("{number} is dismissed, and does not wait"));
        }
        let mut companions = self
            .taken
            .iter()
            .filter(|other| run.is_some() && self::run(other) == run);
        let is_just = match why {
            Dismissal::NotStarted => self.settings.is_iterative || self.is_unknown(handle, now_ns),
            Dismissal::BacklogFull => self.settings.backlog_max.is_some() && run.is_none(),
            Dismissal::TimedOut => companions.any(|other| is_late(other, now_ns + 1)),
            Dismissal::Cancelled => companions.any(|other| other.was_cancelled()),
        };
        if let Some(run) = run {
            self.ended.entry(run).or_insert(left);
        }
        is_just
            .then_some(())
            .ok_or_else(|| format!("{number} is dismissed as {why:?}"))
    }
}

/// The run of a sequence that the scheduler made a request part of.
fn run(handle: &SimulatedHandle) -> Option<u64> {
    handle
        .shared()
        .member
        .as_ref()
        .and_then(SequenceContext::run)
}

/// Whether its timeout, if it has one, passed before `now_ns`.
fn is_late(handle: &SimulatedHandle, now_ns: u64) -> bool {
    let facts = &handle.shared().facts;
    facts.timeout_us != 0 && facts.queued_ns + facts.timeout_us * 1_000 < now_ns
}

fn contains(handles: &[SimulatedHandle], handle: &SimulatedHandle) -> bool {
    handles.iter().any(|other| Arc::ptr_eq(other, handle))
}

/// False if it was not there.
fn remove(handles: &mut Vec<SimulatedHandle>, handle: &SimulatedHandle) -> bool {
    let count = handles.len();
    handles.retain(|other| !Arc::ptr_eq(other, handle));
    handles.len() < count
}

impl std::fmt::Debug for ReferenceSequences {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers = |handles: &[SimulatedHandle]| -> Vec<usize> {
            handles
                .iter()
                .map(|handle| handle.shared().number)
                .collect()
        };
        write!(
            f,
            "waiting {:?}, executing {:?}",
            numbers(&self.waiting),
            numbers(&self.out)
        )
    }
}
