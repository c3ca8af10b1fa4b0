//! Cores and the timer thread: they drive the scheduler, form batches, wait for resources, execute
//! and answer.

use std::sync::Arc;

use conch_scheduler::rate_limit::InstanceId;
use conch_scheduler::{Dismissal, Scheduler, SchedulerOutput};
use conch_sync::{NEVER_NS, PollState};

use crate::simulation::clients::leave;
use crate::simulation::limits::GrantedCores;
use crate::simulation::request::{SimulatedHandle, SimulatedOwned};
use crate::simulation::version::{ReferenceModel, SimulatedVersion};
use crate::simulation::world::{ExpectedAnswer, SimulatedEvent, Simulation};
use crate::simulation::{RuleResult, RuleViolation};

impl Simulation {
    /// Rings one idle core, if there is one.
    pub(super) fn ring(&mut self, index: usize) {
        if let Some(core) = self.versions[index].idle_core() {
            self.rouse(index, core);
        }
    }

    /// Rings this very core, if it is idle; one that executes looks when it is done.
    fn call(&mut self, index: usize, core: usize) {
        let state = &self.versions[index].cores[core];
        if state.is_idle() && !state.is_rung {
            self.rouse(index, core);
        }
    }

    /// A core wakes up after a moment.
    fn rouse(&mut self, index: usize, core: usize) {
        self.versions[index].cores[core].is_rung = true;
        let at_ns = self.now_ns + self.random.below(4) * 500;
        self.agenda.plan(
            at_ns,
            SimulatedEvent::Poll {
                version: index,
                core,
            },
        );
    }

    /// A core that has something behind it looks before it sleeps.
    pub(super) fn look_again(&mut self, index: usize, core: usize) {
        self.versions[index].cores[core].is_rung = true;
        self.agenda.plan(
            self.now_ns,
            SimulatedEvent::Poll {
                version: index,
                core,
            },
        );
    }

    /// Those whose turn it is learn of it after a moment.
    pub(super) fn announce(&mut self, turns: GrantedCores) {
        for (version, core) in turns {
            let at_ns = self.now_ns + self.random.below(4) * 500;
            self.agenda
                .plan(at_ns, SimulatedEvent::TakeTurn { version, core });
        }
    }

    /// Somebody watches `deadline_ns`, unless an earlier one is watched.
    pub(super) fn watch(&mut self, index: usize, deadline_ns: u64) {
        let version = &mut self.versions[index];
        if deadline_ns < version.watched_ns {
            version.watched_ns = deadline_ns;
            self.agenda
                .plan(deadline_ns, SimulatedEvent::Deadline { version: index });
        }
    }

    pub(super) fn meet_deadline(&mut self, index: usize) -> RuleResult {
        let version = &mut self.versions[index];
        if version.watched_ns > self.now_ns {
            // An earlier one came in between.
            return Ok(());
        }
        version.watched_ns = NEVER_NS;
        if version.has_idle_core() {
            self.ring(index);
            return Ok(());
        }
        // The timer thread's visit.
        let mut visit = DriveResult::default();
        take_in(version, self.now_ns, &mut visit)?;
        let poll_state = version.scheduler.expire(self.now_ns, &mut visit.output);
        note_dismissals(version, self.now_ns, &mut visit)?;
        version.poll_state = poll_state;
        let expected = version.model.expire(self.now_ns);
        self.trace.tell(self.now_ns, || {
            format!(
                "the timer thread: {visit}, deadline {}",
                poll_state.deadline_ns / 1_000
            )
        });
        self.close_visit(index, visit, &expected)?;
        self.watch(index, poll_state.deadline_ns);
        Ok(())
    }

    /// A core looks at the scheduler. It executes the batch that it finds; where executions are
    /// limited, it asks for its turn first, and forms the batch when that comes.
    pub(super) fn poll(&mut self, index: usize, core: usize) -> RuleResult {
        let version = &mut self.versions[index];
        version.cores[core].is_rung = false;
        version.is_disturbed = false;
        if !version.cores[core].is_idle() {
            // It was called before it enqueued, and looks again once it has room.
            if !version.cores[core].streams.is_empty() {
                return Ok(());
            }
            return Err(format!("core {core} looks while it executes"));
        }
        let instance = version.instance(core);
        if version.setup.sequences().is_none()
            && let Some(instance) = instance
        {
            return self.look_before_turn(index, core, instance);
        }
        let poll_state = self.form(index, core)?;
        let is_work = !self.versions[index].cores[core].batch.is_empty();
        if is_work {
            // A batch of sequences is one instance's alone: it waits for the turn of this one.
            match self.versions[index].instance(core) {
                Some(instance) => self.ask_for_turn(index, core, instance)?,
                None => self.execute(index, core),
            }
        }
        if poll_state.is_ready {
            if !is_work {
                return Err("nothing came of a look, and it is to be repeated".into());
            }
            self.ring(index);
        }
        self.watch(index, poll_state.deadline_ns);
        Ok(())
    }

