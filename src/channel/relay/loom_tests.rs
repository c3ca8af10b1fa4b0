//! The relay in every interleaving of a few threads, as far as the bounds of each model go.

use std::collections::VecDeque;

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Untracked;

use loom::thread;

use super::*;
use crate::pile::Envelope;

const DELAY_NS: u64 = 5;

/// Time that passes only when someone waits for it. Not one of loom's atomics: no thread reads an earlier time than another.
#[derive(Clone)]
struct Jumping(Arc<Untracked>);

impl Clock for Jumping {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn jump_to(&self, deadline_ns: u64) {
        self.0.fetch_max(deadline_ns, Ordering::Relaxed);
    }
}

type Item = Box<Envelope<()>>;

/// Batches of two, or of one when the oldest has waited `DELAY_NS`: the smallest scheduler with ready work and a deadline.
#[derive(Default)]
struct Pairs {
    queue: VecDeque<Item>,
    oldest_ns: u64,
}

impl Pairs {
    fn drive(&mut self, arrivals: Chain<Item>, now_ns: u64) -> (Option<u64>, Outlook) {
        for item in arrivals {
            if self.queue.is_empty() {
                self.oldest_ns = now_ns;
            }
            self.queue.push_back(item);
        }
        let size = match self.queue.len() {
            0 => 0,
            1 if now_ns < self.oldest_ns + DELAY_NS => 0,
            1 => 1,
            _ => 2,
        };
        self.queue.drain(..size);
        self.oldest_ns = now_ns;
        let is_empty = self.queue.is_empty();
        let deadline_ns = if is_empty {
            NEVER_NS
        } else {
            self.oldest_ns + DELAY_NS
        };
        (
            (size > 0).then_some(size as u64),
            Outlook {
                is_ready: self.queue.len() >= 2,
                deadline_ns,
                is_empty,
            },
        )
    }
}

/// Two cores, one producer of `count` requests, one deadline. Ends when everything was executed and both cores have left; a lost
/// wake-up leaves all threads parked, which loom reports. With `is_dismissing` the first core is dismissed after the first request,
/// and the other executes what it does not. Nobody rings but for the requests and the dismissal.
///
/// One preemption is explored to the end; with two, which takes many minutes, as far as `SECONDS_MAX` lead, unless it is to fail.
fn live<const LOOKS_AGAIN: bool, const DISMISSAL_RINGS: bool>(
    count: u64,
    preemption_bound: usize,
    is_dismissing: bool,
) {
    const SECONDS_MAX: u64 = 20;
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemption_bound);
    if preemption_bound > 1 && LOOKS_AGAIN && DISMISSAL_RINGS {
        builder.max_duration = Some(std::time::Duration::from_secs(SECONDS_MAX));
    }
    builder.check(move || {
        let relay = Arc::new(Relay::<Item, Pairs, LOOKS_AGAIN, DISMISSAL_RINGS>::new(
            Pairs::default(),
            2,
        ));
        let clock = Jumping(Arc::new(Untracked::new(1)));
        let executed = Arc::new(Untracked::new(0));
        let cores: Vec<_> = (0..2)
            .map(|core| {
                let (relay, clock, executed) =
                    (Arc::clone(&relay), clock.clone(), Arc::clone(&executed));
                thread::spawn(move || {
                    let mut runner = relay.runner(core, Spin::OFF);
                    while let Some(turn) = relay.next(&mut runner, &clock, Pairs::drive) {
                        // The last request closes the relay: the producer must not, or its ring would hide a lost one.
                        if executed.fetch_add(turn.batch, Ordering::Relaxed) + turn.batch == count {
                            relay.close();
                        }
                    }
                })
            })
            .collect();
        for index in 0..count {
            assert!(relay.submit(Envelope::new(())).is_ok());
            if is_dismissing && index == 0 {
                relay.dismiss(0);
            }
        }
        for core in cores {
            core.join().unwrap();
        }
        assert_eq!(executed.load(Ordering::Relaxed), count);
    });
}

/// What is for one core alone, by core.
#[derive(Default)]
struct Named([VecDeque<()>; 2]);

/// Two cores whose work is for one of them each, `targets` in order, from one producer; after `targets` items another thread
/// calls core 1 for what lies beside the inbox.
///
/// Without `is_calling` nobody is called for what arrives.
fn named(targets: &'static [usize], is_called_from_outside: bool, is_calling: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(1);
    builder.max_duration = Some(std::time::Duration::from_secs(40));
    builder.check(move || {
        type Numbered = Box<Envelope<usize>>;
        let relay = Arc::new(Relay::<Numbered, Named>::calling(Named::default(), 2));
        let clock = Jumping(Arc::new(Untracked::new(1)));
        let executed = Arc::new(Untracked::new(0));
        let beside = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let count = targets.len() as u64 + u64::from(is_called_from_outside);
        let cores: Vec<_> = (0..2)
            .map(|core| {
                let (relay, clock, executed, beside) = (
                    Arc::clone(&relay),
                    clock.clone(),
                    Arc::clone(&executed),
                    Arc::clone(&beside),
                );
                thread::spawn(move || {
                    let mut runner = relay.runner(core, Spin::OFF);
                    let drive = |named: &mut Named, arrivals: Chain<Numbered>, _: u64| {
                        for item in arrivals {
                            let target = (*item).into_value();
                            named.0[target].push_back(());
                            if is_calling {
                                relay.mark(target);
                            }
                        }
                        if core == 1 && beside.load(Ordering::Relaxed) == 1 {
                            beside.store(0, Ordering::Relaxed);
                            named.0[1].push_back(());
                        }
                        let batch = named.0[core].pop_front();
                        if !named.0[core].is_empty() {
                            relay.mark(core);
                        }
                        let outlook = Outlook {
                            is_ready: false,
                            deadline_ns: NEVER_NS,
                            is_empty: named.0.iter().all(VecDeque::is_empty),
                        };
                        (batch, outlook)
                    };
                    while relay.next(&mut runner, &clock, drive).is_some() {
                        if executed.fetch_add(1, Ordering::Relaxed) + 1 == count {
                            relay.close();
                        }
                    }
                })
            })
            .collect();
        for target in targets {
            assert!(relay.submit(Envelope::new(*target)).is_ok());
        }
        if is_called_from_outside {
            beside.store(1, Ordering::Relaxed);
            relay.call(1);
        }
        for core in cores {
            core.join().unwrap();
        }
        assert_eq!(executed.load(Ordering::Relaxed), count);
    });
}

#[test]
fn work_reaches_the_core_that_it_is_for() {
    named(&[1], false, true);
    named(&[1, 0], false, true);
}

#[test]
fn a_call_from_outside_reaches_its_core() {
    named(&[], true, true);
    named(&[1], true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_call_work_for_another_is_forgotten() {
    named(&[1], false, false);
}

#[test]
fn one_request_is_executed_at_its_deadline() {
    live::<true, true>(1, 1, false);
}

#[test]
fn one_request_among_more_preemptions() {
    live::<true, true>(1, 2, false);
}

#[test]
fn two_requests_are_executed() {
    live::<true, true>(2, 1, false);
}

#[test]
fn two_requests_among_more_preemptions() {
    live::<true, true>(2, 2, false);
}

#[test]
fn a_core_that_leaves_forgets_nothing() {
    live::<true, true>(1, 1, true);
    live::<true, true>(2, 1, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_last_ring_a_request_is_forgotten() {
    live::<true, false>(1, 2, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_second_look_a_request_is_forgotten() {
    live::<false, true>(1, 1, false);
}
