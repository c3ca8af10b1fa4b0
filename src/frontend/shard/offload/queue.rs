//! Weighted fair queueing: the order in which one thread serves jobs of several owners.
//!
//! Each job has a cost in bytes. The queue keeps a virtual time, which advances by the cost of each
//! job that was executed, divided by the number of owners that wait. A job starts at the later of
//! the virtual time and the end of its owner's previous job, ends its cost later, and the job with
//! the earliest end is taken next. So each owner that waits gets the same number of bytes, however
//! many jobs it has and however large they are, and a small job is taken before the large ones that
//! wait. A new owner starts at the present virtual time: a stream of new owners delays a large job,
//! but only until they have been given as many bytes as it needs. Jobs of one owner stay in order.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Where a job is in the queue: its virtual end, and its number among all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VirtualTime(u64, u64);

/// Jobs of type `T` from owners of type `K`. Memory: the jobs that wait, and one entry per owner
/// that has had more than its share.
#[derive(Debug)]
pub(crate) struct FairQueue<K, T> {
    jobs: BTreeMap<VirtualTime, QueuedJob<K, T>>,
    owners: HashMap<K, OwnerAccount>,
    waiting_owner_count: usize,
    /// In bytes per owner.
    virtual_time: u64,
    /// Of the job that was taken last, whose share is not in the virtual time yet: owners that come
    /// while it is executed are its contemporaries.
    taken_bytes: u64,
    pushed_count: u64,
}

#[derive(Debug)]
struct QueuedJob<K, T> {
    owner: K,
    cost_bytes: u64,
    work: T,
}

#[derive(Debug, Default)]
struct OwnerAccount {
    /// Of its last job.
    virtual_end: u64,
    job_count: usize,
}

/// Owners without jobs are forgotten when there are more entries than this and twice the jobs that
/// wait, so that each is looked at a constant number of times.
const ACCOUNTS_KEPT: usize = 64;

