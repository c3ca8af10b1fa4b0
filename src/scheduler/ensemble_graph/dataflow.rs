//! The course of one request through an ensemble: which step may start, and what is answered.
//!
//! A step starts when all its tensors of one iteration are there. Iterations count the responses of
//! a decoupled step; until the first such step there is iteration 0 alone. A step of a one-to-one
//! model hands its iteration on, so what belongs together stays together however the runs of one
//! step overtake each other; answers leave in the order of iterations. Nothing here knows a clock,
//! a thread or a model: tensors are whatever the driver makes of them.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::Graph;

/// The course of one request through the steps of its ensemble.
#[derive(Debug)]
pub struct Dataflow<T> {
    /// By tensor.
    pub(super) cells: Box<[TensorValues<T>]>,
    /// By step; none: all are needed.
    superfluous: Option<Box<[bool]>>,
    /// Outputs that are answered with, in this order.
    wanted: SmallVec<[usize; 4]>,
    /// Responses of decoupled steps so far, by step; empty until the first.
    response_counts: Vec<u64>,
    /// Runs of steps that are not over.
    in_flight: usize,
    next_answer: u64,
    is_failed: bool,
}

/// A step that is to run.
#[derive(Debug, PartialEq, Eq)]
pub struct StepStart<T> {
    pub step: usize,
    pub iteration: u64,
    /// As the step's inputs. Nearly always there is one; more are not moved about.
    pub inputs: SmallVec<[T; 1]>,
}

/// What follows from an event. It is large: events add to it in place.
#[derive(Debug, PartialEq, Eq)]
pub struct DataflowProgress<T> {
    pub starts: SmallVec<[StepStart<T>; 1]>,
    /// Each with the wanted outputs.
    pub answers: SmallVec<[SmallVec<[T; 1]>; 1]>,
}

/// The tensors of one name, by iteration. Nearly always there is one.
#[derive(Debug)]
pub(super) struct TensorValues<T> {
    first: Option<TensorValue<T>>,
    /// Ascending.
    more: VecDeque<TensorValue<T>>,
}

#[derive(Debug)]
struct TensorValue<T> {
    iteration: u64,
    value: T,
    /// Steps, and the answer, that have not had it yet.
    readers_left: usize,
}

impl<T> Default for DataflowProgress<T> {
    fn default() -> DataflowProgress<T> {
        DataflowProgress {
            starts: SmallVec::new(),
            answers: SmallVec::new(),
        }
    }
}

impl<T: Clone> Dataflow<T> {
    /// The course of a request that wants these outputs, by number.
    pub fn new(graph: &Graph, wanted: SmallVec<[usize; 4]>) -> Dataflow<T> {
        let is_partial = wanted.len() < graph.outputs.len();
        Dataflow {
            cells: (0..graph.tensor_count())
                .map(|_| TensorValues::new())
                .collect(),
            superfluous: is_partial.then(|| graph.superfluous(&wanted)),
            wanted,
            response_counts: Vec::new(),
            in_flight: 0,
            next_answer: 0,
            is_failed: false,
        }
    }

    /// The request is there, with a value for each of the ensemble's inputs.
    pub fn begin(
        &mut self,
        graph: &Graph,
        inputs: impl IntoIterator<Item = T>,
        progress: &mut DataflowProgress<T>,
    ) {
        self.advance(graph, graph.inputs.iter().copied().zip(inputs), 0, progress);
    }

    /// A run has answered: with a value for each of its step's outputs. The run is over only with
    /// [`Dataflow::end_run`].
    pub fn respond(
        &mut self,
        graph: &Graph,
        step: usize,
        iteration: u64,
        is_decoupled: bool,
        outputs: impl IntoIterator<Item = T>,
        progress: &mut DataflowProgress<T>,
    ) {
        if self.is_failed {
            return;
        }
        let iteration = if is_decoupled {
            self.count_response(graph, step)
        } else {
            iteration
        };
        let tensors = graph.steps[step].outputs.iter().map(|(_, tensor)| *tensor);
        self.advance(graph, tensors.zip(outputs), iteration, progress);
    }

    /// A run is over, whether it answered or not.
    pub fn end_run(&mut self) {
        self.in_flight -= 1;
    }

    /// Nothing starts any more, and nothing is answered. Returns whether this is the first failure.
    pub fn fail(&mut self) -> bool {
        self.cells = Box::default();
        !std::mem::replace(&mut self.is_failed, true)
    }

    pub fn is_failed(&self) -> bool {
        self.is_failed
    }

    /// Whether no step runs; then none ever will.
    pub fn is_over(&self) -> bool {
        self.in_flight == 0
    }

    pub fn has_answered(&self) -> bool {
        self.next_answer > 0
    }

    /// How often a decoupled step has answered.
    pub fn response_count(&self, step: usize) -> u64 {
        self.response_counts.get(step).copied().unwrap_or(0)
    }

