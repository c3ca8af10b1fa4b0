//! The queue into a shard, and the wake-once event that wakes it.
//!
//! Any thread posts messages and notifies once per batch of posts. The shard's one pump task takes
//! all messages at once. The event is armed only while the pump sleeps with an empty mailbox, so
//! each notification after the first of a sleep costs a fence and a load: N posts make one wake,
//! and at most one system call of the shard's executor.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::mpsc_queue::{Drained, MpscQueue, Node};
use crate::primitives::{AtomicU8, Ordering, UnsafeCell, fence};

/// The sending side, shared by all senders. It has no bound of its own; [`crate::mpsc_queue`] says
/// where that is kept.
pub struct Mailbox<T: Send> {
    queue: MpscQueue<Box<Node<T>>>,
    notify: Notify,
}

/// The only receiving side. The pump task of a shard owns it.
pub struct Receiver<T: Send> {
    mailbox: Arc<Mailbox<T>>,
}

impl<T: Send> Mailbox<T> {
    /// A mailbox and its only receiver.
    pub fn new() -> (Arc<Mailbox<T>>, Receiver<T>) {
        let mailbox = Arc::new(Mailbox {
            queue: MpscQueue::default(),
            notify: Notify::new(),
        });
        let receiver = Receiver {
            mailbox: Arc::clone(&mailbox),
        };
        (mailbox, receiver)
    }

    /// Adds a message without waking the receiver; call [`Mailbox::notify`] after the last of a
    /// batch. Never blocks.
    ///
    /// # Errors
    /// The message, if the receiver is gone.
    pub fn post(&self, message: T) -> Result<(), T> {
        match self.queue.push(Node::new(message)) {
            Ok(_) => Ok(()),
            Err(crate::Refused::Closed(node) | crate::Refused::Linked(node)) => Err(node.value),
        }
    }

    /// Wakes the receiver if it sleeps. Never blocks; cheap if it is awake.
    pub fn notify(&self) {
        self.notify.notify();
    }

    /// Disarms the event, because the receiving thread will look again in any case. Notifications
    /// cost no wake then.
    pub fn disarm(&self) {
        self.notify.disarm();
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl<T: Send> Receiver<T> {
    /// All messages posted so far, oldest first, never empty when ready. Pending: the next
    /// notification wakes the task.
    pub fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<Messages<T>> {
        let messages = self.take();
        if !messages.is_empty() {
            return Poll::Ready(messages);
        }
        // SAFETY: `&mut self` of the only receiver.
        unsafe { self.mailbox.notify.arm(context.waker()) };
        // Pairs with the fence in `notify`: either this thread sees the message, or the notifying
        // thread sees the armed event.
        fence(Ordering::SeqCst);
        let messages = self.take();
        if messages.is_empty() {
            return Poll::Pending;
        }
        self.mailbox.notify.disarm();
        Poll::Ready(messages)
    }

    /// The messages posted so far, without waiting.
    pub fn take(&mut self) -> Messages<T> {
        Messages {
            drained: self.mailbox.queue.take_all(),
        }
    }

    /// The sending side.
    pub fn mailbox(&self) -> &Arc<Mailbox<T>> {
        &self.mailbox
    }
}

impl<T: Send> Drop for Receiver<T> {
    fn drop(&mut self) {
        drop(self.mailbox.queue.close());
    }
}

/// Messages taken from a mailbox, oldest first.
pub struct Messages<T: Send> {
    drained: Drained<Box<Node<T>>>,
}

impl<T: Send> Messages<T> {
    pub fn is_empty(&self) -> bool {
        self.drained.is_empty()
    }
}

impl<T: Send> Iterator for Messages<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.drained.next().map(|node| node.value)
    }
}

const OPEN: u8 = 0;
const ARMED: u8 = 1;
const NOTIFYING: u8 = 2;

