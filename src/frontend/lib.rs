//! The network side: shards that speak HTTP and gRPC, and the threads that feed them.
//!
//! [`start`] binds the listeners, starts one shard per CPU given to the network, and returns a
//! [`Frontend`] to drain and stop them. `shard` is the only door to the runtime; `http` and `grpc`
//! decode requests into drafts for the engine and encode its responses; `api` holds the operations
//! that both protocols share.
#![forbid(unsafe_code)]

mod acceptor;
mod access;
mod access_log;
mod api;
mod auth;
mod blocking;
mod coding;
mod dashboard;
mod forward;
#[cfg(test)]
mod fuzz_corpus;
mod grpc;
mod http;
mod listening;
mod metrics;
mod options;
mod peer;
mod pressure;
mod protocols;
mod sagemaker;
mod shard;
mod starvation;
mod strtol;
#[cfg(test)]
mod testing;
mod tls;
mod trace;
#[cfg(test)]
mod trial;
mod vertex_ai;
mod watchdog;

use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_control::server::Server;
use conch_engine::Error;
use conch_log as log;
use conch_net::{ListenAddress, Listener};

use acceptor::{Acceptor, ConnectionLimit};
use dashboard::thread::DashboardThread;
use pressure::PressureOrders;
use shard::frontend_metrics::FrontendMetrics;
use shard::link::{Protocol, ShardHandle, ShardMessage};
use shard::{ShardContext, ShardThread, WaitingShards};
use trace::Tracing;
use watchdog::Watchdog;

pub use access::{Category, Restriction, Restrictions};
pub use auth::{AuthConfig, AuthReloader};
pub use forward::HeaderPattern;
pub use grpc::ServerDelays;
pub use http::cors::AllowedOrigins;
pub use listening::check_addresses;
pub use options::{CompressionLevel, Endpoint, FrontendOptions, GrpcConnections, ShardAffinity};
pub use sagemaker::{InferenceType, SageMakerOptions};
pub use shard::LOCKED_BYTES_MIN;
pub use tls::{HostFiles, HostPattern, TlsConfig, TlsFiles, TlsListener, TlsReloader, TlsSource};
pub use trace::{CollectorOptions, CollectorUrl, TraceLevels, TraceOptions};
pub use vertex_ai::VertexAiOptions;

/// Single steps of a request's walk, for the micro-benches.
#[doc(hidden)]
pub mod measure {
    pub use crate::grpc::measure::grpc_message;
    pub use crate::http::measure::{http_body, http_head, http_json, http_numbers};
}

/// What fuzz targets do with their input. None of it is there in a server.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz {
    pub use crate::auth::fuzz::auth_file;
    pub use crate::grpc::fuzz::grpc_infer;
    pub use crate::http::fuzz::{http_request, json_infer};
    pub use crate::trace::fuzz::trace_context;
}

/// How often a drain looks whether it is over.
const DRAIN_POLL: Duration = Duration::from_millis(10);
/// How often it says what it waits for.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Where the listeners are bound; none for those not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    pub http: Option<ListenAddress>,
    pub grpc: Option<ListenAddress>,
    pub metrics: Option<ListenAddress>,
    pub sagemaker: Option<ListenAddress>,
    pub vertex_ai: Option<ListenAddress>,
    /// HTTP is served over TLS.
    pub has_https: bool,
    /// And so are metrics.
    pub has_metrics_https: bool,
}

/// A running network side. Dropping it without [`Frontend::stop`] leaves its threads to the end of
/// the process, but for the one that writes traces: what has been traced is in its files then.
pub struct Frontend {
    addresses: Addresses,
    acceptors: Vec<(Protocol, Acceptor)>,
    shards: Vec<ShardThread>,
    watchdog: Option<Watchdog>,
    dashboard: Option<DashboardThread>,
    tracing: Arc<Tracing>,
}

impl Addresses {
    /// None yet, of the listeners of `options`.
    fn none_of(options: &FrontendOptions) -> Addresses {
        Addresses {
            has_https: options.http_tls.is_some(),
            has_metrics_https: options.metrics_tls.is_some(),
            ..Addresses::default()
        }
    }

