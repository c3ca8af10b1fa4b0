//! Answers of the control operations as JSON, members in upstream's order.

use conch_engine::server::{IndexRow, Metadata};
use conch_engine::stats::{ModelStatistics, Tally};
use conch_memory::Kind;

use super::json::write;
use crate::api::{ModelMetadata, TensorMetadata};

/// Appends `items` in brackets, each by `write_one`.
fn list<T>(
    target: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    mut write_one: impl FnMut(&mut Vec<u8>, T),
) {
    target.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            target.push(b',');
        }
        write_one(target, item);
    }
    target.push(b']');
}

/// Appends `"name":` with a comma before it unless it is the first of its object.
fn key(target: &mut Vec<u8>, name: &str) {
    if target.last() != Some(&b'{') {
        target.push(b',');
    }
    write::string(target, name.as_bytes());
    target.push(b':');
}

fn text(target: &mut Vec<u8>, name: &str, value: &str) {
    key(target, name);
    write::string(target, value.as_bytes());
}

pub(crate) fn server_metadata(metadata: &Metadata) -> Vec<u8> {
    let mut target = b"{".to_vec();
    text(&mut target, "name", &metadata.name);
    text(&mut target, "version", metadata.version);
    key(&mut target, "extensions");
    list(&mut target, metadata.extensions, |target, extension| {
        write::string(target, extension.as_bytes())
    });
    target.push(b'}');
    target
}

pub(crate) fn model_metadata(metadata: &ModelMetadata<'_>) -> Vec<u8> {
    let mut target = b"{".to_vec();
    text(&mut target, "name", metadata.name);
    key(&mut target, "versions");
    list(&mut target, &metadata.versions, |target, version| {
        write::string(target, version.to_string().as_bytes())
    });
    text(&mut target, "platform", metadata.platform);
    for (name, tensors) in [("inputs", &metadata.inputs), ("outputs", &metadata.outputs)] {
        key(&mut target, name);
        list(&mut target, tensors, tensor);
    }
    target.push(b'}');
    target
}

fn tensor(target: &mut Vec<u8>, tensor: &TensorMetadata<'_>) {
    target.push(b'{');
    text(target, "name", tensor.name);
    text(target, "datatype", tensor.data_type);
    key(target, "shape");
    list(target, &tensor.shape, |target, dim| {
        write::signed(target, *dim)
    });
    target.push(b'}');
}

pub(crate) fn index(rows: &[IndexRow]) -> Vec<u8> {
    let mut target = Vec::new();
    list(&mut target, rows, |target, row| {
        target.push(b'{');
        text(target, "name", &row.name);
        if let Some(version) = row.version {
            text(target, "version", &version.to_string());
        }
        // A model that lies in two repositories has these without a version.
        for (name, value) in [("state", row.state), ("reason", row.reason.as_str())] {
            if !value.is_empty() {
                text(target, name, value);
            }
        }
        target.push(b'}');
    });
    target
}

fn number(target: &mut Vec<u8>, name: &str, value: u64) {
    key(target, name);
    write::unsigned(target, value);
}

fn tallies(target: &mut Vec<u8>, named: &[(&str, Tally)]) {
    for (name, tally) in named {
        key(target, name);
        target.push(b'{');
        number(target, "count", tally.count);
        number(target, "ns", tally.duration_ns);
        target.push(b'}');
    }
}

pub(crate) fn statistics(models: &[ModelStatistics]) -> Vec<u8> {
    let mut target = b"{\"model_stats\":".to_vec();
    list(&mut target, models, model_statistics);
    target.push(b'}');
    target
}

fn model_statistics(target: &mut Vec<u8>, model: &ModelStatistics) {
    target.push(b'{');
    text(target, "name", &model.name);
    text(target, "version", &model.version.to_string());
    number(target, "last_inference", model.last_inference_ms);
    number(target, "inference_count", model.inference_count);
    number(target, "execution_count", model.execution_count);
    key(target, "inference_stats");
    target.push(b'{');
    let inference = &model.inference;
    tallies(
        target,
        &[
            ("success", inference.success),
            ("fail", inference.fail),
            ("queue", inference.queue),
            ("compute_input", inference.compute_input),
            ("compute_infer", inference.compute_infer),
            ("compute_output", inference.compute_output),
            ("cache_hit", inference.cache_hit),
            ("cache_miss", inference.cache_miss),
        ],
    );
    target.push(b'}');
    key(target, "response_stats");
    target.push(b'{');
    for (index, response) in &model.responses {
        key(target, &index.to_string());
        target.push(b'{');
        tallies(
            target,
            &[
                ("compute_infer", response.compute_infer),
                ("compute_output", response.compute_output),
                ("success", response.success),
                ("fail", response.fail),
                ("empty_response", response.empty_response),
                ("cancel", response.cancel),
            ],
        );
        target.push(b'}');
    }
    target.push(b'}');
    key(target, "batch_stats");
    list(target, &model.batches, |target, batch| {
        target.push(b'{');
        number(target, "batch_size", batch.batch_size);
        tallies(
            target,
            &[
                ("compute_input", batch.compute_input),
                ("compute_infer", batch.compute_infer),
                ("compute_output", batch.compute_output),
            ],
        );
        target.push(b'}');
    });
    key(target, "memory_usage");
    list(target, &model.memory_usage, |target, usage| {
        target.push(b'{');
        let kind = match usage.kind {
            Kind::Cpu => "CPU",
            Kind::CpuPinned => "CPU_PINNED",
            Kind::Gpu => "GPU",
        };
        text(target, "type", kind);
        key(target, "id");
        write::signed(target, usage.id);
        number(target, "byte_size", usage.bytes);
        target.push(b'}');
    });
    target.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists() {
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
            String::from_utf8(model_metadata(&metadata)).unwrap(),
            r#"{"name":"m","versions":["1","3"],"platform":"identity","inputs":[{"name":"IN","datatype":"FP32","shape":[-1,16]}],"outputs":[]}"#
        );
        let row = |version, state, reason: &str| IndexRow {
            name: "m".to_owned(),
            version,
            state,
            reason: reason.to_owned(),
        };
        assert_eq!(
            String::from_utf8(index(&[
                row(Some(1), "READY", ""),
                row(Some(2), "UNAVAILABLE", "because"),
                row(None, "UNAVAILABLE", "twice"),
                row(None, "", "")
            ]))
            .unwrap(),
            r#"[{"name":"m","version":"1","state":"READY"},{"name":"m","version":"2","state":"UNAVAILABLE","reason":"because"},{"name":"m","state":"UNAVAILABLE","reason":"twice"},{"name":"m"}]"#
        );
    }
}
