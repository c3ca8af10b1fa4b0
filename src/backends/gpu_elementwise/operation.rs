//! The operation of a model, from the `parameters` of its configuration.

use conch_backend_sdk as sdk;
use sdk::{Error, ModelConfig};

/// The most channels that have values of their own: more than any image or layer has.
const CHANNELS_MAX: usize = 65_536;

#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// `a + b`
    Add,
    /// `a * b`
    Multiply,
    /// `x * scale + offset`
    Affine {
        channels: Channels,
        /// The dimension of the channels, without the batch dimension; none for a single value.
        axis: Option<usize>,
    },
    /// Another data type.
    Cast,
    /// Another order of dimensions.
    Layout(Order),
    /// `(x - mean) * scale` of an image whose channels then come first.
    NormalizeImage { channels: Channels },
}

/// Where the channels of an image move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the last to the first dimension.
    ChannelsFirst,
    /// From the first to the last dimension.
    ChannelsLast,
}

/// Two values for each channel, or for all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Channels {
    /// The factor.
    pub scale: Vec<f32>,
    /// The offset, or the mean.
    pub shift: Vec<f32>,
}

impl Channels {
    /// How many have values of their own; 1: all have the same.
    pub fn count(&self) -> usize {
        self.scale.len()
    }

    /// The values of a channel.
    pub fn of(&self, channel: usize) -> (f32, f32) {
        let at = channel % self.count();
        let value = |list: &[f32]| list.get(at).copied().unwrap_or_default();
        (value(&self.scale), value(&self.shift))
    }

    /// All factors, then all shifts, as the kernel reads them.
    pub fn table(&self) -> Vec<u8> {
        let values = self.scale.iter().chain(&self.shift);
        values.flat_map(|value| value.to_le_bytes()).collect()
    }
}

/// Parameters of this backend, and the operations that have them.
const PARAMETERS: [(&str, &[&str]); 6] = [
    ("scale", &["affine", "normalize_image"]),
    ("offset", &["affine"]),
    ("mean", &["normalize_image"]),
    ("channel_axis", &["affine"]),
    ("layout", &["layout"]),
    ("operation", NAMES),
];

const NAMES: &[&str] = &[
    "add",
    "multiply",
    "affine",
    "cast",
    "layout",
    "normalize_image",
];

impl Operation {
    /// # Errors
    /// `InvalidArgument` if there is no such operation, or a parameter is wrong, or of another
    /// operation.
    pub fn read(config: &ModelConfig) -> Result<Operation, Error> {
        let name = config.parameter("operation").unwrap_or_default().trim();
        if !NAMES.contains(&name) {
            return Err(Error::invalid(format!(
                "expected parameter 'operation' to be one of {}, got '{name}'",
                NAMES.join(", ")
            )));
        }
        for (parameter, operations) in PARAMETERS {
            if config.parameter(parameter).is_some() && !operations.contains(&name) {
                return Err(Error::invalid(format!(
                    "expected parameter '{parameter}' only for {}, got it for operation '{name}'",
                    operations.join(", ")
                )));
            }
        }
        Ok(match name {
            "add" => Operation::Add,
            "multiply" => Operation::Multiply,
            "cast" => Operation::Cast,
            "layout" => Operation::Layout(order(config)?),
            "normalize_image" => Operation::NormalizeImage {
                channels: channels(config, "mean")?,
            },
            _ => affine(config)?,
        })
    }

    /// As the parameter names it.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Add => "add",
            Operation::Multiply => "multiply",
            Operation::Affine { .. } => "affine",
            Operation::Cast => "cast",
            Operation::Layout(_) => "layout",
            Operation::NormalizeImage { .. } => "normalize_image",
        }
    }

    pub fn input_count(&self) -> usize {
        match self {
            Operation::Add | Operation::Multiply => 2,
            _ => 1,
        }
    }

    /// The values of channels that the kernel reads from memory: those of more than one.
    pub fn table(&self) -> Option<Vec<u8>> {
        match self {
            Operation::Affine { channels, .. } | Operation::NormalizeImage { channels }
                if channels.count() > 1 =>
            {
                Some(channels.table())
            }
            _ => None,
        }
    }
}

fn affine(config: &ModelConfig) -> Result<Operation, Error> {
    let channels = channels(config, "offset")?;
    let axis = config.integer_parameter("channel_axis")?;
    let axis = match axis {
        None if channels.count() > 1 => {
            return Err(Error::invalid(format!(
                "expected parameter 'channel_axis' for {} values of 'scale' or 'offset', got none",
                channels.count()
            )));
        }
        None => None,
        Some(axis) => Some(usize::try_from(axis).map_err(|_| {
            Error::invalid(format!(
                "expected parameter 'channel_axis' to be 0 or more, got {axis}"
            ))
        })?),
    };
    Ok(Operation::Affine { channels, axis })
}

fn order(config: &ModelConfig) -> Result<Order, Error> {
    match config.parameter("layout").unwrap_or_default().trim() {
        "nhwc_to_nchw" => Ok(Order::ChannelsFirst),
        "nchw_to_nhwc" => Ok(Order::ChannelsLast),
        other => Err(Error::invalid(format!(
            "expected parameter 'layout' to be nhwc_to_nchw or nchw_to_nhwc, got '{other}'"
        ))),
    }
}

