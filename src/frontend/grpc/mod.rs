//! gRPC over HTTP/2.

use std::rc::Rc;

use crate::shard::{Shard, Stream};

/// Serves one connection until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: Stream) {
    let _ = (shard, stream);
}
