//! The thread that watches the shards.
//!
//! Ten times per second it sends each shard a heartbeat: the shard then ends connections that
//! stalled, and by answering shows that it runs. A heartbeat wakes the shard's executor even if it
//! sleeps with tasks that are ready: such a sleep lasts no longer than the period. A shard with no
//! connection and no request gets one per second: each costs a wake-up, also on an idle machine.
//!
//! Each time it also looks how long the shard waited for its CPU, lets a shard that starves run
//! elsewhere (see [`crate::starvation`]), and has new connections go to the others.
//!
//! Once per second it notes how many blocks the pool has free, and every ten seconds the pool lets
//! go of some that nobody needed: that may take a millisecond, which no shard should.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use conch_engine::{Error, clock};
use conch_log as log;
use conch_memory::Pool;
use conch_net::affinity;

use crate::pressure::{LOOK_PERIOD, PressureOrders};
use crate::shard::link::ShardHandle;
use crate::starvation::{AffinityStep, StarvationFinding, StarvationPolicy, ThreadSample};
use crate::{FrontendOptions, ShardAffinity};

const PERIOD: Duration = LOOK_PERIOD;
/// Heartbeats without an answer before an alarm: one second. A shard turn is meant to last at most
/// 500 us.
const PATIENCE: u32 = 10;
/// Of so many heartbeats a quiet shard gets one.
const QUIET_EVERY: u32 = 10;
/// In so many rounds the pool is looked at once,
const POOL_LOOK_EVERY: u32 = 10;
/// and in so many it lets go of what was not needed.
const POOL_TRIM_EVERY: u32 = 100;
/// Three numbers below 2^64.
const SCHEDSTAT_BYTES: usize = 80;

pub(crate) struct Watchdog {
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches the shards behind `links`, which are at home on `homes`, and the blocks of `pool`.
    ///
    /// # Errors
    /// INTERNAL if the system gives no thread.
    pub(crate) fn start(
        links: Vec<Arc<ShardHandle>>,
        homes: Vec<usize>,
        options: &FrontendOptions,
        orders: Arc<PressureOrders>,
        pool: Arc<Pool>,
    ) -> Result<Watchdog, Error> {
        let (stop, stopped) = channel::<()>();
        let mut rounds = WatchdogState {
            wards: links
                .into_iter()
                .zip(homes)
                .map(|(link, home)| WatchedShard::new(link, home, options))
                .collect(),
            affinity: options.shard_affinity,
            process_cpus: affinity::process_cpus().unwrap_or_default(),
            has_told: false,
        };
        let thread = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || {
                let mut round = 0_u32;
                while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                    round = round.wrapping_add(1);
                    orders.begin_round(rounds.connection_count());
                    rounds.make(round);
                    if round.is_multiple_of(POOL_LOOK_EVERY) {
                        pool.note_free();
                    }
                    if round.is_multiple_of(POOL_TRIM_EVERY) {
                        pool.trim();
                    }
                }
            })
            .map_err(|error| Error::internal(format!("cannot start the watchdog: {error}")))?;
        Ok(Watchdog {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the watchdog panicked");
        }
    }
}

/// What the watchdog's thread knows.
struct WatchdogState {
    wards: Vec<WatchedShard>,
    affinity: ShardAffinity,
    /// Where a shard may run that is kept from its own CPU.
    process_cpus: Vec<usize>,
    /// The operator was told that a shard starves.
    has_told: bool,
}

/// One shard.
struct WatchedShard {
    link: Arc<ShardHandle>,
    home: usize,
    missed_count: u32,
    starvation: StarvationPolicy,
    figures: SchedStat,
}

/// The shard's `schedstat`.
enum SchedStat {
    /// Its thread has no number yet.
    Unknown,
    Open(File),
    /// The system does not tell, or the thread is gone.
    None,
}

impl WatchdogState {
    /// Of all shards.
    fn connection_count(&self) -> usize {
        let counts = self
            .wards
            .iter()
            .map(|watched| watched.link.connection_count());
        counts.sum()
    }

    fn make(&mut self, round: u32) {
        for index in 0..self.wards.len() {
            let Some(watched) = self.wards.get_mut(index) else {
                continue;
            };
            if watched.link.is_quiet() && !round.is_multiple_of(QUIET_EVERY) {
                continue;
            }
            watched.send_heartbeat(index);
            if let Some(finding) = watched.sample() {
                self.act(index, finding);
            }
        }
    }