/// `scale` (1 if it is not there) and `shift` (0), each one value or one for each channel.
fn channels(config: &ModelConfig, shift: &str) -> Result<Channels, Error> {
    let scale = numbers(config, "scale", 1.0)?;
    let shift_values = numbers(config, shift, 0.0)?;
    let count = scale.len().max(shift_values.len());
    let spread = |values: Vec<f32>| match values[..] {
        [value] => Some(vec![value; count]),
        _ => (values.len() == count).then_some(values),
    };
    let (got, also) = (scale.len(), shift_values.len());
    match (spread(scale), spread(shift_values)) {
        (Some(scale), Some(shift)) => Ok(Channels { scale, shift }),
        _ => Err(Error::invalid(format!(
            "expected as many values of parameter 'scale' as of '{shift}', got {got} and {also}"
        ))),
    }
}

fn numbers(config: &ModelConfig, name: &str, default: f32) -> Result<Vec<f32>, Error> {
    let Some(text) = config.parameter(name) else {
        return Ok(vec![default]);
    };
    let values = text.split(',').map(|value| {
        let value = value.trim();
        let number = value
            .parse::<f32>()
            .ok()
            .filter(|number| number.is_finite());
        number.ok_or_else(|| {
            Error::invalid(format!(
                "expected numbers with commas between for parameter '{name}', got '{value}'"
            ))
        })
    });
    let values: Vec<f32> = values.collect::<Result<_, _>>()?;
    if values.len() > CHANNELS_MAX {
        return Err(Error::invalid(format!(
            "expected at most {CHANNELS_MAX} values of parameter '{name}', got {}",
            values.len()
        )));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: &[(&str, &str)]) -> Result<Operation, Error> {
        let rows = parameters
            .iter()
            .map(|(name, value)| format!(r#""{name}": {{"string_value": "{value}"}}"#));
        let rows = rows.collect::<Vec<_>>().join(",");
        let json = format!(r#"{{"parameters": {{{rows}}}}}"#);
        Operation::read(&ModelConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn operations_have_their_parameters() {
        let channels = |scale: &[f32], shift: &[f32]| Channels {
            scale: scale.to_vec(),
            shift: shift.to_vec(),
        };
        for (parameters, expected) in [
            (&[("operation", "add")][..], Operation::Add),
            (&[("operation", "add"), ("of_another", "x")], Operation::Add),
            (&[("operation", " cast ")], Operation::Cast),
            (
                &[("operation", "layout"), ("layout", "nchw_to_nhwc")],
                Operation::Layout(Order::ChannelsLast),
            ),
            (
                &[("operation", "affine")],
                Operation::Affine {
                    channels: channels(&[1.0], &[0.0]),
                    axis: None,
                },
            ),
            (
                &[
                    ("operation", "affine"),
                    ("scale", "0.5, 2"),
                    ("offset", "-1"),
                    ("channel_axis", "1"),
                ],
                Operation::Affine {
                    channels: channels(&[0.5, 2.0], &[-1.0, -1.0]),
                    axis: Some(1),
                },
            ),
            (
                &[("operation", "normalize_image"), ("mean", "1,2,3")],
                Operation::NormalizeImage {
                    channels: channels(&[1.0; 3], &[1.0, 2.0, 3.0]),
                },
            ),
        ] {
            assert_eq!(read(parameters), Ok(expected), "{parameters:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (parameters, expected) in [
            (
                &[][..],
                "one of add, multiply, affine, cast, layout, normalize_image, got ''",
            ),
            (&[("operation", "divide")], "got 'divide'"),
            (
                &[("operation", "add"), ("scale", "2")],
                "'scale' only for affine, normalize_image, got it for operation 'add'",
            ),
            (
                &[("operation", "affine"), ("mean", "2")],
                "'mean' only for normalize_image",
            ),
            (&[("operation", "layout")], "got ''"),
            (&[("operation", "layout"), ("layout", "hwc")], "got 'hwc'"),
            (
                &[("operation", "affine"), ("scale", "1,x")],
                "'scale', got 'x'",
            ),
            (
                &[("operation", "affine"), ("scale", "inf")],
                "'scale', got 'inf'",
            ),
            (&[("operation", "affine"), ("scale", "")], "'scale', got ''"),
            (
                &[("operation", "affine"), ("scale", "1,2")],
                "'channel_axis' for 2 values",
            ),
            (
                &[
                    ("operation", "affine"),
                    ("scale", "1,2"),
                    ("offset", "1,2,3"),
                    ("channel_axis", "0"),
                ],
                "got 2 and 3",
            ),
            (
                &[("operation", "affine"), ("channel_axis", "-1")],
                "0 or more, got -1",
            ),
            (
                &[("operation", "affine"), ("channel_axis", "x")],
                "an integer for parameter 'channel_axis'",
            ),
        ] {
            let error = read(parameters).unwrap_err();
            assert!(error.message().contains(expected), "{}", error.message());
        }
        let many = vec!["1"; CHANNELS_MAX + 1].join(",");
        assert!(read(&[("operation", "affine"), ("scale", &many)]).is_err());
    }
}
