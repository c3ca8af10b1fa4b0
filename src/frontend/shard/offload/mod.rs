//! Work that takes too long for a shard, on threads of its own.
//!
//! Each shard has one thread per lane: small jobs (JSON, compression, metrics), large ones, and TLS
//! handshakes if it serves TLS. So a small job shares the CPU with a large one instead of waiting
//! for its end, and a handshake waits for neither. Within a lane connections share fairly by bytes
//! (see [`queue`]); handshakes share by the address of the peer, and the later steps of a handshake
//! come before the first, so that those which have begun are completed under a flood of new ones.
//!
//! The queues belong to the shard alone: it hands a job to a lane's thread when that has room, and
//! the thread returns the outcome through the shard's mailbox. Nothing is locked, and a job whose
//! caller has left is withdrawn if it was not begun. Bound: each connection's call or request waits
//! for at most one job, so there are no more jobs than requests and handshakes.

mod job;
mod queue;
mod threads;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Waker};

use super::slab::Slab;
use job::{JobFunction, JobResult, OffloadJob, OffloadLane};
use queue::{FairQueue, VirtualTime};

pub(crate) use job::JobDone;
pub(crate) use threads::OffloadThreads;

/// Jobs from this cost on are large: some 10 ms of JSON.
const LARGE_FROM_BYTES: u64 = 1 << 20;
/// What reading or mapping something through the kernel costs, in the bytes of JSON that take as
/// long.
pub(crate) const SYSTEM_CALLS_COST: u64 = 64 << 10;
/// What the text of the metrics costs: some hundred models' worth.
pub(crate) const METRICS_COST: u64 = 256 << 10;
/// What a byte that is inflated costs at least: zlib writes more than it reads, which is not known
/// before.
pub(crate) const INFLATED_PER_PACKED: u64 = 4;
/// Of a step of a handshake. All are alike; large enough to be divided among owners.
const HANDSHAKE_COST: u64 = 64 << 10;

/// Which of a lane's queues: the urgent one is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Urgent,
    Usual,
}

/// Who shares fairly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum JobOwner {
    Connection(u64),
    Peer(IpAddr),
}

/// A shard's side of its lanes.
pub(crate) struct Offload {
    lanes: [LaneQueue; 3],
    callers: RefCell<Slab<JobCaller>>,
}

struct LaneQueue {
    sender: Option<Sender<OffloadJob>>,
    /// Later steps of handshakes: served first. Each follows a step that was served in turn, so
    /// they are no more than those.
    urgent: RefCell<FairQueue<JobOwner, OffloadJob>>,
    usual: RefCell<FairQueue<JobOwner, OffloadJob>>,
    /// Handed to the thread and not returned.
    handed_count: Cell<usize>,
    depth: usize,
}

/// A job's caller, as long as it waits.
struct JobCaller {
    lane: OffloadLane,
    /// While the job waits in a queue of the lane.
    place: Option<(Urgency, VirtualTime)>,
    waker: Option<Waker>,
    outcome: Option<std::thread::Result<JobResult>>,
}

impl Offload {
    pub(super) fn new(threads: OffloadThreads) -> Offload {
        let [small, large, handshakes] = threads.senders;
        let lane = |sender, lane: OffloadLane| LaneQueue {
            sender,
            urgent: RefCell::new(FairQueue::new()),
            usual: RefCell::new(FairQueue::new()),
            handed_count: Cell::new(0),
            depth: lane.depth(),
        };
        Offload {
            lanes: [
                lane(small, OffloadLane::Small),
                lane(large, OffloadLane::Large),
                lane(handshakes, OffloadLane::Handshakes),
            ],
            callers: RefCell::new(Slab::new()),
        }
    }

