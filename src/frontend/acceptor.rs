//! The threads that accept connections and deal them to the shards.
//!
//! One blocking thread per listening socket. A socket goes to the shard with the fewest connections
//! and stays there, where the connections of a shard that is kept from its CPU count for more
//! (`ShardHandle::weight`): the kernel's own spreading is by hash, which puts a handful of
//! long-lived clients onto one shard. Beyond the connections' limit a new one is closed at once;
//! when the process has no descriptor left, accepting pauses instead of spinning.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use conch_engine::Error;
use conch_log as log;
use conch_memory::is_scarce;
use conch_net::Listener;

use crate::shard::frontend_metrics::FrontendMetrics;
use crate::shard::link::{Protocol, ShardHandle, ShardMessage};

/// How long accepting pauses when the system has no room for another socket.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Connections to the metrics port that are taken beyond the limit: whoever watches the server sees
/// that the limit is reached.
const METRICS_RESERVE: usize = 16;

/// How many connections there may be, and where those beyond are counted.
pub(crate) struct ConnectionLimit {
    pub(crate) connections_max: usize,
    pub(crate) metrics: Arc<FrontendMetrics>,
}

/// One listening socket and the thread that accepts from it.
pub(crate) struct Acceptor {
    listener: Arc<Listener>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts dealing connections of `listener` to the shards behind `links`.
    pub(crate) fn start(
        listener: Arc<Listener>,
        protocol: Protocol,
        links: Vec<Arc<ShardHandle>>,
        limit: ConnectionLimit,
    ) -> Result<Acceptor, Error> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (own_listener, own_flag) = (Arc::clone(&listener), Arc::clone(&is_stopped));
        let name = match protocol {
            Protocol::Http => "accept-http",
            Protocol::Grpc => "accept-grpc",
            Protocol::Metrics => "accept-metrics",
            Protocol::SageMaker => "accept-sagemkr",
            Protocol::VertexAi => "accept-vertex",
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || accept(&own_listener, protocol, &links, &limit, &own_flag))
            .map_err(|error| {
                Error::internal(format!(
                    "cannot start a thread that accepts connections: {error}"
                ))
            })?;
        Ok(Acceptor {
            listener,
            is_stopped,
            thread: Some(thread),
        })
    }

    /// Refuses further connections and waits for the thread.
    pub(crate) fn stop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        self.listener.shut_down();
        self.join();
    }

    /// Leaves further connections to another process and waits for the thread.
    pub(crate) fn leave(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        self.listener.leave();
        self.join();
    }

    pub(crate) fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a thread that accepted connections panicked");
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(
    listener: &Listener,
    protocol: Protocol,
    links: &[Arc<ShardHandle>],
    limit: &ConnectionLimit,
    is_stopped: &AtomicBool,
) {
    while !is_stopped.load(Ordering::Acquire) {
        match listener.accept() {
            Ok(socket) => {
                if !has_place(protocol, links, limit.connections_max) || is_scarce() {
                    limit.metrics.note_refused(protocol);
                    // Dropping the socket closes it.
                    continue;
                }
                if let Some(link) = links.iter().min_by_key(|link| link.weight()) {
                    link.send(ShardMessage::Connection(socket, protocol));
                }
            }
            // Shutting the listener down ends the wait with an error.
            Err(_) if is_stopped.load(Ordering::Acquire) => return,
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                log::warning!("accepting a connection failed: {error}");
                std::thread::sleep(BACK_OFF);
            }
        }
    }
}

/// Whether there may be one more. The reserve is nobody else's.
fn has_place(protocol: Protocol, links: &[Arc<ShardHandle>], connections_max: usize) -> bool {
    let open_count: usize = links.iter().map(|link| link.connection_count()).sum();
    let reserved_count = match protocol {
        Protocol::Metrics => METRICS_RESERVE,
        _ => {
            let counts = links
                .iter()
                .map(|link| link.connection_count_of(Protocol::Metrics));
            METRICS_RESERVE.min(counts.sum())
        }
    };
    open_count < connections_max.saturating_add(reserved_count)
}

/// Errors of the one connection, not of the system.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}
