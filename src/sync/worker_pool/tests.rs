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
