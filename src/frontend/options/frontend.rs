//! Every listener, bound and limit.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use conch_net::PassedSocket;

use super::endpoint::Endpoint;
use super::grpc::{CompressionLevel, GrpcConnections};
use super::shard::ShardAffinity;
use crate::access::Restrictions;
use crate::auth::AuthConfig;
use crate::forward::HeaderPattern;
use crate::grpc::ServerDelays;
use crate::http::cors::AllowedOrigins;
use crate::sagemaker::SageMakerOptions;
use crate::tls::TlsConfig;
use crate::trace::TraceOptions;
use crate::vertex_ai::VertexAiOptions;

/// Every listener, bound and limit. The defaults are those of the command line; no endpoint is
/// served unless given.
#[derive(Clone, Debug)]
pub struct FrontendOptions {
    pub http: Option<Endpoint>,
    pub grpc: Option<Endpoint>,
    pub metrics: Option<Endpoint>,
    /// The metrics endpoint serves the operator's page.
    pub dashboard: bool,
    /// The HTTP endpoint answers `/metrics` as well.
    pub metrics_on_http: bool,
    pub sagemaker: Option<Arc<SageMakerOptions>>,
    pub vertex_ai: Option<Arc<VertexAiOptions>>,
    /// Sockets that the process was started with: a listener that has any binds none of its own.
    pub passed_sockets: Vec<PassedSocket>,
    /// Permissions of the Unix sockets among the listeners; none: what the umask leaves.
    pub unix_socket_mode: Option<u32>,
    /// `--http-restricted-api`: of every listener that speaks HTTP.
    pub http_restrictions: Restrictions,
    /// `--grpc-restricted-protocol`; the headers' names as on the wire.
    pub grpc_restrictions: Restrictions,
    /// Who may use what, on every listener; none: all may use all.
    pub auth: Option<AuthConfig>,
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
    /// HTTP, but for SageMaker and Vertex AI, likewise.
    pub http_tls: Option<TlsConfig>,
    /// Metrics on their own port likewise.
    pub metrics_tls: Option<TlsConfig>,
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
    /// How long a request waits for room under the limits of live requests before it is refused;
    /// zero: it does not.
    pub limit_wait: Duration,
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
    /// Inferences that take so long are logged, with the time that each stage took.
    pub slow_request: Option<Duration>,
    /// One in so many requests is in the access log; none: no request.
    pub access_log_rate: Option<NonZeroU32>,
}

impl Default for FrontendOptions {
    fn default() -> FrontendOptions {
        FrontendOptions {
            http: None,
            grpc: None,
            metrics: None,
            dashboard: false,
            metrics_on_http: false,
            passed_sockets: Vec::new(),
            unix_socket_mode: None,
            sagemaker: None,
            vertex_ai: None,
            http_restrictions: Restrictions::default(),
            grpc_restrictions: Restrictions::default(),
            auth: None,
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
            http_tls: None,
            metrics_tls: None,
            grpc_delays: ServerDelays::from_environment(),
            shard_cpus: vec![0],
            shard_affinity: ShardAffinity::Auto,
            shard_calm: Duration::from_secs(60),
            shards_spin: false,
            connections_max: 65_536,
            memory_stall_timeout: Duration::from_secs(1),
            in_flight_max: 16_384,
            limit_wait: Duration::from_millis(500),
            http_input_bytes_max: 64 << 20,
            http_body_bytes_max: i32::MAX as u64,
            http_head_bytes_max: 64 << 10,
            http_head_timeout: Duration::from_secs(30),
            http_idle_timeout: Duration::from_secs(300),
            http_stall_timeout: Duration::from_secs(60),
            trace: TraceOptions::default(),
            slow_request: None,
            access_log_rate: None,
        }
    }
}

impl FrontendOptions {
    /// Whether any listener has TLS.
    pub(crate) fn serves_tls(&self) -> bool {
        let all = [&self.grpc_tls, &self.http_tls, &self.metrics_tls];
        all.into_iter().any(Option::is_some)
    }
}
