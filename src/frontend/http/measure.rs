//! Single steps of a request's walk, for the micro-benches in `bench/`. Nothing else calls this.

use conch_config::DataType;
use conch_engine::{Draft, Error, Output, Regions};
use conch_memory::ByteView;

use super::infer::decode::{DecodeBounds, JsonLimits};
use super::json::JsonDocument;
use super::{head, infer};

/// Finds and parses the head of a request; whether there is a sound one.
pub fn http_head(bytes: &[u8]) -> bool {
    matches!(head::find_end(bytes, 0), Ok(Some(_))) && head::parse(bytes).is_ok()
}

/// Decodes the body of an inference and makes the engine's draft of it; the number of inputs.
///
/// # Errors
/// Those of a request that a client sent.
pub fn http_body(body: &ByteView, json_length: usize) -> Result<usize, Error> {
    let regions = Regions::default();
    let bounds = DecodeBounds {
        model_name: "identity",
        limits: JsonLimits {
            input_bytes_max: 64 << 20,
            strict_integers: false,
        },
        regions: &regions,
    };
    let mut decoded = infer::decode::decode(body, json_length, &bounds)?;
    let mut draft = Draft::default();
    decoded.move_to(&mut draft)?;
    Ok(draft.inputs.len())
}

/// Checks a text and notes where its values lie.
///
/// # Errors
/// As for the JSON of a request.
pub fn http_json(text: &ByteView) -> Result<(), Error> {
    JsonDocument::parse(text.clone()).map(drop)
}

/// Appends FP32 values to `text` as the JSON of an answer has them.
///
/// # Errors
/// Those of an output.
pub fn http_numbers(values: &ByteView, text: &mut Vec<u8>) -> Result<(), Error> {
    let output = Output {
        name: "OUTPUT0".into(),
        data_type: DataType::Fp32,
        shape: [values.len() as i64 / 4].into_iter().collect(),
        data: values.clone(),
    };
    infer::encode::write_data(text, &output)
}
