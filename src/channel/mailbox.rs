//! The queue into a shard, and the door that wakes it.
//!
//! Any thread posts; then, once per batch of posts, it rings. The shard's one pump task takes everything at once. The door is armed only
//! while the pump sleeps with an empty mailbox, so all rings but the first of a sleep cost a fence and a load:
//! N deliveries make one wake, and at most one system call of the shard's executor.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::pile::{Chain, Envelope, Pile};
use crate::sync::{AtomicU8, Ordering, UnsafeCell, fence};

/// The sending side, shared by everyone who posts. There is room for everything: see [`crate::pile`] on who keeps the bound.
pub struct Mailbox<T: Send> {
    pile: Pile<Box<Envelope<T>>>,
    door: Door,
}

/// The one receiving side. It lives in the pump task of a shard.
pub struct Receiver<T: Send> {
    mailbox: Arc<Mailbox<T>>,
}

impl<T: Send> Mailbox<T> {
    /// A mailbox and its only receiver.
    pub fn new() -> (Arc<Mailbox<T>>, Receiver<T>) {
        let mailbox = Arc::new(Mailbox {
            pile: Pile::default(),
            door: Door::new(),
        });
        let receiver = Receiver {
            mailbox: Arc::clone(&mailbox),
        };
        (mailbox, receiver)
    }

    /// Adds a letter without waking the receiver; call [`Mailbox::ring`] after the last of a batch. Never blocks.
    ///
    /// # Errors
    /// The letter, if the receiver is gone.
    pub fn post(&self, letter: T) -> Result<(), T> {
        match self.pile.push(Envelope::new(letter)) {
            Ok(_) => Ok(()),
            Err(crate::Refused::Closed(envelope) | crate::Refused::Linked(envelope)) => {
                Err(envelope.value)
            }
        }
    }

    /// Wakes the receiver if it sleeps. Never blocks; cheap if it is awake.
    pub fn ring(&self) {
        self.door.ring();
    }

    /// Withdraws the receiver's wish to be woken, because its own thread will make it look again in any case. Rings are free then.
    pub fn disarm(&self) {
        self.door.disarm();
    }

    /// Whether nothing waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.pile.is_empty()
    }
}

impl<T: Send> Receiver<T> {
    /// Everything posted so far, oldest first, never empty when ready. Pending: the task is woken by the next ring.
    pub fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<Letters<T>> {
        let letters = self.take();
        if !letters.is_empty() {
            return Poll::Ready(letters);
        }
        // SAFETY: `&mut self` of the only receiver.
        unsafe { self.mailbox.door.arm(context.waker()) };
        // Pairs with the fence in `ring`: either we see the letter or the ringer sees the armed door.
        fence(Ordering::SeqCst);
        let letters = self.take();
        if letters.is_empty() {
            return Poll::Pending;
        }
        self.mailbox.door.disarm();
        Poll::Ready(letters)
    }

    /// What is there now, without waiting.
    pub fn take(&mut self) -> Letters<T> {
        Letters {
            chain: self.mailbox.pile.take_all(),
        }
    }

    /// The sending side.
    pub fn mailbox(&self) -> &Arc<Mailbox<T>> {
        &self.mailbox
    }
}

impl<T: Send> Drop for Receiver<T> {
    fn drop(&mut self) {
        drop(self.mailbox.pile.close());
    }
}

/// Letters taken from a mailbox, oldest first.
pub struct Letters<T: Send> {
    chain: Chain<Box<Envelope<T>>>,
}

impl<T: Send> Letters<T> {
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }
}

impl<T: Send> Iterator for Letters<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.chain.next().map(|envelope| envelope.value)
    }
}

const OPEN: u8 = 0;
const ARMED: u8 = 1;
const RINGING: u8 = 2;

/// A waker that is used at most once per sleep.
///
/// ```text
///   OPEN ──arm──► ARMED ──ring──► RINGING ──► OPEN, then wake
///     ▲────disarm───┘
/// ```
/// The sleeper writes the waker only while OPEN; a ringer reads it only while RINGING, which one of them reaches.
#[derive(Debug)]
pub struct Door {
    state: AtomicU8,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: `state` orders all access to `waker`, as the diagram says; wakers may be cloned and used on any thread.
unsafe impl Sync for Door {}
// SAFETY: as above.
unsafe impl Send for Door {}

impl Door {
    pub(crate) fn new() -> Door {
        Door {
            state: AtomicU8::new(OPEN),
            waker: UnsafeCell::new(None),
        }
    }

