//! The table of what ensembles must agree on with their models. Texts are those of Triton 2.51 or
//! of the sources of 26.09's core.

use super::*;
use crate::{normalize, parse_text, validate};

fn config(name: &str, text: &str) -> ModelConfig {
    let mut config = parse_text("config.pbtxt", text).expect(text);
    config.name = name.to_owned();
    normalize(&mut config);
    validate(&config).expect(text);
    config
}

/// Models by name: `<name>[:batch]` = inputs and outputs as `name type dims`, `?` before the name
/// of an optional one.
fn model(name: &str) -> ModelConfig {
    let tensor = |kind: &str, name: &str, data_type: &str, dims: &str| {
        let optional = if name.starts_with('?') {
            "optional: true"
        } else {
            ""
        };
        let name = name.trim_start_matches('?');
        format!(
            "{kind} {{ name: '{name}' data_type: TYPE_{data_type} dims: [ {dims} ] {optional} }}\n"
        )
    };
    let (inputs, outputs, extra): (&[_], &[_], _) = match name {
        "copy" => (&[("i", "FP32", "-1")], &[("o", "FP32", "-1")], ""),
        "four" => (&[("i", "FP32", "4")], &[("o", "FP32", "4")], ""),
        "batch" => (
            &[("i", "FP32", "4")],
            &[("o", "FP32", "4")],
            "max_batch_size: 4",
        ),
        "flat" => (&[("i", "FP32", "-1, 4")], &[("o", "FP32", "-1, 4")], ""),
        "text" => (&[("i", "STRING", "-1")], &[("o", "STRING", "-1")], ""),
        "join" => (
            &[("l", "FP32", "-1"), ("r", "FP32", "-1")],
            &[("o", "FP32", "-1")],
            "",
        ),
        "spare" => (
            &[("i", "FP32", "-1"), ("?x", "FP32", "-1")],
            &[("o", "FP32", "-1"), ("p", "FP32", "-1")],
            "",
        ),
        "many" => (
            &[("i", "FP32", "-1")],
            &[("o", "FP32", "-1")],
            "model_transaction_policy { decoupled: true }",
        ),
        other => panic!("{other}"),
    };
    let mut text = format!("backend: 'b' {extra}\n");
    for (name, data_type, dims) in inputs {
        text += &tensor("input", name, data_type, dims);
    }
    for (name, data_type, dims) in outputs {
        text += &tensor("output", name, data_type, dims);
    }
    config(name, &text)
}

/// An ensemble from steps like `copy i=x o=y`; what is left of `=` and no output of the model is an
/// input.
fn ensemble(head: &str, steps: &str) -> (ModelConfig, Vec<ModelConfig>) {
    let mut text = format!("platform: 'ensemble' {head}\nensemble_scheduling {{\n");
    let mut models = Vec::new();
    for step in steps.split(';') {
        let mut words = step.split_whitespace();
        let name = words.next().unwrap();
        text += &format!("step {{ model_name: '{name}' model_version: -1\n");
        for word in words {
            let (key, value) = word.split_once('=').unwrap();
            let kind = if matches!(key, "o" | "p" | "no_o") {
                "output_map"
            } else {
                "input_map"
            };
            text += &format!("{kind} {{ key: '{key}' value: '{value}' }}\n");
        }
        text += "}\n";
        models.push(model(name));
    }
    (config("e", &(text + "}")), models)
}

const X: &str = "input { name: 'x' data_type: TYPE_FP32 dims: -1 } output \
                 { name: 'y' data_type: TYPE_FP32 dims: -1 }";
const X4: &str = "input { name: 'x' data_type: TYPE_FP32 dims: 4 } output \
                  { name: 'y' data_type: TYPE_FP32 dims: 4 }";

/// Head, steps, and the refusal or whether the ensemble is decoupled.
type Case<'c> = (&'c str, &'c str, Result<bool, &'c str>);

