//! Names of TorchScript's arguments and results in a configuration, by upstream's rules.
//!
//! Inputs are named like the arguments of `forward`, all of them; or all `<name>__<index>`; or else
//! they are the arguments in the order of the configuration. Outputs are all `<name>__<index>`, or
//! the results in the order of the configuration. Where `forward` takes one dictionary, the names
//! of the inputs are its keys. What `forward` returns in a dictionary, which upstream refuses, is
//! found by its key.

use conch_backend_sdk as sdk;
use sdk::engine::TensorInfo;
use sdk::{Error, ModelConfig};

use crate::wiring::{Wiring, check_types, signature_of};

/// An argument of `forward`: its name and torch's name of its type.
pub type Argument = (String, String);

/// How the tensors of one side are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamingConvention {
    /// Like arguments of `forward`.
    Arguments,
    /// `<name>__<index>`.
    Index,
    /// Anyhow; the order counts.
    Order,
}

/// A configuration brought together with what `forward` takes.
#[derive(Debug)]
pub struct ScriptWiring {
    pub wiring: Wiring,
    /// `forward` takes one dictionary.
    pub is_dictionary: bool,
    /// To be told in the log.
    pub warnings: Vec<String>,
}

/// Brings a configuration together with what `forward` takes.
///
/// # Errors
/// Upstream's, if they do not fit.
pub fn wire(
    model_name: &str,
    config: &ModelConfig,
    arguments: &[Argument],
) -> Result<ScriptWiring, Error> {
    let signature = signature_of(config)?;
    let is_dictionary = matches!(arguments, [(_, kind)] if is_dictionary(kind));
    if !is_dictionary {
        check_arguments(arguments)?;
        let expected = signature.inputs.len();
        if arguments.len() != expected {
            return Err(Error::invalid(format!(
                "unable to load model '{model_name}', configuration expects {expected} inputs, \
                 model provides {}",
                arguments.len()
            )));
        }
    }
    let (inputs, outputs) = (config.inputs()?, config.outputs()?);
    check_counts(inputs.len(), outputs.len())?;
    check_types(model_name, &signature, true)?;
    check_states_and_controls(config)?;

    let input_names: Vec<_> = inputs.iter().map(sdk::TensorConfig::name).collect();
    let output_names: Vec<_> = outputs.iter().map(sdk::TensorConfig::name).collect();
    let mut warnings = Vec::new();
    let are_arguments = input_names
        .iter()
        .all(|name| arguments.iter().any(|(argument, _)| argument == name));
    let input_naming = match are_arguments && !is_dictionary {
        true => NamingConvention::Arguments,
        false => by_index_or_order(model_name, "input", &input_names, &mut warnings),
    };
    let output_naming = by_index_or_order(model_name, "output", &output_names, &mut warnings);
    let has_states = !config.states()?.is_empty();
    if has_states && !is_dictionary && [input_naming, output_naming] != [NamingConvention::Index; 2]
    {
        return Err(Error::invalid(format!(
            "PyTorch model '{model_name}' is using sequence batching with state but not all inputs \
             and outputs follow the <name>__<index> naming convention. "
        )));
    }
    // Controls and states are named by index, whatever the others are.
    let position = |at: usize, info: &TensorInfo, naming, count| match naming {
        _ if at >= count => index_of(info.name()).unwrap_or(at),
        NamingConvention::Index => index_of(info.name()).unwrap_or(at),
        NamingConvention::Arguments => argument_index(arguments, info.name()).unwrap_or(at),
        NamingConvention::Order => at,
    };
    let batch_input_count: usize = config
        .batch_inputs()?
        .iter()
        .map(|input| input.targets.len())
        .sum();
    let requested_count = inputs.len() + batch_input_count;
    let wired = |infos: &[TensorInfo], naming, count| -> Vec<usize> {
        let positions = infos.iter().enumerate();
        positions
            .map(|(at, info)| position(at, info, naming, count))
            .collect()
    };
    let wiring = Wiring {
        inputs: match is_dictionary {
            true => (0..signature.inputs.len()).collect(),
            false => wired(&signature.inputs, input_naming, requested_count),
        },
        outputs: wired(&signature.outputs, output_naming, outputs.len()),
        signature,
    };
    if !is_dictionary {
        check_positions(model_name, &wiring, arguments.len())?;
    }
    Ok(ScriptWiring {
        wiring,
        is_dictionary,
        warnings,
    })
}

