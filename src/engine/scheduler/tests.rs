//! Schedulers on a virtual clock: the table is the specification, and a simple model checks random runs.

use std::cell::Cell;
use std::rc::Rc;

use conch_channel::{Fate, NEVER_NS};
use conch_config::{DynamicBatching, QueuePolicy, TimeoutAction};

use super::{Dynamic, Entry, Facts, Fifo, Harvest, Strategy, Verdict};

mod strategy;

/// A ticket that remembers who claimed it.
#[derive(Debug)]
struct Fake {
    number: usize,
    facts: Facts,
    fate: Cell<Option<Fate>>,
}

impl Entry for Rc<Fake> {
    type Owned = usize;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn is_waiting(&self) -> bool {
        self.fate.get().is_none()
    }

    fn claim(&self, fate: Fate) -> Option<usize> {
        if self.fate.get().is_some() {
            return None;
        }
        self.fate.set(Some(fate));
        Some(self.number)
    }
}

fn settings(preferred: &[u32], delay_us: u64) -> DynamicBatching {
    DynamicBatching {
        preferred_batch_sizes: preferred.to_vec(),
        max_queue_delay_us: delay_us,
        is_preserving_order: false,
        priority_levels: 0,
        default_priority_level: 0,
        default_policy: QueuePolicy::default(),
        priority_policies: Vec::new(),
    }
}

fn fake(number: usize, facts: Facts) -> Rc<Fake> {
    Rc::new(Fake {
        number,
        facts,
        fate: Cell::new(None),
    })
}

/// Requests as (inferences, queued at us, shape), in order of arrival, level 0.
fn run(
    settings: &DynamicBatching,
    max: u32,
    requests: &[(u32, u64, i64)],
    now_us: u64,
) -> (Vec<usize>, Option<u64>) {
    let mut dynamic = Dynamic::new(settings, max, None);
    for (number, (batch_count, queued_us, shape)) in requests.iter().enumerate() {
        dynamic.accept(fake(
            number,
            Facts {
                batch_count: *batch_count,
                queued_ns: queued_us * 1_000,
                signature: [*shape].into_iter().collect(),
                ..Facts::default()
            },
        ));
    }
    let mut harvest = Harvest::default();
    let outlook = dynamic.form(now_us * 1_000, &mut harvest);
    (
        harvest.batch,
        (outlook.deadline_ns != NEVER_NS).then_some(outlook.deadline_ns / 1_000),
    )
}

#[test]
fn batches_form_as_upstream_forms_them() {
    const ONE: (u32, u64, i64) = (1, 0, 0);
    const ODD: (u32, u64, i64) = (1, 0, 9);
    struct Case {
        name: &'static str,
        preferred: &'static [u32],
        delay_us: u64,
        requests: &'static [(u32, u64, i64)],
        now_us: u64,
        count: usize,
        deadline_us: Option<u64>,
    }
    let case = |name, preferred, delay_us, requests, now_us, count, deadline_us| Case {
        name,
        preferred,
        delay_us,
        requests,
        now_us,
        count,
        deadline_us,
    };
    let cases = [
        case("nothing", &[8], 0, &[], 0, 0, None),
        case(
            "no delay takes what is there",
            &[8],
            0,
            &[ONE; 3],
            0,
            3,
            None,
        ),
        case("up to the maximum", &[8], 0, &[ONE; 11], 0, 8, None),
        case("a preferred size cuts", &[4], 0, &[ONE; 6], 0, 4, None),
        case(
            "the largest reached cuts",
            &[2, 4],
            0,
            &[ONE; 7],
            0,
            4,
            None,
        ),
        case(
            "a smaller one cuts if the larger is out of reach",
            &[2, 6],
            0,
            &[ONE; 5],
            0,
            2,
            None,
        ),
        case("cuts without waiting", &[4], 100, &[ONE; 6], 10, 4, None),
        case(
            "waits for a preferred size",
            &[4],
            100,
            &[ONE; 3],
            10,
            0,
            Some(100),
        ),
        case(
            "waits from the oldest on",
            &[4],
            100,
            &[(1, 5, 0), (1, 30, 0)],
            40,
            0,
            Some(105),
        ),
        case("the delay is over", &[4], 100, &[ONE; 3], 100, 3, None),
        case(
            "over the delay up to the maximum, not the preferred",
            &[4],
            100,
            &[ONE; 12],
            100,
            8,
            None,
        ),
        case(
            "another shape ends it at once",
            &[4],
            100,
            &[ONE, ONE, ODD],
            10,
            2,
            None,
        ),
        case(
            "a shape that ends it beyond the mark",
            &[2],
            0,
            &[ONE, ONE, ONE, ODD],
            0,
            2,
            None,
        ),
        case(
            "counts inferences",
            &[8],
            0,
            &[(3, 0, 0), (3, 0, 0), (3, 0, 0)],
            0,
            2,
            None,
        ),
        case(
            "would exceed the largest preferred",
            &[4],
            100,
            &[(3, 0, 0), (3, 0, 0)],
            10,
            1,
            None,
        ),
        case(
            "first larger than preferred",
            &[4],
            100,
            &[(6, 0, 0)],
            10,
            1,
            None,
        ),
        case(
            "full before its time",
            &[8],
            100,
            &[(5, 0, 0), (3, 0, 0)],
            10,
            2,
            None,
        ),
    ];
    for case in cases {
        let (batch, deadline_us) = run(
            &settings(case.preferred, case.delay_us),
            8,
            case.requests,
            case.now_us,
        );
        assert_eq!(batch, (0..case.count).collect::<Vec<_>>(), "{}", case.name);
        assert_eq!(deadline_us, case.deadline_us, "{}", case.name);
    }
}

