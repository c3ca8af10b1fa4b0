//! The network side: shards that speak HTTP and gRPC, and the threads that feed them.
//!
//! [`start`] binds the listeners, starts one shard per CPU given to the network, and returns a [`Frontend`] to drain and stop them.
//! `shard` is the only door to the runtime; `http` and `grpc` decode requests into drafts for the engine and encode its responses;
//! `api` holds the operations that both protocols share.
#![forbid(unsafe_code)]

mod acceptor;
mod access;
mod api;
mod aside;
mod coding;
mod forward;
mod grpc;
mod http;
mod leading;
mod metrics;
mod options;
mod sagemaker;
mod shard;
#[cfg(test)]
mod testing;
mod tls;
mod trace;
#[cfg(test)]
mod trial;
mod vertex_ai;
mod watchdog;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_engine::server::Server;
use conch_engine::{Error, log};
use conch_net::Listener;

use acceptor::Acceptor;
use shard::Running;
use shard::link::{Letter, Link, Protocol};
use trace::Tracing;
use watchdog::Watchdog;

pub use access::{Category, Restriction, Restrictions};
pub use forward::HeaderPattern;
pub use options::{CompressionLevel, Endpoint, GrpcConnections, Options};
pub use sagemaker::{InferenceType, SageMaker};
pub use tls::{Tls, TlsFiles};
pub use trace::{Levels, TraceOptions};
pub use vertex_ai::VertexAi;

/// Single steps of a request's walk, for the micro-benches.
#[doc(hidden)]
pub mod measure {
    pub use crate::grpc::measure::grpc_message;
    pub use crate::http::measure::{http_body, http_head, http_json};
}

/// How often a drain looks whether it is over.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// Where the listeners are bound; none for those not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    pub http: Option<SocketAddr>,
    pub grpc: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub sagemaker: Option<SocketAddr>,
    pub vertex_ai: Option<SocketAddr>,
}

/// A running network side. Dropping it without [`Frontend::stop`] leaves its threads to the end of the process, but for the one that
/// writes traces: what has been traced is in its files then.
pub struct Frontend {
    addresses: Addresses,
    acceptors: Vec<(Protocol, Acceptor)>,
    shards: Vec<Running>,
    watchdog: Option<Watchdog>,
    tracing: Arc<Tracing>,
}

/// Binds and serves. Blocks only while sockets and threads are made.
///
/// # Errors
/// UNAVAILABLE in upstream's words if an address cannot be had; INTERNAL if the system refuses a shard.
pub fn start(mut options: Options, server: Arc<Server>) -> Result<Frontend, Error> {
    conch_net::uring::probe().map_err(|error| Error::unavailable(error.to_string()))?;
    if let Some(vertex_ai) = &mut options.vertex_ai {
        Arc::make_mut(vertex_ai).settle_default_model(&server)?;
    }
    let mut listeners = Vec::new();
    let mut addresses = Addresses::default();
    let sagemaker = options.sagemaker.as_ref().map(|it| &it.endpoint);
    let vertex_ai = options.vertex_ai.as_ref().map(|it| &it.endpoint);
    for (protocol, endpoint) in [
        (Protocol::Grpc, options.grpc.as_ref()),
        (Protocol::Http, options.http.as_ref()),
        (Protocol::SageMaker, sagemaker),
        (Protocol::VertexAi, vertex_ai),
        (Protocol::Metrics, options.metrics.as_ref()),
    ] {
        let Some(endpoint) = endpoint else { continue };
        let listener = Listener::bind(&endpoint.address, endpoint.port, endpoint.reuse_port)
            .map_err(|error| {
                log::error!("{error}");
                Error::unavailable(format!(
                    "Socket '{}:{}' already in use ",
                    endpoint.address, endpoint.port
                ))
            })?;
        let address = listener.address();
        match protocol {
            Protocol::Http => {
                addresses.http = Some(address);
                log::info!("Started HTTPService at {address}");
            }
            Protocol::Grpc => {
                addresses.grpc = Some(address);
                log::info!("Started GRPCInferenceService at {address}");
            }
            Protocol::SageMaker => {
                addresses.sagemaker = Some(address);
                log::info!("Started Sagemaker HTTPService at {address}");
            }
            Protocol::VertexAi => {
                addresses.vertex_ai = Some(address);
                log::info!("Started Vertex AI HTTPService at {address}");
            }
            Protocol::Metrics => {
                addresses.metrics = Some(address);
                log::info!("Started Metrics Service at {address}");
            }
        }
        listeners.push((protocol, listener));
    }
    let tracing = Tracing::start(&options.trace)?;
    let options = Arc::new(options);
    let mut shards = Vec::new();
    for (index, cpu) in options.shard_cpus.iter().enumerate() {
        shards.push(Running::start(index, *cpu, &options, &server, &tracing)?);
    }
    let links: Vec<Arc<Link>> = shards.iter().map(|shard| Arc::clone(&shard.link)).collect();
    let watchdog = Watchdog::start(links.clone())?;
    let mut acceptors = Vec::new();
    for (protocol, listener) in listeners {
        let acceptor = Acceptor::start(listener, protocol, links.clone(), options.connections_max)?;
        acceptors.push((protocol, acceptor));
    }
    Ok(Frontend {
        addresses,
        acceptors,
        shards,
        watchdog: Some(watchdog),
        tracing,
    })
}

impl Frontend {
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The CPU of each shard.
    pub fn shard_cpus(&self) -> Vec<usize> {
        self.shards.iter().map(|shard| shard.cpu).collect()
    }

    /// Refuses new connections, closes idle ones, and waits until the others have finished what they serve, at most until `deadline`.
    /// Metrics are served on. Returns whether all finished. Blocks.
    pub fn drain(&mut self, deadline: Instant) -> bool {
        for (protocol, acceptor) in &mut self.acceptors {
            if *protocol != Protocol::Metrics {
                acceptor.stop();
            }
        }
        for shard in &self.shards {
            shard.link.send(Letter::Drain);
        }
        loop {
            let open_count: usize = self
                .shards
                .iter()
                .map(|shard| shard.link.connection_count())
                .sum();
            if open_count == 0 {
                return true;
            }
            if Instant::now() >= deadline {
                log::warning!("{open_count} connections did not finish in time");
                return false;
            }
            std::thread::sleep(DRAIN_POLL);
        }
    }

    /// Ends everything that is left. Blocks until the threads are gone.
    ///
    /// # Errors
    /// INTERNAL if a shard ended by a panic.
    pub fn stop(mut self) -> Result<(), Error> {
        for (_, acceptor) in &mut self.acceptors {
            acceptor.stop();
        }
        // Before the shards: a poke to one that has ended would look like a hang.
        drop(self.watchdog.take());
        let mut outcome = Ok(());
        for shard in self.shards.drain(..) {
            outcome = outcome.and(shard.stop());
        }
        outcome
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        self.tracing.finish();
    }
}
