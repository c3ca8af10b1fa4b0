//! What a model takes and makes, as its files say, and which tensors of the graph that is.

use std::collections::BTreeMap;
use std::ffi::CString;

use conch_backend_sdk as sdk;
use sdk::engine::{Signature, TensorInfo, c_string};
use sdk::{DataType, Error, ModelConfig};

use crate::element_type;
use crate::messages::{MetaGraphDef, SignatureDef, TensorInfo as TensorMessage};

/// What serves unless the configuration names another signature.
pub const DEFAULT_SIGNATURE: &str = "serving_default";

/// Signatures that TensorFlow keeps for itself.
const INTERNAL_SIGNATURES: [&str; 2] = ["__saved_model_init_op", "__saved_model_train_op"];

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTensor {
    /// What configurations and clients call it.
    pub name: CString,
    /// The tensor of the graph: an operation and which of its outputs.
    pub operation: CString,
    pub index: u32,
    pub data_type: DataType,
    /// All dimensions, -1 for those that vary; `None` where the model leaves open how many there
    /// are. Empty: a scalar.
    pub dims: Option<Vec<i64>>,
}

impl ModelTensor {
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    /// How many dimensions the model fixes. Upstream does not tell a scalar from a tensor of
    /// unknown rank.
    pub fn known_dims(&self) -> &[i64] {
        self.dims.as_deref().unwrap_or_default()
    }
}

/// Inputs and outputs of a model, each sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelTensors {
    /// The signature that they are of; empty for a GraphDef, which has none.
    pub signature_name: String,
    pub inputs: Vec<ModelTensor>,
    pub outputs: Vec<ModelTensor>,
}

impl ModelTensors {
    /// Those of a signature of a SavedModel: the one that is named, or else the usual one, or else
    /// any that is not TensorFlow's own.
    ///
    /// # Errors
    /// `Internal` if there is no such signature, or it has a tensor that cannot be served.
    pub fn of_saved_model(
        model_name: &str,
        meta_graph: &MetaGraphDef,
        wanted: Option<&str>,
    ) -> Result<Self, Error> {
        let (signature_name, signature) = choose(model_name, meta_graph, wanted)?;
        let tensors = |role: &str, messages: &BTreeMap<String, TensorMessage>| {
            messages
                .iter()
                .map(|(name, message)| tensor(model_name, role, name, message))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(ModelTensors {
            signature_name: signature_name.to_owned(),
            inputs: tensors("input", &signature.inputs)?,
            outputs: tensors("output", &signature.outputs)?,
        })
    }

    /// What the frame checks configurations against and feeds by. As upstream does, dimensions that
    /// the model does not fix are the configuration's.
    ///
    /// # Errors
    /// What the configuration has wrong.
    pub fn signature(&self, config: &ModelConfig) -> Result<Signature, Error> {
        let is_batching = config.max_batch_size() > 0;
        let resolve = |tensors: &[ModelTensor], configured: &[sdk::TensorConfig]| {
            let infos = tensors.iter().map(|tensor| {
                let config = configured.iter().find(|config| config.name == tensor.name);
                let config_dims = config.map_or(&[][..], |config| config.model_dims());
                TensorInfo {
                    name: tensor.name.clone(),
                    data_type: tensor.data_type,
                    dims: resolve_dims(tensor.dims.as_deref(), config_dims, is_batching),
                }
            });
            infos.collect()
        };
        Ok(Signature {
            inputs: resolve(&self.inputs, &config.inputs()?),
            outputs: resolve(&self.outputs, &config.outputs()?),
            initializers: Vec::new(),
        })
    }
}

/// The dimensions that a tensor is served with.
pub fn resolve_dims(model: Option<&[i64]>, config: &[i64], is_batching: bool) -> Vec<i64> {
    match model {
        // A scalar is fed as one where the configuration allows it.
        Some([]) if !is_batching && config.iter().all(|&dim| dim == 1) => Vec::new(),
        Some(dims) if !dims.is_empty() => dims.to_vec(),
        _ => {
            let batch = is_batching.then_some(-1);
            batch.into_iter().chain(config.iter().copied()).collect()
        }
    }
}

fn choose<'m>(
    model_name: &str,
    meta_graph: &'m MetaGraphDef,
    wanted: Option<&str>,
) -> Result<(&'m str, &'m SignatureDef), Error> {
    let signatures = &meta_graph.signature_def;
    let name = wanted.unwrap_or(DEFAULT_SIGNATURE);
    if let Some((name, signature)) = signatures.get_key_value(name) {
        return Ok((name, signature));
    }
    let mut others = signatures
        .iter()
        .filter(|(name, _)| !INTERNAL_SIGNATURES.contains(&name.as_str()));
    match (wanted, others.next()) {
        (None, Some((other, signature))) => Ok((other, signature)),
        _ => Err(Error::internal(format!(
            "unable to load model '{model_name}', expected '{name}' signature"
        ))),
    }
}

