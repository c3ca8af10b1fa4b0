//! Metrics in Prometheus text format 0.0.4.
//!
//! The per-model families are rendered from [`Statistics`](conch_engine::stats::Statistics) when someone
//! asks: the data plane counts once, for statistics and metrics alike. Families of the process and
//! of backends (custom families of the C API) follow. A family without children prints nothing.

mod family;
mod model;
pub mod process;

pub use family::{Family, FamilyKind, Metric};

use crate::Server;

/// All families.
pub(crate) fn render(server: &Server) -> String {
    let mut text = String::with_capacity(8 << 10);
    if server.options().allow_metrics {
        model::render(
            &mut text,
            &server.registry().snapshot().ready_models(),
            server.options().counter_latencies,
        );
        if let Some(caching) = server.caching() {
            for gauge in caching.cache().gauges() {
                push_head(&mut text, gauge.name, gauge.help, "gauge");
                push_sample(&mut text, gauge.name, &[], gauge.value);
            }
        }
        process::render_pinned(&mut text, server.options().pinned_pool_bytes);
        process::render_dropped(&mut text, server.budget().dropped_count());
        if server.options().allow_cpu_metrics {
            server.cpu_meter().render(&mut text);
        }
        family::render_all(&mut text);
    }
    text
}

/// Writes a family's two head lines.
fn push_head(text: &mut String, name: &str, help: &str, kind: &str) {
    text.push_str("# HELP ");
    text.push_str(name);
    text.push(' ');
    push_escaped(text, help, false);
    text.push_str("\n# TYPE ");
    text.push_str(name);
    text.push(' ');
    text.push_str(kind);
    text.push('\n');
}

/// Writes one sample line. `labels` are written in the order given.
fn push_sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    text.push_str(name);
    if !labels.is_empty() {
        text.push('{');
        for (index, (label, value)) in labels.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(label);
            text.push_str("=\"");
            push_escaped(text, value, true);
            text.push('"');
        }
        text.push('}');
    }
    text.push(' ');
    push_number(text, value);
    text.push('\n');
}

fn push_escaped(text: &mut String, value: &str, escapes_quotes: bool) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if escapes_quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

fn push_number(text: &mut String, value: f64) {
    use std::fmt::Write as _;
    if value.is_nan() {
        text.push_str("Nan");
    } else if value.is_infinite() {
        text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        write!(text, "{value}").expect("writing to a String cannot fail");
    }
}