#[test]
fn a_model_without_batching_executes_one_at_a_time() {
    assert_eq!(run(&settings(&[], 0), 0, &[(1, 0, 0); 3], 0).0, [0]);
    let mut fifo = Fifo::default();
    let mut harvest = Harvest::default();
    let entries: Vec<_> = (0..3)
        .map(|number| {
            fake(
                number,
                Facts {
                    batch_count: 1,
                    ..Facts::default()
                },
            )
        })
        .collect();
    entries
        .iter()
        .for_each(|entry| fifo.accept(Rc::clone(entry)));
    entries[0].fate.set(Some(Fate::Cancel));
    assert!(fifo.form(&mut harvest).is_ready);
    assert_eq!(harvest.batch, [1], "0 was cancelled");
    let outlook = fifo.form(&mut harvest);
    assert_eq!(
        (harvest.batch, outlook.is_empty, outlook.is_ready),
        (vec![1, 2], true, false)
    );
}

fn policy(action: TimeoutAction, timeout_us: u64, allow_override: bool) -> QueuePolicy {
    QueuePolicy {
        timeout_action: action,
        default_timeout_us: timeout_us,
        allow_timeout_override: allow_override,
        queue_size_max: 0,
    }
}

/// Action, override allowed, the second request's own timeout (us), now (us) -> batch, expired, deadline (us).
type TimeoutCase = (
    TimeoutAction,
    bool,
    u64,
    u64,
    &'static [usize],
    &'static [usize],
    Option<u64>,
);

#[test]
fn timeouts_reject_or_delay() {
    let cases: [TimeoutCase; 7] = [
        (TimeoutAction::Reject, false, 0, 49, &[], &[], Some(50)),
        (TimeoutAction::Reject, false, 0, 50, &[], &[0, 1, 2], None),
        (TimeoutAction::Reject, false, 10, 20, &[], &[], Some(50)),
        (TimeoutAction::Reject, true, 10, 20, &[], &[1], Some(50)),
        (TimeoutAction::Reject, true, 90, 60, &[], &[0, 1, 2], None),
        (TimeoutAction::Delay, true, 10, 20, &[], &[], Some(50)),
        (TimeoutAction::Delay, true, 10, 100, &[1, 0, 2], &[], None),
    ];
    for (action, allow_override, own_us, now_us, batch, expired, deadline_us) in cases {
        let mut settings = settings(&[8], 100);
        settings.default_policy = policy(action, 50, allow_override);
        let mut dynamic = Dynamic::new(&settings, 8, None);
        for number in 0..3 {
            let timeout_us = if number == 1 { own_us } else { 0 };
            dynamic.accept(fake(
                number,
                Facts {
                    batch_count: 1,
                    timeout_us,
                    ..Facts::default()
                },
            ));
        }
        let mut harvest = Harvest::default();
        let mut outlook = dynamic.form(20_000.min(now_us * 1_000), &mut harvest);
        if now_us > 20 {
            outlook = dynamic.form(now_us * 1_000, &mut harvest);
        }
        let label = format!("{action:?} override {allow_override} own {own_us} now {now_us}");
        harvest.expired.sort_unstable();
        assert_eq!(
            (&harvest.batch[..], &harvest.expired[..]),
            (batch, expired),
            "{label}"
        );
        assert_eq!(
            (outlook.deadline_ns != NEVER_NS).then_some(outlook.deadline_ns / 1_000),
            deadline_us,
            "{label}"
        );
    }
}

