//! A batcher without a model, for the micro-benches in `bench/`. Nothing else calls this.

use conch_config::ResolvedConfig;
use conch_sync::ClaimReason;

use crate::entry::{Entry, SchedulingParams};
use crate::output::SchedulerOutput;
use crate::scheduler::Scheduler;
use crate::sequence_batcher::SequenceContext;

#[derive(Clone, Debug)]
struct Waiting(SchedulingParams);

impl Entry for Waiting {
    type Owned = ();

    fn facts(&self) -> &SchedulingParams {
        &self.0
    }

    fn is_waiting(&self) -> bool {
        true
    }

    fn claim(&self, _: ClaimReason) -> Option<()> {
        Some(())
    }

    fn member(&self) -> Option<&SequenceContext> {
        None
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn is_same(&self, _: &Waiting) -> bool {
        false
    }
}

/// The scheduler of a configuration, with requests that nobody else claims.
#[derive(Debug)]
pub struct Batcher {
    scheduler: Scheduler<Waiting>,
    output: SchedulerOutput<()>,
}

impl Batcher {
    /// The batcher that `config` asks for; none for an ensemble.
    pub fn new(config: &ResolvedConfig) -> Option<Batcher> {
        Some(Batcher {
            scheduler: Scheduler::new(config, &[1], None)?,
            output: SchedulerOutput::default(),
        })
    }

    /// Adds a request of one inference.
    pub fn accept(&mut self, queued_ns: u64) {
        let waiting = Waiting(SchedulingParams {
            batch_count: 1,
            queued_ns,
            ..SchedulingParams::default()
        });
        self.scheduler.accept(waiting, queued_ns, &mut self.output);
    }

    /// Forms a batch if it is time for one; how many requests it has.
    pub fn form(&mut self, now_ns: u64) -> usize {
        self.output.batch.clear();
        self.scheduler.form(0, now_ns, &mut self.output);
        self.output.batch.len()
    }
}