fn check_all(cases: &[Case<'_>]) {
    for (head, steps, expected) in cases {
        check_composed(head, steps, *expected);
    }
}

fn check_composed(head: &str, steps: &str, expected: Result<bool, &str>) {
    let (mut config, models) = ensemble(head, steps);
    let composing: Vec<ComposingModels> = models
        .iter()
        .map(|config| ComposingModels {
            namespace: "there",
            label: &config.name,
            config,
        })
        .collect();
    let got = compose(&mut config, "e", &composing);
    match expected {
        Err(message) => assert_eq!(got.unwrap_err().message, message, "{steps}"),
        Ok(is_decoupled) => {
            assert_eq!(got, Ok(()), "{steps}");
            let policy = config.model_transaction_policy.unwrap();
            assert_eq!(policy.decoupled, is_decoupled, "{steps}");
            let parts = ensembling(&config).unwrap();
            assert!(parts.steps.iter().all(|step| step.namespace == "there"));
        }
    }
}

#[test]
fn ensembles_fit_their_models_or_say_why_not() {
    let batch4 = format!("max_batch_size: 4 {X4}");
    let batch8 = format!("max_batch_size: 8 {X4}");
    check_all(&[
        (X, "copy i=x o=y", Ok(false)),
        (X, "copy i=x o=m; copy i=m o=y", Ok(false)),
        (X, "four i=x o=y", Ok(false)),
        (&batch4, "batch i=x o=y", Ok(false)),
        // A model without a batch dimension that counts its batch itself.
        (&batch4, "flat i=x o=y", Ok(false)),
        (&batch4, "batch i=x o=m; flat i=m o=y", Ok(false)),
        (&batch4, "four i=x o=y", Ok(false)),
        (
            &batch8,
            "batch i=x o=y",
            Err(
                "ensemble e allows maximum batch size 8, but it contains model batch which only \
                 allows maximum batch size to be 4",
            ),
        ),
        (
            X,
            "text i=x o=y",
            Err(
                "in ensemble e, ensemble tensor x: inconsistent data type: TYPE_FP32 is inferred \
                 from model e while TYPE_STRING is inferred from model text",
            ),
        ),
        (
            X,
            "copy i=x o=m; text i=m o=y",
            Err(
                "in ensemble e, ensemble tensor m: inconsistent data type: TYPE_FP32 is inferred \
                 from model copy while TYPE_STRING is inferred from model text",
            ),
        ),
        (
            X,
            "flat i=x o=y",
            Err(
                "in ensemble e, ensemble tensor x: inconsistent shape: [-1] is inferred from model \
                 e while [-1,4] is inferred from model flat",
            ),
        ),
        (
            &batch4,
            "copy i=x o=m; flat i=m o=y",
            Err(
                "in ensemble e, ensemble tensor m: inconsistent shape: [-1] is inferred from model \
                 copy while [-1,4] is inferred from model flat",
            ),
        ),
    ]);
}

#[test]
fn steps_map_to_what_their_models_have() {
    check_all(&[
        (
            X,
            "copy nope=x o=y",
            Err(
                "in ensemble e, ensemble tensor x is mapping to non-existing input nope in model \
                 copy",
            ),
        ),
        (
            X,
            "copy i=x no_o=y",
            Err(
                "in ensemble e, ensemble tensor y is mapped from non-existing output no_o in model \
                 copy",
            ),
        ),
        (
            X,
            "join l=x o=y",
            Err("in ensemble e, input r in model join is not mapped to any ensemble tensors"),
        ),
        (X, "join l=x r=x o=y", Ok(false)),
        (X, "spare i=x o=y", Ok(false)),
    ]);
}

#[test]
fn inputs_of_a_step_come_from_one_decoupled_model() {
    let xz = format!("{X} output {{ name: 'z' data_type: TYPE_FP32 dims: -1 }}");
    check_all(&[
        (X, "many i=x o=y", Ok(true)),
        (X, "many i=x o=m; copy i=m o=y", Ok(true)),
        (X, "many i=x o=m; many i=m o=y", Ok(true)),
        (
            X,
            "many i=x o=m; copy i=m o=n; copy i=m o=k; join l=n r=k o=y",
            Ok(true),
        ),
        // As many of one as of the other come by chance only.
        (
            X,
            "many i=x o=m; join l=m r=x o=y",
            Err(
                "in ensemble e, step of model 'join' receives inputs originated from different \
                 decoupled models",
            ),
        ),
        (
            X,
            "many i=x o=m; many i=x o=n; join l=m r=n o=y",
            Err(
                "in ensemble e, step of model 'join' receives inputs originated from different \
                 decoupled models",
            ),
        ),
        (
            X,
            "many i=x o=m; many i=m o=n; join l=m r=n o=y",
            Err(
                "in ensemble e, step of model 'join' receives inputs originated from different \
                 decoupled models",
            ),
        ),
        (
            &xz,
            "many i=x o=y; copy i=x o=z",
            Err(
                "in ensemble e, step of model 'e' receives inputs originated from different \
                 decoupled models",
            ),
        ),
        (&xz, "many i=x o=y; copy i=y o=z", Ok(true)),
    ]);
}

#[test]
fn steps_are_read_as_they_are_written() {
    let (mut config, _) = ensemble(X, "copy i=x o=m; four i=m o=y");
    if let Some(SchedulingChoice::EnsembleScheduling(ensembling)) = &mut config.scheduling_choice {
        ensembling.step[1].model_version = 7;
        ensembling.max_inflight_requests = 3;
    }
    let pair = |name: &str, tensor: &str| vec![(name.to_owned(), tensor.to_owned())];
    let step = |model: &str, version, input, output| EnsembleStep {
        model: model.to_owned(),
        namespace: String::new(),
        version,
        inputs: pair("i", input),
        outputs: pair("o", output),
    };
    assert_eq!(
        ensembling(&config),
        Some(Ensembling {
            steps: vec![
                step("copy", None, "x", "m"),
                step("four", Some(7), "m", "y")
            ],
            inflight_max: 3,
        })
    );
    assert_eq!(ensembling(&model("copy")), None);
}
