//! The requests of a shard that wait for room, in a fair order.
//!
//! Requests that wait for the same limit form a group; those of different groups do not hold each
//! other up. Within a group connections take turns: the second waiting request of a connection
//! comes after the first of all others, and so on. Between connections of one request each, which
//! HTTP/1 has, that is the order of arrival.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::task::Waker;

use conch_engine::{LimitOwner, ModelVersion};

use super::rate::AdmissionRate;

/// Groups that look for room at a time: clients may say that they are thousands of tenants, and all
/// of these would look after every reply.
const GROUPS_PER_LOOK: usize = 64;

/// What a group of requests waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) struct LimitKey {
    owner: LimitOwner,
    /// The address of the version where its limit is meant; who waits keeps it alive.
    model: usize,
}

impl LimitKey {
    pub(in crate::shard) const SERVER: LimitKey = LimitKey {
        owner: LimitOwner::Server,
        model: 0,
    };

    pub(in crate::shard) fn new(owner: LimitOwner, model: &Arc<ModelVersion>) -> LimitKey {
        let model = match owner {
            LimitOwner::Model => Arc::as_ptr(model).addr(),
            LimitOwner::Server | LimitOwner::Tenant(_) => 0,
        };
        LimitKey { owner, model }
    }
}

/// The position of a request in the order of all that wait. It keeps it when it waits for another
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) struct QueuePosition {
    round: u64,
    number: u64,
}

struct WaitingRequest {
    waker: Waker,
    since_ns: u64,
}

struct WaitingGroup {
    waiting: BTreeMap<QueuePosition, WaitingRequest>,
    rate: AdmissionRate,
}

/// What waits of one connection.
struct ConnectionBacklog {
    count: usize,
    last_round: u64,
}

pub(in crate::shard) struct AdmissionQueue {
    groups: BTreeMap<LimitKey, WaitingGroup>,
    /// Of connections that wait.
    backlogs: BTreeMap<u64, ConnectionBacklog>,
    /// The last group whose first were told to look.
    last_told: LimitKey,
    /// The round of whoever was let in last.
    round: u64,
    next_number: u64,
    count: usize,
    count_max: usize,
}

impl AdmissionQueue {
    pub(in crate::shard) fn new(count_max: usize) -> AdmissionQueue {
        AdmissionQueue {
            groups: BTreeMap::new(),
            backlogs: BTreeMap::new(),
            last_told: LimitKey::SERVER,
            round: 0,
            next_number: 0,
            count: 0,
            count_max,
        }
    }

    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether anybody waits for `key`.
    pub(in crate::shard) fn has(&self, key: LimitKey) -> bool {
        self.groups.contains_key(&key)
    }

    /// The position of a request of `connection`; none if too many wait, or if by the rate of `key`
    /// its turn comes after the `patience_ns` of a client with a deadline. Others wait all the
    /// same: refused at once, they would come again at once.
    pub(in crate::shard) fn join(
        &mut self,
        connection: u64,
        key: LimitKey,
        patience_ns: Option<u64>,
    ) -> Option<QueuePosition> {
        if self.count >= self.count_max {
            return None;
        }
        let own_count = self.backlogs.get(&connection).map_or(0, |own| own.count);
        if let (Some(group), Some(patience_ns)) = (self.groups.get(&key), patience_ns) {
            // Each connection has as many turns before as this one has requests that wait.
            let turns = (own_count + 1).saturating_mul(self.backlogs.len());
            let ahead_count = group.waiting.len().min(turns);
            if group.rate.expect_ns(ahead_count) > Some(patience_ns) {
                return None;
            }
        }
        let round = match self.backlogs.get(&connection) {
            Some(own) => self.round.max(own.last_round + 1),
            None => self.round,
        };
        let backlog = ConnectionBacklog {
            count: own_count + 1,
            last_round: round,
        };
        self.backlogs.insert(connection, backlog);
        self.count += 1;
        self.next_number += 1;
        Some(QueuePosition {
            round,
            number: self.next_number,
        })
    }

    /// Has the request at `position` wait for `key` since `since_ns`. Returns the waker that it had
    /// there before.
    pub(in crate::shard) fn wait(
        &mut self,
        key: LimitKey,
        position: QueuePosition,
        waker: &Waker,
        since_ns: u64,
    ) -> Option<Waker> {
        let group = self.groups.entry(key).or_insert_with(|| WaitingGroup {
            waiting: BTreeMap::new(),
            rate: AdmissionRate::begin(since_ns),
        });
        if let Some(waiting) = group.waiting.get_mut(&position) {
            if waiting.waker.will_wake(waker) {
                return None;
            }
            return Some(std::mem::replace(&mut waiting.waker, waker.clone()));
        }
        let waker = waker.clone();
        group
            .waiting
            .insert(position, WaitingRequest { waker, since_ns });
        None
    }