#[test]
fn priorities_go_first_and_claimed_ones_are_made_up_for() {
    let mut settings = settings(&[3], 0);
    settings.priority_levels = 3;
    let mut dynamic = Dynamic::new(&settings, 3, None);
    let levels = [3, 2, 1, 2, 1, 3];
    let entries: Vec<_> = levels
        .into_iter()
        .enumerate()
        .map(|(number, level)| {
            fake(
                number,
                Facts {
                    batch_count: 1,
                    level,
                    ..Facts::default()
                },
            )
        })
        .collect();
    entries
        .iter()
        .for_each(|entry| dynamic.accept(Rc::clone(entry)));
    entries[4].fate.set(Some(Fate::Cancel));
    let mut batches = Vec::new();
    loop {
        let mut harvest = Harvest::default();
        let outlook = dynamic.form(0, &mut harvest);
        if harvest.batch.is_empty() {
            assert!(outlook.is_empty);
            break;
        }
        batches.push(harvest.batch);
    }
    assert_eq!(batches, [vec![2, 1, 3], vec![0, 5]]);
}

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The specification, said plainly: one list, sorted anew for each look.
struct Plain {
    settings: DynamicBatching,
    max: u32,
    waiting: Vec<(Rc<Fake>, bool)>,
}

impl Plain {
    fn policy(&self, level: u64) -> QueuePolicy {
        super::policy_of(
            &self.settings.priority_policies,
            self.settings.default_policy,
            level,
        )
    }

    fn expires_ns(&self, facts: &Facts) -> u64 {
        let policy = self.policy(facts.level);
        let mut timeout_us = policy.default_timeout_us;
        if policy.allow_timeout_override && facts.timeout_us != 0 && facts.timeout_us < timeout_us {
            timeout_us = facts.timeout_us;
        }
        if timeout_us == 0 {
            NEVER_NS
        } else {
            facts.queued_ns + timeout_us * 1_000
        }
    }

    fn form(&mut self, now_ns: u64) -> (Vec<usize>, Vec<usize>) {
        self.waiting.retain(|(entry, _)| entry.is_waiting());
        let (mut expired, mut kept) = (Vec::new(), Vec::new());
        for (entry, is_delayed) in std::mem::take(&mut self.waiting) {
            let is_late = !is_delayed && self.expires_ns(&entry.facts) <= now_ns;
            match self.policy(entry.facts.level).timeout_action {
                TimeoutAction::Reject if is_late => expired.push(entry.number),
                _ => kept.push((entry, is_delayed)),
            }
        }
        self.waiting = kept;
        // Delayed when examined: the look below reports how far it came.
        let preferred_max = *self.settings.preferred_batch_sizes.last().unwrap();
        let (mut batch, mut size, mut mark, mut is_full) = (Vec::<usize>::new(), 0, None, false);
        let mut template = None;
        let mut oldest_ns = NEVER_NS;
        let mut seen: Vec<usize> = Vec::new();
        loop {
            // The next in order: level, then in time before delayed, then as they came (delayed: as they were delayed).
            let mut best: Option<usize> = None;
            for index in 0..self.waiting.len() {
                let (entry, is_delayed) = &self.waiting[index];
                if seen.contains(&entry.number) {
                    continue;
                }
                let key = |index: usize| {
                    (
                        self.waiting[index].0.facts.level,
                        self.waiting[index].1,
                        index,
                    )
                };
                let _ = is_delayed;
                if best.is_none_or(|best| key(index) < key(best)) {
                    best = Some(index);
                }
            }
            let Some(index) = best else { break };
            let (entry, is_delayed) = self.waiting[index].clone();
            if !is_delayed && self.expires_ns(&entry.facts) <= now_ns {
                self.waiting.remove(index);
                self.waiting.push((entry, true));
                continue;
            }
            let next = size + entry.facts.batch_count;
            if !batch.is_empty() {
                if next > preferred_max && mark.is_none() {
                    mark = Some(batch.len());
                }
                if next > self.max || template.as_ref() != Some(&entry.facts.signature) {
                    is_full = true;
                    break;
                }
            }
            template.get_or_insert_with(|| entry.facts.signature.clone());
            seen.push(entry.number);
            batch.push(entry.number);
            size = next;
            oldest_ns = oldest_ns.min(entry.facts.queued_ns);
            if self.settings.preferred_batch_sizes.contains(&size) {
                mark = Some(batch.len());
            }
        }
        let delay_ns = self.settings.max_queue_delay_us * 1_000;
        let is_overdue = delay_ns != 0 && oldest_ns != NEVER_NS && now_ns - oldest_ns >= delay_ns;
        if let (Some(mark), false) = (mark, is_overdue) {
            batch.truncate(mark);
        } else if !(is_full || size >= preferred_max || is_overdue || delay_ns == 0) {
            batch.clear();
        }
        self.waiting
            .retain(|(entry, _)| !batch.contains(&entry.number));
        (batch, expired)
    }
}