fn check_counts(input_count: usize, output_count: usize) -> Result<(), Error> {
    for (side, count) in [("input", input_count), ("output", output_count)] {
        if count == 0 {
            return Err(Error::internal(format!(
                "model configuration must contain at least one {side}, none were specified."
            )));
        }
    }
    Ok(())
}

/// Whether each argument is something that a request can bring.
fn check_arguments(arguments: &[Argument]) -> Result<(), Error> {
    let others = arguments.get(1..).unwrap_or_default();
    if others.iter().any(|(_, kind)| is_dictionary(kind)) {
        return Err(Error::internal(
            "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, \
             Tensor) is supported.",
        ));
    }
    let servable = [
        "Tensor",
        "Tensor?",
        "Optional[Tensor]",
        "str[]",
        "List[str]",
    ];
    match arguments
        .iter()
        .find(|(_, kind)| !servable.contains(&kind.as_str()))
    {
        None => Ok(()),
        Some((_, kind)) => Err(Error::internal(format!(
            "An input of type '{kind}' was detected in the model. Only a single input of type \
             Dict(str, Tensor) or input(s) of type Tensor are supported."
        ))),
    }
}

fn is_dictionary(kind: &str) -> bool {
    kind.starts_with("Dict(") || kind.starts_with("Dict[")
}

fn check_states_and_controls(config: &ModelConfig) -> Result<(), Error> {
    for control in config.controls()? {
        if index_of(&control.name).is_none() {
            return Err(Error::internal(format!(
                "input '{}' does not follow <name>__<index> naming convention.",
                control.name
            )));
        }
    }
    for state in config.states()? {
        for name in [&state.input, &state.output] {
            let name = name.to_string_lossy();
            if index_of(&name).is_none() {
                return Err(Error::invalid(format!(
                    "state '{name}' does not follow the <name>__<index> naming convention. "
                )));
            }
        }
    }
    Ok(())
}

/// Whether each argument is given once.
fn check_positions(model_name: &str, wiring: &Wiring, argument_count: usize) -> Result<(), Error> {
    let mut is_given = vec![false; argument_count];
    for (info, &position) in wiring.signature.inputs.iter().zip(&wiring.inputs) {
        match is_given.get_mut(position) {
            Some(given) if !*given => *given = true,
            Some(_) => {
                return Err(Error::invalid(format!(
                    "unable to load model '{model_name}', input '{}' is argument {position} of the \
                     model, and so is another input",
                    info.name()
                )));
            }
            None => {
                return Err(Error::invalid(format!(
                    "unable to load model '{model_name}', input '{}' is argument {position}, and \
                     the model has {argument_count}",
                    info.name()
                )));
            }
        }
    }
    Ok(())
}

fn by_index_or_order(
    model_name: &str,
    side: &str,
    names: &[&str],
    warnings: &mut Vec<String>,
) -> NamingConvention {
    for name in names {
        let Some((_, index)) = name.split_once("__") else {
            return NamingConvention::Order;
        };
        if !is_number(index) {
            let rule = match side {
                "input" => format!(
                    "input '{name}' or previous input(s) are neither an input argument to the \
                     model '{model_name}' nor do they follow the <name>__<index> naming convention."
                ),
                _ => format!(
                    "output '{name}' or previous output(s) of the model '{model_name}' do not \
                     follow the <name>__<index> naming convention."
                ),
            };
            warnings.push(format!(
                "{rule} Falling back to enforcing strict ordering from model configuration."
            ));
            return NamingConvention::Order;
        }
    }
    NamingConvention::Index
}

