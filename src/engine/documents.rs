//! What the server says of itself and its models, as JSON documents: for the C API and for HTTP. Fields stand in upstream's order
//! (`core/src/tritonserver.cc`), so they are written out instead of built.

use std::fmt::Write as _;

use conch_config::TensorSpec;
use conch_memory::Kind;

use crate::ModelVersion;
use crate::server::{IndexRow, Metadata};
use crate::stats::{ModelStatistics, Tally};

/// `name`, `version`, `extensions`.
pub fn server_metadata(metadata: &Metadata) -> String {
    let extensions: Vec<String> = metadata
        .extensions
        .iter()
        .map(|name| quoted(name))
        .collect();
    format!(
        "{{\"name\":{},\"version\":{},\"extensions\":[{}]}}",
        quoted(&metadata.name),
        quoted(metadata.version),
        extensions.join(",")
    )
}

/// A model's `name`, `versions`, `platform`, `inputs` and `outputs`. `versions` are those to be told.
pub fn model_metadata(model: &ModelVersion, versions: &[i64]) -> String {
    let config = &model.config;
    let versions: Vec<String> = versions
        .iter()
        .map(|version| format!("\"{version}\""))
        .collect();
    let tensors = |specs: &[TensorSpec]| {
        let rows: Vec<String> = specs
            .iter()
            .map(|spec| tensor(spec, config.is_batching()))
            .collect();
        rows.join(",")
    };
    format!(
        "{{\"name\":{},\"versions\":[{}],\"platform\":{},\"inputs\":[{}],\"outputs\":[{}]}}",
        quoted(&model.name),
        versions.join(","),
        quoted(config.platform_or_backend()),
        tensors(&config.inputs),
        tensors(&config.outputs)
    )
}

fn tensor(spec: &TensorSpec, has_batch_dim: bool) -> String {
    let batch = has_batch_dim.then_some(-1);
    let dims: Vec<String> = batch
        .into_iter()
        .chain(spec.dims.iter().copied())
        .map(|dim| dim.to_string())
        .collect();
    format!(
        "{{\"name\":{},\"datatype\":\"{}\",\"shape\":[{}]}}",
        quoted(&spec.name),
        spec.data_type.name(),
        dims.join(",")
    )
}

/// The repository index: `name`, and where known `version`, `state` and `reason`.
pub fn index(rows: &[IndexRow]) -> String {
    let row = |row: &IndexRow| {
        let mut text = format!("{{\"name\":{}", quoted(&row.name));
        if let Some(version) = row.version {
            // Writing to a string cannot fail.
            let _ = write!(text, ",\"version\":\"{version}\"");
        }
        for (field, value) in [("state", row.state), ("reason", &*row.reason)] {
            if !value.is_empty() {
                let _ = write!(text, ",\"{field}\":{}", quoted(value));
            }
        }
        text.push('}');
        text
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    format!("[{}]", rows.join(","))
}

/// `model_stats` of each model.
pub fn statistics(models: &[ModelStatistics]) -> String {
    let models: Vec<String> = models.iter().map(model_statistics).collect();
    format!("{{\"model_stats\":[{}]}}", models.join(","))
}

fn model_statistics(model: &ModelStatistics) -> String {
    let inference = &model.inference;
    let inference_stats = tallies(&[
        ("success", inference.success),
        ("fail", inference.fail),
        ("queue", inference.queue),
        ("compute_input", inference.compute_input),
        ("compute_infer", inference.compute_infer),
        ("compute_output", inference.compute_output),
        ("cache_hit", inference.cache_hit),
        ("cache_miss", inference.cache_miss),
    ]);
    let responses: Vec<String> = model
        .responses
        .iter()
        .map(|(index, response)| {
            let tallies = tallies(&[
                ("compute_infer", response.compute_infer),
                ("compute_output", response.compute_output),
                ("success", response.success),
                ("fail", response.fail),
                ("empty_response", response.empty_response),
                ("cancel", response.cancel),
            ]);
            format!("\"{index}\":{{{tallies}}}")
        })
        .collect();
    let batches: Vec<String> = model
        .batches
        .iter()
        .map(|batch| {
            let tallies = tallies(&[
                ("compute_input", batch.compute_input),
                ("compute_infer", batch.compute_infer),
                ("compute_output", batch.compute_output),
            ]);
            format!("{{\"batch_size\":{},{tallies}}}", batch.batch_size)
        })
        .collect();
    let usages: Vec<String> = model
        .memory_usage
        .iter()
        .map(|usage| {
            let kind = match usage.kind {
                Kind::Cpu => "CPU",
                Kind::CpuPinned => "CPU_PINNED",
                Kind::Gpu => "GPU",
            };
            format!(
                "{{\"type\":\"{kind}\",\"id\":{},\"byte_size\":{}}}",
                usage.id, usage.bytes
            )
        })
        .collect();
    format!(
        "{{\"name\":{},\"version\":\"{}\",\"last_inference\":{},\"inference_count\":{},\"execution_count\":{},\
         \"inference_stats\":{{{inference_stats}}},\"response_stats\":{{{}}},\"batch_stats\":[{}],\"memory_usage\":[{}]}}",
        quoted(&model.name),
        model.version,
        model.last_inference_ms,
        model.inference_count,
        model.execution_count,
        responses.join(","),
        batches.join(","),
        usages.join(",")
    )
}

fn tallies(tallies: &[(&str, Tally)]) -> String {
    let rows: Vec<String> = tallies
        .iter()
        .map(|(name, tally)| {
            format!(
                "\"{name}\":{{\"count\":{},\"ns\":{}}}",
                tally.count, tally.duration_ns
            )
        })
        .collect();
    rows.join(",")
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut target = String::with_capacity(text.len() + 2);
    target.push('"');
    for character in text.chars() {
        match character {
            '"' => target.push_str("\\\""),
            '\\' => target.push_str("\\\\"),
            '\u{8}' => target.push_str("\\b"),
            '\u{c}' => target.push_str("\\f"),
            '\n' => target.push_str("\\n"),
            '\r' => target.push_str("\\r"),
            '\t' => target.push_str("\\t"),
            character if u32::from(character) < 0x20 => {
                // Writing to a string cannot fail.
                let _ = write!(target, "\\u{:04X}", u32::from(character));
            }
            character => target.push(character),
        }
    }
    target.push('"');
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_in_upstreams_order() {
        let metadata = Metadata {
            name: "a\"b\u{1}".to_owned(),
            version: "1.2",
            extensions: &["x", "y"],
        };
        assert_eq!(
            server_metadata(&metadata),
            r#"{"name":"a\"b\u0001","version":"1.2","extensions":["x","y"]}"#
        );
        let row = |version, state, reason: &str| IndexRow {
            name: "m".to_owned(),
            version,
            state,
            reason: reason.to_owned(),
        };
        let rows = [
            row(Some(1), "READY", ""),
            row(Some(2), "UNAVAILABLE", "because"),
            row(None, "UNAVAILABLE", "twice"),
            row(None, "", ""),
        ];
        assert_eq!(
            index(&rows),
            r#"[{"name":"m","version":"1","state":"READY"},{"name":"m","version":"2","state":"UNAVAILABLE","reason":"because"},{"name":"m","state":"UNAVAILABLE","reason":"twice"},{"name":"m"}]"#
        );
        assert_eq!(index(&[]), "[]");
        assert_eq!(statistics(&[]), r#"{"model_stats":[]}"#);
    }
}
