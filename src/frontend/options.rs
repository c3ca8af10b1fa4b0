//! What the network side is started with.

use std::sync::Arc;
use std::time::Duration;

use crate::access::Restrictions;
use crate::forward::HeaderPattern;
use crate::grpc::ServerDelays;
use crate::http::cors::AllowedOrigins;
use crate::sagemaker::SageMakerOptions;
use crate::tls::TlsConfig;
use crate::trace::TraceOptions;
use crate::vertex_ai::VertexAiOptions;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: String,
    /// 0: any free port.
    pub port: u16,
    /// Share the port with other processes that ask for the same (SO_REUSEPORT).
    pub reuse_port: bool,
}

/// How inference responses over gRPC are compressed, where the client accepts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    #[default]
    None,
    Low,
    Medium,
    High,
}

/// On which CPUs a shard may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardAffinity {
    /// On its own, and on all of the process's while others keep it from its own.
    #[default]
    Auto,
    /// On its own.
    Pinned,
    /// On all of the process's.
    Set,
}

/// What keeps gRPC connections honest, and ends them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcConnections {
    /// A connection on which nothing came for so long gets a ping; none: never.
    pub keepalive_time: Option<Duration>,
    /// And is closed if nothing comes for this much longer.
    pub keepalive_timeout: Duration,
    /// Both also while no call is open, for our pings and for the client's.
    pub pings_without_calls: bool,
    /// A client's pings that come sooner after one another, while we send it nothing, are bad.
    pub ping_interval_min: Duration,
    /// Bad pings that are borne; 0: any number.
    pub ping_strikes_max: u32,
    /// From the first byte of a call's headers to their end.
    pub headers_timeout: Duration,
    /// The age at which a connection is asked to end, give or take a tenth.
    pub age_max: Option<Duration>,
    /// And how much later it is ended.
    pub age_grace: Option<Duration>,
    /// TLS handshakes under way on all shards; beyond that one is closed.
    pub handshakes_max: usize,
}

impl Default for GrpcConnections {
    fn default() -> GrpcConnections {
        GrpcConnections {
            keepalive_time: Some(Duration::from_secs(7200)),
            keepalive_timeout: Duration::from_secs(20),
            pings_without_calls: false,
            ping_interval_min: Duration::from_secs(300),
            ping_strikes_max: 2,
            headers_timeout: Duration::from_secs(30),
            age_max: None,
            age_grace: None,
            handshakes_max: 512,
        }
    }
}

/// Every listener, bound and limit. The defaults are those of the command line; no endpoint is
/// served unless given.
#[derive(Clone, Debug)]
pub struct FrontendOptions {
    pub http: Option<Endpoint>,
    pub grpc: Option<Endpoint>,
    pub metrics: Option<Endpoint>,
    pub sagemaker: Option<Arc<SageMakerOptions>>,
    pub vertex_ai: Option<Arc<VertexAiOptions>>,
    /// `--http-restricted-api`: of every listener that speaks HTTP.
    pub http_restrictions: Restrictions,
    /// `--grpc-restricted-protocol`; the headers' names as on the wire.
    pub grpc_restrictions: Restrictions,
    /// The origins whose scripts may read answers, on every listener that speaks HTTP.
    pub http_cors_origins: AllowedOrigins,
    /// Integers in JSON that do not fit their tensor's type are refused, instead of cut to it.
    pub strict_integers: bool,
    /// Headers that become parameters of an inference.
    pub http_forward: Option<HeaderPattern>,
    pub grpc_forward: Option<HeaderPattern>,
    /// The header by which HTTP clients set a deadline, if they may.
    pub http_timeout_header: Option<Box<str>>,
    /// The HTTP header, and the key of gRPC metadata, that tells tenants apart: where their
    /// requests are bounded, and for their shares of the byte budget.
    pub tenant_header: Option<Box<str>>,
    pub grpc_compression: CompressionLevel,
    pub grpc_connections: GrpcConnections,
    /// `--grpc-max-inflated-size`: bounds what a compressed message inflates to.
    pub grpc_inflated_bytes_max: u64,
    /// gRPC is served over TLS only.
    pub grpc_tls: Option<TlsConfig>,
    /// Those that upstream's tests ask the environment for.
    pub grpc_delays: ServerDelays,
    /// One shard per entry, at home on that CPU.
    pub shard_cpus: Vec<usize>,
    pub shard_affinity: ShardAffinity,
    /// For how long a shard must not wait for a CPU before it returns to its own.
    pub shard_calm: Duration,
    /// Idle shards look for work for some microseconds before they sleep. Only where shards and
    /// cores do not share CPUs.
    pub shards_spin: bool,
    /// Open connections in the process; a further one is closed at once.
    pub connections_max: usize,
    /// A connection that holds bytes for so long without moving may be dropped when memory runs
    /// short; zero: none is.
    pub memory_stall_timeout: Duration,
    /// Requests that one shard has in flight; a further one is UNAVAILABLE.
    pub in_flight_max: usize,
    /// `--http-max-input-size`: bounds the JSON of a request, each of its JSON tensors, and a raw
    /// body.
    pub http_input_bytes_max: u64,
    /// Any HTTP body: the reach of the 32-bit Content-Length that upstream accepts.
    pub http_body_bytes_max: u64,
    /// Request line and headers of an HTTP request.
    pub http_head_bytes_max: usize,
    /// From the first byte of an HTTP request to the end of its headers.
    pub http_head_timeout: Duration,
    /// An HTTP connection between requests.
    pub http_idle_timeout: Duration,
    /// The longest pause within a request's body, and while a client takes no bytes of a response.
    pub http_stall_timeout: Duration,
    /// What is traced, and into which file.
    pub trace: TraceOptions,
}

impl Default for FrontendOptions {
    fn default() -> FrontendOptions {
        FrontendOptions {
            http: None,
            grpc: None,
            metrics: None,
            sagemaker: None,
            vertex_ai: None,
            http_restrictions: Restrictions::default(),
            grpc_restrictions: Restrictions::default(),
            http_cors_origins: AllowedOrigins::default(),
            strict_integers: false,
            http_forward: None,
            grpc_forward: None,
            http_timeout_header: None,
            tenant_header: None,
            grpc_compression: CompressionLevel::None,
            grpc_connections: GrpcConnections::default(),
            grpc_inflated_bytes_max: 64 << 20,
            grpc_tls: None,
            grpc_delays: ServerDelays::from_environment(),
            shard_cpus: vec![0],
            shard_affinity: ShardAffinity::Auto,
            shard_calm: Duration::from_secs(60),
            shards_spin: false,
            connections_max: 65_536,
            memory_stall_timeout: Duration::from_secs(1),
            in_flight_max: 16_384,
            http_input_bytes_max: 64 << 20,
            http_body_bytes_max: i32::MAX as u64,
            http_head_bytes_max: 64 << 10,
            http_head_timeout: Duration::from_secs(30),
            http_idle_timeout: Duration::from_secs(300),
            http_stall_timeout: Duration::from_secs(60),
            trace: TraceOptions::default(),
        }
    }
}
