//! The pool on real threads.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use super::*;
use crate::Claim;

struct Real(Instant);

impl Clock for Real {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).expect("a test is short")
    }
}

type Item = Arc<Claim<(), ()>>;

type Singles = WorkerPool<Item, std::collections::VecDeque<Item>>;

/// Forms batches of one.
fn single(
    queue: &mut std::collections::VecDeque<Item>,
    arrivals: Drained<Item>,
    _: u64,
) -> (Option<Item>, PollState) {
    queue.extend(arrivals);
    let batch = queue.pop_front();
    let is_empty = queue.is_empty();
    (
        batch,
        PollState {
            is_ready: !is_empty,
            deadline_ns: NEVER_NS,
            is_empty,
        },
    )
}

/// A thread that has the only worker of each of two pools: executes `count` items.
fn serve_two(pools: &[Singles; 2], count: usize) {
    let clock = Real(Instant::now());
    let mut workers = pools.each_ref().map(|pool| pool.worker(0, Spin::OFF));
    let mut left = count;
    while left > 0 {
        let mut listed = [None; 2];
        let before = left;
        for ((pool, worker), listed) in pools.iter().zip(&mut workers).zip(&mut listed) {
            match pool.next_or_list(worker, &clock, single) {
                SharedWait::Batch(_) => left -= 1,
                SharedWait::Listed(until_ns) => *listed = Some(until_ns),
                SharedWait::Over => panic!("nobody closes it"),
            }
        }
        if left == before {
            crate::park_current_until(NEVER_NS, &clock, &mut Spin::up_to(0), || {
                pools.iter().any(|pool| pool.is_unparked(0))
            });
        }
        for ((pool, worker), listed) in pools.iter().zip(&mut workers).zip(listed) {
            if let Some(until_ns) = listed {
                pool.end_wait(worker, until_ns);
            }
        }
    }
}

#[test]
fn one_thread_serves_two_pools() {
    const EACH: usize = if cfg!(miri) { 20 } else { 3_000 };
    let pools = [(); 2].map(|()| Singles::new(Default::default(), 1));
    std::thread::scope(|scope| {
        scope.spawn(|| serve_two(&pools, 2 * EACH));
        for pool in &pools {
            scope.spawn(|| {
                for index in 0..EACH {
                    assert!(pool.submit(Claim::new((), ())).is_ok());
                    if index % 16 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

#[test]
fn a_worker_that_moved_is_woken_on_its_new_thread() {
    let pool = Singles::new(Default::default(), 1);
    let clock = Real(Instant::now());
    let mut worker = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut worker = pool.worker(0, Spin::OFF);
            assert!(matches!(
                pool.next_or_list(&mut worker, &clock, single),
                SharedWait::Listed(NEVER_NS)
            ));
            worker
        });
        first.join().unwrap()
    });
    std::thread::scope(|scope| {
        pool.move_here(&worker);
        scope.spawn(|| assert!(pool.submit(Claim::new((), ())).is_ok()));
        assert!(crate::park_current_until(
            NEVER_NS,
            &clock,
            &mut Spin::up_to(0),
            || { pool.is_unparked(0) }
        ));
        // Until it looks, or has no use for that.
        assert!(pool.is_unparked(0));
        pool.end_wait(&mut worker, NEVER_NS);
        pool.wake_one();
        assert!(!pool.is_unparked(0), "it is in no idle set");
        pool.dismiss(0);
        assert!(pool.is_unparked(0));
        pool.clear_unpark(0);
        assert!(!pool.is_unparked(0));
    });
    assert!(matches!(
        pool.next_or_list(&mut worker, &clock, single),
        SharedWait::Over
    ));
}

#[test]
fn all_cores_work_and_end_when_closed() {
    const PRODUCERS: usize = 3;
    // Miri interprets: a few rounds show it every access.
    const EACH: usize = if cfg!(miri) { 20 } else { 3_000 };
    let pool = WorkerPool::<Item, std::collections::VecDeque<Item>>::new(Default::default(), 4);
    let executed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for core in 0..4 {
            let (pool, executed) = (&pool, &executed);
            scope.spawn(move || {
                let mut worker = pool.worker(core, Spin::OFF);
                while pool
                    .next(&mut worker, &Real(Instant::now()), single)
                    .is_some()
                {
                    executed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|_| {
                scope.spawn(|| {
                    for index in 0..EACH {
                        assert!(pool.submit(Claim::new((), ())).is_ok());
                        if index % 16 == 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.join().unwrap();
        }
        pool.close();
    });
    assert_eq!(executed.into_inner(), PRODUCERS * EACH);
    assert!(matches!(
        pool.submit(Claim::new((), ())),
        Err(Refused::Closed(_))
    ));
}
