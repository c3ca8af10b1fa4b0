//! Random runs, and the rules that hold in each.

use crate::sequence_batcher::tests::*;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Seeds that once failed.
const KEPT: &[u64] = &[];

/// Random sequences, cancels, pauses and executions; after each step the rules hold, and in the end
/// everything is answered once.
#[test]
fn random_runs_keep_the_rules() {
    for_each_seed(KEPT, 400, run_random);
}

fn run_random(seed: u64) {
    let random = &mut Random(seed);
    let slots = 1 + random.below(4) as u32;
    let core_count = 1 + random.below(3) as usize;
    let is_direct = random.below(2) == 0;
    let mut settings = if is_direct {
        direct(slots)
    } else {
        oldest(
            slots,
            &[1 + random.below(u64::from(slots)) as u32],
            [0, 30][random.below(2) as usize],
        )
    };
    if is_direct && random.below(2) == 0 {
        settings.strategy = SequenceStrategy::Direct {
            delay_us: 40,
            utilization_min: 0.6,
        };
    }
    settings.is_iterative = random.below(4) == 0;
    let mut stage = Stage::new(&settings, slots, &vec![1; core_count]);
    // What each core executes; which core has which sequence; the last request given out of each.
    let mut executing: Vec<Vec<usize>> = vec![Vec::new(); core_count];
    let mut last_of: HashMap<Option<u64>, usize> = HashMap::new();
    let mut ids: Vec<u64> = Vec::new();
    let mut answered: Vec<u32> = Vec::new();
    let mut called = vec![true; core_count];
    let mut step = 0;
    loop {
        let is_draining = step >= 300;
        let core = random.below(core_count as u64) as usize;
        match random.below(if is_draining { 4 } else { 10 }) {
            // A core asks if it is called, or for no reason.
            0 | 1 if executing[core].is_empty() && (called[core] || random.below(4) == 0) => {
                called[core] = false;
                let batch = stage.form(core);
                assert!(batch.len() <= slots as usize, "seed {seed} step {step}");
                let rows: Vec<_> = batch.iter().map(|(row, _)| *row).collect();
                let mut distinct = rows.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(
                    distinct.len(),
                    rows.len(),
                    "seed {seed} step {step}: a row twice"
                );
                if is_direct {
                    assert_eq!(distinct, rows, "seed {seed} step {step}: rows out of order");
                }
                for (_, number) in &batch {
                    // Its run, as a name may be used again.
                    let run_of = |number: &usize| {
                        stage.requests[*number]
                            .member
                            .as_ref()
                            .and_then(SequenceContext::run)
                    };
                    let id = run_of(number);
                    if let Some(last) = last_of.insert(id, *number) {
                        assert!(
                            last < *number || settings.is_iterative,
                            "seed {seed} step {step}: {number} of sequence {id:?} after {last}"
                        );
                    }
                    assert!(
                        executing.iter().flatten().all(|other| run_of(other) != id),
                        "seed {seed} step {step}: two of sequence {id:?} at once"
                    );
                }
                executing[core] = batch.into_iter().map(|(_, number)| number).collect();
            }
            0..4 if !executing[core].is_empty() => {
                for number in std::mem::take(&mut executing[core]) {
                    if settings.is_iterative && random.below(3) == 0 && !is_draining {
                        stage.reschedule(number);
                    } else {
                        answered[number] += 1;
                        if stage.sequence.awaits() {
                            stage.release(number);
                        }
                    }
                }
                called[core] = true;
            }
            0..4 => stage.pass(random.below(60)),
            4..8 => {
                let id = 1 + random.below(8);
                // Mostly well formed.
                let flags = [0, 0, START, END, START | END, START][random.below(6) as usize];
                ids.push(id);
                answered.push(0);
                stage.send_with(id, flags, random.below(2) as i64, random.below(3) * 40);
            }
            8 if !ids.is_empty() => {
                let number = random.below(ids.len() as u64) as usize;
                stage.cancel(number);
            }
            _ => stage.pass(random.below(2_000)),
        }
        stage.expire();
        for core in std::mem::take(&mut stage.called) {
            called[core] = true;
        }
        for (number, _) in stage.refusals() {
            answered[number] += 1;
        }
        assert!(
            answered.iter().all(|count| *count <= 1),
            "seed {seed} step {step}: answered twice"
        );
        step += 1;
        let mut output = SchedulerOutput::default();
        let poll_state = stage.sequence.expire(stage.now_ns, &mut output);
        stage.note(&mut output);
        let is_idle = executing.iter().all(Vec::is_empty);
        if is_draining && poll_state.is_empty && is_idle {
            break;
        }
        if is_draining && is_idle && !called.contains(&true) && stage.called.is_empty() {
            assert!(
                poll_state.deadline_ns != NEVER_NS,
                "seed {seed}: requests wait for nothing"
            );
            stage.now_ns = stage.now_ns.max(poll_state.deadline_ns);
        }
        assert!(step < 20_000, "seed {seed} does not end");
    }
    assert!(
        answered.iter().all(|count| *count == 1),
        "seed {seed}: not all are answered"
    );
    // Idle sequences end by themselves, and leave nothing behind.
    loop {
        let deadline_ns = stage.expire();
        if deadline_ns == NEVER_NS {
            break;
        }
        stage.now_ns = stage.now_ns.max(deadline_ns);
        for core in 0..core_count {
            assert_eq!(stage.form(core), []);
        }
    }
    assert_eq!(stage.sequence.open_count(), 0, "seed {seed}");
}
