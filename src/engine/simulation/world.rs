//! One seed from its first event to its last: a clock, an agenda, and the models of a server that
//! clients send requests to.

use std::sync::Arc;

use conch_scheduler::testing::Random;
use conch_scheduler::{Dismissal, SchedulingParams, SequenceContext, SequenceKey};

use crate::simulation::agenda::Agenda;
use crate::simulation::limits::ReferenceLimits;
use crate::simulation::request::{RecordingCompletion, SimulatedHandle};
use crate::simulation::setup::VersionSetup;
use crate::simulation::trace::SeedTrace;
use crate::simulation::version::SimulatedVersion;
use crate::simulation::{EVENT_COUNT_MIN, RuleResult};

pub(super) struct Simulation {
    pub(super) random: Random,
    pub(super) now_ns: u64,
    pub(super) agenda: Agenda<SimulatedEvent>,
    pub(super) versions: Vec<SimulatedVersion>,
    /// The version of each model that takes requests.
    pub(super) current: Vec<usize>,
    pub(super) requests: Vec<RequestRecord>,
    pub(super) receiver: Arc<RecordingCompletion>,
    pub(super) limits: ReferenceLimits,
    pub(super) event_count: u64,
    pub(super) trace: SeedTrace,
    /// Instances keep batches in flight where nothing limits executions.
    has_streams: bool,
    /// Batches that were enqueued while another was on the device.
    pub(super) overlap_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimulatedEvent {
    /// An admitted request reaches the inbox.
    Submit {
        number: usize,
    },
    Poll {
        version: usize,
        core: usize,
    },
    /// A core learns that its instance may execute.
    TakeTurn {
        version: usize,
        core: usize,
    },
    Finish {
        version: usize,
        core: usize,
    },
    /// A core looks at the batches in flight of an instance.
    Look {
        version: usize,
        core: usize,
        instance: usize,
    },
    /// A request of a sequence comes back to the core that executed it.
    Return {
        version: usize,
        core: usize,
        number: usize,
    },
    /// A request of a sequence that somebody wants to be cancelled reaches the inbox.
    Notice {
        number: usize,
    },
    /// A deadline that an idle core, or else the timer thread, watches.
    Deadline {
        version: usize,
    },
}

/// What the simulator knows of a request.
pub(super) struct RequestRecord {
    pub(super) known: SimulatedHandle,
    /// Until it is answered.
    pub(super) handle: Option<SimulatedHandle>,
    pub(super) version: usize,
    pub(super) answer: Option<ExpectedAnswer>,
    pub(super) is_final: bool,
    pub(super) is_submitted: bool,
    /// It was executed before: it waits for a place no more.
    pub(super) has_begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedAnswer {
    Executed,
    Failed,
    Expired,
    Cancelled,
    /// As a request of a sequence.
    Dismissed(Dismissal),
}

impl Simulation {
    pub(super) fn new(seed: u64, trace: SeedTrace) -> Simulation {
        let mut random = Random(seed);
        let limits = ReferenceLimits::random(&mut random);
        Simulation {
            random,
            now_ns: 1_000_000,
            agenda: Agenda::new(),
            versions: Vec::new(),
            current: Vec::new(),
            requests: Vec::new(),
            receiver: Arc::default(),
            limits,
            event_count: 0,
            trace,
            has_streams: false,
            overlap_count: 0,
        }
    }

    /// One whose instances keep batches in flight.
    pub(super) fn with_streams(seed: u64, trace: SeedTrace) -> Simulation {
        Simulation {
            has_streams: true,
            ..Simulation::new(seed, trace)
        }
    }

