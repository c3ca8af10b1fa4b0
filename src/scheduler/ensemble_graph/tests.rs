use conch_config::EnsembleStep;

use super::*;
use crate::testing::{EnsembleShape, Random, for_each_seed};

/// A graph from lines like `a b > c`: a step that reads `a` and `b` and makes `c`.
fn graph(inputs: &str, steps: &[&str], outputs: &str) -> Graph {
    let named = |names: &str| -> Vec<(String, String)> {
        let names = names.split_whitespace().enumerate();
        names
            .map(|(place, name)| (format!("{place}"), name.to_owned()))
            .collect()
    };
    let steps = steps.iter().map(|line| {
        let (reads, makes) = line.split_once('>').unwrap();
        EnsembleStep {
            model: String::new(),
            namespace: String::new(),
            version: None,
            inputs: named(reads),
            outputs: named(makes),
        }
    });
    let ensembling = conch_config::Ensembling {
        steps: steps.collect(),
        inflight_max: 0,
    };
    Graph::new(
        &ensembling,
        inputs.split_whitespace(),
        outputs.split_whitespace(),
    )
}

/// A course with its graph; says what follows in one line: `2@0(x,y)` for a start, `=x,y` for an
/// answer.
struct Told(Graph, Dataflow<String>);

impl Told {
    fn new(graph: Graph, wanted: &[usize]) -> Told {
        let dataflow = Dataflow::new(&graph, wanted.iter().copied().collect());
        Told(graph, dataflow)
    }

    fn begin(&mut self, inputs: &str) -> String {
        let inputs = inputs.split_whitespace().map(str::to_owned);
        let mut progress = DataflowProgress::default();
        self.1.begin(&self.0, inputs, &mut progress);
        line(progress)
    }

    /// One response of a one-to-one step, which is its end.
    fn done(&mut self, step: usize, iteration: u64, outputs: &str) -> String {
        let outputs = outputs.split_whitespace().map(str::to_owned);
        let mut progress = DataflowProgress::default();
        self.1
            .respond(&self.0, step, iteration, false, outputs, &mut progress);
        self.1.end_run();
        line(progress)
    }

    /// One response of a decoupled step.
    fn more(&mut self, step: usize, outputs: &str) -> String {
        let outputs = outputs.split_whitespace().map(str::to_owned);
        let mut progress = DataflowProgress::default();
        self.1
            .respond(&self.0, step, 0, true, outputs, &mut progress);
        line(progress)
    }

    fn is_clean(&self) -> bool {
        let mut cells = self.1.cells.iter();
        cells.all(|cells| cells.len() == 0)
    }
}