    fn look_before_turn(&mut self, index: usize, core: usize, instance: InstanceId) -> RuleResult {
        let version = &mut self.versions[index];
        let mut visit = DriveResult::default();
        take_in(version, self.now_ns, &mut visit)?;
        let poll_state = version.scheduler.peek(self.now_ns, &mut visit.output);
        version.poll_state = poll_state;
        let expected = version.model.look(self.now_ns);
        self.trace.tell(self.now_ns, || {
            format!("core {core} of {index} looks before its turn: {visit}, {poll_state:?}")
        });
        if poll_state.is_ready == expected.batch.is_empty() {
            return Err(format!(
                "{poll_state:?} before a batch of {:?}",
                expected.batch
            ));
        }
        self.close_visit(index, visit, &expected.expired)?;
        self.check_outlook(index, poll_state)?;
        if poll_state.is_ready {
            self.ask_for_turn(index, core, instance)?;
            // As if it executed: a sibling looks after the rest.
            self.ring(index);
        }
        self.watch(index, poll_state.deadline_ns);
        Ok(())
    }

    fn ask_for_turn(&mut self, index: usize, core: usize, instance: InstanceId) -> RuleResult {
        self.versions[index].cores[core].is_waiting = true;
        let turns = self.limits.wait(instance)?;
        self.announce(turns);
        Ok(())
    }

    /// The instance of a core may execute.
    pub(super) fn take_turn(&mut self, index: usize, core: usize) -> RuleResult {
        let state = &mut self.versions[index].cores[core];
        if !std::mem::take(&mut state.is_waiting) {
            return Err(format!(
                "core {core} of {index} has a turn that it did not ask for"
            ));
        }
        // It is awake, and nobody's to ring.
        state.is_rung = true;
        if state.batch.is_empty() {
            let poll_state = self.form(index, core)?;
            if poll_state.is_ready || poll_state.deadline_ns != NEVER_NS {
                self.ring(index);
            }
            self.watch(index, poll_state.deadline_ns);
            if self.versions[index].cores[core].batch.is_empty() {
                // A sibling was faster.
                self.give_turn_back(index, core, false, false)?;
                self.look_again(index, core);
                return Ok(());
            }
        }
        self.versions[index].cores[core].is_rung = false;
        self.execute(index, core);
        Ok(())
    }

    /// What an instance held is given back; with `has_more` it waits for its next turn.
    fn give_turn_back(
        &mut self,
        index: usize,
        core: usize,
        has_executed: bool,
        has_more: bool,
    ) -> RuleResult {
        let version = &mut self.versions[index];
        let Some(instance) = version.instance(core) else {
            return Ok(());
        };
        version.cores[core].is_waiting = has_more;
        let cost = ((self.now_ns - version.cores[core].began_ns) / 1_000).max(1);
        let turns = self.limits.finish(instance, has_executed, has_more, cost)?;
        self.announce(turns);
        Ok(())
    }

    /// The scheduler forms a batch for `core`, which is held against the model.
    fn form(&mut self, index: usize, core: usize) -> Result<PollState, RuleViolation> {
        let version = &mut self.versions[index];
        let mut visit = DriveResult::default();
        take_in(version, self.now_ns, &mut visit)?;
        take_back(version, core, self.now_ns, &mut visit)?;
        let poll_state = version.scheduler.form(core, self.now_ns, &mut visit.output);
        note_dismissals(version, self.now_ns, &mut visit)?;
        version.poll_state = poll_state;
        version.is_disturbed = false;
        let expected = version.model.form(self.now_ns);
        self.trace.tell(self.now_ns, || {
            format!("core {core} of {index} forms {visit}, {poll_state:?}")
        });
        let batch = std::mem::take(&mut visit.output.batch);
        let instance = visit.output.instance;
        if let ReferenceModel::Sequences(reference) = &mut version.model {
            let rows = (&*visit.output.rows, visit.output.row_count);
            reference.begin(core, instance, &batch, rows, self.now_ns)?;
            version.cores[core].instance = instance;
        } else if numbers(&batch) != expected.batch {
            let (found, expected) = (numbers(&batch), expected.batch);
            return Err(format!("a batch of {found:?} instead of {expected:?}"));
        }
        self.check_batch(index, &batch)?;
        let version = &mut self.versions[index];
        for live in &batch {
            let request = live.shared();
            if let Some(turn) = &request.turn {
                turn.reserve();
            }
            if !std::mem::replace(&mut self.requests[request.number].has_begun, true) {
                version.batched.push(request.number);
                leave(version, request);
            }
        }
        version.cores[core].batch = batch;
        self.close_visit(index, visit, &expected.expired)?;
        self.check_outlook(index, poll_state)?;
        Ok(poll_state)
    }

