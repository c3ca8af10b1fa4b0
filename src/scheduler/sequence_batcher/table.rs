//! The sequences under way, those with a slot and those that wait for one.

use std::collections::{BTreeSet, HashMap, VecDeque};

use conch_sync::NEVER_NS;

use super::member::{SequenceKey, SequenceNumber, SlotId};

/// One sequence, from its start until nothing of it is to be given out any more.
#[derive(Debug)]
pub(super) struct ActiveSequence<T> {
    pub(super) key: SequenceKey,
    /// Its requests that wait, in order, and since when.
    pub(super) queue: VecDeque<(T, u64)>,
    /// None: in the backlog.
    pub(super) slot: Option<SlotId>,
    /// No more requests join it.
    pub(super) is_ending: bool,
    /// When it last got or gave something.
    pub(super) active_ns: u64,
    /// With a slot: when it is checked next, to see whether it is idle.
    pub(super) idle_check_ns: u64,
    /// In the backlog: when its requests are rejected; [`NEVER_NS`] if none has a timeout.
    expires_ns: u64,
}

/// The sequences of a batcher, by key and by number.
#[derive(Debug)]
pub(super) struct SequenceTable<T> {
    runs: HashMap<SequenceNumber, ActiveSequence<T>>,
    /// Those that take requests.
    open: HashMap<SequenceKey, SequenceNumber>,
    /// Those without a slot, oldest first; some may be gone.
    backlog: VecDeque<SequenceNumber>,
    backlog_count: usize,
    timeouts: BTreeSet<(u64, SequenceNumber)>,
    last: SequenceNumber,
    /// Names of sequences that take no more requests, since somebody wants to know.
    ended: Option<Vec<SequenceKey>>,
}

impl<T> Default for SequenceTable<T> {
    fn default() -> SequenceTable<T> {
        SequenceTable {
            runs: HashMap::new(),
            open: HashMap::new(),
            backlog: VecDeque::new(),
            backlog_count: 0,
            timeouts: BTreeSet::new(),
            last: 0,
            ended: None,
        }
    }
}

impl<T> SequenceTable<T> {
    /// The sequence of this name that takes requests.
    pub(super) fn find(&self, key: &SequenceKey) -> Option<SequenceNumber> {
        self.open.get(key).copied()
    }

    pub(super) fn get(&self, id: SequenceNumber) -> Option<&ActiveSequence<T>> {
        self.runs.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SequenceNumber) -> Option<&mut ActiveSequence<T>> {
        self.runs.get_mut(&id)
    }

    /// How many take requests.
    pub(super) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// How many hold a slot, with those that are ending.
    pub(super) fn slot_count(&self) -> usize {
        self.runs.len().saturating_sub(self.backlog_count)
    }

    pub(super) fn backlog_count(&self) -> usize {
        self.backlog_count
    }

    /// Requests of sequences without a slot. Looks at all.
    pub(super) fn backlog_request_count(&self) -> usize {
        let waiting = self.runs.values().filter(|run| run.slot.is_none());
        waiting.map(|run| run.queue.len()).sum()
    }

    /// Starts a sequence, in `slot` or in the backlog.
    pub(super) fn start(
        &mut self,
        key: &SequenceKey,
        slot: Option<SlotId>,
        now_ns: u64,
    ) -> SequenceNumber {
        self.last += 1;
        let run = ActiveSequence {
            key: key.clone(),
            queue: VecDeque::new(),
            slot,
            is_ending: false,
            active_ns: now_ns,
            idle_check_ns: NEVER_NS,
            expires_ns: NEVER_NS,
        };
        self.runs.insert(self.last, run);
        let open = self.open.insert(key.clone(), self.last);
        assert!(
            open.is_none(),
            "a sequence starts while one of its name is open"
        );
        if slot.is_none() {
            self.backlog.push_back(self.last);
            self.backlog_count += 1;
        }
        self.last
    }

    /// Lets no more requests join it: one of its name must start anew.
    pub(super) fn close(&mut self, id: SequenceNumber) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        run.is_ending = true;
        if self.open.get(&run.key) == Some(&id) {
            self.open.remove(&run.key);
            if let Some(ended) = &mut self.ended {
                ended.push(run.key.clone());
            }
        }
    }

    /// Starts to note which sequences end. The names of those that take requests.
    pub(super) fn track_ends(&mut self) -> Vec<SequenceKey> {
        self.ended.get_or_insert_default();
        self.open.keys().cloned().collect()
    }

    /// Moves the names of those that ended, and did not start anew since, to `ended`.
    pub(super) fn take_ends(&mut self, ended: &mut Vec<SequenceKey>) {
        if let Some(noted) = &mut self.ended {
            let open = &self.open;
            ended.extend(noted.drain(..).filter(|key| !open.contains_key(key)));
        }
    }

    /// A request of a backlogged sequence is to be rejected at `expires_ns`, and the others with
    /// it.
    pub(super) fn shorten_timeout(&mut self, id: SequenceNumber, expires_ns: u64) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if expires_ns < run.expires_ns {
            self.timeouts.remove(&(run.expires_ns, id));
            run.expires_ns = expires_ns;
            self.timeouts.insert((expires_ns, id));
        }
    }

    /// Removes a sequence.
    pub(super) fn remove(&mut self, id: SequenceNumber) -> Option<ActiveSequence<T>> {
        self.close(id);
        let run = self.runs.remove(&id)?;
        if run.slot.is_none() {
            self.backlog_count -= 1;
            self.timeouts.remove(&(run.expires_ns, id));
            // Its number is found in the backlog later; one that comes to nothing shall not grow
            // it.
            if self.backlog_count == 0 {
                self.backlog.clear();
            } else if self.backlog.len() > 2 * self.backlog_count + 64 {
                let runs = &self.runs;
                self.backlog
                    .retain(|id| runs.get(id).is_some_and(|run| run.slot.is_none()));
            }
        }
        Some(run)
    }

    /// The oldest of the backlog moves into `slot`.
    pub(super) fn promote(&mut self, slot: SlotId, now_ns: u64) -> Option<SequenceNumber> {
        while let Some(id) = self.backlog.pop_front() {
            if let Some(run) = self.runs.get_mut(&id) {
                assert!(run.slot.is_none(), "a sequence with a slot gets another");
                run.slot = Some(slot);
                run.active_ns = now_ns;
                self.backlog_count -= 1;
                self.timeouts.remove(&(run.expires_ns, id));
                return Some(id);
            }
        }
        None
    }

    /// A backlogged sequence whose timeout has passed.
    pub(super) fn expired(&self, now_ns: u64) -> Option<SequenceNumber> {
        let (expires_ns, id) = self.timeouts.first()?;
        (*expires_ns <= now_ns).then_some(*id)
    }

    pub(super) fn next_timeout_ns(&self) -> u64 {
        self.timeouts
            .first()
            .map_or(NEVER_NS, |(expires_ns, _)| *expires_ns)
    }
}
