//! The page of the metrics, on whichever listener it is asked for.

use std::sync::Arc;

use super::answer::{ContentType, HttpResponse};
use crate::shard::Shard;
use crate::shard::offload::METRICS_COST;

/// Whether it is at `path`.
pub(crate) fn is_page(path: &str) -> bool {
    matches!(path, "/metrics" | "/metrics/")
}

/// The page itself.
pub(crate) async fn page(shard: &Shard) -> HttpResponse {
    // Rendering reads every model's numbers and files of /proc: not on a shard.
    let server = Arc::clone(&shard.server);
    let metrics = Arc::clone(&shard.metrics);
    let text = shard
        .offload(METRICS_COST, move || {
            server.metrics_text_with(&metrics.read())
        })
        .await;
    HttpResponse::new(200, ContentType::Metrics, text.into_bytes())
}
