//! One seed from its first event to its last: clients, cores, a clock, and the rules, looked at after every event.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use conch_channel::{Claim, Fate, NEVER_NS, Outlook};

use super::card::{Card, Errand, Live, Receiver, Ticket};
use super::random::Random;
use super::setup::Setup;
use super::story::Story;
use super::version::{Model, Version};
use crate::order::Turn;
use crate::scheduler::{Dismissal, Facts, Harvest, Key, Membership, Scheduler, rejection_ns};

/// A rule that did not hold.
pub(super) type Breach = String;
pub(super) type Held = Result<(), Breach>;

pub(super) struct World {
    random: Random,
    now_ns: u64,
    /// By time, then in order of planning.
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    planned_count: u64,
    versions: Vec<Version>,
    requests: Vec<Record>,
    receiver: Arc<Receiver>,
    pub(super) event_count: u64,
    pub(super) story: Story,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An admitted request reaches the inbox.
    Submit {
        number: usize,
    },
    Look {
        version: usize,
        core: usize,
    },
    Finish {
        version: usize,
        core: usize,
    },
    /// A deadline that an idle core, or else the timekeeper, watches.
    Deadline {
        version: usize,
    },
}

/// What the simulator knows of a request.
struct Record {
    ticket: Option<Ticket>,
    version: usize,
    answer: Option<Answer>,
    is_final: bool,
    is_submitted: bool,
    /// It was executed before: it waits for a place no more.
    has_begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Executed,
    Failed,
    Expired,
    Cancelled,
    /// As a request of a sequence.
    Dismissed(Dismissal),
}

impl World {
    pub(super) fn new(seed: u64, story: Story) -> World {
        let mut random = Random(seed);
        let setup = Setup::random(&mut random);
        let mut world = World {
            random,
            now_ns: 1_000_000,
            agenda: BinaryHeap::new(),
            planned_count: 0,
            versions: Vec::new(),
            requests: Vec::new(),
            receiver: Arc::default(),
            event_count: 0,
            story,
        };
        world.load(setup);
        world
    }

    /// Lives through the seed.
    pub(super) fn live(&mut self) -> Held {
        let mut burst = 1;
        for _ in 0..STEP_COUNT {
            match self.random.below(40) {
                0..20 => {
                    for _ in 0..burst {
                        self.arrive()?;
                    }
                }
                20..24 => self.cancel()?,
                24 => burst = self.random.one_of(&[1, 1, 2, 6]),
                25 if self.random.chance(1, 4) => self.reload(),
                _ => {
                    let pause_ns = self.random.below(60_000);
                    self.pass_until(self.now_ns + pause_ns)?;
                }
            }
            self.check()?;
        }
        if let Some(current) = self.versions.last_mut() {
            current.is_retired = true;
        }
        self.story
            .tell(self.now_ns, || "nothing comes any more".into());
        self.drain()?;
        for index in 0..self.versions.len() {
            self.muster(index)?;
        }
        self.drain()?;
        self.check_end()
    }

    fn drain(&mut self) -> Held {
        while let Some(Reverse((at_ns, _, _))) = self.agenda.peek() {
            self.pass_until(*at_ns)?;
        }
        Ok(())
    }

    /// When every sequence is over, all slots are free: as many new ones as there are slots begin at once.
    fn muster(&mut self, index: usize) -> Held {
        let version = &self.versions[index];
        let setup = &version.setup;
        let Some(settings) = setup.sequences() else {
            return Ok(());
        };
        // Where one that began could be idle before the last one begins, nothing would follow.
        if setup.execution_us_max > 20 || settings.idle_us < MUSTER_US {
            return Ok(());
        }
        let seat_count: usize = setup.seat_counts.iter().sum();
        let first = self.requests.len();
        for number in 0..seat_count as u64 * u64::from(settings.slot_count) {
            let key = Key::Unsigned(MUSTER_ID + number);
            let facts = Facts {
                batch_count: 1,
                queued_ns: self.now_ns,
                ..Facts::default()
            };
            self.admit(index, facts, Some(Membership::new(key, true, false)));
        }
        let numbers = first..self.requests.len();
        self.story.tell(self.now_ns, || {
            format!("{numbers:?} start sequences, one in each slot")
        });
        for number in numbers.clone() {
            self.submit(number);
        }
        self.pass_until(self.now_ns + MUSTER_US * 1_000 - 1)?;
        for number in numbers {
            if !self.requests[number].has_begun {
                return Err(format!("{number} finds no slot"));
            }
        }
        self.drain()
    }

