//! JSON documents about the server and its models, for the C API and HTTP. Fields stand in
//! upstream's order (`core/src/tritonserver.cc`), so they are written out instead of built.

use std::fmt::Write as _;

use conch_engine::model::stats::{CountAndTime, ModelStatistics};
use conch_memory::MemoryKind;

use crate::metadata::{ModelMetadata, TensorMetadata};
use crate::server_metadata::{IndexRow, ServerMetadata};

/// `name`, `version`, `extensions`.
pub fn server_metadata(metadata: &ServerMetadata) -> String {
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

/// A model's `name`, `versions`, `platform`, `inputs` and `outputs`.
pub fn model_metadata(metadata: &ModelMetadata<'_>) -> String {
    let versions: Vec<String> = metadata
        .versions
        .iter()
        .map(|version| format!("\"{version}\""))
        .collect();
    format!(
        "{{\"name\":{},\"versions\":[{}],\"platform\":{},\"inputs\":[{}],\"outputs\":[{}]}}",
        quoted(metadata.name),
        versions.join(","),
        quoted(metadata.platform),
        tensors(&metadata.inputs),
        tensors(&metadata.outputs)
    )
}

fn tensors(tensors: &[TensorMetadata<'_>]) -> String {
    let row = |tensor: &TensorMetadata<'_>| {
        let dims: Vec<String> = tensor.shape.iter().map(i64::to_string).collect();
        format!(
            "{{\"name\":{},\"datatype\":\"{}\",\"shape\":[{}]}}",
            quoted(tensor.name),
            tensor.data_type,
            dims.join(",")
        )
    };
    let rows: Vec<String> = tensors.iter().map(row).collect();
    rows.join(",")
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
                MemoryKind::Cpu => "CPU",
                MemoryKind::CpuPinned => "CPU_PINNED",
                MemoryKind::Gpu => "GPU",
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

fn tallies(tallies: &[(&str, CountAndTime)]) -> String {
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
    use conch_engine::model::stats::{
        BatchStatistics, InferenceStatistics, MemoryUsage, ResponseStatistics,
    };

    #[test]
    fn fields_stand_in_upstreams_order() {
        let metadata = ServerMetadata {
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
        let metadata = ModelMetadata {
            name: "m",
            versions: vec![1, 3],
            platform: "identity",
            inputs: vec![TensorMetadata {
                name: "IN",
                data_type: "FP32",
                shape: vec![-1, 16],
            }],
            outputs: vec![],
        };
        assert_eq!(
            model_metadata(&metadata),
            r#"{"name":"m","versions":["1","3"],"platform":"identity","inputs":[{"name":"IN","datatype":"FP32","shape":[-1,16]}],"outputs":[]}"#
        );
    }

    #[test]
    fn statistics_are_objects_and_lists() {
        assert_eq!(statistics(&[]), r#"{"model_stats":[]}"#);
        let tally = |count| CountAndTime {
            count,
            duration_ns: count * 10,
        };
        let model = ModelStatistics {
            name: "m".into(),
            version: 2,
            last_inference_ms: 5,
            inference_count: 6,
            execution_count: 7,
            inference: InferenceStatistics {
                success: tally(1),
                fail: tally(2),
                queue: tally(3),
                compute_input: tally(4),
                compute_infer: tally(5),
                compute_output: tally(6),
                cache_hit: tally(7),
                cache_miss: tally(8),
            },
            responses: vec![(
                0,
                ResponseStatistics {
                    compute_infer: tally(1),
                    compute_output: tally(2),
                    success: tally(3),
                    fail: tally(4),
                    empty_response: tally(5),
                    cancel: tally(6),
                },
            )],
            batches: vec![BatchStatistics {
                batch_size: 4,
                compute_input: tally(1),
                compute_infer: tally(2),
                compute_output: tally(3),
            }],
            memory_usage: vec![MemoryUsage {
                kind: MemoryKind::CpuPinned,
                id: -1,
                bytes: 9,
            }],
        };
        let pair =
            |name: &str, count: u64| format!(r#""{name}":{{"count":{count},"ns":{}}}"#, count * 10);
        let object = |names: &[&str]| {
            let pairs: Vec<String> = names
                .iter()
                .zip(1..)
                .map(|(name, count)| pair(name, count))
                .collect();
            pairs.join(",")
        };
        let expected = format!(
            concat!(
                r#"{{"model_stats":[{{"name":"m","version":"2","last_inference":5,"inference_count":6,"execution_count":7,"#,
                r#""inference_stats":{{{}}},"response_stats":{{"0":{{{}}}}},"batch_stats":[{{"batch_size":4,{}}}],"#,
                r#""memory_usage":[{{"type":"CPU_PINNED","id":-1,"byte_size":9}}]}}]}}"#
            ),
            object(&[
                "success",
                "fail",
                "queue",
                "compute_input",
                "compute_infer",
                "compute_output",
                "cache_hit",
                "cache_miss"
            ]),
            object(&[
                "compute_infer",
                "compute_output",
                "success",
                "fail",
                "empty_response",
                "cancel"
            ]),
            object(&["compute_input", "compute_infer", "compute_output"]),
        );
        assert_eq!(statistics(&[model]), expected);
    }
}
