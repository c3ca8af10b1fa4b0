//! Fills the defaults that upstream writes into the message, so that every reader (endpoints,
//! backends, scheduler) sees the same.

use conch_proto::inference::model_config::SchedulingChoice;
use conch_proto::inference::model_optimization_policy::PinnedMemoryBuffer;
use conch_proto::inference::model_sequence_batching::StrategyChoice;
use conch_proto::inference::model_version_policy::{Latest, PolicyChoice};
use conch_proto::inference::{ModelConfig, ModelVersionPolicy};

/// Fills version policy, preferred batch sizes, sequence idle time and pinned memory where the
/// message leaves them open.
///
/// Does nothing to a message that is already normal. Instance groups depend on the backend: see
/// [`resolve_instance_groups`](crate::resolve_instance_groups).
pub fn normalize(config: &mut ModelConfig) {
    // A policy that is there but says nothing stays: it means all versions.
    config.version_policy.get_or_insert(ModelVersionPolicy {
        policy_choice: Some(PolicyChoice::Latest(Latest { num_versions: 1 })),
    });
    let default_preferred = (config.max_batch_size > 0).then_some(config.max_batch_size);
    match &mut config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            if batching.preferred_batch_size.is_empty() {
                batching.preferred_batch_size.extend(default_preferred);
            }
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            if batching.max_sequence_idle_microseconds == 0 {
                batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_DEFAULT_US;
            }
            if let Some(StrategyChoice::Oldest(oldest)) = &mut batching.strategy_choice
                && oldest.preferred_batch_size.is_empty()
            {
                oldest.preferred_batch_size.extend(default_preferred);
            }
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
    }
    // An ensemble must not have optimization settings at all.
    if !matches!(
        config.scheduling_choice,
        Some(SchedulingChoice::EnsembleScheduling(_))
    ) {
        let optimization = config.optimization.get_or_insert_default();
        optimization
            .input_pinned_memory
            .get_or_insert(PinnedMemoryBuffer { enable: true });
        optimization
            .output_pinned_memory
            .get_or_insert(PinnedMemoryBuffer { enable: true });
    }
}

/// One second, as upstream.
const SEQUENCE_IDLE_DEFAULT_US: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_text;

    const PINNED: &str = "optimization \
                          { input_pinned_memory { enable: true } \
                          output_pinned_memory { enable: true } }";

    #[test]
    fn defaults_are_written_into_the_message() {
        let latest = "version_policy { latest { num_versions: 1 } }";
        for (text, expected) in [
            ("", format!("{latest} {PINNED}")),
            (
                "version_policy { all { } }",
                format!("version_policy {{ all {{ }} }} {PINNED}"),
            ),
            (
                "version_policy { }",
                format!("version_policy {{ }} {PINNED}"),
            ),
            (
                "optimization { graph { level: 1 } input_pinned_memory { } }",
                format!(
                    "{latest} optimization {{ graph {{ level: 1 }} input_pinned_memory {{ }} \
                     output_pinned_memory {{ enable: true }} }}"
                ),
            ),
            (
                "max_batch_size: 8 dynamic_batching { }",
                format!(
                    "max_batch_size: 8 dynamic_batching {{ preferred_batch_size: 8 }} {latest} \
                     {PINNED}"
                ),
            ),
            (
                "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 2 ] }",
                format!(
                    "max_batch_size: 8 dynamic_batching {{ preferred_batch_size: [ 4, 2 ] }} \
                     {latest} {PINNED}"
                ),
            ),
            (
                "dynamic_batching { }",
                format!("dynamic_batching {{ }} {latest} {PINNED}"),
            ),
            (
                "max_batch_size: 3 sequence_batching { oldest { } }",
                format!(
                    "max_batch_size: 3 sequence_batching {{ max_sequence_idle_microseconds: \
                     1000000 oldest {{ preferred_batch_size: 3 }} }} {latest} {PINNED}"
                ),
            ),
            (
                "sequence_batching { direct { } max_sequence_idle_microseconds: 7 }",
                format!(
                    "sequence_batching {{ direct {{ }} max_sequence_idle_microseconds: 7 }} \
                     {latest} {PINNED}"
                ),
            ),
            (
                "ensemble_scheduling { }",
                format!("ensemble_scheduling {{ }} {latest}"),
            ),
        ] {
            let mut config = parse_text("f", text).unwrap();
            normalize(&mut config);
            assert_eq!(config, parse_text("f", expected).unwrap(), "{text}");
            let once = config.clone();
            normalize(&mut config);
            assert_eq!(config, once, "normalising again: {text}");
        }
    }
}
