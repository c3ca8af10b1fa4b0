//! Rules for ensembles that need no other model's configuration: the data flow between the steps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use conch_proto::inference::{ModelConfig, ModelEnsembling};

use super::PLATFORM_ENSEMBLE;
use crate::ConfigError;

pub(super) fn validate(
    config: &ModelConfig,
    ensembling: &ModelEnsembling,
) -> Result<(), ConfigError> {
    let name = &config.name;
    if config.platform != PLATFORM_ENSEMBLE {
        return Err(ConfigError::invalid(format!(
            "ensemble scheduling cannot be set for model '{name}' whose platform is not \
             {PLATFORM_ENSEMBLE}"
        )));
    }
    if !config.instance_group.is_empty() {
        return Err(ConfigError::invalid(format!(
            "instance group should not be specified for ensemble '{name}'"
        )));
    }
    if config.optimization.is_some() {
        return Err(ConfigError::invalid(format!(
            "optimization should not be specified for ensemble '{name}'"
        )));
    }
    if !config.model_warmup.is_empty() {
        return Err(ConfigError::invalid(format!(
            "model_warmup can not be specified for ensemble '{name}'"
        )));
    }
    if ensembling.step.is_empty() {
        return Err(ConfigError::invalid(format!(
            "must specify 'step' for ensemble '{name}'"
        )));
    }
    let mut graph = ValidationGraph::build(name, ensembling)?;
    graph.flow(config)?;
    graph.check_outputs(config)?;
    graph.check_unused(config)
}

/// The tensors of an ensemble by name, and which come from which.
struct ValidationGraph<'a> {
    nodes: BTreeMap<&'a str, ValidationNode<'a>>,
}

#[derive(Default)]
struct ValidationNode<'a> {
    /// Some step produces it.
    is_output: bool,
    /// All it depends on is there.
    is_ready: bool,
    sources: Vec<&'a str>,
    targets: Vec<&'a str>,
}

impl<'a> ValidationGraph<'a> {
    fn build(
        name: &str,
        ensembling: &'a ModelEnsembling,
    ) -> Result<ValidationGraph<'a>, ConfigError> {
        let mut nodes: BTreeMap<&str, ValidationNode> = BTreeMap::new();
        for (index, step) in ensembling.step.iter().enumerate() {
            let must = |field: &str| {
                ConfigError::invalid(format!(
                    "must specify '{field}' in step {index} of ensemble '{name}'"
                ))
            };
            if step.model_name.is_empty() {
                return Err(must("model_name"));
            }
            if step.input_map.is_empty() {
                return Err(must("input_map"));
            }
            if step.output_map.is_empty() {
                return Err(must("output_map"));
            }
            for output in step.output_map.values() {
                let node = nodes.entry(output).or_default();
                if node.is_output {
                    return Err(ConfigError::invalid(format!(
                        "ensemble tensor '{output}' can appear in an output map only once for \
                         ensemble '{name}' step {index}"
                    )));
                }
                node.is_output = true;
            }
            // Each output of a step depends on each of its inputs.
            let inputs: BTreeSet<&str> = step.input_map.values().map(String::as_str).collect();
            for input in &inputs {
                nodes
                    .entry(input)
                    .or_default()
                    .targets
                    .extend(step.output_map.values().map(String::as_str));
            }
            for output in step.output_map.values() {
                nodes.entry(output).or_default().sources.extend(&inputs);
            }
        }
        Ok(ValidationGraph { nodes })
    }

    /// Marks every tensor that the ensemble's inputs lead to.
    fn flow(&mut self, config: &'a ModelConfig) -> Result<(), ConfigError> {
        let mut queue = VecDeque::new();
        for input in &config.input {
            let Some(node) = self.nodes.get_mut(input.name.as_str()) else {
                return Err(ConfigError::invalid(format!(
                    "ensemble input '{}' for ensemble {}' is not used",
                    input.name, config.name
                )));
            };
            node.is_ready = true;
            queue.push_back(input.name.as_str());
        }
        while let Some(ready) = queue.pop_front() {
            let targets = self
                .nodes
                .get(ready)
                .map(|node| node.targets.clone())
                .unwrap_or_default();
            for target in targets {
                let is_ready = |name: &&str| self.nodes.get(name).is_some_and(|node| node.is_ready);
                let becomes_ready = self
                    .nodes
                    .get(target)
                    .is_some_and(|node| !node.is_ready && node.sources.iter().all(is_ready));
                if becomes_ready && let Some(node) = self.nodes.get_mut(target) {
                    node.is_ready = true;
                    queue.push_back(target);
                }
            }
        }
        Ok(())
    }

    fn check_outputs(&self, config: &ModelConfig) -> Result<(), ConfigError> {
        for output in &config.output {
            let Some(node) = self.nodes.get(output.name.as_str()) else {
                return Err(ConfigError::invalid(format!(
                    "ensemble output '{}' for ensemble {}' is not used",
                    output.name, config.name
                )));
            };
            if node.is_ready {
                continue;
            }
            let mut message = format!(
                "output '{}' for ensemble '{}' is not written",
                output.name, config.name
            );
            if let Some(culprit) = self.unconnected_source(&output.name) {
                message.push_str(": at least one of its depending tensors, '");
                message.push_str(culprit);
                message.push_str("', is not connected");
            }
            return Err(ConfigError::invalid(message));
        }
        Ok(())
    }

    /// Follows sources that are not ready as far as they lead; circles end the walk.
    fn unconnected_source(&self, output: &str) -> Option<&'a str> {
        let mut seen = BTreeSet::new();
        let mut last = None;
        let mut node = self.nodes.get(output);
        while let Some(current) = node {
            let next = current.sources.iter().copied().find(|source| {
                !seen.contains(source)
                    && self
                        .nodes
                        .get(source)
                        .is_some_and(|source| !source.is_ready)
            });
            node = next.and_then(|name| self.nodes.get(name));
            if let Some(name) = next {
                seen.insert(name);
                last = Some(name);
            }
        }
        last.filter(|name| *name != output)
    }

    fn check_unused(&self, config: &ModelConfig) -> Result<(), ConfigError> {
        let outputs: BTreeSet<&str> = config
            .output
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        for (name, node) in &self.nodes {
            if !outputs.contains(name) && (!node.is_ready || node.targets.is_empty()) {
                return Err(ConfigError::invalid(format!(
                    "ensemble tensor '{name}' is unused in ensemble '{}'",
                    config.name
                )));
            }
        }
        Ok(())
    }
}
