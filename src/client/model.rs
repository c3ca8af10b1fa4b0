//! What a server says of a model.

use conch_config::DataType;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;

use crate::error::ClientError;
use crate::http::ServerClient;
use crate::tensor::shape::shown;

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorDescription {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
    /// -1: any size.
    pub(crate) shape: Vec<i64>,
}

impl TensorDescription {
    /// Type and shape.
    pub(crate) fn kind(&self) -> String {
        format!("{} {}", self.data_type.name(), shown(&self.shape))
    }
}

/// A model, by its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelDescription {
    pub(crate) inputs: Vec<TensorDescription>,
    pub(crate) outputs: Vec<TensorDescription>,
}

impl ModelDescription {
    /// Asks `client`.
    ///
    /// # Errors
    /// The server's, and an answer that describes no model.
    pub(crate) fn ask(client: &ServerClient, path: &str) -> Result<ModelDescription, ClientError> {
        let answer = client.get(path)?.good()?;
        ModelDescription::parse(&answer.body).map_err(|cause| {
            ClientError::Failed(format!("the server's metadata cannot be read: {cause}"))
        })
    }

    fn parse(document: &[u8]) -> Result<ModelDescription, String> {
        let document: MetadataDocument =
            serde_json::from_slice(document).map_err(|cause| cause.to_string())?;
        Ok(ModelDescription {
            inputs: descriptions(document.inputs)?,
            outputs: descriptions(document.outputs)?,
        })
    }
}

fn descriptions(documents: Vec<TensorDocument>) -> Result<Vec<TensorDescription>, String> {
    let description = |document: TensorDocument| {
        let data_type = DataType::from_name(&document.datatype)
            .ok_or_else(|| format!("'{}' has unknown type {}", document.name, document.datatype))?;
        Ok(TensorDescription {
            name: document.name,
            data_type,
            shape: document.shape,
        })
    };
    documents.into_iter().map(description).collect()
}

#[derive(Deserialize)]
struct MetadataDocument {
    inputs: Vec<TensorDocument>,
    #[serde(default)]
    outputs: Vec<TensorDocument>,
}

#[derive(Deserialize)]
struct TensorDocument {
    name: String,
    datatype: String,
    #[serde(default)]
    shape: Vec<i64>,
}

/// The inputs that requests may leave out, which only the configuration says; none if the server
/// has no configurations to show.
pub(crate) fn optional_inputs(client: &ServerClient, path: &str) -> Vec<String> {
    let answer = client.get(&format!("{path}/config"));
    let Ok(answer) = answer.and_then(|answer| answer.good()) else {
        return Vec::new();
    };
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let inputs = document.get("input").and_then(Value::as_array);
    let optional = inputs.into_iter().flatten().filter_map(|input| {
        let is_optional = input.get("optional")?.as_bool()?;
        is_optional.then(|| input.get("name")?.as_str().map(String::from))?
    });
    optional.collect()
}

/// The path of a model, or of one of its versions.
pub(crate) fn path(model: &str, version: Option<&str>) -> String {
    let encoded = |text| utf8_percent_encode(text, PATH_ENCODED).to_string();
    let model = encoded(model);
    match version {
        Some(version) => format!("/v2/models/{model}/versions/{}", encoded(version)),
        None => format!("/v2/models/{model}"),
    }
}

/// All but what RFC 3986 calls unreserved.
const PATH_ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read() {
        let document = r#"{"name":"m","versions":["1"],"platform":"p",
            "inputs":[{"name":"X","datatype":"BF16","shape":[-1,3]}],
            "outputs":[{"name":"Y","datatype":"BYTES"}]}"#;
        let model = ModelDescription::parse(document.as_bytes()).unwrap();
        assert_eq!(model.inputs[0].kind(), "BF16 [-1,3]");
        assert_eq!(model.outputs[0].kind(), "BYTES []");
        for document in [
            "",
            "[]",
            r#"{"inputs":[{"name":"X","datatype":"FP8","shape":[1]}]}"#,
            r#"{"inputs":[{"name":"X","datatype":"FP32","shape":["1"]}]}"#,
        ] {
            assert!(ModelDescription::parse(document.as_bytes()).is_err());
        }
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(path("a b/c", None), "/v2/models/a%20b%2Fc");
        assert_eq!(path("m-1.x", Some("2")), "/v2/models/m-1.x/versions/2");
    }
}
