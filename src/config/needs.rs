//! The models that a model needs.

use std::collections::BTreeSet;

use conch_proto::inference::ModelConfig;
use conch_proto::inference::model_config::SchedulingChoice;

/// The names of the models that an ensemble's steps run; empty for every other model.
pub fn needed_models(config: &ModelConfig) -> BTreeSet<String> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => ensemble
            .step
            .iter()
            .map(|step| step.model_name.clone())
            .collect(),
        _ => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_text;

    #[test]
    fn only_ensembles_need_others() {
        for (text, expected) in [
            ("backend: 'b'", &[][..]),
            ("dynamic_batching { }", &[]),
            ("ensemble_scheduling { }", &[]),
            (
                "ensemble_scheduling \
                 { step [ { model_name: 'b' }, { model_name: 'a' }, { model_name: 'b' } ] }",
                &["a", "b"],
            ),
        ] {
            let config = parse_text("f", text).unwrap();
            assert!(needed_models(&config).iter().eq(expected), "{text}");
        }
    }
}
