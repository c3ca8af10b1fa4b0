//! Facts about an engine, as it tells them: its tensors, and their bounds in each profile.

use std::ffi::{CStr, CString};

use conch_backend_sdk::{DataType, shape_text};

/// An engine's tensors and profiles; there is at least one profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub tensors: Vec<Tensor>,
    /// For each profile the bounds of each tensor; outputs have none.
    pub profiles: Vec<Vec<Option<Bounds>>>,
}

/// A tensor that an engine takes or makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: CString,
    /// None for types that Triton's protocol does not have: FP8, INT4 and FP4.
    pub data_type: Option<DataType>,
    /// -1 is open.
    pub dims: Vec<i64>,
    pub is_input: bool,
    /// Its values decide about shapes.
    pub is_shape: bool,
    pub format: Format,
}

/// How a tensor lies in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    pub is_linear: bool,
    /// TensorRT's description.
    pub text: String,
    /// The dimension that is filled up to a multiple of a number of components.
    pub filled: Option<(usize, usize)>,
}

/// What an input may be in a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: Vec<i64>,
    pub best: Vec<i64>,
    pub max: Vec<i64>,
    /// Of a shape tensor, its values: smallest, best, largest.
    pub values: Option<[Vec<i64>; 3]>,
}

impl Facts {
    /// The tensor of a name, with its number.
    pub fn find(&self, name: &CStr) -> Option<(usize, &Tensor)> {
        let mut tensors = self.tensors.iter().enumerate();
        tensors.find(|(_, tensor)| tensor.name.as_c_str() == name)
    }

    pub fn inputs(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        let tensors = self.tensors.iter().enumerate();
        tensors.filter(|(_, tensor)| tensor.is_input)
    }

    pub fn outputs(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        let tensors = self.tensors.iter().enumerate();
        tensors.filter(|(_, tensor)| !tensor.is_input)
    }

    /// The bounds of an input in a profile.
    pub fn bounds(&self, profile: usize, tensor: usize) -> Option<&Bounds> {
        self.profiles.get(profile)?.get(tensor)?.as_ref()
    }
}

impl Tensor {
    pub fn name(&self) -> std::borrow::Cow<'_, str> {
        self.name.to_string_lossy()
    }

    /// Bytes of the tensor in a shape; none if that is open, or too large.
    pub fn byte_count(&self, dims: &[i64]) -> Option<usize> {
        let mut count = self.data_type?.element_bytes()?;
        for (index, dim) in dims.iter().enumerate() {
            let mut size = usize::try_from(*dim).ok()?;
            if let (false, Some((filled, components))) = (self.format.is_linear, self.format.filled)
                && index == filled
            {
                size = size.checked_next_multiple_of(components)?;
            }
            count = count.checked_mul(size)?;
        }
        Some(count)
    }
}

/// Triton's type for a number of `nvinfer1::DataType`.
pub fn data_type_of(number: i32) -> Option<DataType> {
    Some(match number {
        0 => DataType::Fp32,
        1 => DataType::Fp16,
        2 => DataType::Int8,
        3 => DataType::Int32,
        4 => DataType::Bool,
        5 => DataType::Uint8,
        7 => DataType::Bf16,
        8 => DataType::Int64,
        _ => return None,
    })
}

/// A type's name in a configuration, or upstream's for one that there is not.
pub fn config_name(data_type: Option<DataType>) -> String {
    match data_type {
        Some(data_type) => format!("TYPE_{}", data_type.name()),
        None => "TYPE_<invalid>".to_owned(),
    }
}

/// Checks a shape against the bounds of a profile.
///
/// # Errors
/// What does not fit, in upstream's words.
pub fn check_shape(dims: &[i64], bounds: &Bounds) -> Result<(), String> {
    if dims.len() != bounds.max.len() {
        return Err(format!(
            "model expected {} dimensions but received {} dimensions",
            bounds.max.len(),
            dims.len()
        ));
    }
    let limits = bounds.min.iter().zip(&bounds.max);
    for (index, (dim, (min, max))) in dims.iter().zip(limits).enumerate() {
        if dim < min || dim > max {
            return Err(format!(
                "model expected the shape of dimension {index} to be between {min} and {max} but \
                 received {dim}"
            ));
        }
    }
    Ok(())
}

/// A shape as upstream writes it.
pub fn text(dims: &[i64]) -> String {
    shape_text(dims)
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// An input or output for tests.
    pub fn tensor(name: &CStr, is_input: bool, dims: &[i64]) -> Tensor {
        Tensor {
            name: name.to_owned(),
            data_type: Some(DataType::Fp32),
            dims: dims.to_vec(),
            is_input,
            is_shape: false,
            format: Format {
                is_linear: true,
                text: String::new(),
                filled: None,
            },
        }
    }

    pub fn bounds(min: &[i64], best: &[i64], max: &[i64]) -> Option<Bounds> {
        Some(Bounds {
            min: min.to_vec(),
            best: best.to_vec(),
            max: max.to_vec(),
            values: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    #[test]
    fn sizes_of_tensors() {
        let linear = tensor(c"A", true, &[-1, 3]);
        let filled = Tensor {
            format: Format {
                is_linear: false,
                text: String::new(),
                filled: Some((1, 4)),
            },
            ..linear.clone()
        };
        for (dims, bytes, bytes_filled) in [
            (&[2, 3][..], Some(24), Some(32)),
            (&[2, 4], Some(32), Some(32)),
            (&[0, 3], Some(0), Some(0)),
            (&[-1, 3], None, None),
            (&[i64::MAX, 3], None, None),
        ] {
            assert_eq!(linear.byte_count(dims), bytes, "{dims:?}");
            assert_eq!(filled.byte_count(dims), bytes_filled, "{dims:?}");
        }
    }

    #[test]
    fn shapes_are_checked_in_upstreams_words() {
        let bounds = bounds(&[1, 16], &[4, 16], &[8, 16]).unwrap();
        for (dims, expected) in [
            (&[8, 16][..], None),
            (
                &[9, 16],
                Some(
                    "model expected the shape of dimension 0 to be between 1 and 8 but received 9",
                ),
            ),
            (
                &[1, 15],
                Some(
                    "model expected the shape of dimension 1 to be between 16 and 16 but received \
                     15",
                ),
            ),
            (
                &[1],
                Some("model expected 2 dimensions but received 1 dimensions"),
            ),
        ] {
            let found = check_shape(dims, &bounds).err();
            assert_eq!(found.as_deref(), expected);
        }
    }
}
