//! The other thread, which looks at requests.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;

use futures_util::task::AtomicWaker;

/// A request with the other thread.
#[derive(Default)]
struct HandOff {
    is_done: AtomicBool,
    waker: AtomicWaker,
}

/// The way to the other thread, if there is one.
#[derive(Clone)]
pub(crate) struct Worker(Option<mpsc::Sender<Arc<HandOff>>>);

impl Worker {
    pub(crate) fn start(is_there: bool) -> Worker {
        if !is_there {
            return Worker(None);
        }
        let (sender, receiver) = mpsc::channel::<Arc<HandOff>>();
        std::thread::spawn(move || {
            for hand_off in receiver {
                hand_off.is_done.store(true, Ordering::Release);
                hand_off.waker.wake();
            }
        });
        Worker(Some(sender))
    }

    /// Has the other thread look at a request.
    pub(crate) async fn look(&self) {
        let Some(sender) = &self.0 else { return };
        let hand_off = Arc::new(HandOff::default());
        let sent = sender.send(Arc::clone(&hand_off));
        sent.expect("the thread lives as long as its senders");
        poll_fn(|context| {
            hand_off.waker.register(context.waker());
            match hand_off.is_done.load(Ordering::Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
