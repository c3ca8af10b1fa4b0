//! The metrics listener.

use std::rc::Rc;

use crate::shard::{Presence, Shard, Stream};

pub(crate) async fn serve(shard: Rc<Shard>, stream: Stream, presence: Presence) {
    let _ = (shard, stream, presence);
}
