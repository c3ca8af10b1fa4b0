//! What the export of spans is started with.

use std::path::PathBuf;

use super::url::CollectorUrl;

/// Where spans go, and how they are collected on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorOptions {
    pub url: CollectorUrl,
    /// Of each request to it: names and values.
    pub headers: Vec<(String, String)>,
    /// PEM file of certificates that vouch for the collector; none: those of the system.
    pub roots: Option<PathBuf>,
    /// Attributes of the server, where it has none of that name.
    pub resource_defaults: Vec<(String, String)>,
    /// Attributes of the server, beside those that it always has or in their place. Of several with
    /// one name the last counts.
    pub resource: Vec<(String, String)>,
    /// Spans that wait for their export. Not 0.
    pub queue_spans_max: u32,
    /// A batch that is not full is exported after so long. Not 0.
    pub schedule_delay_ms: u32,
    /// Spans of one batch. Not 0.
    pub batch_spans_max: u32,
    /// The settings as they are shown to clients, in upstream's order.
    pub shown: Vec<(String, String)>,
}

/// Upstream's.
impl Default for CollectorOptions {
    fn default() -> CollectorOptions {
        CollectorOptions {
            url: CollectorUrl::default(),
            headers: Vec::new(),
            roots: None,
            resource_defaults: Vec::new(),
            resource: Vec::new(),
            queue_spans_max: 2_048,
            schedule_delay_ms: 5_000,
            batch_spans_max: 512,
            shown: Vec::new(),
        }
    }
}