    /// Whether nobody who waits for `key` is before `position`.
    pub(in crate::shard) fn is_first(&self, key: LimitKey, position: QueuePosition) -> bool {
        let first = self
            .groups
            .get(&key)
            .and_then(|group| group.waiting.keys().next());
        first.is_none_or(|first| *first >= position)
    }

    /// Since when the first waits for `key`; none: nobody does.
    pub(in crate::shard) fn waits_since(&self, key: LimitKey) -> Option<u64> {
        let group = self.groups.get(&key)?;
        Some(group.waiting.values().next()?.since_ns)
    }

    /// How much longer than alone the first of a group is to wait between looks by its timer, so
    /// that all groups together do not look all the time.
    pub(in crate::shard) fn look_factor(&self) -> u64 {
        1 + (self.groups.len() / GROUPS_PER_LOOK) as u64
    }

    /// The first `count` of groups, in their order: of the one that waits for room in the server,
    /// and of so many others in turn.
    pub(in crate::shard) fn firsts(&mut self, count: usize) -> Vec<Waker> {
        let others = self.groups.range((Excluded(self.last_told), Unbounded));
        let others = others.chain(self.groups.range(..=self.last_told));
        let others = others.filter(|(key, _)| **key != LimitKey::SERVER);
        let mut last_told = self.last_told;
        let mut firsts = Vec::new();
        let server = self.groups.get_key_value(&LimitKey::SERVER);
        for (key, group) in server.into_iter().chain(others.take(GROUPS_PER_LOOK)) {
            let told = group.waiting.values().take(count);
            firsts.extend(told.map(|first| first.waker.clone()));
            last_told = *key;
        }
        self.last_told = last_told;
        firsts
    }

    /// Takes a request out of those that wait for `key`. Returns its waker, and if it was the first
    /// that of the next.
    pub(in crate::shard) fn take_out(
        &mut self,
        key: LimitKey,
        position: QueuePosition,
    ) -> (Option<Waker>, Option<Waker>) {
        let was_first = self.is_first(key, position);
        let Some(group) = self.groups.get_mut(&key) else {
            return (None, None);
        };
        let own = group.waiting.remove(&position).map(|waiting| waiting.waker);
        let next = group.waiting.values().next();
        let next = next.filter(|_| was_first).map(|next| next.waker.clone());
        if group.waiting.is_empty() {
            self.groups.remove(&key);
        }
        (own, next)
    }

    /// A request that waited for `key` is about to be let in.
    pub(in crate::shard) fn note_let_in(
        &mut self,
        key: LimitKey,
        position: QueuePosition,
        now_ns: u64,
    ) {
        self.round = self.round.max(position.round);
        if let Some(group) = self.groups.get_mut(&key) {
            group.rate.note(now_ns);
        }
    }