    /// Notes an address of a service and tells it; of several, the first is where clients are sent.
    fn note(&mut self, protocol: Protocol, address: &ListenAddress) {
        let (place, service) = match protocol {
            Protocol::Http => (&mut self.http, "HTTPService"),
            Protocol::Grpc => {
                grpc::note_handlers();
                (&mut self.grpc, "GRPCInferenceService")
            }
            Protocol::SageMaker => (&mut self.sagemaker, "Sagemaker HTTPService"),
            Protocol::VertexAi => (&mut self.vertex_ai, "Vertex AI HTTPService"),
            Protocol::Metrics => (&mut self.metrics, "Metrics Service"),
        };
        log::info!("Started {service} at {address}");
        place.get_or_insert_with(|| address.clone());
    }

    /// Where clients reach each service, in words for the log.
    pub fn urls(&self) -> String {
        let scheme = |is_encrypted| match is_encrypted {
            true => "https://",
            false => "http://",
        };
        let named = [
            ("HTTP", scheme(self.has_https), &self.http, ""),
            ("gRPC", "", &self.grpc, ""),
            ("SageMaker", "http://", &self.sagemaker, "/invocations"),
            ("Vertex AI", "http://", &self.vertex_ai, ""),
            (
                "metrics",
                scheme(self.has_metrics_https),
                &self.metrics,
                "/metrics",
            ),
        ];
        let urls = named
            .into_iter()
            .filter_map(|(service, scheme, address, path)| {
                Some(match address.as_ref()? {
                    // An address of every interface is none that a client could use.
                    ListenAddress::Tcp(address) if address.ip().is_unspecified() => {
                        format!("{service} {scheme}localhost:{}{path}", address.port())
                    }
                    ListenAddress::Tcp(address) => format!("{service} {scheme}{address}{path}"),
                    socket @ ListenAddress::Unix(_) => format!("{service} {socket}"),
                })
            });
        urls.collect::<Vec<_>>().join(", ")
    }
}

/// Binds and serves. Blocks only while sockets and threads are made.
///
/// # Errors
/// UNAVAILABLE in upstream's words if an address cannot be had; INTERNAL if the system refuses a
/// shard.
pub fn start(mut options: FrontendOptions, server: Arc<Server>) -> Result<Frontend, Error> {
    conch_net::uring::probe().map_err(|error| Error::unavailable(error.to_string()))?;
    if let Some(vertex_ai) = &mut options.vertex_ai {
        Arc::make_mut(vertex_ai)
            .resolve_default_model(&server)
            .map_err(|error| listening::failed_to_start(Protocol::VertexAi, &error))?;
    }
    let mut addresses = Addresses::none_of(&options);
    let listeners = listening::open(&options)?;
    for (protocol, listener) in &listeners {
        addresses.note(*protocol, listener.address());
    }
    let tracing = Tracing::start(&options.trace, options.slow_request)?;
    let options = Arc::new(options);
    let (connections_max, stall_timeout) = (options.connections_max, options.memory_stall_timeout);
    let orders = PressureOrders::new(server.budget(), connections_max, stall_timeout);
    let pool = Arc::clone(server.pool());
    let metrics = Arc::<FrontendMetrics>::default();
    let dashboard = start_dashboard(&options, &server, &metrics, &tracing)?;
    let context = ShardContext {
        options: Arc::clone(&options),
        server,
        tracing: Arc::clone(&tracing),
        orders: Arc::clone(&orders),
        waiting_shards: Arc::new(WaitingShards::new(options.shard_cpus.len())),
        metrics: Arc::clone(&metrics),
        dashboard: dashboard.as_ref().map(DashboardThread::feed),
    };
    let cpus = options.shard_cpus.iter().enumerate();
    let shards = cpus
        .map(|(index, cpu)| ShardThread::start(index, *cpu, context.clone(), protocols::serve))
        .collect::<Result<Vec<_>, _>>()?;
    let links: Vec<Arc<ShardHandle>> = shards.iter().map(|shard| Arc::clone(&shard.link)).collect();
    metrics.open(&links);
    let homes = shards.iter().map(|shard| shard.cpu).collect();
    let watchdog = Watchdog::start(links.clone(), homes, &options, orders, pool)?;
    let mut acceptors = Vec::new();
    for (protocol, listener) in listeners {
        let limit = ConnectionLimit {
            connections_max: options.connections_max,
            metrics: Arc::clone(&metrics),
        };
        let acceptor = Acceptor::start(listener, protocol, links.clone(), limit)?;
        acceptors.push((protocol, acceptor));
    }
    Ok(Frontend {
        addresses,
        acceptors,
        shards,
        watchdog: Some(watchdog),
        dashboard,
        tracing,
    })
}

