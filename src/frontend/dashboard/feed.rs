//! What the thread that makes events and the shards that send them share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use arc_swap::ArcSwapOption;

/// Clients that are sent events at a time. Each has at most one event that is not sent yet, and
/// takes some microseconds of its shard per second.
const CLIENTS_MAX: usize = 64;

/// The latest event, and who wants the next.
pub(crate) struct DashboardFeed {
    /// The first event of every client.
    layout: Box<str>,
    latest: ArcSwapOption<FeedEvent>,
    client_count: AtomicUsize,
    is_stopping: AtomicBool,
    /// The thread that makes events, once it runs.
    producer: OnceLock<Thread>,
}

/// One second.
pub(super) struct FeedEvent {
    /// Counts the events of this process, from 1.
    pub(super) number: u64,
    pub(super) text: String,
    /// When the next will be there, monotonic ns.
    pub(super) next_ns: u64,
}

/// A client that is sent events, until it is dropped.
pub(crate) struct FeedClient(Arc<DashboardFeed>);

impl DashboardFeed {
    /// `layout` is a document.
    pub(super) fn new(layout: &str) -> Arc<DashboardFeed> {
        Arc::new(DashboardFeed {
            layout: event_text("layout", 0, layout).into(),
            latest: ArcSwapOption::empty(),
            client_count: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
            producer: OnceLock::new(),
        })
    }

    /// Takes on a client; none if there are as many as may be. Does not block: the thread that
    /// makes events is woken for the first.
    pub(crate) fn join(self: &Arc<DashboardFeed>) -> Option<FeedClient> {
        let more = |count: usize| (count < CLIENTS_MAX).then_some(count + 1);
        // Relaxed: only counts; waking the thread orders what it reads.
        let earlier_count =
            self.client_count
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if earlier_count.ok()? == 0 {
            self.wake();
        }
        Some(FeedClient(Arc::clone(self)))
    }

    pub(super) fn has_clients(&self) -> bool {
        self.client_count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn publish(&self, event: FeedEvent) {
        self.latest.store(Some(Arc::new(event)));
    }

    /// Nobody is left who would read it.
    pub(super) fn clear(&self) {
        self.latest.store(None);
    }

    /// By the thread that makes events.
    pub(super) fn begin(&self) {
        self.producer.get_or_init(std::thread::current);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Has the thread end.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        if let Some(producer) = self.producer.get() {
            producer.unpark();
        }
    }
}

impl FeedClient {
    pub(super) fn layout(&self) -> &str {
        &self.0.layout
    }

    pub(super) fn latest(&self) -> Option<Arc<FeedEvent>> {
        self.0.latest.load_full()
    }
}

impl Drop for FeedClient {
    fn drop(&mut self) {
        self.0.client_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A document as an event. JSON of ours has no line ends outside of strings, and none within.
pub(super) fn event_text(name: &str, number: u64, document: &str) -> String {
    match number {
        0 => format!("event: {name}\ndata: {document}\n\n"),
        number => format!("event: {name}\nid: {number}\ndata: {document}\n\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_bounded() {
        let feed = DashboardFeed::new("{}");
        let clients: Vec<_> = (0..CLIENTS_MAX).map(|_| feed.join().unwrap()).collect();
        assert!(feed.join().is_none());
        drop(clients);
        assert!(!feed.has_clients());
        let client = feed.join().unwrap();
        assert!(feed.has_clients() && client.latest().is_none());
        assert_eq!(client.layout(), "event: layout\ndata: {}\n\n");
        feed.publish(FeedEvent {
            number: 3,
            text: event_text("sample", 3, "[]"),
            next_ns: 5,
        });
        let latest = client.latest().unwrap();
        assert_eq!(latest.text, "event: sample\nid: 3\ndata: []\n\n");
        feed.clear();
        assert!(client.latest().is_none());
    }
}
