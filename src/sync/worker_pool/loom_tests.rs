//! The pool in every interleaving of a few threads, as far as the bounds of each model go.

use std::collections::VecDeque;

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Untracked;

use loom::thread;

use super::*;
use crate::mpsc_queue::Node;

const DELAY_NS: u64 = 5;

/// Time that passes only while a thread waits for it. Not one of loom's atomics: no thread reads an
/// earlier time than another.
#[derive(Clone)]
struct Jumping(Arc<Untracked>);

impl Clock for Jumping {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn jump_to(&self, deadline_ns: u64) {
        self.0.fetch_max(deadline_ns, Ordering::Relaxed);
    }
}

type Item = Box<Node<()>>;

/// Batches of two, or of one when the oldest has waited `DELAY_NS`: the smallest scheduler with
/// ready work and a deadline.
#[derive(Default)]
struct Pairs {
    queue: VecDeque<Item>,
    oldest_ns: u64,
}

impl Pairs {
    fn drive(&mut self, arrivals: Drained<Item>, now_ns: u64) -> (Option<u64>, PollState) {
        for item in arrivals {
            if self.queue.is_empty() {
                self.oldest_ns = now_ns;
            }
            self.queue.push_back(item);
        }
        let size = match self.queue.len() {
            0 => 0,
            1 if now_ns < self.oldest_ns + DELAY_NS => 0,
            1 => 1,
            _ => 2,
        };
        self.queue.drain(..size);
        self.oldest_ns = now_ns;
        let is_empty = self.queue.is_empty();
        let deadline_ns = if is_empty {
            NEVER_NS
        } else {
            self.oldest_ns + DELAY_NS
        };
        (
            (size > 0).then_some(size as u64),
            PollState {
                is_ready: self.queue.len() >= 2,
                deadline_ns,
                is_empty,
            },
        )
    }
}

/// Two workers, one producer of `count` requests, one deadline. Ends when all requests were
/// executed and both workers returned; a lost wake-up leaves all threads parked, which loom
/// reports. With `is_dismissing` the first worker is dismissed after the first request, and the
/// other executes the rest. Only the requests and the dismissal unpark. The first worker's first
/// `limited_count` waits have a limit that is over before the scheduler's deadline.
///
/// One preemption is explored to the end; with two, which takes many minutes, for `SECONDS_MAX`,
/// unless the model is to fail.
fn live<const LOOKS_AGAIN: bool, const DISMISSAL_UNPARKS: bool>(
    count: u64,
    preemption_bound: usize,
    is_dismissing: bool,
    limited_count: u64,
) {
    const SECONDS_MAX: u64 = 20;
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemption_bound);
    if preemption_bound > 1 && LOOKS_AGAIN && DISMISSAL_UNPARKS {
        builder.max_duration = Some(std::time::Duration::from_secs(SECONDS_MAX));
    }
    builder.check(move || {
        let pool = Arc::new(
            WorkerPool::<Item, Pairs, LOOKS_AGAIN, DISMISSAL_UNPARKS>::new(Pairs::default(), 2),
        );
        let clock = Jumping(Arc::new(Untracked::new(1)));
        let executed = Arc::new(Untracked::new(0));
        let cores: Vec<_> = (0..2)
            .map(|core| {
                let (pool, clock, executed) =
                    (Arc::clone(&pool), clock.clone(), Arc::clone(&executed));
                thread::spawn(move || {
                    let mut worker = pool.worker(core, Spin::OFF);
                    let mut limited_left = if core == 0 { limited_count } else { 0 };
                    loop {
                        let limit_ns = match limited_left {
                            0 => NEVER_NS,
                            _ => clock.now_ns() + DELAY_NS / 2,
                        };
                        limited_left = limited_left.saturating_sub(1);
                        let turn =
                            match pool.next_until(&mut worker, &clock, limit_ns, Pairs::drive) {
                                LimitedWait::Batch(turn) => turn,
                                LimitedWait::TimedOut => continue,
                                LimitedWait::Over => break,
                            };
                        // The last request closes the pool: if the producer did, its unpark would
                        // hide a lost one.
                        if executed.fetch_add(turn.batch, Ordering::Relaxed) + turn.batch == count {
                            pool.close();
                        }
                    }
                })
            })
            .collect();
        for index in 0..count {
            assert!(pool.submit(Node::new(())).is_ok());
            if is_dismissing && index == 0 {
                pool.dismiss(0);
            }
        }
        for core in cores {
            core.join().unwrap();
        }
        assert_eq!(executed.load(Ordering::Relaxed), count);
    });
}