fn tensor(
    model_name: &str,
    role: &str,
    name: &str,
    message: &TensorMessage,
) -> Result<ModelTensor, Error> {
    let refuse = |what: String| {
        Error::internal(format!(
            "unable to process {role} '{name}' for '{model_name}', {what}"
        ))
    };
    let data_type = element_type::data_type(message.dtype).ok_or_else(|| {
        let name = element_type::name_of(message.dtype);
        refuse(format!("unsupported datatype '{name}'"))
    })?;
    let (operation, index) = split_name(&message.name)
        .ok_or_else(|| refuse("it is no dense tensor of the graph".to_owned()))?;
    let dims = message
        .tensor_shape
        .as_ref()
        .filter(|shape| !shape.unknown_rank)
        // TensorFlow has -1 for what varies; anything else below nothing would be a mistake.
        .map(|shape| shape.dim.iter().map(|dim| dim.size.max(-1)).collect());
    Ok(ModelTensor {
        name: c_string(name)?,
        operation: c_string(operation)?,
        index,
        data_type,
        dims,
    })
}

/// Operation and output of a tensor's name: `operation:index`, or `operation` for its first output.
/// `None` for the empty name and for what is no tensor.
pub fn split_name(name: &str) -> Option<(&str, u32)> {
    let (operation, index) = match name.rsplit_once(':') {
        Some((operation, index)) => (operation, index.parse().ok()?),
        None => (name, 0),
    };
    (!operation.is_empty() && !operation.starts_with('^')).then_some((operation, index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Dim, TensorShapeProto};

    fn message(name: &str, dtype: i32, dims: Option<&[i64]>) -> TensorMessage {
        TensorMessage {
            name: name.to_owned(),
            dtype,
            tensor_shape: Some(TensorShapeProto {
                dim: dims
                    .unwrap_or_default()
                    .iter()
                    .map(|&size| Dim { size })
                    .collect(),
                unknown_rank: dims.is_none(),
            }),
        }
    }

    fn meta_graph(names: &[&str]) -> MetaGraphDef {
        let signature = |name: &str| SignatureDef {
            inputs: BTreeMap::from([
                ("x".to_owned(), message("in:0", 1, Some(&[-1, 3]))),
                ("s".to_owned(), message("text", 7, None)),
            ]),
            outputs: BTreeMap::from([(format!("{name}_y"), message("out:2", 9, Some(&[])))]),
        };
        MetaGraphDef {
            meta_info_def: None,
            graph_def: None,
            signature_def: names
                .iter()
                .map(|&name| (name.to_owned(), signature(name)))
                .collect(),
        }
    }

    fn served(names: &[&str], wanted: Option<&str>) -> String {
        match ModelTensors::of_saved_model("m", &meta_graph(names), wanted) {
            Ok(tensors) => tensors.outputs[0].name().to_owned(),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn chooses_a_signature() {
        let all = ["serving_default", "__saved_model_init_op", "twice"];
        assert_eq!(served(&all, None), "serving_default_y");
        assert_eq!(served(&all, Some("twice")), "twice_y");
        assert_eq!(
            served(&all, Some("thrice")),
            "unable to load model 'm', expected 'thrice' signature"
        );
        assert_eq!(served(&["__saved_model_init_op", "twice"], None), "twice_y");
        assert_eq!(
            served(&["__saved_model_init_op"], None),
            "unable to load model 'm', expected 'serving_default' signature"
        );
    }

    #[test]
    fn reads_its_tensors() {
        let tensors =
            ModelTensors::of_saved_model("m", &meta_graph(&["serving_default"]), None).unwrap();
        let [s, x] = &tensors.inputs[..] else {
            panic!()
        };
        assert_eq!((s.name(), &*s.operation, s.index), ("s", c"text", 0));
        assert_eq!((s.data_type, s.dims.as_deref()), (DataType::Bytes, None));
        assert_eq!((x.name(), &*x.operation, x.index), ("x", c"in", 0));
        assert_eq!(x.dims.as_deref(), Some(&[-1, 3][..]));
        let y = &tensors.outputs[0];
        assert_eq!((y.index, y.dims.as_deref()), (2, Some(&[][..])));
    }

    #[test]
    fn refuses_tensors_that_triton_does_not_have() {
        for (refused, expected) in [
            (
                message("x:0", 21, None),
                "unsupported datatype 'DT_VARIANT'",
            ),
            (message("", 1, None), "it is no dense tensor of the graph"),
            (
                message("x:y", 1, None),
                "it is no dense tensor of the graph",
            ),
        ] {
            let error = tensor("m", "input", "x", &refused).unwrap_err();
            assert_eq!(
                error.message(),
                format!("unable to process input 'x' for 'm', {expected}")
            );
        }
    }

    #[test]
    fn splits_names() {
        for (name, expected) in [
            ("a", Some(("a", 0))),
            ("a:0", Some(("a", 0))),
            ("scope/a:12", Some(("scope/a", 12))),
            ("", None),
            (":0", None),
            ("a:", None),
            ("a:-1", None),
            ("^a", None),
        ] {
            assert_eq!(split_name(name), expected, "{name}");
        }
    }

    #[test]
    fn takes_open_dimensions_from_the_configuration() {
        for (model, config, is_batching, expected) in [
            (Some(&[-1, 3][..]), &[7][..], true, &[-1, 3][..]),
            (None, &[7], true, &[-1, 7]),
            (None, &[7, -1], false, &[7, -1]),
            (Some(&[]), &[1], false, &[]),
            (Some(&[]), &[], false, &[]),
            (Some(&[]), &[2], false, &[2]),
            (Some(&[]), &[1], true, &[-1, 1]),
        ] {
            assert_eq!(resolve_dims(model, config, is_batching), expected);
        }
    }
}
