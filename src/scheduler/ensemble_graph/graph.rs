//! The shape of an ensemble: which steps make and read which tensors. Made once per load; steps and
//! tensors go by their numbers.

use std::collections::HashMap;
use std::sync::Arc;

use conch_config::Ensembling;
use smallvec::SmallVec;

/// Steps and tensors by number.
#[derive(Debug)]
pub struct Graph {
    pub steps: Box<[GraphStep]>,
    tensors: Box<[GraphTensor]>,
    /// The tensors of the ensemble's inputs and outputs, as they are configured.
    pub inputs: Box<[usize]>,
    pub outputs: Box<[usize]>,
}

/// The tensors of one step's model, by their names there.
#[derive(Debug)]
pub struct GraphStep {
    pub inputs: Box<[(Arc<str>, usize)]>,
    pub outputs: Box<[(Arc<str>, usize)]>,
}

#[derive(Debug, Default)]
struct GraphTensor {
    producer: Option<usize>,
    /// Ascending, each once.
    readers: SmallVec<[usize; 2]>,
}

impl Graph {
    /// The graph of an ensemble with these inputs and outputs.
    pub fn new<'a>(
        ensembling: &Ensembling,
        inputs: impl IntoIterator<Item = &'a str>,
        outputs: impl IntoIterator<Item = &'a str>,
    ) -> Graph {
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let mut tensors: Vec<GraphTensor> = Vec::new();
        let mut number = |name: &str, tensors: &mut Vec<GraphTensor>| {
            *numbers.entry(name.to_owned()).or_insert_with(|| {
                tensors.push(GraphTensor::default());
                tensors.len() - 1
            })
        };
        let inputs = inputs
            .into_iter()
            .map(|name| number(name, &mut tensors))
            .collect();
        let mut steps = Vec::with_capacity(ensembling.steps.len());
        for (index, step) in ensembling.steps.iter().enumerate() {
            let mut named = |pairs: &[(String, String)], tensors: &mut Vec<GraphTensor>| {
                pairs
                    .iter()
                    .map(|(name, tensor)| (Arc::from(name.as_str()), number(tensor, tensors)))
                    .collect::<Box<[(Arc<str>, usize)]>>()
            };
            let step = GraphStep {
                inputs: named(&step.inputs, &mut tensors),
                outputs: named(&step.outputs, &mut tensors),
            };
            for (_, tensor) in &step.inputs {
                let readers = &mut tensors[*tensor].readers;
                if readers.last() != Some(&index) {
                    readers.push(index);
                }
            }
            for (_, tensor) in &step.outputs {
                tensors[*tensor].producer = Some(index);
            }
            steps.push(step);
        }
        let outputs = outputs
            .into_iter()
            .map(|name| number(name, &mut tensors))
            .collect();
        Graph {
            steps: steps.into(),
            tensors: tensors.into(),
            inputs,
            outputs,
        }
    }

    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// The steps that read a tensor.
    pub fn readers(&self, tensor: usize) -> &[usize] {
        self.tensors
            .get(tensor)
            .map_or(&[], |tensor| &tensor.readers)
    }

    /// By step, whether it can be left out where only these outputs (by number) are wanted.
    pub fn superfluous(&self, wanted: &[usize]) -> Box<[bool]> {
        let mut is_superfluous = vec![true; self.steps.len()];
        let mut needed: Vec<usize> = wanted
            .iter()
            .filter_map(|output| self.outputs.get(*output).copied())
            .collect();
        while let Some(tensor) = needed.pop() {
            let producer = self.tensors.get(tensor).and_then(|tensor| tensor.producer);
            let Some(producer) = producer else { continue };
            if std::mem::replace(&mut is_superfluous[producer], false) {
                let inputs = self.steps[producer].inputs.iter();
                needed.extend(inputs.map(|(_, tensor)| *tensor));
            }
        }
        is_superfluous.into()
    }

    /// The steps that cannot start before `step` has answered, near or far.
    pub fn followers(&self, step: usize) -> Vec<usize> {
        let mut is_known = vec![false; self.steps.len()];
        let mut found = Vec::new();
        let mut open = vec![step];
        while let Some(step) = open.pop() {
            for (_, tensor) in &self.steps[step].outputs {
                for reader in self.readers(*tensor) {
                    if !std::mem::replace(&mut is_known[*reader], true) {
                        found.push(*reader);
                        open.push(*reader);
                    }
                }
            }
        }
        found.sort_unstable();
        found
    }
}
