//! Rules for sequence batching.

use std::collections::HashSet;

use conch_proto::inference::model_sequence_batching::StrategyChoice;
use conch_proto::inference::model_sequence_batching::control::Kind;
use conch_proto::inference::{DataType, ModelConfig, ModelSequenceBatching};

use crate::ConfigError;

pub(super) fn validate(
    config: &ModelConfig,
    batching: &ModelSequenceBatching,
) -> Result<(), ConfigError> {
    let name = &config.name;
    for kind in [
        Kind::ControlSequenceStart,
        Kind::ControlSequenceEnd,
        Kind::ControlSequenceReady,
    ] {
        check_boolean_control(batching, name, kind)?;
    }
    check_correlation_control(batching, name)?;
    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            for size in &oldest.preferred_batch_size {
                if *size <= 0 {
                    return Err(ConfigError::invalid(format!(
                        "sequence batching preferred batch size must be positive for {name}"
                    )));
                }
                if *size > config.max_batch_size {
                    return Err(ConfigError::invalid(format!(
                        "sequence batching preferred batch size must be <= max batch size for \
                         {name}"
                    )));
                }
            }
        }
        // Zero passes although the text says otherwise: it is the default and means "do not wait".
        // NaN does not pass.
        Some(StrategyChoice::Direct(direct))
            if !(0.0..=1.0).contains(&direct.minimum_slot_utilization) =>
        {
            return Err(ConfigError::invalid(format!(
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
            )));
        }
        Some(StrategyChoice::Direct(_)) | None => {}
    }
    Ok(())
}

/// The tensor of one control kind, after the rules that hold for all tensors.
fn find_control<'a>(
    batching: &'a ModelSequenceBatching,
    model: &str,
    kind: Kind,
) -> Result<Option<&'a conch_proto::inference::model_sequence_batching::Control>, ConfigError> {
    let mut names = HashSet::new();
    let mut found = None;
    for input in &batching.control_input {
        if input.name.is_empty() {
            return Err(ConfigError::invalid(format!(
                "sequence batching control tensor must have a name for {model}"
            )));
        }
        if !names.insert(&input.name) {
            return Err(ConfigError::invalid(format!(
                "sequence batching control tensor '{}' is specified for multiple control kinds for \
                 {model}",
                input.name
            )));
        }
        for control in input
            .control
            .iter()
            .filter(|control| control.kind == kind as i32)
        {
            if found.replace(control).is_some() {
                return Err(ConfigError::invalid(format!(
                    "sequence batching specifies multiple {} tensors for {model}",
                    kind.as_str_name()
                )));
            }
        }
    }
    Ok(found)
}

fn check_boolean_control(
    batching: &ModelSequenceBatching,
    model: &str,
    kind: Kind,
) -> Result<(), ConfigError> {
    let Some(control) = find_control(batching, model, kind)? else {
        return Ok(());
    };
    let kind = kind.as_str_name();
    let counts = [
        ("int32_false_true", control.int32_false_true.len()),
        ("fp32_false_true", control.fp32_false_true.len()),
        ("bool_false_true", control.bool_false_true.len()),
    ];
    let mut given = counts.into_iter().filter(|(_, count)| *count > 0);
    match (given.next(), given.next()) {
        (None, _) => Err(ConfigError::invalid(format!(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or \
             'bool_false_true' for {kind} for {model}"
        ))),
        (Some(_), Some(_)) => Err(ConfigError::invalid(format!(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' \
             and 'bool_false_true' for {kind} for {model}"
        ))),
        (Some((_, 2)), None) => Ok(()),
        (Some((field, _)), None) => Err(ConfigError::invalid(format!(
            "sequence batching control '{field}' must have exactly 2 entries for {kind} for {model}"
        ))),
    }
}

fn check_correlation_control(
    batching: &ModelSequenceBatching,
    model: &str,
) -> Result<(), ConfigError> {
    let Some(control) = find_control(batching, model, Kind::ControlSequenceCorrid)? else {
        return Ok(());
    };
    let kind = Kind::ControlSequenceCorrid.as_str_name();
    if !(control.int32_false_true.is_empty()
        && control.fp32_false_true.is_empty()
        && control.bool_false_true.is_empty())
    {
        return Err(ConfigError::invalid(format!(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or \
             'bool_false_true' for {kind} for {model}"
        )));
    }
    match control.data_type() {
        DataType::TypeUint64
        | DataType::TypeInt64
        | DataType::TypeUint32
        | DataType::TypeInt32
        | DataType::TypeString => Ok(()),
        _ => Err(ConfigError::invalid(format!(
            "unexpected data type for control {kind} for {model}. Allowed data types are \
             TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        ))),
    }
}
