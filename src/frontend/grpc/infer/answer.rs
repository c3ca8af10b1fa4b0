//! Encoding the response of a unary call, on the shard or off it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use conch_engine::Response;

use super::response::{Pieces, encode};
use crate::api::Classes;
use crate::grpc::status::GrpcStatus;
use crate::shard::Shard;

/// An encoded response, or what will be one.
pub(in crate::grpc) enum EncodedResponse {
    Ready(Pieces),
    /// It takes too long for a shard. Boxed: rare, and would make every call larger.
    Later(Pin<Box<dyn Future<Output = Result<Pieces, GrpcStatus>>>>),
}

/// Encodes the response to the unary request `id`.
///
/// # Errors
/// As [`encode`].
pub(in crate::grpc) fn answer(
    shard: &Rc<Shard>,
    response: Response,
    id: Box<str>,
    classes: Classes,
) -> Result<EncodedResponse, GrpcStatus> {
    if !classes.is_long(&response) {
        return encode(response, &id, &classes).map(EncodedResponse::Ready);
    }
    let shard = Rc::clone(shard);
    let cost_bytes = response.byte_size();
    let work = move || encode(response, &id, &classes);
    Ok(EncodedResponse::Later(Box::pin(async move {
        shard.offload(cost_bytes, work).await
    })))
}