    /// `work` for `connection`, at the cost of `cost_bytes`.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        connection: u64,
        cost_bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let lane = match cost_bytes {
            0..LARGE_FROM_BYTES => OffloadLane::Small,
            _ => OffloadLane::Large,
        };
        // Not free, whatever its caller thinks.
        let cost_bytes = cost_bytes.max(1);
        let work: JobFunction = Box::new(move || Box::new(work()));
        let owner = JobOwner::Connection(connection);
        value_of(
            self.push(lane, Urgency::Usual, owner, cost_bytes, work)
                .await,
        )
    }

    /// A step of a handshake with `peer`.
    pub(super) async fn run_handshake<T: Send + 'static>(
        &self,
        peer: IpAddr,
        is_first: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let urgency = match is_first {
            true => Urgency::Usual,
            false => Urgency::Urgent,
        };
        let work: JobFunction = Box::new(move || Box::new(work()));
        let (lane, owner) = (OffloadLane::Handshakes, JobOwner::Peer(peer));
        value_of(self.push(lane, urgency, owner, HANDSHAKE_COST, work).await)
    }

    fn push(
        &self,
        lane: OffloadLane,
        urgency: Urgency,
        owner: JobOwner,
        cost_bytes: u64,
        work: JobFunction,
    ) -> JobFuture<'_> {
        let key = self.callers.borrow_mut().insert(JobCaller {
            lane,
            place: None,
            waker: None,
            outcome: None,
        });
        let queue = self.lanes[lane.index()].queue(urgency);
        let position = queue
            .borrow_mut()
            .push(owner, cost_bytes, OffloadJob { key, work });
        if let Some(caller) = self.callers.borrow_mut().get_mut(key) {
            caller.place = Some((urgency, position));
        }
        self.hand_out(lane);
        JobFuture { offload: self, key }
    }

    /// Gives the lane's thread as many jobs as it takes.
    fn hand_out(&self, lane: OffloadLane) {
        let at = &self.lanes[lane.index()];
        while at.handed_count.get() < at.depth {
            let urgent = at.urgent.borrow_mut().pop();
            let Some(job) = urgent.or_else(|| at.usual.borrow_mut().pop()) else {
                if at.handed_count.get() == 0 {
                    at.urgent.borrow_mut().forget();
                    at.usual.borrow_mut().forget();
                }
                return;
            };
            if let Some(caller) = self.callers.borrow_mut().get_mut(job.key) {
                caller.place = None;
            }
            let sender = at.sender.as_ref().expect("a lane that is used was started");
            // The thread ends only after its sender.
            let _ = sender.send(job);
            at.handed_count.set(at.handed_count.get() + 1);
        }
    }

    /// Takes in what a thread has done. The waker, if any, is to be woken when no borrow is held.
    pub(super) fn finish(&self, done: JobDone) -> Option<Waker> {
        let at = &self.lanes[done.lane.index()];
        at.handed_count.set(at.handed_count.get().saturating_sub(1));
        self.hand_out(done.lane);
        let mut callers = self.callers.borrow_mut();
        // None: it has left.
        let caller = callers.get_mut(done.key)?;
        caller.outcome = Some(done.outcome);
        caller.waker.take()
    }

    fn withdraw(&self, key: u64) {
        let caller = self.callers.borrow_mut().remove(key);
        let withdrawn = caller.and_then(|caller| {
            let (urgency, position) = caller.place?;
            let queue = self.lanes[caller.lane.index()].queue(urgency);
            queue.borrow_mut().remove(position)
        });
        // Dropped here, when nothing is borrowed: it holds foreign values.
        drop(withdrawn);
    }
}

impl LaneQueue {
    fn queue(&self, urgency: Urgency) -> &RefCell<FairQueue<JobOwner, OffloadJob>> {
        match urgency {
            Urgency::Urgent => &self.urgent,
            Urgency::Usual => &self.usual,
        }
    }
}

/// # Panics
/// As the work did: a panic of it is one of its caller.
fn value_of<T: 'static>(outcome: std::thread::Result<JobResult>) -> T {
    match outcome {
        Ok(value) => *value.downcast().expect("the type is that of the work"),
        Err(panic) => resume_unwind(panic),
    }
}

/// The outcome of a job. Dropping it withdraws the job unless it was begun.
struct JobFuture<'a> {
    offload: &'a Offload,
    key: u64,
}