    fn plan(&mut self, at_ns: u64, event: Event) {
        self.planned_count += 1;
        self.agenda
            .push(Reverse((at_ns, self.planned_count, event)));
    }

    /// What is on the agenda until `end_ns` happens.
    fn pass_until(&mut self, end_ns: u64) -> Held {
        while let Some(Reverse((at_ns, _, event))) = self.agenda.peek().copied()
            && at_ns <= end_ns
        {
            self.agenda.pop();
            self.now_ns = self.now_ns.max(at_ns);
            self.event_count += 1;
            if self.event_count > EVENT_COUNT_MAX {
                return Err("it does not come to rest".into());
            }
            match event {
                Event::Submit { number } => self.submit(number),
                Event::Look { version, core } => self.look(version, core)?,
                Event::Finish { version, core } => self.finish(version, core)?,
                Event::Deadline { version } => self.meet_deadline(version)?,
            }
            self.check()?;
        }
        self.now_ns = self.now_ns.max(end_ns);
        Ok(())
    }

    /// A new version takes the current one's place.
    fn load(&mut self, setup: Setup) {
        if let Some(current) = self.versions.last_mut() {
            current.is_retired = true;
        }
        self.story.tell(self.now_ns, || {
            format!("version {} is {setup:?}", self.versions.len())
        });
        self.versions.push(Version::new(setup));
    }

    fn reload(&mut self) {
        self.event_count += 1;
        let setup = Setup::random(&mut self.random);
        self.load(setup);
    }

    /// A client sends a request: it is admitted now, and reaches the inbox now or a little later.
    fn arrive(&mut self) -> Held {
        self.event_count += 1;
        let number = self.requests.len();
        let index = self.versions.len() - 1;
        let version = &mut self.versions[index];
        let setup = &version.setup;
        let rows_max = match setup.sequences() {
            // As admission demands.
            Some(_) => 1,
            None => u64::from(setup.batch_size_max.min(3)),
        };
        let facts = Facts {
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
            return Ok(());
        }
        let is_iterative = version
            .setup
            .sequences()
            .map(|settings| settings.is_iterative);
        let member = is_iterative
            .map(|is_iterative| member(&mut self.random, &mut version.begun, is_iterative, number));
        self.story.tell(self.now_ns, || {
            format!(
                "{number} arrives: {} rows, level {level}, timeout {} us, deadline {}, shape {:?}, {member:?}",
                facts.batch_count,
                facts.timeout_us,
                facts.deadline_ns / 1_000,
                facts.signature
            )
        });
        self.admit(index, facts, member);
        if self.random.chance(1, 4) {
            let delay_ns = self.random.below(3_000);
            self.plan(self.now_ns + delay_ns, Event::Submit { number });
        } else {
            self.submit(number);
        }
        Ok(())
    }

    /// A request takes its places.
    fn admit(&mut self, index: usize, facts: Facts, member: Option<Membership>) {
        let version = &mut self.versions[index];
        *version.pending.entry(facts.level).or_default() += 1;
        version.live_count += 1;
        let completion: Arc<dyn crate::Completion> = self.receiver.clone();
        let card = Card {
            number: self.requests.len(),
            facts,
            member,
            turn: version
                .order
                .as_ref()
                .map(|order| Turn::new(order, &completion)),
            receiver: Arc::clone(&self.receiver),
        };
        self.requests.push(Record {
            ticket: Some(Claim::new(card, Errand)),
            version: index,
            answer: None,
            is_final: false,
            is_submitted: false,
            has_begun: false,
        });
    }

    fn submit(&mut self, number: usize) {
        let record = &self.requests[number];
        let Some(ticket) = record.ticket.clone() else {
            return;
        };
        let index = record.version;
        let version = &mut self.versions[index];
        let rejection_ns = match version.setup.dynamic() {
            Some(settings) => rejection_ns(settings, &ticket.shared().facts),
            None if version.setup.sequences().is_some() => expires_ns(&ticket.shared().facts),
            None => NEVER_NS,
        };
        self.requests[number].is_submitted = true;
        let version = &mut self.versions[index];
        let was_empty = version.inbox.is_empty();
        version.inbox.push(ticket);
        if was_empty {
            self.ring(index);
        }
        self.watch(index, rejection_ns);
    }

