//! What a model answers, and in which shape.

use conch_backend_sdk as sdk;
use sdk::{DataType, Error, ModelConfig, TensorConfig, shape_text};

use crate::forest::model::{Forest, Task};
use crate::settings::Settings;

pub const INPUT: &str = "input__0";
pub const OUTPUT: &str = "output__0";
pub const SHAP_OUTPUT: &str = "treeshap_output";

/// What becomes of the values that the link function gives for a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// All of them.
    Values,
    /// The number of the largest.
    Class,
    /// 1 above the threshold, else 0.
    IsAbove(f64),
    /// That of the negative class and that of the positive one, of which there is one value.
    Pair,
}

impl Answer {
    /// What a model answers by its parameters. `width` is that of the configured output, if it is
    /// known.
    pub fn new(forest: &Forest, settings: &Settings, width: Option<usize>) -> Answer {
        let is_classifier = settings
            .is_classifier
            .unwrap_or(forest.task != Task::Regression);
        match (
            is_classifier,
            settings.has_probabilities,
            forest.class_count,
        ) {
            (false, ..) => Answer::Values,
            (true, false, 1) => Answer::IsAbove(settings.threshold),
            (true, false, _) => Answer::Class,
            // One value for a binary classifier is the documented form, two the usual one.
            (true, true, 1) if width != Some(1) => Answer::Pair,
            (true, true, _) => Answer::Values,
        }
    }

    /// Values per row.
    pub fn width(self, class_count: usize) -> usize {
        match self {
            Answer::Values => class_count,
            Answer::Class | Answer::IsAbove(_) => 1,
            Answer::Pair => 2,
        }
    }

    /// Writes the answer of a row.
    pub fn write(self, values: &[f64], answer: &mut [f32]) {
        match (self, values, answer) {
            (Answer::Values, values, answer) => {
                for (value, target) in values.iter().zip(answer) {
                    *target = *value as f32;
                }
            }
            (Answer::Class, values, [target]) => *target = largest(values) as f32,
            (Answer::IsAbove(threshold), [value], [target]) => {
                *target = f32::from(u8::from(f64::from(*value as f32) > threshold));
            }
            (Answer::Pair, [value], [negative, positive]) => {
                *negative = (1.0 - value) as f32;
                *positive = *value as f32;
            }
            // The widths are this type's own.
            _ => {}
        }
    }
}

/// The first of the largest values, by number.
fn largest(values: &[f64]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if values.get(best).is_some_and(|largest| value > largest) {
            best = index;
        }
    }
    best
}

/// An output: values per row, and the dimensions in which they are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub width: usize,
    /// Without the rows, and without dimensions of 1, which upstream leaves out.
    pub dims: Vec<i64>,
}

/// The elements per row that the configured output has, if its dimensions say.
pub fn configured_width(config: &ModelConfig, name: &str) -> Result<Option<usize>, Error> {
    let outputs = config.outputs()?;
    let Some(output) = outputs.iter().find(|output| output.name() == name) else {
        return Ok(None);
    };
    let dims = row_dims(output, config.max_batch_size());
    let known = dims.iter().map(|&dim| usize::try_from(dim).ok());
    Ok(known.product::<Option<usize>>())
}

/// Checks the input against the model.
///
/// # Errors
/// `InvalidArgument` if the model has no such input.
pub fn check_input(model: &str, config: &ModelConfig, feature_count: usize) -> Result<(), Error> {
    let inputs = config.inputs()?;
    let input = TensorConfig::expect(&inputs, INPUT, DataType::Fp32)?;
    if inputs.len() != 1 {
        return Err(Error::invalid(format!(
            "unable to load model '{model}', configuration expects {} inputs, model provides 1",
            inputs.len()
        )));
    }
    let dims = row_dims(input, config.max_batch_size());
    let known = dims.iter().map(|&dim| usize::try_from(dim).ok());
    match known.product::<Option<usize>>() {
        Some(count) if count != feature_count => Err(Error::invalid(format!(
            "unable to load model '{model}', configuration expects {count} features in '{INPUT}', \
             the model has {feature_count}"
        ))),
        _ => Ok(()),
    }
}