    /// Answers whom the scheduler has given up, and passes its calls on.
    fn close_visit(&mut self, index: usize, visit: DriveResult, expected: &[usize]) -> RuleResult {
        let mut expired = numbers(&visit.output.expired);
        expired.sort_unstable();
        if expired != expected {
            return Err(format!("{expired:?} are rejected instead of {expected:?}"));
        }
        for live in visit.output.expired {
            self.refuse(live, ExpectedAnswer::Expired)?;
        }
        for (live, why) in visit.refused {
            self.refuse(live, ExpectedAnswer::Dismissed(why))?;
        }
        for core in visit.output.called {
            self.call(index, core);
        }
        Ok(())
    }

    fn execute(&mut self, index: usize, core: usize) {
        let version = &mut self.versions[index];
        if !version.cores[core].streams.is_empty() {
            self.enqueue(index, core);
            return;
        }
        version.cores[core].began_ns = self.now_ns;
        let duration_ns = 1 + self.random.below(version.setup.execution_us_max * 1_000);
        self.trace
            .tell(self.now_ns, || format!("core {core} of {index} executes"));
        let at_ns = self.now_ns + duration_ns;
        self.agenda.plan(
            at_ns,
            SimulatedEvent::Finish {
                version: index,
                core,
            },
        );
    }

    pub(super) fn finish(&mut self, index: usize, core: usize) -> RuleResult {
        let version = &mut self.versions[index];
        let batch = std::mem::take(&mut version.cores[core].batch);
        // It is awake, and nobody's to ring.
        version.cores[core].is_rung = true;
        self.answer_batch(index, core, batch)?;
        let version = &self.versions[index];
        let is_sequence = version.setup.sequences().is_some();
        let instances = version.instances.get(core).map_or(0, Vec::len);
        // One that has a single instance asks for its next turn at once if it has work, as
        // otherwise others would get ahead of it.
        let has_more = instances == 1 && !is_sequence && version.is_due(self.now_ns);
        self.give_turn_back(index, core, true, has_more)?;
        let version = &mut self.versions[index];
        version.cores[core].instance = (version.cores[core].instance + 1) % instances.max(1);
        version.cores[core].is_rung = false;
        if !has_more {
            self.look_again(index, core);
        }
        Ok(())
    }

    /// Answers the requests of a batch that was executed.
    pub(super) fn answer_batch(
        &mut self,
        index: usize,
        core: usize,
        batch: Vec<SimulatedOwned>,
    ) -> RuleResult {
        let version = &mut self.versions[index];
        let is_fault = self.random.chance(version.setup.fault_percent, 100);
        let response_count = version.setup.response_count_max + 1;
        self.trace.tell(self.now_ns, || {
            let reason = if is_fault { "fails" } else { "is done" };
            format!("{:?} {reason}", numbers(&batch))
        });
        let is_sequence = version.setup.sequences().is_some();
        let awaits = match &version.scheduler {
            Scheduler::Sequence(sequence) => sequence.awaits(),
            _ => false,
        };
        let is_iterative = version
            .setup
            .sequences()
            .is_some_and(|settings| settings.is_iterative);
        for live in batch {
            let handle = Arc::clone(live.handle());
            let runs_again = is_iterative && !is_fault && self.random.chance(1, 3);
            let number = handle.shared().number;
            if runs_again {
                drop(live.requeue());
            } else {
                drop(live);
            }
            if is_sequence {
                // Whoever does so may lose its CPU on the way.
                // Above all while somebody is about to say that it is to be cancelled.
                let is_late = awaits && (handle.is_cancelled() || self.random.chance(1, 8));
                match is_late {
                    false => self.bring_back(index, core, number),
                    true => {
                        let at_ns = self.now_ns + self.random.below(5_000);
                        let version = index;
                        let event = SimulatedEvent::Return {
                            version,
                            core,
                            number,
                        };
                        self.agenda.plan(at_ns, event);
                    }
                }
            }
            if runs_again {
                continue;
            }
            let answer = match is_fault {
                true => ExpectedAnswer::Failed,
                false if handle.is_cancelled() => ExpectedAnswer::Cancelled,
                false => ExpectedAnswer::Executed,
            };
            if answer == ExpectedAnswer::Executed {
                for _ in 0..self.random.below(response_count) {
                    handle.shared().deliver(false);
                }
            }
            self.answer(&handle, answer)?;
        }
        Ok(())
    }