impl<K: Copy + Eq + Hash, T> FairQueue<K, T> {
    pub(crate) fn new() -> FairQueue<K, T> {
        FairQueue {
            jobs: BTreeMap::new(),
            owners: HashMap::new(),
            waiting_owner_count: 0,
            virtual_time: 0,
            taken_bytes: 0,
            pushed_count: 0,
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Adds a job that costs `cost_bytes`.
    pub(crate) fn push(&mut self, owner: K, cost_bytes: u64, work: T) -> VirtualTime {
        let account = self.owners.entry(owner).or_default();
        let start = account.virtual_end.max(self.virtual_time);
        account.virtual_end = start.saturating_add(cost_bytes);
        if account.job_count == 0 {
            self.waiting_owner_count += 1;
        }
        account.job_count += 1;
        let position = VirtualTime(account.virtual_end, self.pushed_count);
        self.pushed_count += 1;
        let job = QueuedJob {
            owner,
            cost_bytes,
            work,
        };
        self.jobs.insert(position, job);
        position
    }

    /// Takes the job whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let (_, job) = self.jobs.pop_first()?;
        let share = self.taken_bytes / self.waiting_owner_count.max(1) as u64;
        self.virtual_time = self.virtual_time.saturating_add(share);
        self.taken_bytes = job.cost_bytes;
        self.discount(job.owner);
        if self.owners.len() > ACCOUNTS_KEPT.max(2 * self.jobs.len()) {
            let now = self.virtual_time;
            self.owners
                .retain(|_, account| account.job_count > 0 || account.virtual_end > now);
        }
        Some(job.work)
    }

    /// Withdraws a job that waits; its owner does not get its bytes back. None if it was taken.
    pub(crate) fn remove(&mut self, position: VirtualTime) -> Option<T> {
        let job = self.jobs.remove(&position)?;
        self.discount(job.owner);
        Some(job.work)
    }

    /// Nothing waits and nothing is executed: the past does not count any more.
    pub(crate) fn forget(&mut self) {
        if self.jobs.is_empty() {
            self.owners.clear();
            self.virtual_time = 0;
            self.taken_bytes = 0;
        }
    }

    fn discount(&mut self, owner: K) {
        if let Some(account) = self.owners.get_mut(&owner) {
            account.job_count = account.job_count.saturating_sub(1);
            if account.job_count == 0 {
                self.waiting_owner_count = self.waiting_owner_count.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    /// A queue whose jobs are their owners' names.
    struct Bench(FairQueue<char, char>);

    impl Bench {
        fn new(jobs: &[(char, u64)]) -> Bench {
            let mut bench = Bench(FairQueue::new());
            bench.push(jobs);
            bench
        }

        fn push(&mut self, jobs: &[(char, u64)]) {
            for (owner, cost) in jobs {
                self.0.push(*owner, *cost, *owner);
            }
        }

        fn take(&mut self, count: usize) -> String {
            (0..count).filter_map(|_| self.0.pop()).collect()
        }
    }

    #[test]
    fn order_of_jobs_that_are_there() {
        let check = |jobs: &[(char, u64)], expected: &str| {
            assert_eq!(Bench::new(jobs).take(jobs.len()), expected, "{jobs:?}");
        };
        check(&[], "");
        check(&[('a', 5), ('a', 1), ('a', 9)], "aaa");
        // Equal costs: in turn, however many one of them has.
        check(&[('a', 1), ('a', 1), ('a', 1), ('b', 1), ('c', 1)], "abcaa");
        // A small job goes before large ones that came earlier.
        check(&[('a', 28 * MB), ('b', 28 * MB), ('c', 1)], "cab");
        // Equal bytes, not equal counts.
        check(&[('a', 4), ('b', 1), ('b', 1), ('b', 1), ('b', 1)], "bbbab");
        check(
            &[('a', u64::MAX), ('a', u64::MAX), ('b', u64::MAX), ('c', 0)],
            "caab",
        );
    }

    #[test]
    fn a_small_job_waits_for_one_large_job_at_most() {
        let mut bench = Bench::new(&[
            ('a', 28 * MB),
            ('b', 28 * MB),
            ('c', 28 * MB),
            ('d', 28 * MB),
        ]);
        assert_eq!(bench.take(1), "a", "it is executed");
        bench.push(&[('a', 28 * MB), ('e', 117 << 10)]);
        assert_eq!(bench.take(9), "ebcda");
    }

    #[test]
    fn one_at_a_time_counts_like_many_at_once() {
        // Each has one job at a time, as a client of HTTP has: in the long run each gets the same
        // bytes.
        let mut bench = Bench::new(&[('a', 10 * MB), ('b', MB)]);
        let (mut bytes_of_a, mut bytes_of_b) = (0_u64, 0_u64);
        for _ in 0..1_100 {
            match bench.take(1).as_str() {
                "a" => {
                    bytes_of_a += 10;
                    bench.push(&[('a', 10 * MB)]);
                }
                _ => {
                    bytes_of_b += 1;
                    bench.push(&[('b', MB)]);
                }
            }
        }
        assert!(
            bytes_of_a.abs_diff(bytes_of_b) <= 20,
            "{bytes_of_a} {bytes_of_b}"
        );
    }

    #[test]
    fn new_owners_do_not_starve_a_large_job() {
        let mut queue = FairQueue::new();
        queue.push(0, 28 * MB, 0);
        let taken = (1..1_000).find(|owner| {
            queue.push(*owner, MB, *owner);
            queue.pop() == Some(0)
        });
        // Two owners wait each time, so every small job moves virtual time by half a MiB: 28 for
        // the large job, 1 for the last small one.
        assert_eq!(taken, Some(56));
    }

    #[test]
    fn withdrawn_jobs_are_not_executed_and_nothing_is_kept() {
        let mut queue = FairQueue::new();
        let first = queue.push('a', 5, 'x');
        let second = queue.push('a', 1, 'y');
        assert_eq!(queue.remove(first), Some('x'));
        assert_eq!(queue.remove(first), None);
        assert_eq!(queue.pop(), Some('y'));
        assert_eq!(queue.remove(second), None);
        assert_eq!((queue.len(), queue.waiting_owner_count), (0, 0));
        queue.forget();
        assert!(queue.owners.is_empty());
    }

    #[test]
    fn accounts_of_owners_that_left_are_dropped() {
        let mut queue = FairQueue::new();
        for owner in 0..100_000_u32 {
            queue.push(owner, 1_000, ());
            assert_eq!(queue.pop(), Some(()));
            assert!(queue.owners.len() <= ACCOUNTS_KEPT + 1);
        }
    }
}