type Numbered = Box<Node<usize>>;

/// Work for one worker alone, by worker.
#[derive(Default)]
struct Named([VecDeque<()>; 2]);

impl Named {
    /// Queues `arrivals`, and notifies the workers that they are for if `is_notifying`.
    fn accept(
        &mut self,
        arrivals: Drained<Numbered>,
        pool: &WorkerPool<Numbered, Named>,
        is_notifying: bool,
    ) {
        for item in arrivals {
            let target = (*item).into_value();
            self.0[target].push_back(());
            if is_notifying {
                pool.notify_locked(target);
            }
        }
    }
}

/// Two workers whose work is for one of them each, `targets` in order, from one producer; after
/// `targets` items another thread notifies worker 1 of work beside the inbox.
///
/// Without `is_notifying` no worker is notified of what arrives.
fn named(targets: &'static [usize], is_notified_from_outside: bool, is_notifying: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(1);
    builder.max_duration = Some(std::time::Duration::from_secs(40));
    builder.check(move || {
        let pool = Arc::new(WorkerPool::<Numbered, Named>::with_addressed_workers(
            Named::default(),
            2,
        ));
        let clock = Jumping(Arc::new(Untracked::new(1)));
        let executed = Arc::new(Untracked::new(0));
        let beside = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let count = targets.len() as u64 + u64::from(is_notified_from_outside);
        let cores: Vec<_> = (0..2)
            .map(|core| {
                let (pool, clock, executed, beside) = (
                    Arc::clone(&pool),
                    clock.clone(),
                    Arc::clone(&executed),
                    Arc::clone(&beside),
                );
                thread::spawn(move || {
                    let mut worker = pool.worker(core, Spin::OFF);
                    let drive = |named: &mut Named, arrivals: Drained<Numbered>, _: u64| {
                        named.accept(arrivals, &pool, is_notifying);
                        if core == 1 && beside.load(Ordering::Relaxed) == 1 {
                            beside.store(0, Ordering::Relaxed);
                            named.0[1].push_back(());
                        }
                        let batch = named.0[core].pop_front();
                        if !named.0[core].is_empty() {
                            pool.notify_locked(core);
                        }
                        let poll_state = PollState {
                            is_ready: false,
                            deadline_ns: NEVER_NS,
                            is_empty: named.0.iter().all(VecDeque::is_empty),
                        };
                        (batch, poll_state)
                    };
                    while pool.next(&mut worker, &clock, drive).is_some() {
                        if executed.fetch_add(1, Ordering::Relaxed) + 1 == count {
                            pool.close();
                        }
                    }
                })
            })
            .collect();
        for target in targets {
            assert!(pool.submit(Node::new(*target)).is_ok());
        }
        if is_notified_from_outside {
            beside.store(1, Ordering::Relaxed);
            pool.notify(1);
        }
        for core in cores {
            core.join().unwrap();
        }
        assert_eq!(executed.load(Ordering::Relaxed), count);
    });
}

#[test]
fn work_reaches_the_worker_that_it_is_for() {
    named(&[1], false, true);
    named(&[1, 0], false, true);
}

