//! Metrics in Prometheus text format 0.0.4.
//!
//! The per-model families are rendered from [`Statistics`](conch_engine::model::stats::Statistics)
//! when someone asks: the data plane counts once, for statistics and metrics alike. Families of the
//! process and of backends (custom families of the C API) follow. A family without children prints
//! nothing.

mod family;
pub(crate) mod gpu;
mod labels;
mod latencies;
mod model;
pub mod process;
mod quantiles;
mod render;
mod text;
mod usage;

pub use family::{Family, FamilyKind, Metric};
pub(crate) use quantiles::DEFAULT_QUANTILES;
pub use quantiles::parse_quantiles;
pub use render::{FamilySamples, LabelledValue};
pub(crate) use render::{MetricSources, render, render_custom};
