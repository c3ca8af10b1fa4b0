//! JSON documents about the server and its models, for the C API and HTTP. Members stand in
//! upstream's order (`core/src/tritonserver.cc`), which is that of the fields of their types; types
//! of the engine have theirs here.

use std::sync::Arc;

use conch_engine::model::stats::{
    BatchStatistics, CountAndTime, InferenceStatistics, MemoryUsage, ModelStatistics,
    ResponseStatistics,
};
use conch_memory::MemoryKind;
use serde::{Serialize, Serializer};

use crate::json::{as_text, to_json};
use crate::metadata::ModelMetadata;
use crate::server_metadata::{IndexRow, ServerMetadata};

/// `name`, `version`, `extensions`.
pub fn server_metadata(metadata: &ServerMetadata) -> String {
    to_json(metadata)
}

/// A model's `name`, `versions`, `platform`, `inputs` and `outputs`.
pub fn model_metadata(metadata: &ModelMetadata<'_>) -> String {
    to_json(metadata)
}

/// The repository index: `name`, and where known `version`, `state` and `reason`.
pub fn index(rows: &[IndexRow]) -> String {
    to_json(rows)
}

/// `model_stats` of each model.
pub fn statistics(models: &[ModelStatistics]) -> String {
    #[derive(Serialize)]
    struct StatisticsDocument<'s> {
        #[serde(serialize_with = "model_rows")]
        model_stats: &'s [ModelStatistics],
    }
    to_json(&StatisticsDocument {
        model_stats: models,
    })
}

#[derive(Serialize)]
#[serde(remote = "ModelStatistics")]
struct ModelDocument {
    #[serde(serialize_with = "as_text")]
    name: Arc<str>,
    #[serde(serialize_with = "as_text")]
    version: i64,
    #[serde(rename = "last_inference")]
    last_inference_ms: u64,
    inference_count: u64,
    execution_count: u64,
    #[serde(rename = "inference_stats", with = "InferenceDocument")]
    inference: InferenceStatistics,
    #[serde(rename = "response_stats", serialize_with = "response_entries")]
    responses: Vec<(u64, ResponseStatistics)>,
    #[serde(rename = "batch_stats", serialize_with = "batch_rows")]
    batches: Vec<BatchStatistics>,
    #[serde(serialize_with = "usage_rows")]
    memory_usage: Vec<MemoryUsage>,
}

#[derive(Serialize)]
#[serde(remote = "InferenceStatistics")]
struct InferenceDocument {
    #[serde(with = "TallyDocument")]
    success: CountAndTime,
    #[serde(with = "TallyDocument")]
    fail: CountAndTime,
    #[serde(with = "TallyDocument")]
    queue: CountAndTime,
    #[serde(with = "TallyDocument")]
    compute_input: CountAndTime,
    #[serde(with = "TallyDocument")]
    compute_infer: CountAndTime,
    #[serde(with = "TallyDocument")]
    compute_output: CountAndTime,
    #[serde(with = "TallyDocument")]
    cache_hit: CountAndTime,
    #[serde(with = "TallyDocument")]
    cache_miss: CountAndTime,
}

#[derive(Serialize)]
#[serde(remote = "ResponseStatistics")]
struct ResponseDocument {
    #[serde(with = "TallyDocument")]
    compute_infer: CountAndTime,
    #[serde(with = "TallyDocument")]
    compute_output: CountAndTime,
    #[serde(with = "TallyDocument")]
    success: CountAndTime,
    #[serde(with = "TallyDocument")]
    fail: CountAndTime,
    #[serde(with = "TallyDocument")]
    empty_response: CountAndTime,
    #[serde(with = "TallyDocument")]
    cancel: CountAndTime,
}

#[derive(Serialize)]
#[serde(remote = "BatchStatistics")]
struct BatchDocument {
    batch_size: u64,
    #[serde(with = "TallyDocument")]
    compute_input: CountAndTime,
    #[serde(with = "TallyDocument")]
    compute_infer: CountAndTime,
    #[serde(with = "TallyDocument")]
    compute_output: CountAndTime,
}

#[derive(Serialize)]
#[serde(remote = "MemoryUsage")]
struct UsageDocument {
    #[serde(rename = "type", with = "KindDocument")]
    kind: MemoryKind,
    id: i64,
    #[serde(rename = "byte_size")]
    bytes: u64,
}

#[derive(Serialize)]
#[serde(remote = "MemoryKind", rename_all = "SCREAMING_SNAKE_CASE")]
enum KindDocument {
    Cpu,
    CpuPinned,
    Gpu,
}

#[derive(Serialize)]
#[serde(remote = "CountAndTime")]
struct TallyDocument {
    count: u64,
    #[serde(rename = "ns")]
    duration_ns: u64,
}

/// Makes `$function`, which writes a list of `$value` by way of `$document`: serde knows no other
/// way into a list of another crate's types.
macro_rules! rows {
    ($function:ident, $value:ty, $document:literal) => {
        fn $function<S: Serializer>(values: &[$value], target: S) -> Result<S::Ok, S::Error> {
            #[derive(Serialize)]
            struct Row<'s>(#[serde(with = $document)] &'s $value);
            target.collect_seq(values.iter().map(Row))
        }
    };
}

rows!(model_rows, ModelStatistics, "ModelDocument");
rows!(batch_rows, BatchStatistics, "BatchDocument");
rows!(usage_rows, MemoryUsage, "UsageDocument");

/// An object with a member per index.
fn response_entries<S: Serializer>(
    entries: &[(u64, ResponseStatistics)],
    target: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Entry<'s>(#[serde(with = "ResponseDocument")] &'s ResponseStatistics);
    target.collect_map(entries.iter().map(|(index, entry)| (index, Entry(entry))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::TensorMetadata;

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
            concat!(
                r#"[{"name":"m","version":"1","state":"READY"},{"name":"m","version":"2","#,
                r#""state":"UNAVAILABLE","reason":"because"},{"name":"m","#,
                r#""state":"UNAVAILABLE","reason":"twice"},{"name":"m"}]"#
            )
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
            concat!(
                r#"{"name":"m","versions":["1","3"],"platform":"identity","#,
                r#""inputs":[{"name":"IN","datatype":"FP32","shape":[-1,16]}],"outputs":[]}"#
            )
        );
    }

    /// Numbers that differ from their neighbours.
    fn numbers() -> ModelStatistics {
        let tally = |count| CountAndTime {
            count,
            duration_ns: count * 10,
        };
        ModelStatistics {
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
        }
    }

    #[test]
    fn statistics_are_objects_and_lists() {
        assert_eq!(statistics(&[]), r#"{"model_stats":[]}"#);
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
                r#"{{"model_stats":[{{"name":"m","version":"2","last_inference":5,"#,
                r#""inference_count":6,"execution_count":7,"#,
                r#""inference_stats":{{{}}},"response_stats":{{"0":{{{}}}}},"#,
                r#""batch_stats":[{{"batch_size":4,{}}}],"#,
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
        assert_eq!(statistics(&[numbers()]), expected);
    }
}