    /// A request of `connection` waits no more.
    pub(in crate::shard) fn leave(&mut self, connection: u64) {
        self.count -= 1;
        if let Some(own) = self.backlogs.get_mut(&connection) {
            own.count -= 1;
            if own.count == 0 {
                self.backlogs.remove(&connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::WakeCount;

    const MODEL: LimitKey = LimitKey {
        owner: LimitOwner::Model,
        model: 1,
    };

    /// Joins and waits; none if it is refused.
    fn add(queue: &mut AdmissionQueue, connection: u64, key: LimitKey) -> Option<QueuePosition> {
        let position = queue.join(connection, key, None)?;
        assert!(queue.wait(key, position, Waker::noop(), 0).is_none());
        Some(position)
    }

    /// Lets the first in, among those at `positions`. Returns its index.
    fn let_in(
        queue: &mut AdmissionQueue,
        key: LimitKey,
        positions: &[(u64, QueuePosition)],
    ) -> usize {
        let waits = |position: QueuePosition| {
            queue
                .groups
                .get(&key)
                .is_some_and(|group| group.waiting.contains_key(&position))
        };
        let index = positions
            .iter()
            .position(|(_, position)| waits(*position) && queue.is_first(key, *position))
            .expect("somebody is first");
        let (connection, position) = positions[index];
        queue.note_let_in(key, position, 0);
        queue.take_out(key, position);
        queue.leave(connection);
        index
    }

    #[test]
    fn connections_take_turns() {
        let mut queue = AdmissionQueue::new(100);
        // The connections of requests in their order of arrival, and the order of their turns.
        for (connections, expected) in [
            (&[1, 2, 3][..], &[0, 1, 2][..]),
            (&[1, 1, 1, 2, 3, 2], &[0, 3, 4, 1, 5, 2]),
            (&[1, 1, 2, 2, 1, 3], &[0, 2, 5, 1, 3, 4]),
        ] {
            let positions: Vec<_> = connections
                .iter()
                .map(|number| (*number, add(&mut queue, *number, MODEL).unwrap()))
                .collect();
            let order: Vec<_> = positions
                .iter()
                .map(|_| let_in(&mut queue, MODEL, &positions))
                .collect();
            assert_eq!(order, expected, "{connections:?}");
            assert!(queue.is_empty() && queue.backlogs.is_empty() && queue.count == 0);
        }
    }

    #[test]
    fn a_latecomer_is_behind_no_backlog_and_before_nobody_who_waits() {
        let mut queue = AdmissionQueue::new(100);
        let mut positions: Vec<_> = (0..3)
            .map(|_| (1, add(&mut queue, 1, MODEL).unwrap()))
            .collect();
        assert_eq!(let_in(&mut queue, MODEL, &positions), 0);
        assert_eq!(let_in(&mut queue, MODEL, &positions), 1);
        // Another connection comes, and this one again: its turn is after the other's.
        positions.push((2, add(&mut queue, 2, MODEL).unwrap()));
        positions.push((1, add(&mut queue, 1, MODEL).unwrap()));
        let order: Vec<_> = (0..3)
            .map(|_| let_in(&mut queue, MODEL, &positions))
            .collect();
        assert_eq!(order, [3, 2, 4]);
    }

    #[test]
    fn groups_do_not_hold_each_other_up() {
        let mut queue = AdmissionQueue::new(100);
        let wakers: [_; 3] = std::array::from_fn(|_| Arc::new(WakeCount::default()));
        let keys = [LimitKey::SERVER, MODEL, MODEL];
        let positions: Vec<_> = std::iter::zip(keys, &wakers)
            .map(|(key, count)| {
                let position = queue.join(1, key, None).unwrap();
                queue.wait(key, position, &Waker::from(Arc::clone(count)), 7);
                position
            })
            .collect();
        let counts = || wakers.each_ref().map(|count| count.get());
        queue.firsts(1).into_iter().for_each(Waker::wake);
        assert_eq!(counts(), [1, 1, 0]);
        assert_eq!(queue.firsts(2).len(), 3);
        assert_eq!(queue.waits_since(LimitKey::SERVER), Some(7));
        // The next is told when the first goes, for whatever reason; not when another does.
        let (_, next) = queue.take_out(LimitKey::SERVER, positions[0]);
        assert!(next.is_none() && !queue.has(LimitKey::SERVER));
        let (own, next) = queue.take_out(MODEL, positions[1]);
        assert!(own.is_some());
        next.unwrap().wake();
        assert_eq!(counts(), [1, 1, 1]);
        // It waits for another limit, in its old position: before those of its connection that came
        // since.
        let late = add(&mut queue, 1, LimitKey::SERVER).unwrap();
        assert!(queue.is_first(LimitKey::SERVER, late));
        queue.wait(LimitKey::SERVER, positions[1], Waker::noop(), 7);
        assert!(!queue.is_first(LimitKey::SERVER, late));
        assert!(queue.is_first(LimitKey::SERVER, positions[1]));
        queue.take_out(MODEL, positions[2]);
        let (_, next) = queue.take_out(MODEL, positions[2]);
        assert!(next.is_none(), "it was taken out already");
    }

    #[test]
    fn so_many_groups_look_at_a_time_and_all_in_turn() {
        let mut queue = AdmissionQueue::new(1000);
        let key_of = |number| match number {
            0 => LimitKey::SERVER,
            _ => LimitKey {
                owner: LimitOwner::Model,
                model: number,
            },
        };
        let counts: Vec<_> = (0..150)
            .map(|number| {
                let count = Arc::new(WakeCount::default());
                let position = queue.join(1, key_of(number), None).unwrap();
                queue.wait(
                    key_of(number),
                    position,
                    &Waker::from(Arc::clone(&count)),
                    0,
                );
                count
            })
            .collect();
        for _ in 0..149 {
            let firsts = queue.firsts(1);
            assert_eq!(firsts.len(), 1 + GROUPS_PER_LOOK);
            firsts.into_iter().for_each(Waker::wake);
        }
        assert_eq!(counts[0].get(), 149, "the line of the server");
        for count in &counts[1..] {
            assert_eq!(count.get(), GROUPS_PER_LOOK);
        }
        assert_eq!(queue.look_factor(), 3);
    }

    #[test]
    fn too_many_and_those_in_vain_do_not_wait() {
        let mut queue = AdmissionQueue::new(20);
        let positions: Vec<_> = (0..20)
            .map(|number| (number, add(&mut queue, number, MODEL).unwrap()))
            .collect();
        assert!(add(&mut queue, 20, MODEL).is_none(), "the bound");
        // One is let in every 10 ms.
        for number in 1..=8 {
            let (connection, position) = positions[number as usize - 1];
            queue.note_let_in(MODEL, position, number * 10_000_000);
            queue.take_out(MODEL, position);
            queue.leave(connection);
        }
        let mut joins =
            |connection, key, patience_ns| queue.join(connection, key, patience_ns).is_some();
        assert!(!joins(21, MODEL, Some(119_000_000)), "12 are before it");
        assert!(
            joins(21, LimitKey::SERVER, Some(0)),
            "nobody waits for that"
        );
        assert!(joins(22, MODEL, Some(120_000_000)));
        assert!(joins(23, MODEL, None), "it has no deadline");
        assert_eq!(queue.count, 15);
    }
}