    /// Rings one idle core, if there is one.
    fn ring(&mut self, index: usize) {
        if let Some(core) = self.versions[index].idle_core() {
            self.versions[index].cores[core].is_rung = true;
            let delay_ns = self.random.below(4) * 500;
            self.plan(
                self.now_ns + delay_ns,
                Event::Look {
                    version: index,
                    core,
                },
            );
        }
    }

    /// Rings this very core, if it is idle; one that executes looks when it is done.
    fn call(&mut self, index: usize, core: usize) {
        let state = &mut self.versions[index].cores[core];
        if state.is_idle() && !state.is_rung {
            state.is_rung = true;
            let delay_ns = self.random.below(4) * 500;
            self.plan(
                self.now_ns + delay_ns,
                Event::Look {
                    version: index,
                    core,
                },
            );
        }
    }

    /// Somebody watches `deadline_ns`, unless an earlier one is watched.
    fn watch(&mut self, index: usize, deadline_ns: u64) {
        let version = &mut self.versions[index];
        if deadline_ns < version.watched_ns {
            version.watched_ns = deadline_ns;
            self.plan(deadline_ns, Event::Deadline { version: index });
        }
    }

    fn meet_deadline(&mut self, index: usize) -> Held {
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
        // The timekeeper's visit.
        let mut harvest = Harvest::default();
        let mut refused = Vec::new();
        take_in(version, self.now_ns, &mut harvest, &mut refused)?;
        let outlook = version.scheduler.expire(self.now_ns, &mut harvest);
        note_dismissals(version, self.now_ns, &mut harvest, &mut refused)?;
        let expected = version.model.expire(self.now_ns);
        self.story.tell(self.now_ns, || {
            format!(
                "the timekeeper rejects {:?}, deadline {}",
                numbers(&harvest.expired),
                outlook.deadline_ns / 1_000
            )
        });
        self.reject(harvest.expired, &expected)?;
        self.dismiss(index, refused)?;
        for core in harvest.called {
            self.call(index, core);
        }
        self.watch(index, outlook.deadline_ns);
        Ok(())
    }

    /// A core looks at the scheduler, and executes the batch that it finds.
    fn look(&mut self, index: usize, core: usize) -> Held {
        let version = &mut self.versions[index];
        version.cores[core].is_rung = false;
        version.is_disturbed = false;
        if !version.cores[core].is_idle() {
            return Err(format!("core {core} looks while it executes"));
        }
        let mut harvest = Harvest::default();
        let mut refused = Vec::new();
        take_in(version, self.now_ns, &mut harvest, &mut refused)?;
        take_back(version, core, self.now_ns, &mut harvest, &mut refused)?;
        let outlook = version.scheduler.form(core, self.now_ns, &mut harvest);
        note_dismissals(version, self.now_ns, &mut harvest, &mut refused)?;
        let expected = version.model.form(self.now_ns);
        let batch = numbers(&harvest.batch);
        self.story.tell(self.now_ns, || {
            format!(
                "core {core} of {index} looks: batch {batch:?}, rows {:?}, rejected {:?}, refused {:?}, calls {:?}, {outlook:?}",
                harvest.rows,
                numbers(&harvest.expired),
                refused
                    .iter()
                    .map(|(live, why)| (live.shared().number, *why))
                    .collect::<Vec<_>>(),
                harvest.called,
            )
        });
        self.dismiss(index, refused)?;
        let version = &mut self.versions[index];
        if let Model::Sequences(book) = &mut version.model {
            book.begin(
                core,
                harvest.instance,
                &harvest.batch,
                &harvest.rows,
                self.now_ns,
            )?;
        } else if batch != expected.batch {
            return Err(format!(
                "a batch of {batch:?} instead of {:?}",
                expected.batch
            ));
        }
        self.reject(harvest.expired, &expected.expired)?;
        let is_work = !batch.is_empty();
        if is_work {
            self.begin(index, core, harvest.batch)?;
        }
        self.check_outlook(index, outlook)?;
        if outlook.is_ready {
            if is_work {
                self.ring(index);
            } else {
                return Err("nothing came of a look, and it is to be repeated".into());
            }
        }
        for core in harvest.called {
            self.call(index, core);
        }
        self.watch(index, outlook.deadline_ns);
        Ok(())
    }