    /// Wakes the sleeper if the door is armed.
    pub(crate) fn ring(&self) {
        // Pairs with the fence after `arm`: what was posted before is seen there, or the armed state is seen here.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) != ARMED
            || self
                .state
                .compare_exchange(ARMED, RINGING, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        // SAFETY: RINGING is reached by one thread, and the sleeper does not write until it is left.
        let waker = self.waker.with(|waker| unsafe { (*waker).clone() });
        // Left before the wake: the woken task finds the door free to be armed again.
        self.state.store(OPEN, Ordering::Release);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Lets the next ring wake `waker`.
    ///
    /// # Safety
    /// Only one thread at a time calls this.
    unsafe fn arm(&self, waker: &Waker) {
        // SAFETY: reading beside a ringer that reads; the only writer is this function.
        let is_known = self.waker.with(|known| unsafe {
            (*known)
                .as_ref()
                .is_some_and(|known| known.will_wake(waker))
        });
        let withdrawn =
            self.state
                .compare_exchange(ARMED, OPEN, Ordering::Acquire, Ordering::Acquire);
        if withdrawn == Err(RINGING) {
            // The ringer wakes the task that it found. If that is another one than now, wake this one ourselves.
            if !is_known {
                waker.wake_by_ref();
            }
            return;
        }
        if !is_known {
            // SAFETY: the state is OPEN and only this function, on this thread, leaves it: nobody reads.
            self.waker
                .with_mut(|known| unsafe { *known = Some(waker.clone()) });
        }
        self.state.store(ARMED, Ordering::Release);
    }

    /// Withdraws `arm` after all; a ring that came first still wakes once, for nothing.
    fn disarm(&self) {
        // Failure means RINGING or already OPEN: the wake is under way.
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
        mailbox.ring();
        assert!(receiver.poll_take(&mut context).is_pending());
        for letter in 0..3 {
            assert_eq!(mailbox.post(letter), Ok(()));
            mailbox.ring();
        }
        assert_eq!(
            wakes.0.load(Ordering::SeqCst),
            1,
            "the first ring wakes, the others find it awake"
        );
        let Poll::Ready(letters) = receiver.poll_take(&mut context) else {
            panic!("letters are there")
        };
        assert_eq!(letters.collect::<Vec<_>>(), [0, 1, 2]);
        mailbox.ring();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "not asleep, not woken");
        assert!(receiver.poll_take(&mut context).is_pending());
        assert!(
            receiver.poll_take(&mut context).is_pending(),
            "polled again while armed"
        );
        mailbox.ring();
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
        mailbox.ring();
        assert_eq!(counts.map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::task::{RawWaker, RawWakerVTable};

    use loom::thread::{self, Thread};

    use super::*;

    /// Unparks the thread behind the address, which outlives the wakers. One table for all clones, so that they are known as the same.
    static UNPARK: RawWakerVTable = RawWakerVTable::new(
        |thread| RawWaker::new(thread, &UNPARK),
        |thread| unpark(thread),
        |thread| unpark(thread),
        |_| {},
    );

    fn unpark(thread: *const ()) {
        // SAFETY: the address is that of the receiver's `Thread`, alive until all posters are joined.
        unsafe { (*thread.cast::<Thread>()).unpark() };
    }

    /// Two threads post and ring while the pump arms and sleeps: a lost wake would leave it parked for ever, which loom reports.
    #[test]
    fn every_letter_arrives() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let (mailbox, mut receiver) = Mailbox::new();
            let pump = thread::current();
            let posters: Vec<_> = (0..2)
                .map(|letter| {
                    let mailbox = Arc::clone(&mailbox);
                    thread::spawn(move || {
                        mailbox.post(letter).unwrap();
                        mailbox.ring();
                    })
                })
                .collect();
            // SAFETY: the table keeps to the contract of wakers, as no reference is counted.
            let waker =
                unsafe { Waker::from_raw(RawWaker::new((&raw const pump).cast(), &UNPARK)) };
            let mut count = 0;
            while count < 2 {
                match receiver.poll_take(&mut Context::from_waker(&waker)) {
                    Poll::Ready(letters) => count += letters.count(),
                    Poll::Pending => thread::park(),
                }
            }
            for poster in posters {
                poster.join().unwrap();
            }
        });
    }
}
