use conch_config::EnsembleStep;

use super::*;

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

/// A course with its graph; says what follows in one line: `2@0(x,y)` for a start, `=x,y` for an answer.
struct Told(Graph, Course<String>);

impl Told {
    fn new(graph: Graph, wanted: &[usize]) -> Told {
        let course = Course::new(&graph, wanted.iter().copied().collect());
        Told(graph, course)
    }

    fn begin(&mut self, inputs: &str) -> String {
        let inputs = inputs.split_whitespace().map(str::to_owned);
        line(self.1.begin(&self.0, inputs))
    }

    /// One response of a one-to-one step, which is its end.
    fn done(&mut self, step: usize, iteration: u64, outputs: &str) -> String {
        let outputs = outputs.split_whitespace().map(str::to_owned);
        let next = self.1.respond(&self.0, step, iteration, false, outputs);
        self.1.end_run();
        line(next)
    }

    /// One response of a decoupled step.
    fn more(&mut self, step: usize, outputs: &str) -> String {
        let outputs = outputs.split_whitespace().map(str::to_owned);
        line(self.1.respond(&self.0, step, 0, true, outputs))
    }

    fn is_clean(&self) -> bool {
        let mut cells = self.1.cells.iter();
        cells.all(|cells| cells.first.is_none() && cells.more.is_empty())
    }
}

fn line(progress: Progress<String>) -> String {
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
    // The worked example of upstream's architecture page: preprocessing, then classification and segmentation.
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

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}

/// Random graphs with at most one decoupled step, whose runs end in any order, answer as one that computes step by step does.
#[test]
fn whatever_the_order_the_answers_are_the_same() {
    for seed in 0..2_000 {
        let mut dice = Dice(seed);
        let step_count = 1 + dice.roll(7);
        let decoupled = dice.roll(step_count * 2);
        // Tensors before and after the decoupled step do not meet.
        let (mut before, mut after) = (vec!["x".to_owned()], Vec::new());
        let mut steps = Vec::new();
        for step in 0..step_count {
            let made = format!("t{step}");
            let from = if step > decoupled && (after.len() > 1 || dice.roll(2) > 0) {
                &mut after
            } else {
                &mut before
            };
            let reads: Vec<String> = (0..=dice.roll(2))
                .map(|_| from[dice.roll(from.len())].clone())
                .collect();
            let is_after = step == decoupled || from[0] != "x";
            steps.push(format!("{} > {made}", reads.join(" ")));
            if is_after { &mut after } else { &mut before }.push(made);
        }
        // What nobody reads is answered, if it comes as often as the rest.
        let mut outputs = if after.is_empty() {
            before[1..].to_vec()
        } else {
            after
        };
        let rotation = dice.roll(outputs.len());
        outputs.rotate_left(rotation);
        let lines: Vec<&str> = steps.iter().map(String::as_str).collect();
        let wanted: Vec<usize> = (0..=dice.roll(outputs.len()))
            .filter(|n| *n < outputs.len())
            .collect();
        let mut told = Told::new(graph("x", &lines, &outputs.join(" ")), &wanted);
        let response_count = dice.roll(4) as u64;

        let mut runs: Vec<(usize, u64, Vec<String>)> = Vec::new();
        let mut answers: Vec<Vec<String>> = Vec::new();
        let first = told.1.begin(&told.0, ["x".to_owned()]);
        let mut take = |progress: Progress<String>, runs: &mut Vec<_>| {
            for start in progress.starts {
                runs.push((start.step, start.iteration, start.inputs.to_vec()));
            }
            answers.extend(progress.answers.into_iter().map(|answer| answer.to_vec()));
        };
        take(first, &mut runs);
        while !runs.is_empty() {
            let (step, iteration, inputs) = runs.swap_remove(dice.roll(runs.len()));
            let made = format!("{step}({})", inputs.join(","));
            if step == decoupled {
                for index in 0..response_count {
                    let output = [format!("{made}#{index}")];
                    let next = told.1.respond(&told.0, step, iteration, true, output);
                    take(next, &mut runs);
                }
            } else {
                let next = told.1.respond(&told.0, step, iteration, false, [made]);
                take(next, &mut runs);
            }
            told.1.end_run();
        }
        assert!(
            told.1.is_over() && told.is_clean(),
            "seed {seed}: {steps:?}"
        );

        let is_decoupled = decoupled < step_count && told.1.is_needed(decoupled);
        let expected: Vec<Vec<String>> = (0..if is_decoupled { response_count } else { 1 })
            .map(|index| {
                let value = |tensor: &str| compute(&steps, tensor, decoupled, index);
                wanted
                    .iter()
                    .map(|output| value(&outputs[*output]))
                    .collect()
            })
            .collect();
        assert_eq!(
            answers, expected,
            "seed {seed}: {steps:?} > {outputs:?} {wanted:?}"
        );
    }
}

fn compute(steps: &[String], tensor: &str, decoupled: usize, index: u64) -> String {
    let Some(step) = tensor.strip_prefix('t') else {
        return tensor.to_owned();
    };
    let step: usize = step.parse().unwrap();
    let (reads, _) = steps[step].split_once('>').unwrap();
    let inputs: Vec<String> = reads
        .split_whitespace()
        .map(|tensor| compute(steps, tensor, decoupled, index))
        .collect();
    let suffix = if step == decoupled {
        format!("#{index}")
    } else {
        String::new()
    };
    format!("{step}({}){suffix}", inputs.join(","))
}