    fn act(&mut self, index: usize, finding: StarvationFinding) {
        let Some(watched) = self.wards.get_mut(index) else {
            return;
        };
        watched.link.note_starving(finding.is_starving);
        let (home, cpus) = (watched.home, affinity::list_text(&self.process_cpus));
        let moved = match finding.step {
            AffinityStep::Stay => Ok(()),
            AffinityStep::Widen => watched.confine(&self.process_cpus),
            AffinityStep::Narrow => watched.confine(&[home]),
        };
        match (finding.step, moved) {
            (_, Err(cause)) => {
                log::verbose!(1, "cannot change the CPUs of shard {index}: {cause}");
            }
            (AffinityStep::Widen, Ok(())) => {
                log::verbose!(1, "shard {index} may run on CPUs {cpus}")
            }
            (AffinityStep::Narrow, Ok(())) => {
                log::verbose!(1, "shard {index} runs on CPU {home} again")
            }
            (AffinityStep::Stay, Ok(())) => {}
        }
        if finding.is_starving && !self.has_told {
            self.has_told = true;
            self.warn(index, home, &cpus, finding);
        }
    }

    /// Says once what is the matter and what to do about it.
    fn warn(&self, index: usize, home: usize, cpus: &str, finding: StarvationFinding) {
        let (waited_ms, elapsed_ms) = (
            finding.waited_ns / 1_000_000,
            finding.elapsed_ns / 1_000_000,
        );
        let others = "other processes or the models of this server";
        let what = match self.affinity {
            ShardAffinity::Auto if self.process_cpus.len() > 1 => format!(
                "for CPU {home}, which {others} keep busy. It may run on CPUs {cpus} until that is \
                 over"
            ),
            ShardAffinity::Auto | ShardAffinity::Pinned => {
                format!("for CPU {home}, which {others} keep busy, and it may not run elsewhere")
            }
            ShardAffinity::Set => format!("for one of the CPUs {cpus}, which {others} keep busy"),
        };
        log::warning!(
            "requests are delayed: network thread {index} waited {waited_ms} of {elapsed_ms} ms \
             {what}. New connections go to other network threads first. Give the server CPUs that \
             nobody else uses (a cpuset, taskset, systemd's AllowedCPUs=), or start fewer network \
             threads (--shards); where CPUs have to be shared, --shard-affinity=set serves best. \
             This is said once"
        );
    }
}

impl WatchedShard {
    fn new(link: Arc<ShardHandle>, home: usize, options: &FrontendOptions) -> WatchedShard {
        WatchedShard {
            link,
            home,
            missed_count: 0,
            starvation: StarvationPolicy::new(options.shard_affinity, options.shard_calm),
            figures: SchedStat::Unknown,
        }
    }

    fn send_heartbeat(&mut self, index: usize) {
        if self.link.send_heartbeat() {
            if self.missed_count >= PATIENCE {
                log::warning!(
                    "shard {index} turns again after {} missed heartbeats",
                    self.missed_count
                );
            }
            self.missed_count = 0;
            return;
        }
        self.missed_count += 1;
        if self.missed_count == PATIENCE {
            log::error!(
                "shard {index} does not turn; it had {} requests in flight and has {} connections",
                self.link.in_flight_count(),
                self.link.connection_count()
            );
        }
    }

    /// How long the shard waited since the last look; none if that is not to be known.
    fn sample(&mut self) -> Option<StarvationFinding> {
        if let (SchedStat::Unknown, Some(thread_id)) = (&self.figures, self.link.thread_id()) {
            let path = format!("/proc/self/task/{thread_id}/schedstat");
            self.figures = match File::open(&path) {
                Ok(file) => SchedStat::Open(file),
                Err(cause) => {
                    log::info!(
                        "the system does not say how long threads wait for their CPUs \
                         ({path}: {cause}); where others use the server's CPUs, \
                         give --shard-affinity=set"
                    );
                    SchedStat::None
                }
            };
        }
        let SchedStat::Open(file) = &self.figures else {
            return None;
        };
        let mut text = [0; SCHEDSTAT_BYTES];
        let Ok(length) = file.read_at(&mut text, 0) else {
            // The thread is gone, and its number may be another's soon.
            self.figures = SchedStat::None;
            return None;
        };
        let text = std::str::from_utf8(text.get(..length)?).ok()?;
        let sample = ThreadSample::parse(clock::monotonic_ns(), text)?;
        self.link.long_turns().set_cpu_wait(sample.waited_ns);
        self.starvation.observe(sample, self.missed_count > 0)
    }

    fn confine(&self, cpus: &[usize]) -> std::io::Result<()> {
        match self.link.thread_id() {
            Some(thread_id) => affinity::confine_thread(thread_id, cpus),
            None => Ok(()),
        }
    }
}
