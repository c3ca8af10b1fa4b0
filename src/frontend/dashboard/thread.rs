//! The thread `dashboard`: it makes an event per second while there is a client.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use conch_control::dashboard::DashboardSampler;
use conch_control::server::Server;
use conch_engine::{Error, clock};
use conch_log as log;
use serde::Serialize;

use super::feed::{DashboardFeed, FeedEvent, event_text};
use crate::shard::frontend_metrics::FrontendMetrics;
use crate::trace::Tracing;
use crate::trace::slowest::{SLOWEST_MAX, SlowRequest, SlowestRequests};

const PERIOD: Duration = Duration::from_secs(1);
/// For how many events the slowest requests of one are shown.
const SHOWN_EVENTS: usize = 60;

pub(crate) struct DashboardThread {
    feed: Arc<DashboardFeed>,
    thread: Option<JoinHandle<()>>,
}

/// What the network side tells in an event.
#[derive(Serialize)]
struct NetworkDocument<'a> {
    connections: Vec<(&'static str, u64)>,
    /// Since the event before.
    connections_refused: u64,
    /// Requests beyond what a shard has room for, likewise.
    requests_refused: u64,
    /// Of the last minute, the slowest first.
    slowest: Vec<&'a SlowRequest>,
}

/// What the thread reads.
struct Producer {
    feed: Arc<DashboardFeed>,
    server: Arc<Server>,
    metrics: Arc<FrontendMetrics>,
    tracing: Arc<Tracing>,
    slowest: Arc<SlowestRequests>,
    /// Of the events so far.
    number: u64,
}

impl DashboardThread {
    /// # Errors
    /// INTERNAL if the system gives no thread.
    pub(crate) fn start(
        server: &Arc<Server>,
        metrics: &Arc<FrontendMetrics>,
        tracing: &Arc<Tracing>,
    ) -> Result<DashboardThread, Error> {
        let feed = DashboardFeed::new(&DashboardSampler::layout(server));
        let mut producer = Producer {
            feed: Arc::clone(&feed),
            server: Arc::clone(server),
            metrics: Arc::clone(metrics),
            tracing: Arc::clone(tracing),
            slowest: Arc::clone(tracing.slowest()),
            number: 0,
        };
        let thread = std::thread::Builder::new()
            .name("dashboard".to_owned())
            .spawn(move || producer.run())
            .map_err(|error| Error::internal(format!("cannot start the dashboard: {error}")))?;
        Ok(DashboardThread {
            feed,
            thread: Some(thread),
        })
    }

    pub(crate) fn feed(&self) -> Arc<DashboardFeed> {
        Arc::clone(&self.feed)
    }
}

impl Drop for DashboardThread {
    fn drop(&mut self) {
        self.feed.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the dashboard panicked");
        }
    }
}

impl Producer {
    fn run(&mut self) {
        self.feed.begin();
        while !self.feed.is_stopping() {
            match self.feed.has_clients() {
                true => self.show(),
                // A client that comes meanwhile wakes it at once.
                false => std::thread::park(),
            }
        }
    }

    /// Makes events until nobody is left.
    fn show(&mut self) {
        self.tracing.watch(true);
        let mut sampler = DashboardSampler::new(Arc::clone(&self.server));
        let mut refused = self.metrics.refused_counts();
        let mut minute: VecDeque<Vec<SlowRequest>> = VecDeque::new();
        let mut next = Instant::now() + PERIOD;
        loop {
            self.wait_until(next);
            if self.feed.is_stopping() || !self.feed.has_clients() {
                break;
            }
            // Where an event took long, the next is not made up for.
            next = (next + PERIOD).max(Instant::now() + PERIOD / 2);
            minute.push_front(self.slowest.take());
            minute.truncate(SHOWN_EVENTS);
            let fresh_refused = self.metrics.refused_counts();
            let document = NetworkDocument {
                connections: self.metrics.connection_counts(),
                connections_refused: fresh_refused.0.saturating_sub(refused.0),
                requests_refused: fresh_refused.1.saturating_sub(refused.1),
                slowest: slowest_of(&minute),
            };
            refused = fresh_refused;
            let text = sampler.sample(&document);
            self.number += 1;
            let left = next.saturating_duration_since(Instant::now());
            let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
            self.feed.publish(FeedEvent {
                number: self.number,
                text: event_text("sample", self.number, &text),
                next_ns: clock::monotonic_ns().saturating_add(left_ns),
            });
        }
        self.feed.clear();
        self.tracing.watch(false);
        drop(self.slowest.take());
    }

    /// Wakes earlier only to end.
    fn wait_until(&self, time: Instant) {
        while !self.feed.is_stopping() {
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// The slowest of all, and of those that are as slow the latest.
fn slowest_of(minute: &VecDeque<Vec<SlowRequest>>) -> Vec<&SlowRequest> {
    let mut all: Vec<&SlowRequest> = minute.iter().flatten().collect();
    all.sort_by_key(|request| std::cmp::Reverse(request.total_us));
    all.truncate(SLOWEST_MAX);
    all
}