    fn begin(&mut self, index: usize, core: usize, batch: Vec<Live>) -> Held {
        let version = &mut self.versions[index];
        let rows: u32 = batch
            .iter()
            .map(|live| live.shared().facts.batch_count)
            .sum();
        let is_default = matches!(version.model, Model::Line(_));
        if rows > version.setup.batch_size_max && !(is_default && batch.len() == 1) {
            return Err(format!("a batch of {rows} rows"));
        }
        for live in &batch {
            let card = live.shared();
            if let Some(turn) = &card.turn {
                turn.reserve();
            }
            if !std::mem::replace(&mut self.requests[card.number].has_begun, true) {
                version.batched.push(card.number);
                leave(version, card);
            }
        }
        version.cores[core].executing = batch;
        let duration_ns = 1 + self.random.below(version.setup.execution_us_max * 1_000);
        self.plan(
            self.now_ns + duration_ns,
            Event::Finish {
                version: index,
                core,
            },
        );
        Ok(())
    }

    fn finish(&mut self, index: usize, core: usize) -> Held {
        let version = &mut self.versions[index];
        let batch = std::mem::take(&mut version.cores[core].executing);
        let is_fault = self.random.chance(version.setup.fault_percent, 100);
        let response_count = version.setup.response_count_max + 1;
        self.story.tell(self.now_ns, || {
            let fate = if is_fault { "fails" } else { "is done" };
            format!("{:?} {fate}", numbers(&batch))
        });
        let is_iterative = version
            .setup
            .sequences()
            .is_some_and(|settings| settings.is_iterative);
        for live in batch {
            let ticket = Arc::clone(live.ticket());
            let runs_again = is_iterative && !is_fault && self.random.chance(1, 3);
            let version = &mut self.versions[index];
            if let Model::Sequences(_) = &version.model {
                version.cores[core].returned.push(Arc::clone(&ticket));
            }
            if runs_again {
                drop(live.requeue());
                continue;
            }
            drop(live);
            let answer = match is_fault {
                true => Answer::Failed,
                false if ticket.is_cancelled() => Answer::Cancelled,
                false => Answer::Executed,
            };
            if answer == Answer::Executed {
                for _ in 0..self.random.below(response_count) {
                    ticket.shared().deliver(false);
                }
            }
            self.answer(&ticket, answer)?;
        }
        // A core that has executed looks before it sleeps.
        self.versions[index].cores[core].is_rung = true;
        self.plan(
            self.now_ns,
            Event::Look {
                version: index,
                core,
            },
        );
        Ok(())
    }

    fn reject(&mut self, expired: Vec<Live>, expected: &[usize]) -> Held {
        let mut found = numbers(&expired);
        found.sort_unstable();
        if found != expected {
            return Err(format!("{found:?} are rejected instead of {expected:?}"));
        }
        for live in expired {
            let ticket = Arc::clone(live.ticket());
            drop(live);
            let version = self.requests[ticket.shared().number].version;
            leave(&mut self.versions[version], ticket.shared());
            self.answer(&ticket, Answer::Expired)?;
        }
        Ok(())
    }

