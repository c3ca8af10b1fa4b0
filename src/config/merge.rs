//! A backend's proposal for the configuration of the model it is initialising.

use conch_proto::inference::model_config::SchedulingChoice;
use conch_proto::inference::{ModelConfig, ModelTransactionPolicy};

use crate::{Error, normalize};

/// The configuration after a backend proposed `proposal` for it: largest batch, inputs and outputs are taken over as a whole, the
/// scheduling choice if there was none, and whether it is decoupled if the proposal says. The rest of the proposal is ignored. The
/// result is normalised; it is validated when it becomes a [`Model`](crate::Model).
///
/// # Errors
/// `Internal` if the proposal has another scheduling choice than the configuration.
pub fn merge_proposal(config: &ModelConfig, proposal: ModelConfig) -> Result<ModelConfig, Error> {
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
            return Err(Error::internal(format!(
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