#[test]
fn a_notification_from_outside_reaches_its_worker() {
    named(&[], true, true);
    named(&[1], true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_notification_work_for_another_is_lost() {
    named(&[1], false, false);
}

/// What a producer does that pushed without a wake-up.
#[derive(Clone, Copy)]
enum PushFollowUp {
    /// It leaves it to a worker.
    WakeOne,
    Drive,
    /// It drives as long as work is left, twice at most.
    DriveOn,
}

/// One worker; one producer that submits, and one that pushes and sees to it itself.
fn pushed(follow_up: PushFollowUp) {
    const COUNT: u64 = 2;
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let pool = Arc::new(WorkerPool::<Item, Pairs>::new(Pairs::default(), 1));
        let clock = Jumping(Arc::new(Untracked::new(1)));
        let executed = Arc::new(Untracked::new(0));
        let count = {
            let (pool, executed) = (Arc::clone(&pool), Arc::clone(&executed));
            move |batch| {
                if executed.fetch_add(batch, Ordering::Relaxed) + batch == COUNT {
                    pool.close();
                }
            }
        };
        let core = thread::spawn({
            let (pool, clock, count) = (Arc::clone(&pool), clock.clone(), count.clone());
            move || {
                let mut worker = pool.worker(0, Spin::OFF);
                while let Some(turn) = pool.next(&mut worker, &clock, Pairs::drive) {
                    count(turn.batch);
                }
            }
        });
        let other = thread::spawn({
            let pool = Arc::clone(&pool);
            move || drop(pool.submit(Node::new(())))
        });
        let is_first = pool.push(Node::new(())).is_ok_and(|is_first| is_first);
        match follow_up {
            // If the other was first, it wakes the worker.
            PushFollowUp::WakeOne if is_first => pool.wake_one(),
            PushFollowUp::WakeOne => {}
            PushFollowUp::Drive => {
                if let Some((Some(batch), _)) = pool.try_drive(&clock, Pairs::drive) {
                    count(batch);
                }
            }
            PushFollowUp::DriveOn => {
                let mut is_left = false;
                for _ in 0..2 {
                    // What another thread has seen to is that thread's.
                    is_left = pool.has_work();
                    if !is_left {
                        break;
                    }
                    let Some(outcome) = pool.try_drive_unwoken(&clock, Pairs::drive) else {
                        // Who has the lock looks again.
                        is_left = false;
                        break;
                    };
                    outcome.result.map(&count);
                    is_left = outcome.is_left;
                    if !is_left || !pool.has_work() {
                        break;
                    }
                }
                if is_left {
                    pool.wake_one();
                }
            }
        }
        other.join().unwrap();
        core.join().unwrap();
        assert_eq!(executed.load(Ordering::Relaxed), COUNT);
    });
}

#[test]
fn what_a_producer_drives_itself_is_executed() {
    pushed(PushFollowUp::Drive);
    pushed(PushFollowUp::DriveOn);
}

#[test]
fn what_a_producer_leaves_to_workers_is_executed() {
    pushed(PushFollowUp::WakeOne);
}