/// The thread behind the operator's page, where that is wanted and there is a port for it.
fn start_dashboard(
    options: &FrontendOptions,
    server: &Arc<Server>,
    metrics: &Arc<FrontendMetrics>,
    tracing: &Arc<Tracing>,
) -> Result<Option<DashboardThread>, Error> {
    let is_wanted = options.dashboard && options.metrics.is_some();
    is_wanted
        .then(|| DashboardThread::start(server, metrics, tracing))
        .transpose()
}

impl Frontend {
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Where it listens, under the names that [`FrontendOptions::passed_sockets`] have.
    pub fn listeners(&self) -> Vec<(&'static str, Arc<Listener>)> {
        let acceptors = self.acceptors.iter();
        acceptors
            .map(|(protocol, acceptor)| {
                let listener = Arc::clone(acceptor.listener());
                (listening::name_of(*protocol), listener)
            })
            .collect()
    }

    /// The CPU of each shard.
    pub fn shard_cpus(&self) -> Vec<usize> {
        self.shards.iter().map(|shard| shard.cpu).collect()
    }

    /// Refuses new connections, closes idle ones, and waits until the others have finished what
    /// they serve, at most until `deadline`. Metrics are served on. Returns whether all finished.
    /// Blocks; each second `report` is called with the seconds that are left.
    pub fn drain(&mut self, deadline: Instant, report: impl Fn(u64)) -> bool {
        for (protocol, acceptor) in &mut self.acceptors {
            if !protocol.outlasts_drains() {
                acceptor.stop();
            }
        }
        for shard in &self.shards {
            shard.link.send(ShardMessage::Drain);
        }
        self.wait_for_connections(deadline, report)
    }

    /// Leaves new connections to another process, and waits until clients have left the open ones,
    /// at most until `deadline`: they are told to at their next request, and whatever they ask
    /// until then is answered. Returns whether all have left. Blocks, and reports, as
    /// [`Frontend::drain`].
    pub fn retire(&mut self, deadline: Instant, report: impl Fn(u64)) -> bool {
        for (_, acceptor) in &mut self.acceptors {
            acceptor.leave();
        }
        for shard in &self.shards {
            shard.link.send(ShardMessage::Retire);
        }
        self.wait_for_connections(deadline, report)
    }

    fn wait_for_connections(&self, deadline: Instant, report: impl Fn(u64)) -> bool {
        let mut next_report = Instant::now() + DRAIN_POLL;
        loop {
            let open: Vec<(Protocol, usize)> = self.lasting_connections();
            if open.is_empty() {
                return true;
            }
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                let open_count: usize = open.iter().map(|(_, count)| count).sum();
                log::warning!("{open_count} connections did not finish in time");
                return false;
            }
            if now >= next_report {
                next_report = now + REPORT_INTERVAL;
                // Rounded, as the report comes a moment after the second.
                let seconds = (left + REPORT_INTERVAL / 2).as_secs();
                for (protocol, count) in open {
                    let what = service_connections(protocol);
                    log::info!("Timeout {seconds}: Found {count} {what}");
                }
                report(seconds);
            }
            std::thread::sleep(DRAIN_POLL);
        }
    }

    /// How many connections a drain waits for, of each protocol that has any.
    fn lasting_connections(&self) -> Vec<(Protocol, usize)> {
        let lasting = Protocol::ALL
            .into_iter()
            .filter(|protocol| !protocol.outlasts_drains());
        let counted = lasting.map(|protocol| {
            let links = self.shards.iter().map(|shard| &shard.link);
            let count = links.map(|link| link.connection_count_of(protocol)).sum();
            (protocol, count)
        });
        counted.filter(|(_, count)| *count > 0).collect()
    }

    /// Ends everything that is left. Blocks until the threads are gone.
    ///
    /// # Errors
    /// INTERNAL if a shard ended by a panic.
    pub fn stop(mut self) -> Result<(), Error> {
        for (_, acceptor) in &mut self.acceptors {
            acceptor.stop();
        }
        // Before the shards: a heartbeat to one that has ended would look like a hang.
        drop(self.watchdog.take());
        drop(self.dashboard.take());
        let mut outcome = Ok(());
        for shard in self.shards.drain(..) {
            outcome = outcome.and(shard.stop());
        }
        outcome
    }
}

/// What upstream calls the connections of a protocol in its log.
fn service_connections(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "HTTP service connections",
        Protocol::Grpc => "gRPC service connections and inference handlers",
        Protocol::Metrics => "metrics service connections",
        Protocol::SageMaker => "SageMaker service connections",
        Protocol::VertexAi => "Vertex AI service connections",
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        self.tracing.finish();
    }
}
