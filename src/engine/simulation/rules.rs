//! Invariants, checked after every event and at the end.

use conch_scheduler::Scheduler;
use conch_sync::PollState;

use crate::simulation::RuleResult;
use crate::simulation::request::SimulatedOwned;
use crate::simulation::version::ReferenceModel;
use crate::simulation::world::Simulation;

impl Simulation {
    /// After every event.
    pub(super) fn check(&mut self) -> RuleResult {
        self.check_deliveries()?;
        self.limits.check()?;
        for index in 0..self.versions.len() {
            self.check_rest(index)?;
            self.check_streams(index)?;
        }
        Ok(())
    }

    /// Devices have what their cores know of, no more than may be, and somebody looks after it.
    fn check_streams(&self, index: usize) -> RuleResult {
        let version = &self.versions[index];
        for stream in version.cores.iter().flat_map(|core| &core.streams) {
            stream.check()?;
            if stream.is_forgotten(self.now_ns, version.setup.execution_us_max) {
                return Err("a batch that is done is not answered".into());
            }
        }
        Ok(())
    }

    /// Whoever may execute does: with an idle core and nobody about to look there is no batch to be
    /// had, and nobody's timeout has passed.
    fn check_rest(&mut self, index: usize) -> RuleResult {
        let version = &self.versions[index];
        if version.model.is_empty() || !version.is_quiet() {
            return Ok(());
        }
        if let (Scheduler::Sequence(sequence), ReferenceModel::Sequences(reference)) =
            (&version.scheduler, &version.model)
        {
            return reference.check_backlog(sequence, self.now_ns);
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

    /// A batch has no more rows than may be.
    pub(super) fn check_batch(&self, index: usize, batch: &[SimulatedOwned]) -> RuleResult {
        let version = &self.versions[index];
        let rows = batch.iter().map(|live| live.shared().facts.batch_count);
        let rows: u32 = rows.sum();
        let is_default = matches!(version.model, ReferenceModel::Line(_));
        if rows > version.setup.batch_size_max && !(is_default && batch.len() == 1) {
            return Err(format!("a batch of {rows} rows"));
        }
        Ok(())
    }

    pub(super) fn check_outlook(&self, index: usize, poll_state: PollState) -> RuleResult {
        let version = &self.versions[index];
        let is_wrong = match version.model.is_empty() {
            false => poll_state.is_empty,
            // Requests that were cancelled are left until somebody looks again.
            true => !poll_state.is_empty && !poll_state.is_ready,
        };
        if is_wrong {
            return Err(format!("{poll_state:?} of {:?}", version.model));
        }
        if poll_state.deadline_ns <= self.now_ns {
            return Err(format!("a deadline that has passed: {poll_state:?}"));
        }
        Ok(())
    }

    /// Responses reach the receiver before the last one, the last one once, and under
    /// preserve-ordering in the order of batching.
    fn check_deliveries(&mut self) -> RuleResult {
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

    pub(super) fn check_end(&mut self) -> RuleResult {
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
        self.limits.check_end()
    }
}