    /// A request of a sequence comes back to the core that executed it, unless it lies in the
    /// inbox: then the scheduler finds it there.
    pub(super) fn bring_back(&mut self, index: usize, core: usize, number: usize) {
        let handle = &self.requests[number].known;
        if let Some(member) = &handle.shared().member {
            member.bring_back();
        }
        let is_linked = self.versions[index].has(handle);
        self.trace.tell(self.now_ns, || {
            let place = if is_linked {
                "where it lies"
            } else {
                "to its core"
            };
            format!("{number} comes back {place}")
        });
        if !is_linked {
            let returned = &mut self.versions[index].cores[core].returned;
            returned.push(Arc::clone(handle));
        }
        self.call(index, core);
    }

    /// Retired versions that have nothing left give their instances back.
    pub(super) fn part_with_retired(&mut self) -> RuleResult {
        for index in 0..self.versions.len() {
            let version = &mut self.versions[index];
            // Those of sequences are needed for the muster.
            if !version.is_over() || version.setup.sequences().is_some() {
                continue;
            }
            for instance in std::mem::take(&mut version.instances).into_iter().flatten() {
                let turns = self.limits.remove(instance)?;
                self.announce(turns);
            }
        }
        Ok(())
    }

    /// Answers one that was not executed.
    fn refuse(&mut self, live: SimulatedOwned, answer: ExpectedAnswer) -> RuleResult {
        let handle = Arc::clone(live.handle());
        drop(live);
        let record = &self.requests[handle.shared().number];
        if !record.has_begun {
            leave(&mut self.versions[record.version], handle.shared());
        }
        self.answer(&handle, answer)
    }

    /// Answers a request for the first and last time.
    pub(super) fn answer(
        &mut self,
        handle: &SimulatedHandle,
        answer: ExpectedAnswer,
    ) -> RuleResult {
        let number = handle.shared().number;
        let record = &mut self.requests[number];
        if let Some(before) = record.answer.replace(answer) {
            return Err(format!(
                "{number} is answered again: {answer:?} after {before:?}"
            ));
        }
        record.handle = None;
        self.versions[record.version].live_count -= 1;
        handle.shared().deliver(true);
        Ok(())
    }
}

/// What one drive of the scheduler brings.
#[derive(Default)]
struct DriveResult {
    output: SchedulerOutput<SimulatedOwned>,
    refused: Vec<(SimulatedOwned, Dismissal)>,
}

impl std::fmt::Display for DriveResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let refused = self.refused.iter();
        let refused: Vec<_> = refused
            .map(|(live, why)| (live.shared().number, *why))
            .collect();
        write!(
            f,
            "batch {:?}, rows {:?}, rejected {:?}, refused {refused:?}, calls {:?}",
            numbers(&self.output.batch),
            self.output.rows,
            numbers(&self.output.expired),
            self.output.called,
        )
    }
}

/// The scheduler takes in what lies in the inbox.
fn take_in(version: &mut SimulatedVersion, now_ns: u64, visit: &mut DriveResult) -> RuleResult {
    for handle in std::mem::take(&mut version.inbox) {
        version.model.accept(&handle, now_ns);
        let known = Arc::clone(&handle);
        version.scheduler.accept(handle, now_ns, &mut visit.output);
        if let ReferenceModel::Sequences(reference) = &mut version.model {
            reference.note(&known, now_ns);
        }
        note_dismissals(version, now_ns, visit)?;
    }
    Ok(())
}

/// What the scheduler has just dismissed is looked at before anything else happens.
fn note_dismissals(
    version: &mut SimulatedVersion,
    now_ns: u64,
    visit: &mut DriveResult,
) -> RuleResult {
    for (live, why) in visit.output.refused.drain(..) {
        if let ReferenceModel::Sequences(reference) = &mut version.model {
            reference.dismiss(live.handle(), why, now_ns)?;
        }
        visit.refused.push((live, why));
    }
    Ok(())
}

/// The scheduler of sequences learns what `core` has done.
fn take_back(
    version: &mut SimulatedVersion,
    core: usize,
    now_ns: u64,
    visit: &mut DriveResult,
) -> RuleResult {
    for handle in std::mem::take(&mut version.cores[core].returned) {
        let (Scheduler::Sequence(sequence), ReferenceModel::Sequences(reference)) =
            (&mut version.scheduler, &mut version.model)
        else {
            return Ok(());
        };
        let runs_again = handle.is_queued();
        reference.come_back(&handle, now_ns);
        if sequence.awaits() && runs_again {
            sequence.reschedule(handle, now_ns, &mut visit.output);
        } else if sequence.awaits() {
            sequence.release(&handle, now_ns);
        }
        note_dismissals(version, now_ns, visit)?;
    }
    Ok(())
}

pub(super) fn numbers(batch: &[SimulatedOwned]) -> Vec<usize> {
    batch.iter().map(|live| live.shared().number).collect()
}