/// The index in `<name>__<index>`. No digits at all mean 0, as upstream reads them.
fn index_of(name: &str) -> Option<usize> {
    let (_, index) = name.split_once("__")?;
    match index {
        "" => Some(0),
        // One that is too large for a number is that of no argument.
        _ => is_number(index).then(|| index.parse().unwrap_or(usize::MAX)),
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn argument_index(arguments: &[Argument], name: &str) -> Option<usize> {
    arguments.iter().position(|(argument, _)| argument == name)
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::{Value, json};

    use super::*;

    fn tensors(names: &[&str]) -> Value {
        names
            .iter()
            .map(|name| json!({"name": name, "data_type": "TYPE_FP32", "dims": [2]}))
            .collect()
    }

    fn arguments(of: &[(&str, &str)]) -> Vec<Argument> {
        of.iter()
            .map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned()))
            .collect()
    }

    fn wired(
        inputs: &[&str],
        outputs: &[&str],
        of: &[(&str, &str)],
    ) -> Result<ScriptWiring, Error> {
        let config =
            ModelConfig::new(json!({"input": tensors(inputs), "output": tensors(outputs)}));
        wire("m", &config, &arguments(of))
    }

    const PAIR: [(&str, &str); 2] = [("x", "Tensor"), ("y", "Tensor")];

    #[test]
    fn names_say_which_argument() {
        for (inputs, outputs, expected_inputs, expected_outputs) in [
            (
                &["INPUT__1", "INPUT__0"],
                &["OUTPUT__1", "OUTPUT__0"],
                [1, 0],
                [1, 0],
            ),
            (&["y", "x"], &["sum", "difference"], [1, 0], [0, 1]),
            // One that is no argument: all by index, else by order.
            (&["y", "INPUT__0"], &["a__0", "b__x"], [0, 1], [0, 1]),
            (&["b", "a"], &["b__1", "a__"], [0, 1], [1, 0]),
            (&["a__1__0", "c__1"], &["o", "p"], [0, 1], [0, 1]),
        ] {
            let ScriptWiring {
                wiring,
                is_dictionary,
                ..
            } = wired(inputs, outputs, &PAIR).unwrap();
            assert!(!is_dictionary);
            assert_eq!(wiring.inputs, expected_inputs, "{inputs:?}");
            assert_eq!(wiring.outputs, expected_outputs, "{outputs:?}");
        }
    }

    #[test]
    fn a_dictionary_takes_any_names() {
        let ScriptWiring {
            wiring,
            is_dictionary,
            ..
        } = wired(&["A", "INPUT__7"], &["O__0"], &[("d", "Dict(str, Tensor)")]).unwrap();
        assert!(is_dictionary);
        assert_eq!(wiring.inputs, [0, 1]);
    }

    #[test]
    fn controls_and_states_are_named_by_index() {
        let config = |control: &str, inputs: &[&str]| {
            ModelConfig::new(json!({
                "input": tensors(inputs), "output": tensors(&["O__0"]),
                "sequence_batching": {
                    "control_input": [{"name": control, "control": [
                        {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]}],
                    "state": [{"input_name": "S__1", "output_name": "S__1",
                               "data_type": "TYPE_FP32", "dims": [2]}],
                },
            }))
        };
        let three = arguments(&[("x", "Tensor"), ("s", "Tensor"), ("start", "Tensor")]);
        let ScriptWiring { wiring, .. } =
            wire("m", &config("START__2", &["X__0"]), &three).unwrap();
        assert_eq!(wiring.inputs, [0, 2, 1]);
        assert_eq!(wiring.outputs, [0, 1]);
        for (control, input, expected) in [
            (
                "START",
                "X__0",
                "input 'START' does not follow <name>__<index> naming convention.",
            ),
            (
                "START__2",
                "x",
                "with state but not all inputs and outputs follow",
            ),
            (
                "START__0",
                "X__0",
                "input 'START__0' is argument 0 of the model, and so is another",
            ),
        ] {
            let refused = wire("m", &config(control, &[input]), &three).unwrap_err();
            assert!(refused.message().contains(expected), "{refused}");
        }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        for (inputs, outputs, of, expected) in [
            (
                &["a"][..],
                &["o"][..],
                &PAIR[..],
                "unable to load model 'm', configuration expects 1 inputs, model provides 2",
            ),
            (
                &[],
                &["o"],
                &[],
                "model configuration must contain at least one input, none were specified.",
            ),
            (
                &["a"],
                &[],
                &[("x", "Tensor")],
                "model configuration must contain at least one output, none were specified.",
            ),
            (
                &["a", "b"],
                &["o"],
                &[("x", "Tensor"), ("sr", "int")],
                "An input of type 'int' was detected in the model. Only a single input of type \
                 Dict(str, Tensor) or input(s) of type Tensor are supported.",
            ),
            (
                &["a", "b"],
                &["o"],
                &[("x", "Tensor"), ("d", "Dict(str, Tensor)")],
                "Multiple inputs of kind DictType were detected. Only a single input of type \
                 Dict(str, Tensor) is supported.",
            ),
            (
                &["a__0", "b__2"],
                &["o"],
                &PAIR,
                "unable to load model 'm', input 'b__2' is argument 2, and the model has 2",
            ),
            (
                &["a__0", "b__99999999999999999999"],
                &["o"],
                &PAIR,
                "unable to load model 'm', input 'b__99999999999999999999' is argument \
                 18446744073709551615, and the model has 2",
            ),
        ] {
            let refused = wired(inputs, outputs, of).unwrap_err();
            assert_eq!(refused.message(), expected);
        }
    }
}