    /// Answers that wait for their turn, or for an output that another step makes.
    pub fn held_count(&self, graph: &Graph) -> usize {
        let outputs = self.wanted.iter().map(|output| graph.outputs[*output]);
        let counts = outputs.filter_map(|tensor| self.cells.get(tensor).map(TensorValues::len));
        counts.max().unwrap_or(0)
    }

    fn count_response(&mut self, graph: &Graph, step: usize) -> u64 {
        if self.response_counts.is_empty() {
            self.response_counts = vec![0; graph.steps.len()];
        }
        let count = &mut self.response_counts[step];
        *count += 1;
        *count - 1
    }

    /// New tensors of one iteration.
    fn advance(
        &mut self,
        graph: &Graph,
        fresh: impl Iterator<Item = (usize, T)>,
        iteration: u64,
        progress: &mut DataflowProgress<T>,
    ) {
        let mut candidates: SmallVec<[usize; 4]> = SmallVec::new();
        let mut may_answer = false;
        for (tensor, value) in fresh {
            let mut readers_left = 0;
            for reader in graph.readers(tensor) {
                if self.is_needed(*reader) {
                    readers_left += 1;
                    candidates.push(*reader);
                }
            }
            let is_wanted = self
                .wanted
                .iter()
                .any(|output| graph.outputs[*output] == tensor);
            may_answer |= is_wanted;
            readers_left += usize::from(is_wanted);
            if readers_left > 0 {
                self.cells[tensor].insert(TensorValue {
                    iteration,
                    value,
                    readers_left,
                });
            }
        }
        candidates.sort_unstable();
        candidates.dedup();
        for step in candidates {
            let tensors = &graph.steps[step].inputs;
            let is_ready = |(_, tensor): &(_, usize)| self.cells[*tensor].get(iteration).is_some();
            if tensors.iter().all(is_ready) {
                let tensors: SmallVec<[usize; 2]> =
                    tensors.iter().map(|(_, tensor)| *tensor).collect();
                progress.starts.push(StepStart {
                    step,
                    iteration,
                    inputs: self.read(&tensors, iteration),
                });
                self.in_flight += 1;
            }
        }
        if may_answer {
            self.answer(graph, progress);
        }
    }

    fn is_needed(&self, step: usize) -> bool {
        let superfluous = self.superfluous.as_ref();
        superfluous.is_none_or(|superfluous| !superfluous[step])
    }

    /// Answers as far as the order of iterations allows.
    fn answer(&mut self, graph: &Graph, progress: &mut DataflowProgress<T>) {
        let tensors: SmallVec<[usize; 2]> = self
            .wanted
            .iter()
            .map(|output| graph.outputs[*output])
            .collect();
        loop {
            let iteration = self.next_answer;
            let is_there = |tensor: &usize| self.cells[*tensor].get(iteration).is_some();
            if tensors.is_empty() || !tensors.iter().all(is_there) {
                return;
            }
            progress.answers.push(self.read(&tensors, iteration));
            self.next_answer += 1;
        }
    }

    /// The values of one iteration; each tensor has one reader less.
    fn read(&mut self, tensors: &[usize], iteration: u64) -> SmallVec<[T; 1]> {
        let mut values = SmallVec::new();
        for (position, tensor) in tensors.iter().enumerate() {
            let cell = &mut self.cells[*tensor];
            // A step may read a tensor by several of its inputs.
            values.extend(match tensors[position + 1..].contains(tensor) {
                true => cell.get(iteration).map(|found| found.value.clone()),
                false => cell.read(iteration),
            });
        }
        values
    }
}

impl<T> TensorValues<T> {
    fn new() -> TensorValues<T> {
        TensorValues {
            first: None,
            more: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    fn insert(&mut self, cell: TensorValue<T>) {
        if self.first.is_none() && self.more.is_empty() {
            self.first = Some(cell);
            return;
        }
        let place = self.place(cell.iteration);
        self.more.insert(place, cell);
    }

    fn get(&self, iteration: u64) -> Option<&TensorValue<T>> {
        let is_it = |cell: &&TensorValue<T>| cell.iteration == iteration;
        let found = self.first.as_ref().filter(is_it);
        found.or_else(|| self.more.get(self.place(iteration)).filter(is_it))
    }

    /// The value for one of its readers; the last one takes it out.
    fn read(&mut self, iteration: u64) -> Option<T>
    where
        T: Clone,
    {
        if let Some(cell) = &mut self.first
            && cell.iteration == iteration
        {
            cell.readers_left -= 1;
            return match cell.readers_left {
                0 => self.first.take().map(|cell| cell.value),
                _ => Some(cell.value.clone()),
            };
        }
        let place = self.place(iteration);
        let cell = self.more.get_mut(place)?;
        if cell.iteration != iteration {
            return None;
        }
        cell.readers_left -= 1;
        match cell.readers_left {
            0 => self.more.remove(place).map(|cell| cell.value),
            _ => Some(cell.value.clone()),
        }
    }

    /// Where a cell of `iteration` is, or would be.
    fn place(&self, iteration: u64) -> usize {
        self.more.partition_point(|cell| cell.iteration < iteration)
    }
}
