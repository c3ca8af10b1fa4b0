//! How a model's inputs are fed and what becomes of its outputs, by configuration and signature.

use std::ffi::{CStr, CString};

use super::session::Session;
use super::tensor::{Signature, TensorInfo};
use crate::{
    BatchInput, BatchOutput, DataType, DeviceGather, DeviceStream, Error, Gather, Join, ModelConfig,
};

/// How one of the model's inputs is fed.
pub(super) struct FeedPlan {
    pub name: CString,
    pub data_type: DataType,
    pub join: Join,
    /// It describes the batch, and no request has it.
    pub batch_input: Option<BatchInput>,
    /// The model wants a scalar where the configuration says `[1]`.
    pub is_scalar: bool,
    pub is_optional: bool,
    pub gather: Gather,
    /// Where it is joined for a session on a GPU; none: in main memory, as BYTES always are.
    pub device_gather: Option<DeviceGather>,
}

/// What becomes of one of the model's outputs.
pub(super) struct OutputPlan {
    pub info: TensorInfo,
    /// Clients may ask for it.
    pub is_response: bool,
    /// It is the next value of an implicit state.
    pub is_state: bool,
    /// It is cut apart by the shapes of the requests' inputs.
    pub batch_output: Option<BatchOutput>,
    /// What the configuration says of an output that is a scalar in the model.
    pub scalar_dims: Option<Vec<i64>>,
}

/// # Errors
/// What the configuration has wrong.
pub(super) fn feed_plans(
    config: &ModelConfig,
    signature: &Signature,
) -> Result<Vec<FeedPlan>, Error> {
    let configured = config.inputs()?;
    let batch_inputs = config.batch_inputs()?;
    let find = |name: &CStr| configured.iter().find(|input| *input.name == *name);
    let plan = |info: &TensorInfo, is_initializer: bool| {
        let input = find(&info.name);
        FeedPlan {
            name: info.name.clone(),
            data_type: info.data_type,
            join: if input.is_some_and(|input| input.is_ragged) {
                Join::Ragged
            } else {
                Join::Rows
            },
            batch_input: batch_inputs
                .iter()
                .find(|input| input.targets.contains(&info.name))
                .cloned(),
            is_scalar: info.dims.is_empty(),
            is_optional: is_initializer || input.is_some_and(|input| input.is_optional),
            gather: Gather::default(),
            device_gather: None,
        }
    };
    let inputs = signature.inputs.iter().map(|info| plan(info, false));
    // Weights are only looked for where the configuration offers them as inputs.
    let initializers = signature
        .initializers
        .iter()
        .filter(|info| find(&info.name).is_some())
        .map(|info| plan(info, true));
    Ok(inputs.chain(initializers).collect())
}

/// Has the inputs that a session takes on the GPU of `stream` joined there.
pub(super) fn gather_on_device(
    feeds: &mut [FeedPlan],
    stream: &DeviceStream,
    session: &impl Session,
) {
    for feed in feeds {
        let is_taken = feed.batch_input.is_none()
            && feed.data_type != DataType::Bytes
            && session.takes_on_device(feed.data_type);
        feed.device_gather = is_taken.then(|| DeviceGather::new(stream));
    }
}

/// # Errors
/// What the configuration has wrong.
pub(super) fn output_plans(
    config: &ModelConfig,
    signature: &Signature,
) -> Result<Vec<OutputPlan>, Error> {
    let configured = config.outputs()?;
    let states = config.states()?;
    let batch_outputs = config.batch_outputs()?;
    Ok(signature
        .outputs
        .iter()
        .filter_map(|info| {
            let output = configured.iter().find(|output| output.name == info.name);
            let is_state = states.iter().any(|state| state.output == info.name);
            (output.is_some() || is_state).then(|| OutputPlan {
                info: info.clone(),
                is_response: output.is_some(),
                is_state,
                batch_output: batch_outputs
                    .iter()
                    .find(|output| output.target == info.name)
                    .cloned(),
                scalar_dims: output.map(|output| output.model_dims().to_vec()),
            })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &CStr, dims: &[i64]) -> TensorInfo {
        TensorInfo {
            name: name.to_owned(),
            data_type: DataType::Fp32,
            dims: dims.to_vec(),
        }
    }

    #[test]
    fn plans_what_configuration_and_model_say() {
        let signature = Signature {
            inputs: vec![info(c"A", &[-1]), info(c"N", &[-1]), info(c"S", &[])],
            outputs: vec![info(c"X", &[-1]), info(c"Y", &[]), info(c"Z", &[-1])],
            initializers: vec![info(c"W", &[2]), info(c"V", &[2])],
        };
        let json = r#"{"input": [
                {"name": "A", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": true},
                {"name": "W", "data_type": "TYPE_FP32", "dims": [2]}],
            "output": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]},
                       {"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}],
            "batch_input": [{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["N"],
                             "data_type": "TYPE_FP32", "source_input": ["A"]}],
            "batch_output": [{"target_name": ["X"], "source_input": ["A"]}],
            "sequence_batching": {"state": [{"input_name": "S", "output_name": "Y",
                                             "data_type": "TYPE_FP32", "dims": [1]}]}}"#;
        let config = ModelConfig::parse(json.as_bytes()).unwrap();
        let feeds = feed_plans(&config, &signature).unwrap();
        let shown: Vec<_> = feeds
            .iter()
            .map(|feed| {
                let name = feed.name.to_str().unwrap();
                let is_made = feed.batch_input.is_some();
                (name, feed.join, is_made, feed.is_scalar, feed.is_optional)
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("A", Join::Ragged, false, false, false),
                ("N", Join::Rows, true, false, false),
                ("S", Join::Rows, false, true, false),
                ("W", Join::Rows, false, false, true),
            ]
        );
        let outputs = output_plans(&config, &signature).unwrap();
        let shown: Vec<_> = outputs
            .iter()
            .map(|output| {
                let is_cut = output.batch_output.is_some();
                (
                    output.info.name(),
                    output.is_response,
                    output.is_state,
                    is_cut,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [("X", true, false, true), ("Y", true, true, false)],
            "Z is neither an output of the configuration nor a state"
        );
    }
}
