//! The response header `endpoint-load-metrics` (ORCA): how full a language model's cache of keys
//! and values is, for load balancers.
//!
//! Read from the metrics that TensorRT-LLM's backend keeps; without those there is no header.

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use conch_engine::clock;
use conch_log::LogLimiter;

use crate::http::json::write;
use crate::shard::Shard;
use crate::shard::offload::METRICS_COST;

/// Samples of this family, told apart by the label below.
const FAMILY: &str = "nv_trt_llm_kv_cache_block_metrics";
const KIND_LABEL: &str = "kv_cache_block_type";
const UTILIZATION: &str = "kv_cache_utilization";
const CAPACITY: &str = "max_token_capacity";

/// The request's header that says whether and how the answer's is wanted.
pub(super) const WISH: &str = "endpoint-load-metrics-format";

/// What that header may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadFormat {
    Text,
    Json,
}

impl LoadFormat {
    /// None, with a line in the log, for what is not known.
    pub(super) fn from_name(name: &[u8]) -> Option<LoadFormat> {
        match name {
            b"text" => Some(LoadFormat::Text),
            b"json" => Some(LoadFormat::Json),
            _ => {
                let name = name.escape_ascii();
                complain(format_args!("orca_type is set to an invalid type: {name}"));
                None
            }
        }
    }
}

/// The header's value as of now; none, with a line in the log, if the metrics are not there.
pub(super) async fn header(shard: &Rc<Shard>, format: LoadFormat) -> Option<Box<str>> {
    let server = Arc::clone(&shard.server);
    let load = shard
        .offload(METRICS_COST, move || {
            LoadReport::from_metrics(&server.custom_metrics_text())
        })
        .await;
    if load.is_none() {
        complain(format_args!(
            "One or more of the kv metrics was not found or invalid."
        ));
    }
    load.map(|load| load.render(format).into())
}

/// Writes a line of upstream's, not more often than once per second: any client can cause it.
fn complain(what: std::fmt::Arguments<'_>) {
    static COMPLAINTS: LazyLock<LogLimiter> = LazyLock::new(LogLimiter::default);
    COMPLAINTS.tell(clock::monotonic_ns(), what);
}

#[derive(Debug, PartialEq)]
struct LoadReport {
    utilization: f64,
    token_capacity: u64,
}

impl LoadReport {
    /// Of several models with such metrics the last counts, as upstream.
    fn from_metrics(text: &str) -> Option<LoadReport> {
        let (mut max, mut used, mut tokens_per_block) = (None, None, None);
        for line in text.lines() {
            let Some((kind, value)) = sample(line) else {
                continue;
            };
            match kind {
                "max" => max = Some(value),
                "used" => used = Some(value),
                "tokens_per" => tokens_per_block = Some(value),
                _ => {}
            }
        }
        let (max, used, tokens_per_block) = (max?, used?, tokens_per_block?);
        Some(LoadReport {
            utilization: if max > 0.0 { used / max } else { 0.0 },
            // Saturates; blocks are counted, so it is whole.
            token_capacity: (max * tokens_per_block) as u64,
        })
    }

    fn render(&self, format: LoadFormat) -> String {
        match format {
            LoadFormat::Text => format!(
                "TEXT named_metrics.{UTILIZATION}={:.6}, named_metrics.{CAPACITY}={}",
                self.utilization, self.token_capacity
            ),
            LoadFormat::Json => {
                let mut number = Vec::new();
                write::double(&mut number, self.utilization);
                format!(
                    r#"JSON {{"named_metrics":{{"{UTILIZATION}":{},"{CAPACITY}":{}}}}}"#,
                    String::from_utf8_lossy(&number),
                    self.token_capacity
                )
            }
        }
    }
}

/// Kind and value of a line that is one of the family's samples, unless its value is negative.
fn sample(line: &str) -> Option<(&str, f64)> {
    let (labels, value) = line
        .strip_prefix(FAMILY)?
        .strip_prefix('{')?
        .rsplit_once('}')?;
    let value: f64 = value.trim().parse().ok()?;
    let (before, rest) = labels.split_once(KIND_LABEL)?;
    let is_whole_name = before.is_empty() || before.ends_with(',');
    let (kind, _) = rest.strip_prefix("=\"")?.split_once('"')?;
    (is_whole_name && value.is_finite() && value >= 0.0).then_some((kind, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(rows: &[(&str, &str)]) -> String {
        let mut text = format!(
            "# HELP {FAMILY} 3 kinds\n# TYPE {FAMILY} gauge\nother \
             7\n{FAMILY}_more{{{KIND_LABEL}=\"max\"}} 9\n"
        );
        for (kind, value) in rows {
            text += &format!(
                "{FAMILY}{{{KIND_LABEL}=\"{kind}\",model=\"m}}\",version=\"1\"}} {value}\n"
            );
        }
        text
    }

    #[test]
    fn is_read_and_rendered() {
        let text = metrics(&[
            ("fraction", "0.5"),
            ("used", "3"),
            ("max", "12"),
            ("tokens_per", "64"),
        ]);
        let load = LoadReport::from_metrics(&text).unwrap();
        assert_eq!(
            load.render(LoadFormat::Text),
            "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=768"
        );
        assert_eq!(
            load.render(LoadFormat::Json),
            r#"JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":768}}"#
        );
    }

    #[test]
    fn odd_figures() {
        for (rows, expected) in [
            (&[("used", "3"), ("max", "12")][..], None),
            (&[("used", "-1"), ("max", "12"), ("tokens_per", "1")], None),
            (&[("used", "NaN"), ("max", "12"), ("tokens_per", "1")], None),
            (
                &[("used", "1"), ("max", "0"), ("tokens_per", "64")],
                Some(LoadReport {
                    utilization: 0.0,
                    token_capacity: 0,
                }),
            ),
            (
                &[
                    ("used", "1"),
                    ("used", "2"),
                    ("max", "4"),
                    ("tokens_per", "2"),
                ],
                Some(LoadReport {
                    utilization: 0.5,
                    token_capacity: 8,
                }),
            ),
        ] {
            assert_eq!(
                LoadReport::from_metrics(&metrics(rows)),
                expected,
                "{rows:?}"
            );
        }
        assert_eq!(LoadReport::from_metrics(""), None);
    }

    #[test]
    fn formats() {
        assert_eq!(LoadFormat::from_name(b"text"), Some(LoadFormat::Text));
        assert_eq!(LoadFormat::from_name(b"json"), Some(LoadFormat::Json));
        assert_eq!(LoadFormat::from_name(b"TEXT"), None);
    }
}
