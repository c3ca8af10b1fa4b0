//! Options of the network side. No module of this folder imports one that serves.

mod endpoint;
mod frontend;
mod grpc;
mod shard;

pub use endpoint::Endpoint;
pub use frontend::FrontendOptions;
pub use grpc::{CompressionLevel, GrpcConnections};
pub use shard::ShardAffinity;
