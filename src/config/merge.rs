//! A backend's proposal for the configuration of the model it is initialising.

use conch_proto::inference::model_config::SchedulingChoice;
use conch_proto::inference::{ModelConfig, ModelTransactionPolicy};

use crate::{ConfigError, normalize};

/// The configuration after a backend proposed `proposal` for it: largest batch, inputs and outputs
/// are taken over as a whole, the scheduling choice if there was none, and whether it is decoupled
/// if the proposal says. The rest of the proposal is ignored. The result is normalised; it is
/// validated when it becomes a [`Model`](crate::ResolvedConfig).
///
/// # Errors
/// `Internal` if the proposal has another scheduling choice than the configuration.
pub fn merge_proposal(
    config: &ModelConfig,
    proposal: ModelConfig,
) -> Result<ModelConfig, ConfigError> {
    let mut merged = config.clone();
    merged.max_batch_size = proposal.max_batch_size;
    merged.input = proposal.input;
    merged.output = proposal.output;
    if merged.scheduling_choice.is_none() {
        merged.scheduling_choice = proposal.scheduling_choice;
    } else {
        let current = choice_number(merged.scheduling_choice.as_ref());
        if current != choice_number(proposal.scheduling_choice.as_ref()) {
            // The same number twice is upstream's.
            return Err(ConfigError::internal(format!(
                "Cannot update scheduling choice from {current} to {current} when auto-completing."
            )));
        }
    }
    if let Some(policy) = proposal.model_transaction_policy {
        merged.model_transaction_policy = Some(ModelTransactionPolicy {
            decoupled: policy.decoupled,
        });
    }
    normalize(&mut merged);
    Ok(merged)
}

/// The field number of the choice that is set; 0 if none.
fn choice_number(choice: Option<&SchedulingChoice>) -> u32 {
    match choice {
        None => 0,
        Some(SchedulingChoice::DynamicBatching(_)) => 11,
        Some(SchedulingChoice::SequenceBatching(_)) => 13,
        Some(SchedulingChoice::EnsembleScheduling(_)) => 15,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_text;

    #[test]
    fn only_what_may_be_proposed_is_taken() {
        let pinned = "optimization \
                      { input_pinned_memory { enable: true } \
                      output_pinned_memory { enable: true } }";
        let rest = format!("version_policy {{ latest {{ num_versions: 1 }} }} {pinned}");
        // Configuration, proposal, result or error.
        let table: &[(&str, &str, Result<&str, &str>)] = &[
            (
                "name: \"m\" input { name: \"old\" } max_batch_size: 2",
                "name: \"other\" backend: \"b\" max_batch_size: 4 input { name: \"new\" } output \
                 { name: \"o\" } parameters { key: \"k\" } instance_group { count: 9 }",
                Ok("name: \"m\" max_batch_size: 4 input { name: \"new\" } output { name: \"o\" }"),
            ),
            ("max_batch_size: 2 input { name: \"a\" }", "", Ok("")),
            (
                "",
                "max_batch_size: 4 dynamic_batching { }",
                Ok("max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 }"),
            ),
            (
                "dynamic_batching { max_queue_delay_microseconds: 5 }",
                "max_batch_size: 4 dynamic_batching { }",
                Ok("max_batch_size: 4 dynamic_batching \
                    { max_queue_delay_microseconds: 5 preferred_batch_size: 4 }"),
            ),
            (
                "dynamic_batching { }",
                "",
                Err("Cannot update scheduling choice from 11 to 11 when auto-completing."),
            ),
            (
                "sequence_batching { }",
                "dynamic_batching { }",
                Err("Cannot update scheduling choice from 13 to 13 when auto-completing."),
            ),
            (
                "",
                "model_transaction_policy { decoupled: true }",
                Ok("model_transaction_policy { decoupled: true }"),
            ),
            (
                "model_transaction_policy { decoupled: true }",
                "",
                Ok("model_transaction_policy { decoupled: true }"),
            ),
            (
                "model_transaction_policy { decoupled: true }",
                "model_transaction_policy { }",
                Ok("model_transaction_policy { }"),
            ),
        ];
        for (config, proposal, expected) in table {
            let config = parse_text("f", config).unwrap();
            let merged = merge_proposal(&config, parse_text("f", proposal).unwrap());
            match expected {
                Ok(expected) => {
                    assert_eq!(
                        merged,
                        Ok(parse_text("f", format!("{expected} {rest}")).unwrap()),
                        "{proposal}"
                    );
                }
                Err(message) => {
                    assert_eq!(merged, Err(ConfigError::internal(*message)), "{proposal}")
                }
            }
        }
    }
}