fn line(progress: DataflowProgress<String>) -> String {
    let starts = progress.starts.iter().map(|start| {
        format!(
            "{}@{}({})",
            start.step,
            start.iteration,
            start.inputs.join(",")
        )
    });
    let answers = progress
        .answers
        .iter()
        .map(|answer| format!("={}", answer.join(",")));
    starts.chain(answers).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_chain_runs_step_by_step() {
    let mut told = Told::new(graph("x", &["x > m", "m > y"], "y"), &[0]);
    assert_eq!(told.begin("1"), "0@0(1)");
    assert_eq!(told.done(0, 0, "2"), "1@0(2)");
    assert!(!told.1.is_over());
    assert_eq!(told.done(1, 0, "3"), "=3");
    assert!(told.1.is_over() && told.1.has_answered() && told.is_clean());
}

#[test]
fn branches_run_at_once_and_are_joined() {
    // The worked example of upstream's architecture page: preprocessing, then classification and
    // segmentation.
    let steps = ["raw > image", "image > classes", "image > mask"];
    let mut told = Told::new(graph("raw", &steps, "classes mask"), &[0, 1]);
    assert_eq!(told.begin("r"), "0@0(r)");
    assert_eq!(told.done(0, 0, "i"), "1@0(i) 2@0(i)", "both at once");
    assert_eq!(told.done(2, 0, "m"), "", "the other one is wanted, too");
    assert_eq!(told.done(1, 0, "c"), "=c,m");
    assert!(told.1.is_over() && told.is_clean());
}

#[test]
fn what_only_feeds_unwanted_outputs_is_left_out() {
    let steps = [
        "raw > image",
        "image > classes",
        "image > mask",
        "mask > colours",
    ];
    let shape = || graph("raw", &steps, "classes colours");
    let mut told = Told::new(shape(), &[0]);
    assert_eq!(told.begin("r"), "0@0(r)");
    assert_eq!(told.done(0, 0, "i"), "1@0(i)");
    assert_eq!(told.done(1, 0, "c"), "=c");
    assert!(told.1.is_over() && told.is_clean());
    let mut told = Told::new(shape(), &[1]);
    told.begin("r");
    assert_eq!(told.done(0, 0, "i"), "2@0(i)");
    assert_eq!(told.done(2, 0, "m"), "3@0(m)");
    assert_eq!(told.done(3, 0, "c"), "=c");
    assert!(told.1.is_over() && told.is_clean());
}

#[test]
fn a_tensor_may_go_to_several_inputs_of_a_step_and_out() {
    let mut told = Told::new(graph("x", &["x x > y", "y > z"], "y z x"), &[0, 1, 2]);
    assert_eq!(told.begin("1"), "0@0(1,1)");
    assert_eq!(told.done(0, 0, "2"), "1@0(2)");
    assert_eq!(told.done(1, 0, "3"), "=2,3,1");
    assert!(told.is_clean());
}

#[test]
fn a_step_may_have_everything_from_the_start() {
    let mut told = Told::new(graph("a b", &["a > c", "b > d", "c d > y"], "y"), &[0]);
    assert_eq!(told.begin("1 2"), "0@0(1) 1@0(2)");
    assert_eq!(told.done(1, 0, "4"), "");
    assert_eq!(told.done(0, 0, "3"), "2@0(3,4)");
    assert_eq!(told.done(2, 0, "7"), "=7");
}

#[test]
fn responses_of_a_decoupled_step_are_told_apart_and_answered_in_order() {
    let steps = ["x > t", "t > u", "t > v", "u v > y"];
    let mut told = Told::new(graph("x", &steps, "y"), &[0]);
    assert_eq!(told.begin("x"), "0@0(x)");
    assert_eq!(told.more(0, "t0"), "1@0(t0) 2@0(t0)");
    assert_eq!(told.more(0, "t1"), "1@1(t1) 2@1(t1)");
    assert_eq!(told.more(0, "t2"), "1@2(t2) 2@2(t2)");
    told.1.end_run();
    // They overtake each other, and are not mixed up.
    assert_eq!(told.done(1, 2, "u2"), "");
    assert_eq!(told.done(2, 1, "v1"), "");
    assert_eq!(told.done(1, 1, "u1"), "3@1(u1,v1)");
    assert_eq!(told.done(2, 2, "v2"), "3@2(u2,v2)");
    assert_eq!(told.done(3, 2, "y2"), "", "its turn comes");
    assert_eq!(told.done(1, 0, "u0"), "");
    assert_eq!(told.done(2, 0, "v0"), "3@0(u0,v0)");
    assert_eq!(told.done(3, 0, "y0"), "=y0");
    assert!(!told.1.is_over());
    assert_eq!(told.done(3, 1, "y1"), "=y1 =y2");
    assert!(told.1.is_over() && told.is_clean());
}

#[test]
fn a_decoupled_step_may_answer_nothing() {
    let mut told = Told::new(graph("x", &["x > t", "t > y"], "y"), &[0]);
    told.begin("x");
    told.1.end_run();
    assert!(told.1.is_over() && !told.1.has_answered());
}

#[test]
fn after_a_failure_nothing_starts() {
    let steps = ["x > a", "x > b", "a b > y"];
    let mut told = Told::new(graph("x", &steps, "y"), &[0]);
    assert_eq!(told.begin("x"), "0@0(x) 1@0(x)");
    assert!(told.1.fail(), "the first");
    assert!(!told.1.fail());
    told.1.end_run();
    assert!(!told.1.is_over(), "the other one is under way");
    assert_eq!(told.done(1, 0, "b"), "");
    assert!(told.1.is_over() && !told.1.has_answered());
}

#[test]
fn a_thousand_steps_are_as_good_as_three() {
    let steps: Vec<String> = (0..1_000).map(|n| format!("t{n} > t{}", n + 1)).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let mut told = Told::new(graph("t0", &steps, "t1000"), &[0]);
    let mut next = told.begin("v");
    for step in 0..1_000 {
        assert_eq!(next, format!("{step}@0(v)"));
        next = told.done(step, 0, "v");
    }
    assert_eq!(next, "=v");
}

#[test]
fn who_waits_for_whom() {
    let shape = graph("x", &["x > a", "a > b", "a > c", "b c > y", "x > z"], "y z");
    assert_eq!(shape.followers(0), [1, 2, 3]);
    assert_eq!(shape.followers(2), [3]);
    assert_eq!(shape.followers(3), [0_usize; 0]);
}

/// Seeds that once failed.
const KEPT: &[u64] = &[];

/// Random graphs with at most one decoupled step, whose runs end in any order, answer as one that
/// computes step by step does.
#[test]
fn whatever_the_order_the_answers_are_the_same() {
    for_each_seed(KEPT, 2_000, run_random);
}

fn run_random(seed: u64) {
    let mut random = Random(seed);
    let shape = EnsembleShape::random(&mut random);
    let steps = shape.reads.iter().enumerate();
    let lines: Vec<String> = steps
        .map(|(step, reads)| format!("{} > t{step}", reads.join(" ")))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let wanted = shape.wanted(&mut random);
    let mut told = Told::new(graph("x", &lines, &shape.outputs.join(" ")), &wanted);
    let response_count = random.below(4);

    let mut runs: Vec<(usize, u64, Vec<String>)> = Vec::new();
    let mut answers: Vec<Vec<String>> = Vec::new();
    let mut progress = DataflowProgress::default();
    told.1.begin(&told.0, ["x".to_owned()], &mut progress);
    let mut take = |progress: &mut DataflowProgress<String>, runs: &mut Vec<_>| {
        for start in progress.starts.drain(..) {
            runs.push((start.step, start.iteration, start.inputs.to_vec()));
        }
        answers.extend(progress.answers.drain(..).map(|answer| answer.to_vec()));
    };
    take(&mut progress, &mut runs);
    while !runs.is_empty() {
        let run = random.below(runs.len() as u64) as usize;
        let (step, iteration, inputs) = runs.swap_remove(run);
        let made = make(step, &inputs);
        if shape.decoupled == Some(step) {
            for index in 0..response_count {
                let output = [format!("{made}#{index}")];
                told.1
                    .respond(&told.0, step, iteration, true, output, &mut progress);
                take(&mut progress, &mut runs);
            }
        } else {
            told.1
                .respond(&told.0, step, iteration, false, [made], &mut progress);
            take(&mut progress, &mut runs);
        }
        told.1.end_run();
    }
    assert!(
        told.1.is_over() && told.is_clean(),
        "seed {seed}: {shape:?}"
    );

    let answer_count = match shape.multiplies(&wanted) {
        true => response_count,
        false => 1,
    };
    let expected: Vec<Vec<String>> = (0..answer_count)
        .map(|index| {
            let outputs = wanted.iter().map(|output| &shape.outputs[*output]);
            outputs
                .map(|tensor| shape.value(tensor, "x", index, &make))
                .collect()
        })
        .collect();
    assert_eq!(answers, expected, "seed {seed}: {shape:?} {wanted:?}");
}

fn make(step: usize, inputs: &[String]) -> String {
    format!("{step}({})", inputs.join(","))
}