/// The configured output, checked against the model.
///
/// # Errors
/// `InvalidArgument` if the model has no such output, or other values per row.
pub fn output(
    model: &str,
    config: &ModelConfig,
    name: &str,
    width: usize,
) -> Result<Output, Error> {
    let outputs = config.outputs()?;
    let output = TensorConfig::expect(&outputs, name, DataType::Fp32)?;
    let known_as = [OUTPUT, SHAP_OUTPUT];
    if let Some(other) = outputs
        .iter()
        .find(|other| !known_as.contains(&other.name()))
    {
        return Err(Error::invalid(format!(
            "unexpected inference output '{}', allowed outputs are: {OUTPUT}, {SHAP_OUTPUT}",
            other.name()
        )));
    }
    let mut dims = row_dims(output, config.max_batch_size()).to_vec();
    let fixed = dims.iter().filter(|&&dim| dim >= 0);
    let product = fixed
        .map(|&dim| usize::try_from(dim).ok())
        .product::<Option<usize>>();
    let mut open = dims.iter_mut().filter(|dim| **dim < 0);
    let fits = match (product, open.next(), open.next()) {
        (Some(product), None, _) => product == width,
        (Some(product), Some(dim), None) if product > 0 && width.is_multiple_of(product) => {
            *dim = i64::try_from(width / product).unwrap_or(i64::MAX);
            true
        }
        _ => false,
    };
    if !fits {
        return Err(Error::invalid(format!(
            "unable to load model '{model}', configuration expects the shape {} for output \
             '{name}', model provides {width} values per row",
            shape_text(&output.dims)
        )));
    }
    dims.retain(|&dim| dim != 1);
    Ok(Output { width, dims })
}

/// The dimensions of a row: where the model does not batch, the first one may be the rows.
fn row_dims(tensor: &TensorConfig, max_batch_size: i64) -> &[i64] {
    match tensor.model_dims() {
        [-1, rest @ ..] if max_batch_size == 0 && !rest.is_empty() => rest,
        dims => dims,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forest::Link;

    fn forest(task: Task, class_count: usize) -> Forest {
        Forest {
            feature_count: 4,
            class_count,
            task,
            trees: vec![],
            is_averaged: false,
            base_scores: vec![0.0; class_count],
            link: Link::Identity,
        }
    }

    #[test]
    fn answers() {
        let settings = |is_classifier, has_probabilities| Settings {
            format: None,
            is_classifier,
            has_probabilities,
            threshold: 0.5,
            threads_max: None,
        };
        for (task, classes, is_classifier, proba, width, expected) in [
            (Task::Regression, 1, None, false, None, Answer::Values),
            (Task::Binary, 1, None, false, None, Answer::IsAbove(0.5)),
            (Task::Binary, 1, Some(false), false, None, Answer::Values),
            (Task::Binary, 1, Some(true), true, None, Answer::Pair),
            (Task::Binary, 1, Some(true), true, Some(2), Answer::Pair),
            (Task::Binary, 1, Some(true), true, Some(1), Answer::Values),
            (
                Task::Regression,
                1,
                Some(true),
                false,
                None,
                Answer::IsAbove(0.5),
            ),
            (Task::Multiclass, 3, None, false, None, Answer::Class),
            (Task::Multiclass, 3, None, true, Some(3), Answer::Values),
            (
                Task::Multiclass,
                3,
                Some(false),
                false,
                None,
                Answer::Values,
            ),
        ] {
            let answer = Answer::new(
                &forest(task, classes),
                &settings(is_classifier, proba),
                width,
            );
            assert_eq!(
                answer, expected,
                "{task:?} {classes} {is_classifier:?} {proba} {width:?}"
            );
        }
    }

    #[test]
    fn answers_are_written() {
        for (answer, values, expected) in [
            (Answer::Values, vec![0.5, 2.0], vec![0.5, 2.0]),
            (Answer::Class, vec![0.1, 0.7, 0.7], vec![1.0]),
            (Answer::Class, vec![-3.0, -2.0], vec![1.0]),
            (Answer::IsAbove(0.5), vec![0.5], vec![0.0]),
            (Answer::IsAbove(0.5), vec![0.75], vec![1.0]),
            (Answer::Pair, vec![0.25], vec![0.75, 0.25]),
        ] {
            let mut target = vec![9.0; answer.width(values.len())];
            answer.write(&values, &mut target);
            assert_eq!(target, expected, "{answer:?} {values:?}");
        }
    }

    #[test]
    fn outputs() {
        for (batch, dims, width, expected) in [
            (8, "[1]", 1, Some(vec![])),
            (8, "[3]", 3, Some(vec![3])),
            (8, "[-1]", 3, Some(vec![3])),
            (8, "[3, 5]", 15, Some(vec![3, 5])),
            (8, "[1, 5]", 5, Some(vec![5])),
            (8, "[-1, 5]", 15, Some(vec![3, 5])),
            (8, "[2]", 3, None),
            (8, "[-1, -1]", 3, None),
            (0, "[-1, 3]", 3, Some(vec![3])),
            (0, "[3]", 3, Some(vec![3])),
        ] {
            let text = format!(
                r#"{{"max_batch_size": {batch}, "output": [
                    {{"name": "output__0", "data_type": "TYPE_FP32", "dims": {dims}}}]}}"#
            );
            let config = ModelConfig::parse(text.as_bytes()).unwrap();
            let got = output("m", &config, OUTPUT, width).ok();
            assert_eq!(
                got.map(|output| output.dims),
                expected,
                "{batch} {dims} {width}"
            );
        }
    }
}
