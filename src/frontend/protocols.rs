//! The task that serves a connection, by the protocol of its listener.

use std::rc::Rc;

use crate::shard::link::Protocol;
use crate::shard::{ConnectionGuard, Shard, ShardStream};
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
        Protocol::Http => shard.spawn(http::serve(own, stream, guard)),
        Protocol::Metrics => shard.spawn(metrics::serve(own, stream, guard)),
        Protocol::SageMaker => shard.spawn(sagemaker::serve(own, stream, guard)),
        Protocol::VertexAi => shard.spawn(vertex_ai::serve(own, stream, guard)),
        Protocol::Grpc => shard.spawn(grpc::serve(own, stream, guard)),
    }
}
