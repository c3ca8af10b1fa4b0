//! The task that serves a connection, by the protocol of its listener.

use std::rc::Rc;

use crate::shard::link::Protocol;
use crate::shard::{ConnectionGuard, Shard, ShardStage, ShardStream};
use crate::{grpc, http, metrics, sagemaker, vertex_ai};

/// Spawns the task of a connection on its shard.
pub(crate) fn serve(
    shard: &Rc<Shard>,
    stream: ShardStream,
    guard: ConnectionGuard,
    protocol: Protocol,
) {
    let own = Rc::clone(shard);
    match protocol {
        Protocol::Http => shard.spawn(ShardStage::Http, http::serve(own, stream, guard)),
        Protocol::Metrics => shard.spawn(ShardStage::Http, metrics::serve(own, stream, guard)),
        Protocol::SageMaker => shard.spawn(ShardStage::Http, sagemaker::serve(own, stream, guard)),
        Protocol::VertexAi => shard.spawn(ShardStage::Http, vertex_ai::serve(own, stream, guard)),
        Protocol::Grpc => shard.spawn(ShardStage::Grpc, grpc::serve(own, stream, guard)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the future that `serve` returns.
    fn future_bytes<F>(_serve: impl Fn(Rc<Shard>, ShardStream, ConnectionGuard) -> F) -> usize {
        size_of::<F>()
    }

    /// A connection that rests keeps little else than its task.
    #[test]
    fn tasks_of_connections_are_small() {
        let bytes = future_bytes(http::serve);
        assert!(bytes <= 1024, "{bytes}");
    }
}
