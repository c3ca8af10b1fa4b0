//! The answer to a request, as tensors.

use conch_config::DataType;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ClientError;
use crate::http::ServerAnswer;
use crate::input::NamedTensor;
use crate::tensor::elements::Elements;
use crate::tensor::shape::{element_count, shown};
use crate::tensor::{WireTensor, literal};

/// What a model answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InferAnswer {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) id: String,
    pub(crate) outputs: Vec<NamedTensor>,
}

impl InferAnswer {
    /// # Errors
    /// What of it is not as the protocol has it.
    pub(crate) fn parse(answer: &ServerAnswer) -> Result<InferAnswer, ClientError> {
        let bad = |cause: String| {
            ClientError::Failed(format!("the server's answer cannot be read: {cause}"))
        };
        InferAnswer::read(answer).map_err(bad)
    }

    fn read(answer: &ServerAnswer) -> Result<InferAnswer, String> {
        let json_bytes = answer.json_bytes.unwrap_or(answer.body.len());
        let (json, mut tail) = answer
            .body
            .split_at_checked(json_bytes)
            .ok_or_else(|| String::from("it ends within its JSON"))?;
        let document: AnswerDocument =
            serde_json::from_slice(json).map_err(|cause| cause.to_string())?;
        let mut outputs = Vec::with_capacity(document.outputs.len());
        for output in document.outputs {
            let name = output.name.clone();
            let tensor = output
                .into_tensor(&mut tail)
                .map_err(|cause| format!("output '{name}': {cause}"))?;
            outputs.push(NamedTensor { name, tensor });
        }
        Ok(InferAnswer {
            model: document.model_name,
            version: document.model_version,
            id: document.id,
            outputs,
        })
    }
}

#[derive(Deserialize)]
struct AnswerDocument {
    model_name: String,
    #[serde(default)]
    model_version: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    outputs: Vec<OutputDocument>,
}

#[derive(Deserialize)]
struct OutputDocument {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    #[serde(default)]
    parameters: Value,
    data: Option<Value>,
}

impl OutputDocument {
    fn into_tensor(self, tail: &mut &[u8]) -> Result<WireTensor, String> {
        let data_type = DataType::from_name(&self.datatype)
            .ok_or_else(|| format!("type {} is not known", self.datatype))?;
        let count = element_count(&self.shape)
            .ok_or_else(|| format!("shape {} is none", shown(&self.shape)))?;
        let bytes = match (self.parameters.get("binary_data_size"), self.data) {
            (Some(size), _) => {
                let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
                let split = size.and_then(|size| tail.split_at_checked(size));
                let (bytes, left) = split.ok_or_else(|| String::from("its bytes are not there"))?;
                *tail = left;
                bytes.to_vec()
            }
            (None, Some(data)) => literal::of_value(&data, data_type)?.bytes,
            (None, None) => return Err(String::from("it has no data")),
        };
        let mut elements = Elements::new(data_type, &bytes);
        let seen = elements.by_ref().count() as u64;
        if seen != count || !elements.is_at_end() {
            return Err(format!(
                "{} bytes are not {count} elements of {}",
                bytes.len(),
                data_type.name()
            ));
        }
        Ok(WireTensor {
            data_type,
            shape: self.shape,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, tail: &[u8]) -> Result<InferAnswer, String> {
        InferAnswer::read(&ServerAnswer {
            status: http::StatusCode::OK,
            json_bytes: (!tail.is_empty()).then_some(json.len()),
            body: [json.as_bytes(), tail].concat(),
        })
    }

    fn output(rest: &str) -> String {
        format!(r#"{{"model_name":"m","outputs":[{{"name":"Y",{rest}}}]}}"#)
    }

    #[test]
    fn answers_in_binary_and_in_json() {
        let binary =
            output(r#""datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":2}"#);
        let json = output(r#""datatype":"UINT8","shape":[1,2],"data":[5,6]"#);
        for (json, tail, shape) in [(binary, &[5, 6][..], &[2][..]), (json, &[], &[1, 2])] {
            let answer = read(&json, tail).unwrap();
            let tensor = &answer.outputs[0].tensor;
            assert_eq!((&*tensor.shape, &*tensor.bytes), (shape, &[5, 6][..]));
        }
        assert!(
            read(r#"{"model_name":"m"}"#, &[])
                .unwrap()
                .outputs
                .is_empty()
        );
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        let table: [(&str, &[u8], &str); 7] = [
            (
                r#""datatype":"FP8","shape":[1],"data":[1]"#,
                &[],
                "type FP8",
            ),
            (
                r#""datatype":"FP32","shape":[-1],"data":[1]"#,
                &[],
                "shape [-1]",
            ),
            (r#""datatype":"FP32","shape":[1]"#, &[], "no data"),
            (
                r#""datatype":"FP32","shape":[2],"data":[1]"#,
                &[],
                "4 bytes are not 2",
            ),
            (
                r#""datatype":"FP32","shape":[1],"parameters":{"binary_data_size":8}"#,
                &[0; 4],
                "bytes are not there",
            ),
            (
                r#""datatype":"FP32","shape":[1],"parameters":{"binary_data_size":3}"#,
                &[0; 4],
                "3 bytes are not 1",
            ),
            (
                r#""datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":4}"#,
                &[9, 0, 0, 0],
                "4 bytes are not 1",
            ),
        ];
        for (rest, tail, expected) in table {
            let error = read(&output(rest), tail).unwrap_err();
            assert!(error.contains(expected), "{rest}: {error}");
        }
        assert!(read("[]", &[]).is_err());
    }
}
