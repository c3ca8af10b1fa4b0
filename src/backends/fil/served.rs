//! A model as its instances serve it.

use conch_backend_sdk as sdk;
use sdk::{Error, ModelConfig};

use crate::forest::model::Forest;
use crate::forest::{Compiled, Shap};
use crate::settings::Settings;
use crate::signature::{
    Answer, OUTPUT, Output, SHAP_OUTPUT, check_input, configured_width, output,
};

/// The forest and its outputs, which all instances share.
pub struct Served {
    pub name: String,
    pub forest: Compiled,
    pub answer: Answer,
    pub output: Output,
    pub shap: Option<(Shap, Output)>,
    /// Threads for a batch of one instance; none: its share of the CPUs.
    pub threads_max: Option<usize>,
}

impl Served {
    /// # Errors
    /// What the configuration has wrong, or what the forest cannot be.
    pub fn new(
        name: &str,
        config: &ModelConfig,
        forest: &Forest,
        settings: &Settings,
    ) -> Result<Served, Error> {
        check_input(name, config, forest.feature_count)?;
        let answer = Answer::new(forest, settings, configured_width(config, OUTPUT)?);
        let width = answer.width(forest.class_count);
        let refused =
            |what: String| Error::invalid(format!("unable to load model '{name}': {what}"));
        let wants_shap = config
            .outputs()?
            .iter()
            .any(|output| output.name() == SHAP_OUTPUT);
        let shap = if wants_shap {
            let shap = Shap::new(forest).map_err(refused)?;
            let output = output(name, config, SHAP_OUTPUT, shap.width())?;
            Some((shap, output))
        } else {
            None
        };
        let compiled = Compiled::new(forest).map_err(refused)?;
        sdk::verbose!(
            "model '{name}' has {} trees with {} nodes in {} bytes",
            compiled.tree_count(),
            compiled.node_count(),
            compiled.byte_count()
        );
        Ok(Served {
            name: name.to_owned(),
            forest: compiled,
            answer,
            output: output(name, config, OUTPUT, width)?,
            shap,
            threads_max: settings.threads_max,
        })
    }
}