/// A wake-once event: it holds a waker that is used at most once per sleep.
///
/// ```text
///   OPEN ──arm──► ARMED ──notify──► NOTIFYING ──► OPEN, then wake
///     ▲────disarm───┘
/// ```
/// The sleeping task writes the waker only while OPEN; a notifying thread reads it only while
/// NOTIFYING, which one thread reaches.
#[derive(Debug)]
pub struct Notify {
    state: AtomicU8,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: `state` orders all access to `waker`, as the diagram says; wakers may be cloned and used
// on any thread.
unsafe impl Sync for Notify {}
// SAFETY: as above.
unsafe impl Send for Notify {}

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify {
            state: AtomicU8::new(OPEN),
            waker: UnsafeCell::new(None),
        }
    }

    /// Wakes the sleeping task if the event is armed.
    pub(crate) fn notify(&self) {
        // Pairs with the fence after `arm`: the receiver sees what was posted before, or this
        // thread sees the armed state.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) != ARMED
            || self
                .state
                .compare_exchange(ARMED, NOTIFYING, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        // SAFETY: one thread reaches NOTIFYING, and the sleeping task does not write until that
        // state is left.
        let waker = self.waker.with(|waker| unsafe { (*waker).clone() });
        // Left before the wake, so that the woken task can arm the event again.
        self.state.store(OPEN, Ordering::Release);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Makes the next notification wake `waker`.
    ///
    /// # Safety
    /// Only one thread at a time calls this.
    unsafe fn arm(&self, waker: &Waker) {
        // SAFETY: a notifying thread may read at the same time; only this function writes.
        let is_known = self.waker.with(|known| unsafe {
            (*known)
                .as_ref()
                .is_some_and(|known| known.will_wake(waker))
        });
        let withdrawn =
            self.state
                .compare_exchange(ARMED, OPEN, Ordering::Acquire, Ordering::Acquire);
        if withdrawn == Err(NOTIFYING) {
            // The notifying thread wakes the task that it found. If that is not the present one,
            // wake the present one here.
            if !is_known {
                waker.wake_by_ref();
            }
            return;
        }
        if !is_known {
            // SAFETY: the state is OPEN, and only this function, on this thread, leaves it: no
            // thread reads.
            self.waker
                .with_mut(|known| unsafe { *known = Some(waker.clone()) });
        }
        self.state.store(ARMED, Ordering::Release);
    }

    /// Undoes `arm`. A notification that came first still wakes once, without need.
    fn disarm(&self) {
        // Failure means NOTIFYING or already OPEN: the wake is under way.
        let _ = self
            .state
            .compare_exchange(ARMED, OPEN, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn one_wake_per_sleep_and_nothing_lost() {
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let (mailbox, mut receiver) = Mailbox::new();
        mailbox.notify();
        assert!(receiver.poll_take(&mut context).is_pending());
        for message in 0..3 {
            assert_eq!(mailbox.post(message), Ok(()));
            mailbox.notify();
        }
        assert_eq!(
            wakes.0.load(Ordering::SeqCst),
            1,
            "the first notify wakes, the others find it awake"
        );
        let Poll::Ready(messages) = receiver.poll_take(&mut context) else {
            panic!("messages are there")
        };
        assert_eq!(messages.collect::<Vec<_>>(), [0, 1, 2]);
        mailbox.notify();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "not asleep, not woken");
        assert!(receiver.poll_take(&mut context).is_pending());
        assert!(
            receiver.poll_take(&mut context).is_pending(),
            "polled again while armed"
        );
        mailbox.notify();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 2);
        drop(receiver);
        assert_eq!(mailbox.post(9), Err(9), "nobody will read it");
    }

    #[test]
    fn a_new_pump_replaces_the_waker() {
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let (mailbox, mut receiver) = Mailbox::<()>::new();
        for count in &counts {
            let waker = Waker::from(Arc::clone(count));
            assert!(
                receiver
                    .poll_take(&mut Context::from_waker(&waker))
                    .is_pending()
            );
        }
        mailbox.notify();
        assert_eq!(counts.map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::task::{RawWaker, RawWakerVTable};

    use loom::thread::{self, Thread};

    use super::*;

    /// Unparks the thread behind the address, which outlives the wakers. One table for all clones,
    /// so that they compare equal.
    static UNPARK: RawWakerVTable = RawWakerVTable::new(
        |thread| RawWaker::new(thread, &UNPARK),
        |thread| unpark(thread),
        |thread| unpark(thread),
        |_| {},
    );

    fn unpark(thread: *const ()) {
        // SAFETY: the address is that of the receiver's `Thread`, alive until all posters are
        // joined.
        unsafe { (*thread.cast::<Thread>()).unpark() };
    }

    /// Two threads post and notify while the pump arms and sleeps: a lost wake would leave it
    /// parked for ever, which loom reports.
    #[test]
    fn every_message_arrives() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let (mailbox, mut receiver) = Mailbox::new();
            let pump = thread::current();
            let posters: Vec<_> = (0..2)
                .map(|message| {
                    let mailbox = Arc::clone(&mailbox);
                    thread::spawn(move || {
                        mailbox.post(message).unwrap();
                        mailbox.notify();
                    })
                })
                .collect();
            // SAFETY: the table keeps to the contract of wakers, as no reference is counted.
            let waker =
                unsafe { Waker::from_raw(RawWaker::new((&raw const pump).cast(), &UNPARK)) };
            let mut count = 0;
            while count < 2 {
                match receiver.poll_take(&mut Context::from_waker(&waker)) {
                    Poll::Ready(messages) => count += messages.count(),
                    Poll::Pending => thread::park(),
                }
            }
            for poster in posters {
                poster.join().unwrap();
            }
        });
    }
}
