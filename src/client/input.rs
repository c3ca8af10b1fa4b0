//! From `--input` and what the model wants to the tensors of a request.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use conch_config::DataType;

use crate::error::ClientError;
use crate::model::{ModelDescription, TensorDescription};
use crate::options::{InputArgument, TensorOptions};
use crate::picture::{self, Picture};
use crate::tensor::shape::{complete, element_count, shown};
use crate::tensor::{WireTensor, elements, fill, literal, npy};

/// A tensor of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedTensor {
    pub(crate) name: String,
    pub(crate) tensor: WireTensor,
}

/// The tensors for `model`, in its order, and the inputs that have none.
///
/// # Errors
/// A value that cannot be read, or that the model has no input for.
pub(crate) fn tensors<'m>(
    model: &'m ModelDescription,
    options: &TensorOptions,
) -> Result<(Vec<NamedTensor>, Vec<&'m TensorDescription>), ClientError> {
    let inputs = options.inputs.iter().map(|argument| &argument.name);
    for name in inputs.chain(options.shapes.iter().map(|(name, _)| name)) {
        if !model.inputs.iter().any(|input| input.name == *name) {
            return Err(ClientError::Usage(format!(
                "the model has no input '{name}'; it has:\n{}",
                listed(&model.inputs)
            )));
        }
    }
    let (mut tensors, mut missing) = (Vec::new(), Vec::new());
    for (index, input) in model.inputs.iter().enumerate() {
        let shape = options.shapes.iter().find(|(name, _)| *name == input.name);
        let shape = shape.map(|(_, shape)| &**shape);
        let argument = options.inputs.iter().find(|given| given.name == input.name);
        let tensor = match (argument, options.fill) {
            (Some(argument), _) => given(input, argument, shape, options),
            (None, Some(fill)) => {
                // An open size is one.
                let wanted = input
                    .shape
                    .iter()
                    .map(|dim| (*dim).max(0) + i64::from(*dim < 0));
                let shape = shape.map_or_else(|| wanted.collect(), <[i64]>::to_vec);
                fill::filled(fill, input.data_type, shape, index as u64)
            }
            (None, None) => {
                missing.push(input);
                continue;
            }
        };
        let tensor = tensor.map_err(|reason| {
            ClientError::Usage(format!(
                "input '{}' ({}): {reason}",
                input.name,
                input.kind()
            ))
        })?;
        tensors.push(NamedTensor {
            name: input.name.clone(),
            tensor,
        });
    }
    Ok((tensors, missing))
}

/// A line for each tensor, with its type and shape.
pub(crate) fn listed(tensors: &[TensorDescription]) -> String {
    let line = |tensor: &TensorDescription| format!("  {}  {}", tensor.name, tensor.kind());
    tensors.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn given(
    input: &TensorDescription,
    argument: &InputArgument,
    shape: Option<&[i64]>,
    options: &TensorOptions,
) -> Result<WireTensor, String> {
    let tensor = match argument.value.strip_prefix('@') {
        Some(path) => of_file(input, Path::new(path), options)
            .map_err(|reason| format!("'{path}': {reason}"))?,
        None => literal::parse(&argument.value, input.data_type)?,
    };
    let count = element_count(&tensor.shape);
    let shape = match shape {
        // Whoever names a shape may want to see what the server says to it.
        Some(shape) if element_count(shape) == count => Some(shape.to_vec()),
        Some(shape) => {
            return Err(format!(
                "the value has {} elements, which --shape={} has not",
                count.unwrap_or(u64::MAX),
                shown(shape)
            ));
        }
        None => complete(&tensor.shape, &input.shape),
    };
    match shape {
        Some(shape) => Ok(WireTensor { shape, ..tensor }),
        None => Err(format!(
            "the value has shape {}, which does not fit",
            shown(&tensor.shape)
        )),
    }
}

fn of_file(
    input: &TensorDescription,
    path: &Path,
    options: &TensorOptions,
) -> Result<WireTensor, String> {
    let bytes = read(path)?;
    let extension = path.extension().map(|end| end.to_ascii_lowercase());
    match extension.as_ref().and_then(|end| end.to_str()) {
        Some("json") => {
            let value = serde_json::from_slice(&bytes).map_err(|cause| cause.to_string())?;
            literal::of_value(&value, input.data_type)
        }
        Some("npy") => of_array(input, npy::read(&bytes)?),
        Some("png" | "jpg" | "jpeg") if !is_encoded(input) => picture::tensor(
            Picture::decode(&bytes)?,
            input.data_type,
            &input.shape,
            options.layout,
            options.scaling,
        ),
        _ if is_encoded(input) => whole(input.data_type, &bytes),
        _ => Err(String::from(
            "only .json, .npy, .png, .jpg and .jpeg become tensors of such an input",
        )),
    }
}

/// Whether the model reads files itself: an element of BYTES, or a row of bytes.
fn is_encoded(input: &TensorDescription) -> bool {
    let is_row = input.shape.len() <= 2 && input.shape.last() == Some(&-1);
    input.data_type == DataType::Bytes || (input.data_type == DataType::Uint8 && is_row)
}

fn whole(data_type: DataType, file: &[u8]) -> Result<WireTensor, String> {
    if data_type != DataType::Bytes {
        return Ok(WireTensor {
            data_type,
            shape: vec![i64::try_from(file.len()).map_err(|cause| cause.to_string())?],
            bytes: file.to_vec(),
        });
    }
    let mut bytes = Vec::new();
    elements::push_bytes(&mut bytes, file)?;
    Ok(WireTensor {
        data_type,
        shape: Vec::new(),
        bytes,
    })
}

/// An array has a type of its own, which must be what the model wants.
fn of_array(input: &TensorDescription, array: WireTensor) -> Result<WireTensor, String> {
    let is_float = matches!(array.data_type, DataType::Fp32 | DataType::Fp64);
    if array.data_type == input.data_type {
        Ok(array)
    } else if input.data_type == DataType::Bf16 && is_float {
        Ok(npy::to_bf16(&array))
    } else {
        Err(format!("its array is of type {}", array.data_type.name()))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|cause| cause.to_string())?;
    let mut bytes = Vec::new();
    let mut limited = file.take(FILE_BYTES_MAX + 1);
    limited
        .read_to_end(&mut bytes)
        .map_err(|cause| cause.to_string())?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(format!("it is larger than {FILE_BYTES_MAX} bytes")),
        false => Ok(bytes),
    }
}