#[test]
fn random_runs_agree_with_the_plain_model() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let max = 1 + random.below(12) as u32;
        let mut preferred: Vec<u32> = (0..random.below(3))
            .map(|_| 1 + random.below(u64::from(max)) as u32)
            .collect();
        preferred.sort_unstable();
        preferred.dedup();
        if preferred.is_empty() {
            preferred.push(max);
        }
        let mut settings = settings(&preferred, [0, 0, 40, 300][random.below(4) as usize]);
        settings.priority_levels = random.below(3);
        let random_policy = |random: &mut Random| {
            let action = if random.below(2) == 0 {
                TimeoutAction::Reject
            } else {
                TimeoutAction::Delay
            };
            policy(
                action,
                random.below(2) * (1 + random.below(200)),
                random.below(2) == 0,
            )
        };
        settings.default_policy = random_policy(&mut random);
        if settings.priority_levels > 0 {
            settings
                .priority_policies
                .push((1, random_policy(&mut random)));
        }
        let shapes = 1 + random.below(2);

        let mut dynamic = Dynamic::new(&settings, max, None);
        let mut plain = Plain {
            settings: settings.clone(),
            max,
            waiting: Vec::new(),
        };
        let mut all: Vec<Rc<Fake>> = Vec::new();
        let mut now_ns = 1_000_000;
        let mut answered = 0;
        for step in 0..300 {
            match random.below(10) {
                0..6 => {
                    let facts = Facts {
                        batch_count: 1 + random.below(u64::from(max.min(3))) as u32,
                        level: if settings.priority_levels == 0 {
                            0
                        } else {
                            1 + random.below(settings.priority_levels)
                        },
                        queued_ns: now_ns,
                        timeout_us: random.below(150),
                        signature: [random.below(shapes) as i64].into_iter().collect(),
                    };
                    let number = all.len();
                    all.push(fake(number, facts));
                    dynamic.accept(Rc::clone(&all[number]));
                    plain.waiting.push((Rc::clone(&all[number]), false));
                }
                6 if !all.is_empty() => {
                    let victim = &all[random.below(all.len() as u64) as usize];
                    if victim.is_waiting() {
                        victim.fate.set(Some(Fate::Cancel));
                        answered += 1;
                    }
                }
                6 | 7 => now_ns += random.below(60_000),
                _ => {
                    let (batch, mut expired) = plain.form(now_ns);
                    let mut harvest = Harvest::default();
                    let outlook = dynamic.form(now_ns, &mut harvest);
                    harvest.expired.sort_unstable();
                    expired.sort_unstable();
                    answered += batch.len() + expired.len();
                    assert_eq!(
                        harvest.batch, batch,
                        "batch of seed {seed} step {step} at {now_ns}"
                    );
                    assert_eq!(
                        harvest.expired, expired,
                        "expired of seed {seed} step {step} at {now_ns}"
                    );
                    assert_eq!(
                        outlook.is_empty,
                        plain.waiting.is_empty(),
                        "seed {seed} step {step}"
                    );
                    assert!(
                        outlook.deadline_ns > now_ns,
                        "seed {seed} step {step}: a deadline that has passed"
                    );
                }
            }
        }
        // Drained by its own deadlines, every request is answered once, and soon.
        loop {
            let mut harvest = Harvest::default();
            let outlook = dynamic.form(now_ns, &mut harvest);
            answered += harvest.batch.len() + harvest.expired.len();
            if outlook.is_empty {
                break;
            }
            if harvest.batch.is_empty() {
                assert!(
                    outlook.deadline_ns != NEVER_NS,
                    "seed {seed}: requests wait for nothing"
                );
                now_ns = now_ns.max(outlook.deadline_ns);
            }
        }
        assert_eq!(answered, all.len(), "seed {seed}");
    }
}