/// One thread with the workers of two pools, each of which gets one request from a thread of its
/// own. With `is_moved` the thread leaves its workers to another, in the middle of a wait.
fn shared(is_moved: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(1);
    builder.max_duration = Some(std::time::Duration::from_secs(40));
    builder.check(move || {
        let pools: [_; 2] =
            std::array::from_fn(|_| Arc::new(WorkerPool::<Item, Pairs>::new(Pairs::default(), 1)));
        let clock = Jumping(Arc::new(Untracked::new(1)));
        let core = thread::spawn({
            let (pools, clock) = (pools.clone(), clock.clone());
            move || {
                let workers = pools.each_ref().map(|pool| pool.worker(0, Spin::OFF));
                match is_moved {
                    true => Some(leave_listed(pools, workers, clock)),
                    false => {
                        serve_both(&pools, workers, &clock, [1; 2]);
                        None
                    }
                }
            }
        });
        let others = pools.clone().map(|pool| {
            thread::spawn(move || {
                // Nothing else unparks.
                assert!(pool.submit(Node::new(())).is_ok());
            })
        });
        if let Some(successor) = core.join().unwrap() {
            successor.join().unwrap();
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

type TwoPools = [Arc<WorkerPool<Item, Pairs>>; 2];

/// Lists both workers, never parks, and leaves them to another thread. Loom's threads are not to be
/// unparked while they wait for another, so the caller waits for it.
fn leave_listed(
    pools: TwoPools,
    mut workers: [Worker; 2],
    clock: Jumping,
) -> thread::JoinHandle<()> {
    let (mut listed, mut left) = ([None; 2], [1; 2]);
    for (index, (pool, worker)) in pools.iter().zip(&mut workers).enumerate() {
        match pool.next_or_list(worker, &clock, Pairs::drive) {
            SharedWait::Listed(until_ns) => listed[index] = Some(until_ns),
            SharedWait::Batch(next) => left[index] -= next.batch,
            SharedWait::Over => panic!("over with a request left"),
        }
    }
    thread::spawn(move || {
        for ((pool, worker), until_ns) in pools.iter().zip(&mut workers).zip(listed) {
            pool.move_here(worker);
            if let Some(until_ns) = until_ns {
                pool.end_wait(worker, until_ns);
            }
        }
        serve_both(&pools, workers, &clock, left);
    })
}

/// Until both pools have had their request executed.
fn serve_both(pools: &TwoPools, mut workers: [Worker; 2], clock: &Jumping, mut left: [u64; 2]) {
    while left != [0; 2] {
        let mut listed = [None; 2];
        let mut is_due = false;
        for (index, (pool, worker)) in pools.iter().zip(workers.iter_mut()).enumerate() {
            if left[index] == 0 {
                continue;
            }
            match pool.next_or_list(worker, clock, Pairs::drive) {
                SharedWait::Batch(next) => {
                    left[index] -= next.batch;
                    is_due = true;
                }
                SharedWait::Listed(until_ns) => listed[index] = Some(until_ns),
                SharedWait::Over => panic!("over with a request left"),
            }
        }
        let until_ns = listed.iter().flatten().copied().min();
        if let (false, Some(until_ns)) = (is_due, until_ns) {
            crate::park_current_until(until_ns, clock, &mut Spin::up_to(0), || {
                let mut waiting = pools.iter().zip(left).filter(|(_, left)| *left > 0);
                waiting.any(|(pool, _)| pool.is_unparked(0))
            });
        }
        for ((pool, worker), listed) in pools.iter().zip(workers.iter_mut()).zip(listed) {
            if let Some(until_ns) = listed {
                pool.end_wait(worker, until_ns);
            }
        }
    }
}

#[test]
fn a_thread_that_waits_for_two_pools_misses_nothing() {
    shared(false);
}

#[test]
fn a_worker_that_moves_to_another_thread_misses_nothing() {
    shared(true);
}

#[test]
fn one_request_is_executed_at_its_deadline() {
    live::<true, true>(1, 1, false, 0);
}

#[test]
fn one_request_with_more_preemptions() {
    live::<true, true>(1, 2, false, 0);
}

#[test]
fn two_requests_are_executed() {
    live::<true, true>(2, 1, false, 0);
}

#[test]
fn two_requests_with_more_preemptions() {
    live::<true, true>(2, 2, false, 0);
}

#[test]
fn a_worker_that_looks_after_other_things_loses_nothing() {
    live::<true, true>(1, 1, false, 1);
    live::<true, true>(2, 1, false, 1);
    live::<true, true>(1, 1, true, 1);
}

#[test]
fn a_dismissed_worker_loses_nothing() {
    live::<true, true>(1, 1, true, 0);
    live::<true, true>(2, 1, true, 0);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_last_unpark_a_request_is_lost() {
    live::<true, false>(1, 2, true, 0);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_second_look_a_request_is_lost() {
    live::<false, true>(1, 1, false, 0);
}
