//! The request that is sent again and again, which is tried once before.

use std::collections::BTreeMap;

use bytes::Bytes;
use conch_config::DataType;
use conch_proto::Message;
use conch_proto::inference::infer_parameter::ParameterChoice;
use conch_proto::inference::model_infer_request::InferInputTensor;
use conch_proto::inference::model_metadata_response::TensorMetadata;
use conch_proto::inference::{
    InferParameter, ModelInferRequest, ModelMetadataRequest, ModelMetadataResponse,
};
use serde_json::Value;

use crate::error::ClientError;
use crate::http::ServerClient;
use crate::input::{self, NamedTensor};
use crate::load::{LoadAddress, LoadProtocol, LoadTarget, call, framed};
use crate::model::{self, ModelDescription, TensorDescription};
use crate::options::BenchOptions;
use crate::request::{RequestBody, RequestExtras};

/// The requests of a run, one of which the server has answered.
///
/// # Errors
/// The server's, and inputs that cannot be made.
pub(super) fn target(options: &BenchOptions) -> Result<LoadTarget, ClientError> {
    let url = &options.server.url;
    let address = LoadAddress::of(url).map_err(ClientError::Usage)?;
    let connections = options.connection_count.max(1);
    let target = LoadTarget {
        protocol: options.protocol,
        address,
        host: String::from(url.authority()),
        path: String::new(),
        body: Bytes::new(),
        json_bytes: None,
        headers: options.server.headers.clone(),
        calls_max: options.calls_max.div_ceil(connections),
    };
    match options.protocol {
        LoadProtocol::Http => over_http(options, target),
        LoadProtocol::Grpc => over_grpc(options, target),
    }
}

fn over_http(options: &BenchOptions, target: LoadTarget) -> Result<LoadTarget, ClientError> {
    let client = ServerClient::new(&options.server)?;
    let path = model::path(&options.model, options.version.as_deref());
    let model = ModelDescription::ask(&client, &path)?;
    let optional = || model::optional_inputs(&client, &path);
    let tensors = tensors(&model, options, optional)?;
    let extras = RequestExtras {
        parameters: options.parameters.clone(),
        ..RequestExtras::default()
    };
    let body = RequestBody::new(&tensors, &extras).map_err(ClientError::Usage)?;
    let path = format!("{path}/infer");
    client.post(&path, body.json_bytes, &body.bytes)?.good()?;
    // A server may stand behind a path of its own.
    let origin = options.server.url.origin();
    let prefix = origin
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('/'));
    let prefix = prefix.map_or_else(String::new, |(_, prefix)| format!("/{prefix}"));
    Ok(LoadTarget {
        path: format!("{prefix}{path}"),
        json_bytes: body.json_bytes,
        body: body.bytes.into(),
        ..target
    })
}

fn over_grpc(options: &BenchOptions, target: LoadTarget) -> Result<LoadTarget, ClientError> {
    let name = options.model.clone();
    let version = options.version.clone().unwrap_or_default();
    let question = ModelMetadataRequest {
        name: name.clone(),
        version: version.clone(),
    };
    let ask = |method: &str, message: &[u8]| {
        let asked = LoadTarget {
            path: format!("{SERVICE}{method}"),
            body: framed(message).map_err(ClientError::Usage)?,
            ..target.clone()
        };
        let answer = call(&asked, options.server.timeout, ANSWER_BYTES_MAX);
        let answer = answer.map_err(|cause| {
            let url = options.server.url.shown();
            ClientError::Failed(format!("cannot ask {url}: {cause}"))
        })?;
        Ok::<_, ClientError>((asked, answer))
    };
    let (_, answer) = ask("ModelMetadata", &question.encode_to_vec())?;
    let unreadable = |cause: String| {
        ClientError::Failed(format!("the server's metadata cannot be read: {cause}"))
    };
    let answer = ModelMetadataResponse::decode(&*answer);
    let answer = answer.map_err(|cause| unreadable(cause.to_string()))?;
    let model = ModelDescription {
        inputs: descriptions(answer.inputs).map_err(unreadable)?,
        outputs: descriptions(answer.outputs).map_err(unreadable)?,
    };
    let tensors = tensors(&model, options, Vec::new)?;
    let parameters = options.parameters.iter();
    let parameters = parameters.map(|(name, value)| (name.clone(), parameter(value)));
    let mut request = ModelInferRequest {
        model_name: name,
        model_version: version,
        parameters: parameters.collect(),
        ..ModelInferRequest::default()
    };
    for NamedTensor { name, tensor } in tensors {
        request.inputs.push(InferInputTensor {
            name,
            datatype: String::from(tensor.data_type.name()),
            shape: tensor.shape,
            parameters: BTreeMap::new(),
            contents: None,
        });
        request.raw_input_contents.push(tensor.bytes.into());
    }
    let (asked, _) = ask("ModelInfer", &request.encode_to_vec())?;
    Ok(asked)
}

fn tensors(
    model: &ModelDescription,
    options: &BenchOptions,
    optional: impl FnOnce() -> Vec<String>,
) -> Result<Vec<NamedTensor>, ClientError> {
    let (tensors, mut missing) = input::tensors(model, &options.tensors)?;
    if !missing.is_empty() {
        let optional = optional();
        missing.retain(|input| !optional.contains(&input.name));
    }
    match missing.first() {
        None => Ok(tensors),
        Some(input) => Err(ClientError::Usage(format!(
            "no value is given for input '{}'; the model's inputs are:\n{}",
            input.name,
            input::listed(&model.inputs)
        ))),
    }
}

fn descriptions(tensors: Vec<TensorMetadata>) -> Result<Vec<TensorDescription>, String> {
    let description = |tensor: TensorMetadata| {
        let data_type = DataType::from_name(&tensor.datatype)
            .ok_or_else(|| format!("'{}' has unknown type {}", tensor.name, tensor.datatype))?;
        Ok(TensorDescription {
            name: tensor.name,
            data_type,
            shape: tensor.shape,
        })
    };
    tensors.into_iter().map(description).collect()
}

fn parameter(value: &Value) -> InferParameter {
    let choice = match value {
        Value::Bool(value) => ParameterChoice::BoolParam(*value),
        Value::String(text) => ParameterChoice::StringParam(text.clone()),
        other => match (other.as_i64(), other.as_u64()) {
            (Some(number), _) => ParameterChoice::Int64Param(number),
            (None, Some(number)) => ParameterChoice::Uint64Param(number),
            (None, None) => ParameterChoice::DoubleParam(other.as_f64().unwrap_or(f64::NAN)),
        },
    };
    InferParameter {
        parameter_choice: Some(choice),
    }
}

const SERVICE: &str = "/inference.GRPCInferenceService/";
/// The answers before a run are held whole.
const ANSWER_BYTES_MAX: usize = 1 << 30;
