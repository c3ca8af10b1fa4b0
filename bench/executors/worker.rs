//! The other thread, which looks at requests.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};

/// A request's place: whether it was looked at, and who waits for that.
#[derive(Default)]
struct Place(Mutex<(bool, Option<Waker>)>);

impl Place {
    fn lock(&self) -> std::sync::MutexGuard<'_, (bool, Option<Waker>)> {
        self.0.lock().expect("nobody panics")
    }
}

/// The way to the other thread, if there is one.
#[derive(Clone)]
pub(crate) struct Worker(Option<mpsc::Sender<Arc<Place>>>);

impl Worker {
    pub(crate) fn start(is_there: bool) -> Worker {
        if !is_there {
            return Worker(None);
        }
        let (sender, receiver) = mpsc::channel::<Arc<Place>>();
        std::thread::spawn(move || {
            for place in receiver {
                let waker = {
                    let mut state = place.lock();
                    state.0 = true;
                    state.1.take()
                };
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        });
        Worker(Some(sender))
    }

    /// Has the other thread look at a request.
    pub(crate) async fn look(&self) {
        let Some(sender) = &self.0 else { return };
        let place = Arc::new(Place::default());
        let sent = sender.send(Arc::clone(&place));
        sent.expect("the thread lives as long as its senders");
        poll_fn(|context| {
            let mut state = place.lock();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
