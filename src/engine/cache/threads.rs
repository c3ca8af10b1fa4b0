//! The cache's own threads: they hash long inputs and call plug-ins, whatever time that takes, so
//! that neither a shard nor a core does.
//!
//! They share one queue, which is bounded by what is in it: each job belongs to a live request of a
//! model.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use conch_log as log;
use conch_sync::{NEVER_NS, Node, PollState, Refused, Spin, WorkerPool};

use crate::Error;
use crate::clock::Monotonic;
use crate::threads::placement::{CorePlacement, Placement};

/// What a cache thread does.
pub(super) type CacheJob = Box<dyn FnOnce() + Send>;

pub(crate) struct CacheThreads {
    pool: WorkerPool<Box<Node<CacheJob>>, VecDeque<CacheJob>>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl CacheThreads {
    /// Starts them where cores run, but without giving way: a hit shall not wait for somebody's
    /// execution.
    ///
    /// # Errors
    /// INTERNAL if the system has no thread left.
    pub(super) fn start(placement: &Placement) -> Result<Arc<CacheThreads>, Error> {
        let threads = Arc::new(CacheThreads {
            pool: WorkerPool::new(VecDeque::new(), THREAD_COUNT),
            handles: Mutex::default(),
        });
        let placement = CorePlacement {
            gives_way: false,
            ..placement.default.clone()
        };
        for index in 0..THREAD_COUNT {
            let (own, placement) = (Arc::clone(&threads), placement.clone());
            let started = std::thread::Builder::new()
                .name(format!("cache-{index}"))
                .spawn(move || {
                    placement.apply();
                    own.work(index);
                });
            match started {
                Ok(handle) => threads.handles().push(handle),
                Err(cause) => {
                    threads.stop();
                    return Err(Error::internal(format!(
                        "cannot start a thread for the response cache: {cause}"
                    )));
                }
            }
        }
        Ok(threads)
    }

    /// Leaves `job` to one of them. Never blocks.
    ///
    /// # Errors
    /// The job, once they are stopped.
    pub(super) fn post(&self, job: CacheJob) -> Result<(), CacheJob> {
        self.pool
            .submit(Node::new(job))
            .map_err(|refused| match refused {
                Refused::Closed(node) | Refused::Linked(node) => node.into_value(),
            })
    }

    /// Lets them do what is queued and waits for their end. Blocks.
    pub(super) fn stop(&self) {
        self.pool.close();
        let handles = std::mem::take(&mut *self.handles());
        for handle in handles {
            if handle.thread().id() == std::thread::current().id() {
                continue;
            }
            if handle.join().is_err() {
                log::error!("a thread of the response cache panicked");
            }
        }
    }

    fn work(&self, index: usize) {
        let mut worker = self.pool.worker(index, Spin::OFF);
        while let Some(turn) = self
            .pool
            .next(&mut worker, &Monotonic, |queue, arrivals, _| {
                queue.extend(arrivals.map(|node| node.into_value()));
                let job = queue.pop_front();
                let poll_state = PollState {
                    is_ready: !queue.is_empty(),
                    deadline_ns: NEVER_NS,
                    is_empty: queue.is_empty(),
                };
                (job, poll_state)
            })
        {
            // Whatever broke belongs to one request.
            if catch_unwind(AssertUnwindSafe(turn.batch)).is_err() {
                log::error!("a lookup in or an insertion into the response cache panicked");
            }
        }
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A plug-in that asks another host takes some 200 us per call: four threads make 20,000 calls per
/// second. Four hash 40 GB/s.
const THREAD_COUNT: usize = 4;
