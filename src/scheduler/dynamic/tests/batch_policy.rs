//! The dynamic batcher under a model's own strategy.

use std::sync::{Arc, Mutex};

use super::*;

type Calls = Arc<Mutex<Vec<String>>>;

/// Fills batches up to a volume, and notes what it is asked. Who has volume -1 is claimed by
/// somebody else, who has -2 is cancelled, while the strategy looks.
struct Volume {
    max: i64,
    left: i64,
    calls: Calls,
}

impl BatchPolicy<Rc<Fake>> for Volume {
    fn begin(&mut self) {
        self.left = self.max;
        self.calls.lock().unwrap().push("begin".to_owned());
    }

    fn includes(&mut self, entry: &Rc<Fake>) -> BatchDecision<usize> {
        let verdict = match volume(entry) {
            -1 => {
                entry.claim(ClaimReason::Cancel).unwrap();
                BatchDecision::Gone
            }
            -2 => BatchDecision::Cancelled(entry.claim(ClaimReason::Cancel).unwrap()),
            volume if volume > self.left => BatchDecision::Stays,
            volume => {
                self.left -= volume;
                BatchDecision::Joins
            }
        };
        let call = format!("{}? {verdict:?}", entry.number);
        self.calls.lock().unwrap().push(call);
        verdict
    }

    fn end(&mut self) {
        self.calls.lock().unwrap().push("end".to_owned());
    }
}

/// The client's timeout stands for the volume: no policy of these tests looks at it.
fn volume(entry: &Fake) -> i64 {
    entry.facts.timeout_us.cast_signed()
}

struct Scene {
    dynamic: DynamicBatcher<Rc<Fake>>,
    calls: Calls,
    arrived: usize,
}

impl Scene {
    fn new(preferred: &[u32], delay_us: u64) -> Scene {
        let calls = Calls::default();
        let strategy = Volume {
            max: 10,
            left: 0,
            calls: Arc::clone(&calls),
        };
        Scene {
            dynamic: DynamicBatcher::new(
                &settings(preferred, delay_us),
                8,
                Some(Box::new(strategy)),
            ),
            calls,
            arrived: 0,
        }
    }

    fn arrive(&mut self, volumes: &[i64]) {
        for volume in volumes {
            let facts = SchedulingParams {
                batch_count: 1,
                timeout_us: volume.cast_unsigned(),
                ..SchedulingParams::default()
            };
            self.dynamic.accept(fake(self.arrived, facts));
            self.arrived += 1;
        }
    }

    /// The batch, who was cancelled meanwhile, the deadline in us, and what the strategy was asked.
    fn form(&mut self, now_us: u64) -> (Vec<usize>, Vec<usize>, Option<u64>, String) {
        let mut output = SchedulerOutput::default();
        let poll_state = self.dynamic.form(now_us * 1_000, &mut output);
        let calls = std::mem::take(&mut *self.calls.lock().unwrap()).join(", ");
        let deadline_us =
            (poll_state.deadline_ns != NEVER_NS).then_some(poll_state.deadline_ns / 1_000);
        (output.batch, output.cancelled, deadline_us, calls)
    }
}

#[test]
fn a_strategy_ends_batches() {
    let mut scene = Scene::new(&[8], 0);
    scene.arrive(&[4, 4, 4, 10]);
    let calls = "begin, 0? Joins, 1? Joins, 2? Stays, end";
    assert_eq!(scene.form(0), (vec![0, 1], vec![], None, calls.to_owned()));
    let calls = "begin, 2? Joins, 3? Stays, end";
    assert_eq!(scene.form(0), (vec![2], vec![], None, calls.to_owned()));
    let calls = "begin, 3? Joins, end";
    assert_eq!(scene.form(0), (vec![3], vec![], None, calls.to_owned()));
    assert_eq!(
        scene.form(0),
        (vec![], vec![], None, String::new()),
        "nothing to ask about"
    );
}

#[test]
fn the_other_rules_hold_as_well() {
    // A preferred size cuts, though more were included.
    let mut scene = Scene::new(&[2], 1_000);
    scene.arrive(&[1, 1, 1]);
    let calls = "begin, 0? Joins, 1? Joins, 2? Joins, end";
    assert_eq!(scene.form(0), (vec![0, 1], vec![], None, calls.to_owned()));
    // Waiting for company ends the look; the next one begins anew.
    let calls = "begin, 2? Joins, end";
    let waiting = (vec![], vec![], Some(1_000), calls.to_owned());
    assert_eq!(scene.form(0), waiting);
    // Who stays ends the waiting.
    scene.arrive(&[10]);
    let calls = "begin, 2? Joins, 3? Stays, end";
    assert_eq!(scene.form(1), (vec![2], vec![], None, calls.to_owned()));
    // The largest batch does, too, without a question.
    let mut scene = Scene::new(&[8], 0);
    scene.arrive(&[1; 9]);
    let (batch, _, _, calls) = scene.form(0);
    assert_eq!(batch.len(), 8);
    assert!(!calls.contains("8?"), "{calls}");
}

#[test]
fn a_request_that_joins_no_batch_is_executed_alone() {
    let mut scene = Scene::new(&[8], 1_000);
    scene.arrive(&[11, 1]);
    let calls = "begin, 0? Stays, end";
    assert_eq!(scene.form(0), (vec![0], vec![], None, calls.to_owned()));
    let (batch, _, deadline_us, _) = scene.form(0);
    assert_eq!((batch.len(), deadline_us), (0, Some(1_000)));
}

#[test]
fn requests_may_go_while_the_strategy_looks() {
    let mut scene = Scene::new(&[8], 0);
    scene.arrive(&[1, -1, -2, 3]);
    let calls = "begin, 0? Joins, 1? Gone, 2? Cancelled(2), 3? Joins, end";
    assert_eq!(scene.form(0), (vec![0, 3], vec![2], None, calls.to_owned()));
    // All of them: there is no batch, and nothing is left.
    scene.arrive(&[-2, -1]);
    let calls = "begin, 4? Cancelled(4), 5? Gone, end";
    assert_eq!(scene.form(0), (vec![], vec![4], None, calls.to_owned()));
    assert_eq!(scene.form(0), (vec![], vec![], None, String::new()));
}
