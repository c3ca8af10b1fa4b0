//! Random graphs of ensembles, and what their tensors are: computed step by step, without any order
//! of events.

use super::random::Random;

/// Steps in an order in which each reads what is there, with one decoupled step at most. The input
/// is `x`, step `n` makes `t<n>`.
#[derive(Clone, Debug)]
pub struct EnsembleShape {
    /// The tensors that each step reads: one or two.
    pub reads: Vec<Vec<String>>,
    /// What may be answered.
    pub outputs: Vec<String>,
    pub decoupled: Option<usize>,
}

/// What a step makes of its inputs.
pub type StepOutput<'a> = &'a dyn Fn(usize, &[String]) -> String;

impl EnsembleShape {
    pub fn random(random: &mut Random) -> EnsembleShape {
        let mut table = |sides: usize| random.below(sides as u64) as usize;
        let step_count = 1 + table(7);
        let decoupled = table(step_count * 2);
        // Tensors before and after the decoupled step do not meet.
        let (mut before, mut after) = (vec!["x".to_owned()], Vec::new());
        let mut reads: Vec<Vec<String>> = Vec::new();
        for step in 0..step_count {
            let is_behind = step > decoupled && (after.len() > 1 || table(2) > 0);
            let from = if is_behind { &mut after } else { &mut before };
            let read = (0..=table(2))
                .map(|_| from[table(from.len())].clone())
                .collect();
            reads.push(read);
            let to = match is_behind || step == decoupled {
                true => &mut after,
                false => &mut before,
            };
            to.push(format!("t{step}"));
        }
        // What nobody reads is answered, if it comes as often as the rest.
        let mut outputs = if after.is_empty() {
            before[1..].to_vec()
        } else {
            after
        };
        let rotation = table(outputs.len());
        outputs.rotate_left(rotation);
        let shape = EnsembleShape {
            reads,
            outputs,
            decoupled: (decoupled < step_count).then_some(decoupled),
        };
        shape.without_idle_steps()
    }

    /// Without steps that make what nobody reads.
    fn without_idle_steps(self) -> EnsembleShape {
        let mut used = self.outputs.clone();
        let mut names = vec![None; self.reads.len()];
        for (step, reads) in self.reads.iter().enumerate().rev() {
            if used.contains(&format!("t{step}")) {
                names[step] = Some(0);
                used.extend(reads.iter().cloned());
            }
        }
        for (number, name) in names.iter_mut().flatten().enumerate() {
            *name = number;
        }
        let renamed = |tensor: &String| match step_of(tensor) {
            Some(step) => format!("t{}", names[step].expect("it is read")),
            None => tensor.clone(),
        };
        let kept = self.reads.iter().zip(&names);
        let kept = kept.filter(|(_, name)| name.is_some());
        EnsembleShape {
            reads: kept
                .map(|(reads, _)| reads.iter().map(renamed).collect())
                .collect(),
            outputs: self.outputs.iter().map(renamed).collect(),
            decoupled: self.decoupled.and_then(|step| names[step]),
        }
    }

    /// Numbers of outputs that a request wants: the first ones.
    pub fn wanted(&self, random: &mut Random) -> Vec<usize> {
        let last = random.below(self.outputs.len() as u64 + 1) as usize;
        (0..=last).filter(|n| *n < self.outputs.len()).collect()
    }

    /// A tensor that belongs to response `index` of the decoupled step, when the request's is `x`.
    pub fn value(&self, tensor: &str, x: &str, index: u64, make: StepOutput<'_>) -> String {
        let Some(step) = step_of(tensor) else {
            return x.to_owned();
        };
        let inputs: Vec<String> = self.reads[step]
            .iter()
            .map(|tensor| self.value(tensor, x, index, make))
            .collect();
        let made = make(step, &inputs);
        match self.decoupled == Some(step) {
            true => format!("{made}#{index}"),
            false => made,
        }
    }

    /// Whether some of `wanted` come from the decoupled step: then they come as often as that
    /// answers.
    pub fn multiplies(&self, wanted: &[usize]) -> bool {
        let comes = |output: &usize| self.comes_from_decoupled(&self.outputs[*output]);
        wanted.iter().any(comes)
    }

    fn comes_from_decoupled(&self, tensor: &str) -> bool {
        step_of(tensor).is_some_and(|step| {
            self.decoupled == Some(step)
                || self.reads[step]
                    .iter()
                    .any(|tensor| self.comes_from_decoupled(tensor))
        })
    }
}

/// Which step makes a tensor; none for the input.
fn step_of(tensor: &str) -> Option<usize> {
    tensor.strip_prefix('t')?.parse().ok()
}
