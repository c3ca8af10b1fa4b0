//! Model parameters, under the names of Triton's FIL backend.

use std::path::Path;

use conch_backend_sdk as sdk;
use sdk::{Error, ModelConfig};

use crate::formats::Format;

/// Parameters that steer GPUs, or layouts that there are not, or are checks that this reader does
/// not make.
const INERT: [&str; 9] = [
    "algo",
    "blocks_per_sm",
    "chunk_size",
    "layout",
    "storage_type",
    "threads_per_tree",
    "transfer_threshold",
    "use_experimental_optimizations",
    "xgboost_allow_unknown_field",
];

/// What a configuration says of its model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// None: the file in the folder decides.
    pub format: Option<Format>,
    /// None: the model decides.
    pub is_classifier: Option<bool>,
    pub has_probabilities: bool,
    /// From here on up, a binary classifier says yes.
    pub threshold: f64,
    /// Threads for a batch; none: the CPUs, divided among the instances.
    pub threads_max: Option<usize>,
}

impl Settings {
    /// # Errors
    /// `InvalidArgument` if a value is none that its parameter can have.
    pub fn new(config: &ModelConfig) -> Result<Settings, Error> {
        let format = match config.parameter("model_type") {
            None => None,
            Some(name) => Some(format(name)?),
        };
        // The older name wins, as it does upstream.
        let is_classifier = match boolean(config, "output_class")? {
            None => boolean(config, "is_classifier")?,
            given => given,
        };
        let threshold = config.parameter("threshold").unwrap_or("0.5");
        // Upstream holds it as a 32-bit number, and compares such.
        let threshold: f32 = threshold
            .trim()
            .parse()
            .map_err(|_| Error::invalid("Bad input for parameter threshold"))?;
        let threads_max = match config.integer_parameter("cpu_nthread")? {
            None | Some(..=0) => None,
            Some(count) => usize::try_from(count).ok(),
        };
        Ok(Settings {
            format,
            is_classifier,
            has_probabilities: boolean(config, "predict_proba")?.unwrap_or(false),
            threshold: f64::from(threshold),
            threads_max,
        })
    }

    /// The format that the configuration names, or whose file is in the folder.
    pub fn format_in(&self, directory: &Path) -> Format {
        let has_file = |format: &&Format| directory.join(format.file_name()).exists();
        self.format
            .or_else(|| Format::ALL.iter().find(has_file).copied())
            .unwrap_or(Format::XgboostLegacy)
    }
}

/// Parameters of the configuration that have no effect.
pub fn inert(config: &ModelConfig) -> Vec<&'static str> {
    let is_given = |name: &&str| config.parameter(name).is_some();
    INERT.iter().copied().filter(is_given).collect()
}

fn format(name: &str) -> Result<Format, Error> {
    let found = Format::ALL.into_iter().find(|format| format.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
        Error::unsupported(format!(
            "{name} not recognized as a valid serialization format. Those that are: {}",
            names.join(", ")
        ))
    })
}

fn boolean(config: &ModelConfig, name: &str) -> Result<Option<bool>, Error> {
    match config.parameter(name) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => Err(Error::invalid(format!(
            "Expected 'true' or 'false' for parameter '{name}', got: '{other}'"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(parameters: &[(&str, &str)]) -> ModelConfig {
        let list = parameters
            .iter()
            .map(|(name, value)| format!(r#""{name}": {{"string_value": "{value}"}}"#));
        let list: Vec<String> = list.collect();
        let text = format!(r#"{{"parameters": {{{}}}}}"#, list.join(","));
        ModelConfig::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn reads_parameters() {
        let none = Settings {
            format: None,
            is_classifier: None,
            has_probabilities: false,
            threshold: 0.5,
            threads_max: None,
        };
        let cases = [
            (vec![], Some(none)),
            (
                vec![("model_type", "lightgbm"), ("is_classifier", "true")],
                Some(Settings {
                    format: Some(Format::Lightgbm),
                    is_classifier: Some(true),
                    ..none
                }),
            ),
            (
                vec![("output_class", "false"), ("is_classifier", "true")],
                Some(Settings {
                    is_classifier: Some(false),
                    ..none
                }),
            ),
            (
                vec![
                    ("threshold", "0.25"),
                    ("predict_proba", "true"),
                    ("cpu_nthread", "3"),
                ],
                Some(Settings {
                    threshold: 0.25,
                    has_probabilities: true,
                    threads_max: Some(3),
                    ..none
                }),
            ),
            (vec![("cpu_nthread", "-1")], Some(none)),
            (vec![("model_type", "pickle")], None),
            (vec![("output_class", "yes")], None),
            (vec![("predict_proba", "1")], None),
            (vec![("threshold", "half")], None),
        ];
        for (parameters, expected) in cases {
            let got = Settings::new(&config(&parameters)).ok();
            assert_eq!(got, expected, "{parameters:?}");
        }
    }

    #[test]
    fn knows_what_has_no_effect() {
        let config = config(&[("layout", "layered"), ("threshold", "1"), ("algo", "NAIVE")]);
        assert_eq!(inert(&config), ["algo", "layout"]);
    }
}
