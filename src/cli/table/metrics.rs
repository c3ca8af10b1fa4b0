//! Flags of the metrics.

use conch_control::metrics::parse_quantiles;

use super::row::served;
use crate::arguments::Arguments;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Nothing, Text};
use crate::flag::Setter::{self, Milliseconds, Other, Port, Switch};
use crate::listeners::ListenerKind;
use crate::values::{parse_bool, parse_clamped};

pub const FLAGS: &[Flag] = &[
    served(
        "allow-metrics",
        Bool,
        "Serve Prometheus metrics. Default: {}.",
        Switch(|to| &mut to.listeners.metrics.is_enabled),
    ),
    served(
        "allow-gpu-metrics",
        Bool,
        "Include GPU metrics, where there is a GPU. Default: {}.",
        Switch(|to| &mut to.engine.allow_gpu_metrics),
    ),
    served(
        "allow-cpu-metrics",
        Bool,
        "Include CPU metrics. Default: {}.",
        Switch(|to| &mut to.engine.allow_cpu_metrics),
    ),
    served(
        "metrics-address",
        Text("<address>"),
        "Address to listen on, or unix:<path>. Default: that of HTTP, 127.0.0.1 if that is a Unix \
         socket.",
        Setter::Text(|to| &mut to.listeners.metrics.endpoint.address),
    ),
    served(
        "metrics-port",
        Int,
        "Port; 0 takes a free one and logs it. Default: {}.",
        Port(ListenerKind::Metrics),
    ),
    served(
        "dashboard",
        Nothing,
        "Serve a page that shows what the server does, at /dashboard of the metrics port. conch \
         top shows the same in a terminal.",
        Other(|to, _| {
            to.frontend.dashboard = true;
            Ok(())
        }),
    ),
    served(
        "metrics-interval-ms",
        Int,
        "Milliseconds for which a reading of the CPU's use stands. Default: {}.",
        Milliseconds(|to| &mut to.engine.metrics_interval, parse_clamped),
    ),
    served(
        "metrics-config",
        Text("<setting>=<value>"),
        "counter_latencies=false leaves the duration counters out, summary_latencies=true adds \
         summaries of the same durations, with summary_quantiles=<quantile>:<error>,...; \
         histogram_latencies=true adds the histogram of first responses; \
         conch_histograms=false leaves conch's own histograms out. May be repeated.",
        Other(set_metrics_config),
    ),
];

/// `<setting>=<value>`.
fn set_metrics_config(to: &mut Arguments, text: &str) -> Result<(), String> {
    let parts = text.split_once('=').filter(|(setting, value)| {
        !setting.is_empty() && !setting.contains(',') && !value.is_empty()
    });
    let (setting, value) = parts.ok_or_else(|| {
        format!("--metrics-config option format is <setting>=<value>. Got {text}")
    })?;
    match setting {
        "counter_latencies" => to.engine.counter_latencies = parse_bool(value)?,
        "summary_latencies" => to.engine.summary_latencies = parse_bool(value)?,
        "histogram_latencies" => to.engine.histogram_latencies = parse_bool(value)?,
        "conch_histograms" => to.engine.duration_histograms = parse_bool(value)?,
        "summary_quantiles" => {
            let (quantiles, complaints) = parse_quantiles(value);
            to.engine.summary_quantiles = quantiles;
            to.warnings.extend(complaints);
        }
        _ => to
            .warnings
            .push(format!("--metrics-config={text} has no effect")),
    }
    Ok(())
}