    /// Lives through the seed.
    pub(super) fn live(&mut self) -> RuleResult {
        // Models only meet where executions are limited.
        let model_count = match self.limits.is_free() {
            true => 1,
            false => 1 + self.random.below(2),
        };
        for _ in 0..model_count {
            self.load()?;
        }
        let mut burst = 1;
        let mut step_count = 0;
        while step_count < STEP_COUNT || self.event_count < EVENT_COUNT_MIN {
            step_count += 1;
            match self.random.below(40) {
                0..20 => {
                    for _ in 0..burst {
                        self.arrive();
                    }
                }
                20..24 => self.cancel()?,
                24 => burst = self.random.one_of(&[1, 1, 2, 6]),
                25 if self.random.chance(1, 4) => self.reload()?,
                _ => {
                    let pause_ns = self.random.below(60_000);
                    self.pass_until(self.now_ns + pause_ns)?;
                }
            }
            self.check()?;
        }
        for index in std::mem::take(&mut self.current) {
            self.versions[index].is_retired = true;
        }
        self.trace
            .tell(self.now_ns, || "nothing comes any more".into());
        self.drain()?;
        for index in 0..self.versions.len() {
            self.muster(index)?;
        }
        self.drain()?;
        self.check_end()
    }

    fn drain(&mut self) -> RuleResult {
        while let Some(at_ns) = self.agenda.next_ns() {
            self.pass_until(at_ns)?;
        }
        Ok(())
    }

    /// When every sequence is over, all slots are free: as many new ones as there are slots begin
    /// at once.
    fn muster(&mut self, index: usize) -> RuleResult {
        let version = &self.versions[index];
        let setup = &version.setup;
        let Some(settings) = setup.sequences() else {
            return Ok(());
        };
        // Where one that began could be idle before the last one begins, nothing would follow.
        if setup.execution_us_max > 20 || settings.idle_us < MUSTER_US {
            return Ok(());
        }
        let instance_count: usize = setup.instance_counts.iter().sum();
        let first = self.requests.len();
        for number in 0..instance_count as u64 * u64::from(settings.slot_count) {
            let key = SequenceKey::Unsigned(MUSTER_ID + number);
            let facts = SchedulingParams {
                batch_count: 1,
                queued_ns: self.now_ns,
                ..SchedulingParams::default()
            };
            self.admit(index, facts, Some(SequenceContext::new(key, true, false)));
        }
        let numbers = first..self.requests.len();
        self.trace.tell(self.now_ns, || {
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

    /// What is on the agenda until `end_ns` happens.
    fn pass_until(&mut self, end_ns: u64) -> RuleResult {
        while let Some((at_ns, event)) = self.agenda.take_until(end_ns) {
            self.now_ns = self.now_ns.max(at_ns);
            self.event_count += 1;
            if self.event_count > EVENT_COUNT_MAX {
                return Err("it does not come to rest".into());
            }
            match event {
                SimulatedEvent::Submit { number } => self.submit(number),
                SimulatedEvent::Poll { version, core } => self.poll(version, core)?,
                SimulatedEvent::TakeTurn { version, core } => self.take_turn(version, core)?,
                SimulatedEvent::Finish { version, core } => self.finish(version, core)?,
                SimulatedEvent::Look {
                    version,
                    core,
                    instance,
                } => self.look_after(version, core, instance)?,
                SimulatedEvent::Return {
                    version,
                    core,
                    number,
                } => self.bring_back(version, core, number),
                SimulatedEvent::Notice { number } => self.notify(number),
                SimulatedEvent::Deadline { version } => self.meet_deadline(version)?,
            }
            self.part_with_retired()?;
            self.check()?;
        }
        self.now_ns = self.now_ns.max(end_ns);
        Ok(())
    }

    /// One model more.
    fn load(&mut self) -> RuleResult {
        self.current.push(self.versions.len());
        self.install()
    }

    /// A new version takes the place of a model's current one, which finishes what it has.
    fn reload(&mut self) -> RuleResult {
        self.event_count += 1;
        let model = self.random.below(self.current.len() as u64) as usize;
        let before = std::mem::replace(&mut self.current[model], self.versions.len());
        self.versions[before].is_retired = true;
        self.install()?;
        self.part_with_retired()
    }

    fn install(&mut self) -> RuleResult {
        let mut setup = VersionSetup::random(&mut self.random);
        if self.has_streams {
            setup = setup.with_depth(self.random.one_of(&[1, 2, 2, 4]));
        }
        let index = self.versions.len();
        let (instances, turns) = self.limits.add(index, &setup, &mut self.random)?;
        self.trace.tell(self.now_ns, || {
            format!("version {index} is {setup:?}, its seats are {instances:?}")
        });
        self.versions.push(SimulatedVersion::new(setup, instances));
        self.announce(turns);
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
