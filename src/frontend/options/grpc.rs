//! Options of gRPC connections.

use std::time::Duration;

/// How inference responses over gRPC are compressed, where the client accepts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    #[default]
    None,
    Low,
    Medium,
    High,
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