/// A tensor and what its file has beside it.
const FILE_BYTES_MAX: u64 = crate::tensor::TENSOR_BYTES_MAX + (64 << 20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::InputFill;

    fn model(inputs: &[(&str, DataType, &[i64])]) -> ModelDescription {
        let description = |(name, data_type, shape): &(&str, DataType, &[i64])| TensorDescription {
            name: String::from(*name),
            data_type: *data_type,
            shape: shape.to_vec(),
        };
        ModelDescription {
            inputs: inputs.iter().map(description).collect(),
            outputs: Vec::new(),
        }
    }

    fn options(inputs: &[(&str, &str)]) -> TensorOptions {
        let argument = |(name, value): &(&str, &str)| InputArgument {
            name: String::from(*name),
            value: String::from(*value),
        };
        TensorOptions {
            inputs: inputs.iter().map(argument).collect(),
            ..TensorOptions::default()
        }
    }

    #[test]
    fn what_is_not_given_is_missing_or_filled() {
        let model = model(&[
            ("X", DataType::Uint8, &[-1, 2]),
            ("Y", DataType::Uint8, &[-1]),
        ]);
        let given = options(&[("X", "[1,2]")]);
        let (sent, missing) = tensors(&model, &given).unwrap();
        assert_eq!((sent.len(), missing.len()), (1, 1));
        assert_eq!(
            (&*sent[0].tensor.shape, missing[0].name.as_str()),
            (&[1, 2][..], "Y")
        );
        let filled = TensorOptions {
            fill: Some(InputFill::Zeros),
            shapes: vec![(String::from("Y"), vec![3])],
            ..given
        };
        let (sent, missing) = tensors(&model, &filled).unwrap();
        assert!(missing.is_empty());
        assert_eq!(sent[1].tensor.bytes, [0, 0, 0]);
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let model = model(&[
            ("X", DataType::Fp32, &[-1, 2]),
            ("T", DataType::Bytes, &[1]),
        ]);
        for (inputs, shape, expected) in [
            (
                ("Z", "1"),
                None,
                "no input 'Z'; it has:\n  X  FP32 [-1,2]\n  T  BYTES [1]",
            ),
            (
                ("X", "[[1,2,3]]"),
                None,
                "(FP32 [-1,2]): the value has shape [1,3]",
            ),
            (("X", "[1,2"), None, "it is not JSON"),
            (
                ("X", "@/nonexistent.npy"),
                None,
                "'/nonexistent.npy': No such file",
            ),
            (("X", "@/etc/hostname"), None, "only .json, .npy"),
            (
                ("X", "[1,2]"),
                Some(vec![3]),
                "the value has 2 elements, which --shape=[3]",
            ),
        ] {
            let options = TensorOptions {
                shapes: shape
                    .into_iter()
                    .map(|shape| (String::from("X"), shape))
                    .collect(),
                ..options(&[inputs])
            };
            let error = tensors(&model, &options).unwrap_err();
            assert!(error.to_string().contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn files_become_what_the_input_is() {
        let folder = std::env::temp_dir().join(format!("conch-input-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).unwrap();
            format!("@{}", path.display())
        };
        let ones = WireTensor {
            data_type: DataType::Fp32,
            shape: vec![2],
            bytes: [1.0_f32.to_le_bytes(), 1.0_f32.to_le_bytes()].concat(),
        };
        let array = file("a.npy", &npy::write(&ones).unwrap());
        let json = file("a.json", b"[3, 4]");
        let text = file("a.txt", b"ab");
        let shape = &[-1, 2][..];
        for (data_type, wanted, value, expected) in [
            (
                DataType::Fp32,
                shape,
                &array,
                Ok(([1, 2].to_vec(), ones.bytes.clone())),
            ),
            (
                DataType::Bf16,
                shape,
                &array,
                Ok((vec![1, 2], vec![0x80, 0x3f, 0x80, 0x3f])),
            ),
            (
                DataType::Fp16,
                shape,
                &array,
                Err("its array is of type FP32"),
            ),
            (DataType::Uint8, shape, &json, Ok((vec![1, 2], vec![3, 4]))),
            (DataType::Uint8, &[-1], &text, Ok((vec![2], b"ab".to_vec()))),
            (
                DataType::Uint8,
                &[-1, -1],
                &text,
                Ok((vec![1, 2], b"ab".to_vec())),
            ),
            (
                DataType::Bytes,
                &[-1, 1],
                &text,
                Ok((vec![1, 1], b"\x02\0\0\0ab".to_vec())),
            ),
            (DataType::Fp32, shape, &text, Err("only .json")),
        ] {
            let model = model(&[("X", data_type, wanted)]);
            match (tensors(&model, &options(&[("X", value)])), expected) {
                (Ok((sent, _)), Ok((shape, bytes))) => {
                    assert_eq!(
                        (&sent[0].tensor.shape, &sent[0].tensor.bytes),
                        (&shape, &bytes)
                    );
                }
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{error}");
                }
                (made, expected) => panic!("{made:?} {expected:?}"),
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