    /// A client loses patience with one of the requests that have no answer.
    fn cancel(&mut self) -> Held {
        self.event_count += 1;
        if self.requests.is_empty() {
            return Ok(());
        }
        let number = self.random.below(self.requests.len() as u64) as usize;
        let Some(ticket) = self.requests[number].ticket.clone() else {
            return Ok(());
        };
        if ticket.shared().member.is_some() {
            self.give_notice(number, ticket);
            return Ok(());
        }
        let was_waiting = ticket.is_queued();
        let claimed = Claim::claim(&ticket, Fate::Cancel, None);
        if was_waiting && claimed.is_none() {
            return Err(format!("{number} waits, and cannot be cancelled"));
        }
        self.story.tell(self.now_ns, || {
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
            leave(&mut self.versions[index], ticket.shared());
            self.versions[index].model.remove(number);
            self.versions[index].is_disturbed = true;
            self.answer(&ticket, Answer::Cancelled)?;
        }
        Ok(())
    }

    /// The scheduler of its sequence is told that a request is cancelled, and decides.
    fn give_notice(&mut self, number: usize, ticket: Ticket) {
        self.story
            .tell(self.now_ns, || format!("{number} is to be cancelled"));
        ticket.request_cancel();
        let index = self.requests[number].version;
        let version = &mut self.versions[index];
        let is_linked = version
            .inbox
            .iter()
            .any(|other| Arc::ptr_eq(other, &ticket));
        let is_submitted = self.requests[number].is_submitted;
        if ticket.is_queued() && is_submitted && !is_linked {
            version.inbox.push(ticket);
            self.watch(index, self.now_ns);
        }
    }

    /// Answers what a scheduler of sequences does not execute.
    fn dismiss(&mut self, index: usize, refused: Vec<(Live, Dismissal)>) -> Held {
        for (live, why) in refused {
            let ticket = Arc::clone(live.ticket());
            drop(live);
            let version = &mut self.versions[index];
            if !self.requests[ticket.shared().number].has_begun {
                leave(version, ticket.shared());
            }
            self.answer(&ticket, Answer::Dismissed(why))?;
        }
        Ok(())
    }

    /// Answers a request for the first and last time.
    fn answer(&mut self, ticket: &Ticket, answer: Answer) -> Held {
        let number = ticket.shared().number;
        let record = &mut self.requests[number];
        if let Some(before) = record.answer.replace(answer) {
            return Err(format!(
                "{number} is answered again: {answer:?} after {before:?}"
            ));
        }
        record.ticket = None;
        self.versions[record.version].live_count -= 1;
        ticket.shared().deliver(true);
        Ok(())
    }
}

/// A request waits no longer.
fn leave(version: &mut Version, card: &Card) {
    if let Some(pending) = version.pending.get_mut(&card.facts.level) {
        *pending -= 1;
    }
}

/// When a request of a sequence that waits for a slot has waited for too long.
fn expires_ns(facts: &Facts) -> u64 {
    match facts.timeout_us {
        0 => NEVER_NS,
        timeout_us => facts.queued_ns + timeout_us * 1_000,
    }
}

/// The scheduler takes in what lies in the inbox.
fn take_in(
    version: &mut Version,
    now_ns: u64,
    harvest: &mut Harvest<Live>,
    refused: &mut Vec<(Live, Dismissal)>,
) -> Held {
    for ticket in std::mem::take(&mut version.inbox) {
        version.model.accept(&ticket);
        let known = Arc::clone(&ticket);
        version.scheduler.accept(ticket, now_ns, harvest);
        if let Model::Sequences(book) = &mut version.model {
            book.note(&known, now_ns);
        }
        note_dismissals(version, now_ns, harvest, refused)?;
    }
    Ok(())
}

/// What the scheduler has just dismissed is looked at before anything else happens.
fn note_dismissals(
    version: &mut Version,
    now_ns: u64,
    harvest: &mut Harvest<Live>,
    refused: &mut Vec<(Live, Dismissal)>,
) -> Held {
    for (live, why) in harvest.refused.drain(..) {
        if let Model::Sequences(book) = &mut version.model {
            book.dismiss(live.ticket(), why, now_ns)?;
        }
        refused.push((live, why));
    }
    Ok(())
}

/// The scheduler of sequences learns what `core` has done.
fn take_back(
    version: &mut Version,
    core: usize,
    now_ns: u64,
    harvest: &mut Harvest<Live>,
    refused: &mut Vec<(Live, Dismissal)>,
) -> Held {
    for ticket in std::mem::take(&mut version.cores[core].returned) {
        let (Scheduler::Sequence(sequence), Model::Sequences(book)) =
            (&mut version.scheduler, &mut version.model)
        else {
            return Ok(());
        };
        let runs_again = ticket.is_queued();
        book.come_back(&ticket, runs_again, now_ns);
        if sequence.awaits() && runs_again {
            sequence.reschedule(ticket, now_ns, harvest);
        } else if sequence.awaits() {
            sequence.release(&ticket, now_ns);
        }
        note_dismissals(version, now_ns, harvest, refused)?;
    }
    Ok(())
}

/// A request's part in a sequence: of an honest client mostly, who starts what is not begun.
fn member(
    random: &mut Random,
    begun: &mut HashMap<u64, bool>,
    is_iterative: bool,
    number: usize,
) -> Membership {
    if is_iterative && random.chance(1, 2) {
        return Membership::new(Key::Generated(number as u64), true, false);
    }
    let id = 1 + random.below(9);
    let begun = begun.entry(id).or_default();
    let is_start = match *begun {
        true => random.chance(1, 30),
        false => random.chance(19, 20),
    };
    let is_end = random.chance(1, 4);
    *begun = !is_end && (is_start || *begun);
    Membership::new(Key::Unsigned(id), is_start, is_end)
}

fn numbers(batch: &[Live]) -> Vec<usize> {
    batch.iter().map(|live| live.shared().number).collect()
}

/// What must hold.
impl World {
    /// After every event.
    fn check(&mut self) -> Held {
        self.check_deliveries()?;
        for index in 0..self.versions.len() {
            self.check_rest(index)?;
        }
        Ok(())
    }

