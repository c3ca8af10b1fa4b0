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
    let mut run = RandomRun::new(seed);
    loop {
        let is_draining = run.step >= 300;
        run.act(is_draining);
        run.settle();
        run.step += 1;
        if run.is_over(is_draining) {
            break;
        }
        assert!(run.step < 20_000, "seed {seed} does not end");
    }
    run.finish();
}

struct RandomRun {
    seed: u64,
    random: Random,
    step: usize,
    slots: u32,
    settings: SequenceBatching,
    stage: Stage,
    /// What each core executes.
    executing: Vec<Vec<usize>>,
    /// The last request given out of each run of a sequence.
    last_of: HashMap<Option<u64>, usize>,
    /// How often each request was answered.
    answered: Vec<u32>,
    /// The cores that are called.
    called: Vec<bool>,
}

impl RandomRun {
    fn new(seed: u64) -> RandomRun {
        let mut random = Random(seed);
        let slots = 1 + random.below(4) as u32;
        let core_count = 1 + random.below(3) as usize;
        let settings = random_settings(&mut random, slots);
        RandomRun {
            seed,
            random,
            step: 0,
            slots,
            stage: Stage::new(&settings, slots, &vec![1; core_count]),
            settings,
            executing: vec![Vec::new(); core_count],
            last_of: HashMap::new(),
            answered: Vec::new(),
            called: vec![true; core_count],
        }
    }

    /// One random step of a core, a client or the clock; while draining, no client's.
    fn act(&mut self, is_draining: bool) {
        let core = self.random.below(self.executing.len() as u64) as usize;
        let is_executing = !self.executing[core].is_empty();
        match self.random.below(if is_draining { 4 } else { 10 }) {
            // A core asks if it is called, or for no reason.
            0 | 1 if !is_executing && (self.called[core] || self.random.below(4) == 0) => {
                self.form(core);
            }
            0..4 if is_executing => self.complete(core, is_draining),
            0..4 => self.stage.pass(self.random.below(60)),
            4..8 => self.send(),
            8 if !self.answered.is_empty() => {
                let number = self.random.below(self.answered.len() as u64) as usize;
                self.stage.cancel(number);
            }
            _ => self.stage.pass(self.random.below(2_000)),
        }
    }

    fn form(&mut self, core: usize) {
        let (seed, step) = (self.seed, self.step);
        self.called[core] = false;
        let batch = self.stage.form(core);
        assert!(
            batch.len() <= self.slots as usize,
            "seed {seed} step {step}"
        );
        let rows: Vec<_> = batch.iter().map(|(row, _)| *row).collect();
        let mut distinct = rows.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(
            distinct.len(),
            rows.len(),
            "seed {seed} step {step}: a row twice"
        );
        if matches!(self.settings.strategy, SequenceStrategy::Direct { .. }) {
            assert_eq!(distinct, rows, "seed {seed} step {step}: rows out of order");
        }
        for (_, number) in &batch {
            self.check_given_out(*number);
        }
        self.executing[core] = batch.into_iter().map(|(_, number)| number).collect();
    }

    /// A sequence is executed in order, and one request at a time.
    fn check_given_out(&mut self, number: usize) {
        let (seed, step) = (self.seed, self.step);
        // Its run, as a name may be used again.
        let run_of = |number: usize| {
            self.stage.requests[number]
                .member
                .as_ref()
                .and_then(SequenceContext::run)
        };
        let id = run_of(number);
        if let Some(last) = self.last_of.insert(id, number) {
            assert!(
                last < number || self.settings.is_iterative,
                "seed {seed} step {step}: {number} of sequence {id:?} after {last}"
            );
        }
        let mut others = self.executing.iter().flatten();
        assert!(
            others.all(|other| run_of(*other) != id),
            "seed {seed} step {step}: two of sequence {id:?} at once"
        );
    }

    /// What `core` executes is answered, or goes on if it is iterative.
    fn complete(&mut self, core: usize, is_draining: bool) {
        for number in std::mem::take(&mut self.executing[core]) {
            if self.settings.is_iterative && self.random.below(3) == 0 && !is_draining {
                self.stage.reschedule(number);
            } else {
                self.answered[number] += 1;
                if self.stage.sequence.awaits() {
                    self.stage.release(number);
                }
            }
        }
        self.called[core] = true;
    }

    fn send(&mut self) {
        let random = &mut self.random;
        let id = 1 + random.below(8);
        // Mostly well formed.
        let flags = [0, 0, START, END, START | END, START][random.below(6) as usize];
        self.answered.push(0);
        self.stage
            .send_with(id, flags, random.below(2) as i64, random.below(3) * 40);
    }

    /// Takes in what the step led to.
    fn settle(&mut self) {
        let (seed, step) = (self.seed, self.step);
        self.stage.expire();
        for core in std::mem::take(&mut self.stage.called) {
            self.called[core] = true;
        }
        for (number, _) in self.stage.refusals() {
            self.answered[number] += 1;
        }
        assert!(
            self.answered.iter().all(|count| *count <= 1),
            "seed {seed} step {step}: answered twice"
        );
    }

    /// Whether nothing is left; where only a deadline would go on, it is now.
    fn is_over(&mut self, is_draining: bool) -> bool {
        let stage = &mut self.stage;
        let mut output = SchedulerOutput::default();
        let poll_state = stage.sequence.expire(stage.now_ns, &mut output);
        stage.note(&mut output);
        let is_idle = self.executing.iter().all(Vec::is_empty);
        if is_draining && poll_state.is_empty && is_idle {
            return true;
        }
        if is_draining && is_idle && !self.called.contains(&true) && stage.called.is_empty() {
            assert!(
                poll_state.deadline_ns != NEVER_NS,
                "seed {}: requests wait for nothing",
                self.seed
            );
            stage.now_ns = stage.now_ns.max(poll_state.deadline_ns);
        }
        false
    }

    fn finish(mut self) {
        let seed = self.seed;
        assert!(
            self.answered.iter().all(|count| *count == 1),
            "seed {seed}: not all are answered"
        );
        // Idle sequences end by themselves, and leave nothing behind.
        loop {
            let deadline_ns = self.stage.expire();
            if deadline_ns == NEVER_NS {
                break;
            }
            self.stage.now_ns = self.stage.now_ns.max(deadline_ns);
            for core in 0..self.executing.len() {
                assert_eq!(self.stage.form(core), []);
            }
        }
        assert_eq!(self.stage.sequence.open_count(), 0, "seed {seed}");
    }
}

fn random_settings(random: &mut Random, slots: u32) -> SequenceBatching {
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
    settings
}
