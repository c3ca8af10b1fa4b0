//! How batches are brought to a model, and the shapes that it gets for it.

use std::ffi::CString;

use conch_backend_sdk as sdk;
use sdk::engine::{Signature, TensorInfo};
use sdk::{Error, ModelConfig};

use crate::ov::{Core, Model, Port};
use crate::settings::Settings;

/// How a batch becomes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// A request at a time: `max_batch_size` is 0.
    None,
    /// As many rows as the requests have.
    Open,
    /// Always this many rows; fewer are filled up with zeros if `pads`, else an error.
    Fixed { rows: usize, pads: bool },
}

/// A model with the shapes and element types that the configuration asks for.
pub struct ConfiguredModel {
    pub model: Model,
    pub batching: Batching,
    pub signature: Signature,
}

/// Prepares a model that `read` reads.
///
/// # Errors
/// What OpenVINO says, or what the configuration asks for that cannot be.
pub fn prepare(
    model_name: &str,
    config: &ModelConfig,
    settings: &Settings,
    core: &Core,
    read: impl Fn(&Core) -> Result<Model, Error>,
) -> Result<ConfiguredModel, Error> {
    let model = read(core)?;
    let rows = usize::try_from(config.max_batch_size()).unwrap_or(0);
    let fixed = Batching::Fixed {
        rows,
        pads: settings.pads_batches,
    };
    let (model, batching) = if rows == 0 {
        reshape(config, settings, &model, None)?;
        (model, Batching::None)
    } else if settings.has_fixed_batches || settings.pads_batches {
        reshape(config, settings, &model, Some(config.max_batch_size()))?;
        (model, fixed)
    } else {
        match open(config, settings, &model) {
            Ok(()) => (model, Batching::Open),
            Err(error) => {
                sdk::warning!(
                    "model '{model_name}' takes no batches of any size, so that each must have \
                     {rows} rows: {error}"
                );
                let model = read(core)?;
                reshape(config, settings, &model, Some(config.max_batch_size()))?;
                (model, fixed)
            }
        }
    };
    let model = convert(model_name, config, model)?;
    let signature = signature(&model, batching)?;
    Ok(ConfiguredModel {
        model,
        batching,
        signature,
    })
}

/// What a model takes and makes, as far as Triton has types for it.
///
/// # Errors
/// `Unsupported` if it has not; what OpenVINO says.
pub fn signature(model: &Model, batching: Batching) -> Result<Signature, Error> {
    let infos = |ports: Vec<Port>, role| {
        let info = |port| info(port, batching, role);
        ports.into_iter().map(info).collect::<Result<Vec<_>, _>>()
    };
    Ok(Signature {
        inputs: infos(model.inputs()?, "input")?,
        outputs: infos(model.outputs()?, "output")?,
        initializers: Vec::new(),
    })
}

fn info(port: Port, batching: Batching, role: &str) -> Result<TensorInfo, Error> {
    let Port {
        name,
        data_type,
        mut dims,
    } = port;
    let data_type = data_type.ok_or_else(|| {
        Error::unsupported(format!(
            "{role} '{}' has an element type that Triton has not, or is text",
            name.to_string_lossy()
        ))
    })?;
    // To requests a batch of a fixed size is one of any: this backend fills it up.
    if let (Batching::Fixed { rows, .. }, Some(first)) = (batching, dims.first_mut())
        && usize::try_from(*first) == Ok(rows)
    {
        *first = -1;
    }
    Ok(TensorInfo {
        name,
        data_type,
        dims,
    })
}

/// Lets the model take batches of any size.
///
/// # Errors
/// That it does not.
fn open(config: &ModelConfig, settings: &Settings, model: &Model) -> Result<(), Error> {
    reshape(config, settings, model, Some(-1))?;
    let outputs = model.outputs()?;
    match outputs.iter().find(|port| port.dims.first() != Some(&-1)) {
        None => Ok(()),
        Some(port) => Err(Error::unsupported(format!(
            "the shape of its output '{}' does not follow the batch",
            port.name.to_string_lossy()
        ))),
    }
}

/// Gives the inputs their shapes: `batch` as the first dimension, and those of the configuration if
/// the settings say so.
fn reshape(
    config: &ModelConfig,
    settings: &Settings,
    model: &Model,
    batch: Option<i64>,
) -> Result<(), Error> {
    let ports = model.inputs()?;
    let configured = config.inputs()?;
    let mut shapes: Vec<(&CString, Vec<i64>)> = Vec::new();
    for port in &ports {
        let mut dims = port.dims.clone();
        let input = configured.iter().find(|input| input.name == port.name);
        if let (true, Some(input)) = (settings.reshapes_inputs, input) {
            let model_dims = input.model_dims();
            if model_dims.iter().any(|&dim| dim == 0 || dim < -1) {
                return Err(Error::internal(
                    "openvino backend does not support dimensions values other than `-1` or \
                     positive integers",
                ));
            }
            let first = batch.map(|_| dims.first().copied().unwrap_or(-1));
            dims = first
                .into_iter()
                .chain(model_dims.iter().copied())
                .collect();
        }
        if let Some(batch) = batch {
            *dims.first_mut().ok_or_else(|| {
                Error::invalid(format!(
                    "tensor '{}': for the model to support batching the shape should have at \
                     least 1 dimension",
                    port.name.to_string_lossy()
                ))
            })? = batch;
        }
        if dims != port.dims {
            shapes.push((&port.name, dims));
        }
    }
    match shapes.is_empty() {
        true => Ok(()),
        false => model.reshape(&shapes),
    }
}

/// Gives inputs and outputs the data types that the configuration says.
fn convert(model_name: &str, config: &ModelConfig, model: Model) -> Result<Model, Error> {
    let differing = |ports: Vec<Port>, configured: Vec<sdk::TensorConfig>, role: &str| {
        let mut differing = Vec::new();
        for (index, port) in ports.iter().enumerate() {
            let Some(tensor) = configured.iter().find(|tensor| tensor.name == port.name) else {
                continue;
            };
            if tensor.data_type == sdk::DataType::Bytes {
                return Err(Error::internal(format!(
                    "unsupported datatype {} for {role} '{}' for model '{model_name}'",
                    tensor.data_type.config_name(),
                    tensor.name()
                )));
            }
            if port.data_type != Some(tensor.data_type) {
                differing.push((index, tensor.data_type));
            }
        }
        Ok(differing)
    };
    let inputs = differing(model.inputs()?, config.inputs()?, "input")?;
    let outputs = differing(model.outputs()?, config.outputs()?, "output")?;
    match inputs.is_empty() && outputs.is_empty() {
        true => Ok(model),
        false => model.converted(&inputs, &outputs),
    }
}