impl Future for JobFuture<'_> {
    type Output = std::thread::Result<JobResult>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut callers = self.offload.callers.borrow_mut();
        let caller = callers
            .get_mut(self.key)
            .expect("it leaves when this is dropped");
        if let Some(outcome) = caller.outcome.take() {
            return Poll::Ready(outcome);
        }
        match &mut caller.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for JobFuture<'_> {
    fn drop(&mut self) {
        self.offload.withdraw(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::panic::AssertUnwindSafe;
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::shard::link::{ShardHandle, ShardMessage};
    use crate::testing::block_on;

    /// A shard's offload without the shard: polls `future` and takes in what the threads return.
    fn drive<T>(
        offload: &Offload,
        receiver: &mut conch_sync::Receiver<ShardMessage>,
        future: impl Future<Output = T>,
    ) -> T {
        let mut future = pin!(future);
        block_on(poll_fn(|context| {
            loop {
                if let Poll::Ready(value) = future.as_mut().poll(context) {
                    return Poll::Ready(value);
                }
                for message in std::task::ready!(receiver.poll_take(context)) {
                    if let ShardMessage::Offloaded(done) = message
                        && let Some(waker) = offload.finish(done)
                    {
                        waker.wake();
                    }
                }
            }
        }))
    }

    fn start() -> (Offload, conch_sync::Receiver<ShardMessage>) {
        let (link, receiver) = ShardHandle::new();
        let threads = OffloadThreads::start(0, &link, true).unwrap();
        (Offload::new(threads), receiver)
    }

    #[test]
    fn a_panic_ends_its_caller_alone() {
        let (offload, mut receiver) = start();
        for round in 0..3_u64 {
            let bad = AssertUnwindSafe(offload.run(1, 1, || -> u32 { panic!("on purpose") }));
            let bad = drive(
                &offload,
                &mut receiver,
                futures_util::FutureExt::catch_unwind(bad),
            );
            assert!(bad.is_err());
            for cost_bytes in [0, LARGE_FROM_BYTES - 1, LARGE_FROM_BYTES] {
                let value = offload.run(1, cost_bytes, move || round);
                assert_eq!(drive(&offload, &mut receiver, value), round);
            }
        }
        assert_eq!(offload.callers.borrow().len(), 0);
    }

    /// Lets jobs write down their names while the first one of the lane waits for `gate`.
    type Written = Arc<Mutex<String>>;

    fn write(written: &Written, name: char) -> impl FnOnce() + Send + 'static {
        let written = Arc::clone(written);
        move || written.lock().unwrap().push(name)
    }

    #[test]
    fn lanes_do_not_wait_for_each_other_and_small_jobs_go_first() {
        let (offload, mut receiver) = start();
        let written = Written::default();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let own = Arc::clone(&gate);
        let large = 28 << 20;
        let mut first = Box::pin(offload.run(1, large, move || drop(own.lock())));
        assert!(poll_once(&mut first));
        let mut waiting: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![
            Box::pin(offload.run(1, large, write(&written, 'a'))),
            Box::pin(offload.run(2, large, write(&written, 'b'))),
            Box::pin(offload.run(3, 2 << 20, write(&written, 'c'))),
        ];
        for future in &mut waiting {
            assert!(poll_once(future));
        }
        // Other lanes go on meanwhile.
        drive(
            &offload,
            &mut receiver,
            offload.run(4, 1 << 10, write(&written, 's')),
        );
        let peer = IpAddr::from([127, 0, 0, 1]);
        let step = offload.run_handshake(peer, true, write(&written, 't'));
        drive(&offload, &mut receiver, step);
        assert_eq!(*written.lock().unwrap(), "st");
        // Whoever leaves takes the job along.
        let mut left = Box::pin(offload.run(5, 2 << 20, write(&written, 'x')));
        assert!(poll_once(&mut left));
        drop(left);
        drop(closed);
        drive(&offload, &mut receiver, first);
        for future in waiting {
            drive(&offload, &mut receiver, future);
        }
        assert_eq!(*written.lock().unwrap(), "stcba");
        assert_eq!(offload.callers.borrow().len(), 0);
    }

    #[test]
    fn handshakes_that_have_begun_go_before_new_ones() {
        let (offload, mut receiver) = start();
        let written = Written::default();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let (flood, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut waiting: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
        // The thread has two at a time, so the order of the others is that of the queue.
        for _ in 0..2 {
            let own = Arc::clone(&gate);
            let work = move || drop(own.lock());
            waiting.push(Box::pin(offload.run_handshake(flood, true, work)));
        }
        for (peer, is_first, name) in [
            (flood, true, 'f'),
            (flood, true, 'g'),
            (flood, true, 'h'),
            (other, true, 'o'),
            (flood, false, 'u'),
            (other, false, 'v'),
        ] {
            let step = offload.run_handshake(peer, is_first, write(&written, name));
            waiting.push(Box::pin(step));
        }
        for future in &mut waiting {
            assert!(poll_once(future));
        }
        drop(closed);
        for future in waiting {
            drive(&offload, &mut receiver, future);
        }
        assert_eq!(*written.lock().unwrap(), "uvofgh");
    }

    /// Polls it once; true if it is pending.
    fn poll_once<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        future.as_mut().poll(&mut context).is_pending()
    }
}