    /// Whoever may execute does: with an idle core and nobody about to look there is no batch to be had, and nobody's timeout has passed.
    fn check_rest(&mut self, index: usize) -> Held {
        let version = &self.versions[index];
        if version.model.is_empty() || !version.is_quiet() {
            return Ok(());
        }
        if let (Scheduler::Sequence(sequence), Model::Sequences(book)) =
            (&version.scheduler, &version.model)
        {
            return book.check_backlog(sequence, self.now_ns);
        }
        // What is due just now may be next on the agenda.
        let before_ns = self.now_ns - 1;
        let mut model = version.model.clone();
        let late = model.expire(before_ns);
        if !late.is_empty() {
            return Err(format!("{late:?} should have been rejected"));
        }
        if version.has_idle_core() && !version.is_disturbed {
            let formed = model.form(before_ns);
            if !formed.batch.is_empty() {
                return Err(format!("{:?} wait beside an idle core", formed.batch));
            }
        }
        Ok(())
    }

    fn check_outlook(&self, index: usize, outlook: Outlook) -> Held {
        let version = &self.versions[index];
        let is_wrong = match version.model.is_empty() {
            false => outlook.is_empty,
            // Requests that were cancelled are left until somebody looks again.
            true => !outlook.is_empty && !outlook.is_ready,
        };
        if is_wrong {
            return Err(format!("{outlook:?} of {:?}", version.model));
        }
        if outlook.deadline_ns <= self.now_ns {
            return Err(format!("a deadline that has passed: {outlook:?}"));
        }
        Ok(())
    }

    /// Responses reach the receiver before the last one, the last one once, and under preserve-ordering in the order of batching.
    fn check_deliveries(&mut self) -> Held {
        for (number, is_final) in self.receiver.take() {
            let record = &mut self.requests[number];
            if record.is_final {
                return Err(format!("{number} has a response after its last"));
            }
            record.is_final = is_final;
            let version = &mut self.versions[record.version];
            if version.order.is_none() || !version.batched.contains(&number) {
                continue;
            }
            let turn = version.batched.get(version.left_count);
            if turn != Some(&number) {
                return Err(format!("{number} leaves before {turn:?}"));
            }
            version.left_count += usize::from(is_final);
        }
        Ok(())
    }

    fn check_end(&self) -> Held {
        for (number, record) in self.requests.iter().enumerate() {
            if record.answer.is_none() {
                return Err(format!("{number} is lost"));
            }
            if !record.is_final {
                return Err(format!("the answer of {number} is lost"));
            }
        }
        for (index, version) in self.versions.iter().enumerate() {
            let pending: u32 = version.pending.values().sum();
            if version.live_count != 0 || pending != 0 {
                return Err(format!("version {index} is never free"));
            }
        }
        Ok(())
    }
}

const STEP_COUNT: usize = 240;
/// What all slots take to begin, and no sequence to become idle.
const MUSTER_US: u64 = 1_000;
/// Ids that no client uses.
const MUSTER_ID: u64 = 1 << 32;
/// Far beyond what so many steps lead to.
const EVENT_COUNT_MAX: u64 = 100_000;
