//! Batches that the submitting thread executes in place of an idle core.

use super::*;
use crate::InlineTurn;
use crate::request::inline::InlineDuration;

const LIMIT: Duration = Duration::from_secs(1);

fn bed() -> Bed {
    bed_of(CONFIG)
}

fn bed_of(config: &str) -> Bed {
    let fake = Fake {
        can_begin: true,
        ..Fake::closed()
    };
    let bed = Bed::cpus(config, fake, 1);
    bed.wait_idle();
    bed
}

impl Bed {
    /// Waits until the core is idle.
    fn wait_idle(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let queue = self.cores.as_ref().unwrap().queue();
        while queue.inline(InlineDuration::Any).is_none() {
            assert!(Instant::now() < deadline, "the core is not idle");
            std::thread::yield_now();
        }
    }

    /// Submits with an offer; the turn, if it was taken.
    fn offer(&self, slot: u64) -> Option<InlineTurn> {
        self.offer_with(slot, InlineOffer::new(true))
    }

    fn offer_with(&self, slot: u64, mut offer: InlineOffer) -> Option<InlineTurn> {
        let handle = self.admit(slot).unwrap();
        self.version.submit(handle, &mut offer).unwrap();
        offer.into_turn()
    }

    fn begun(&self) -> Vec<ThreadId> {
        std::mem::take(&mut *self.fake.begun.lock().unwrap())
    }
}

/// Executes; how far that came.
fn progress(turn: InlineTurn) -> Option<Progress> {
    let execution = turn.run(LIMIT)?;
    assert!(execution.duration_ns > 0);
    Some(execution.progress)
}

#[test]
fn the_submitter_executes_while_the_core_is_idle() {
    let bed = bed();
    let own = std::thread::current().id();
    for slot in 0..100 {
        let turn = bed.offer(slot).expect("the core is idle");
        assert_eq!(progress(turn), Some(Progress::Done));
        // Delivered before it returns.
        assert_eq!(bed.recorder.wait(1)[0].slot(), slot);
    }
    assert_eq!(bed.begun(), [own; 100]);
    assert!(bed.batches().is_empty(), "the core executed nothing");
    bed.stop();
}

#[test]
fn the_core_ends_what_is_left_open() {
    let bed = bed();
    bed.fake.leaves_open.store(true, Ordering::SeqCst);
    let turn = bed.offer(0).expect("the core is idle");
    assert_eq!(progress(turn), Some(Progress::Open));
    bed.fake.wait_inside(1);
    // It executes: no offer is taken, and what comes waits for it.
    assert!(bed.offer(1).is_none());
    assert!(bed.offer(2).is_none());
    bed.fake.let_go(3);
    assert_eq!(bed.recorder.wait(3).len(), 3);
    assert_eq!(bed.batches(), [[1], [2]]);
    assert_eq!(bed.begun().len(), 1);
    // An open batch is ended before the core is.
    bed.wait_idle();
    let turn = bed.offer(3).expect("the core is idle");
    assert_eq!(progress(turn), Some(Progress::Open));
    bed.fake.let_go(1);
    let recorder = Arc::clone(&bed.recorder);
    bed.stop();
    assert_eq!(recorder.wait(1)[0].slot(), 3);
}

#[test]
fn what_the_submitter_does_not_execute_a_core_does() {
    let bed = bed();
    bed.fake.let_go(1000);
    drop(bed.offer(0).expect("the core is idle"));
    assert_eq!(bed.recorder.wait(1)[0].slot(), 0);
    bed.wait_idle();
    // Nobody is woken for the second, as the first is the submitter's to see to.
    let turn = bed.offer(1).expect("the core is idle");
    bed.submit(2);
    assert_eq!(progress(turn), Some(Progress::Done));
    assert_eq!(bed.recorder.wait(2).len(), 2);
    assert_eq!(bed.begun().len(), 1);
    bed.stop();
}

#[test]
fn who_has_other_requests_executes_what_is_known_to_be_brief() {
    let fake = Fake {
        can_begin: true,
        begin_takes: Duration::from_millis(1),
        ..Fake::default()
    };
    let bed = Bed::cpus(CONFIG, fake, 1);
    let offer = |slot| {
        bed.wait_idle();
        bed.offer_with(slot, InlineOffer::of_brief_execution(0))
    };
    let offer_short = |slot| {
        bed.wait_idle();
        bed.offer_with(slot, InlineOffer::of_short_execution(0))
    };
    for slot in 0..3 {
        let turn = offer(slot).expect("nothing is known yet");
        assert_eq!(progress(turn), Some(Progress::Done));
        assert_eq!(bed.recorder.wait(1)[0].slot(), slot);
    }
    for slot in 3..7 {
        assert!(offer(slot).is_none(), "it takes a millisecond");
        assert_eq!(bed.recorder.wait(1)[0].slot(), slot);
    }
    assert!(offer_short(7).is_none(), "nor is it short");
    assert_eq!(bed.recorder.wait(1)[0].slot(), 7);
    // Who is alone would wait as long for the core.
    bed.wait_idle();
    let turn = bed.offer(8).expect("the core is idle");
    assert_eq!(progress(turn), Some(Progress::Done));
    assert_eq!(bed.begun().len(), 4);
    bed.stop();
}

#[test]
fn a_core_is_woken_once_for_all_that_is_submitted_meanwhile() {
    let bed = bed_of(&format!("dynamic_batching {{ }} {CONFIG}"));
    bed.fake.let_go(1000);
    let submit = |slot| {
        let mut offer = InlineOffer::of_later_wake();
        bed.version
            .submit(bed.admit(slot).unwrap(), &mut offer)
            .unwrap();
        offer.into_turn()
    };
    let mut batch_count = 0;
    for _ in 0..100 {
        bed.wait_idle();
        let turns = [0, 1, 2].map(submit);
        // The core may be idle and not asleep yet: then it looks once more.
        let wakes = turns.iter().flatten().count();
        assert!((1..=3).contains(&wakes) && turns[0].is_some());
        drop(turns);
        assert_eq!(bed.recorder.wait(3).len(), 3);
        batch_count += bed.batches().len();
    }
    assert!((100..300).contains(&batch_count), "{batch_count}");
    assert!(bed.begun().is_empty(), "the core executed all");
    bed.stop();
}

#[test]
fn nobody_owes_a_wake_while_every_core_executes() {
    let bed = bed();
    bed.submit(0);
    bed.fake.wait_inside(1);
    let mut offer = InlineOffer::of_later_wake();
    bed.version
        .submit(bed.admit(1).unwrap(), &mut offer)
        .unwrap();
    assert!(offer.into_turn().is_none());
    bed.fake.let_go(2);
    assert_eq!(bed.recorder.wait(2).len(), 2);
    bed.stop();
}

#[test]
fn a_batch_with_large_inputs_is_left_to_the_core() {
    const LARGE: &str = "max_batch_size: 8 dynamic_batching { } \
                         input [ { name: 'a' data_type: TYPE_INT32 dims: [ -1 ] } ] \
                         output [ { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
    let fake = Fake {
        can_begin: true,
        ..Fake::closed()
    };
    let bed = Bed::cpus(LARGE, fake, 1);
    bed.wait_idle();
    let bytes = vec![0; crate::INLINE_BYTES_MAX / 2 + 4];
    let shape = [1, i64::try_from(bytes.len() / 4).unwrap()];
    let admit = |slot| {
        let drafted = draft(vec![input("a", DataType::Int32, &shape, &[&bytes])]);
        bed.admit_draft(drafted, slot).unwrap()
    };
    let mut offer = InlineOffer::new(true);
    bed.version.submit(admit(0), &mut offer).unwrap();
    let turn = offer.into_turn().expect("the core is idle");
    let submitted = bed.version.submit(admit(1), &mut InlineOffer::none());
    assert!(submitted.is_ok());
    assert_eq!(progress(turn), Some(Progress::Open));
    bed.fake.wait_inside(1);
    bed.fake.let_go(1);
    assert_eq!(bed.recorder.wait(2).len(), 2);
    assert_eq!(bed.batches(), [[0, 1]]);
    assert!(bed.begun().is_empty());
    bed.stop();
}

#[test]
fn a_batch_that_grew_too_large_for_a_brief_execution_is_left_to_the_core() {
    const LARGE: &str = "max_batch_size: 8 dynamic_batching { } \
                         input [ { name: 'a' data_type: TYPE_INT32 dims: [ -1 ] } ] \
                         output [ { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
    let bytes = vec![0; 48 << 10];
    let shape = [1, i64::try_from(bytes.len() / 4).unwrap()];
    for (offer, expected) in [
        (InlineOffer::of_brief_execution(bytes.len()), Progress::Open),
        (InlineOffer::of_short_execution(bytes.len()), Progress::Done),
    ] {
        let fake = Fake {
            can_begin: true,
            ..Fake::default()
        };
        let bed = Bed::cpus(LARGE, fake, 1);
        bed.wait_idle();
        let admit = |slot| {
            let drafted = draft(vec![input("a", DataType::Int32, &shape, &[&bytes])]);
            bed.admit_draft(drafted, slot).unwrap()
        };
        let mut offer = offer;
        bed.version.submit(admit(0), &mut offer).unwrap();
        let turn = offer.into_turn().expect("nothing is known yet");
        let submitted = bed.version.submit(admit(1), &mut InlineOffer::none());
        assert!(submitted.is_ok());
        assert_eq!(progress(turn), Some(expected));
        assert_eq!(bed.recorder.wait(2).len(), 2);
        bed.stop();
    }
}

#[test]
fn a_panic_fails_the_request_and_nothing_else() {
    let fake = Fake {
        can_begin: true,
        panics: true,
        ..Fake::default()
    };
    let bed = Bed::cpus(CONFIG, fake, 1);
    for slot in 0..2 {
        bed.wait_idle();
        let turn = bed.offer(slot).expect("the core is idle");
        assert_eq!(progress(turn), Some(Progress::Done));
        let reply = bed.recorder.wait(1).remove(0);
        assert_eq!(reply.slot(), slot);
    }
    bed.stop();
}

#[test]
fn instances_that_cannot_begin_are_left_alone() {
    let bed = Bed::cpus(CONFIG, Fake::default(), 1);
    for slot in 0..10 {
        assert!(bed.offer(slot).is_none());
    }
    assert_eq!(bed.recorder.wait(10).len(), 10);
    bed.stop();
}

#[test]
fn a_model_says_that_it_is_brief_or_is_to_be_left_alone() {
    let parameter = |value| {
        format!(
            "{CONFIG} instance_group [ {{ kind: KIND_CPU }} ] \
             parameters {{ key: 'CONCH_INLINE' value {{ string_value: '{value}' }} }}"
        )
    };
    let bed = Bed::cpus(&parameter("true"), Fake::default(), 1);
    bed.wait_idle();
    let turn = bed.offer(0).expect("the core is idle");
    assert_eq!(progress(turn), Some(Progress::Done));
    assert_eq!(bed.begun(), [std::thread::current().id()]);
    bed.stop();
    let fake = Fake {
        can_begin: true,
        ..Fake::default()
    };
    let bed = Bed::cpus(&parameter("false"), fake, 1);
    for slot in 0..40 {
        assert!(bed.offer(slot).is_none());
    }
    assert_eq!(bed.recorder.wait(40).len(), 40);
    bed.stop();
}

#[test]
fn models_that_wait_for_more_requests_are_left_alone() {
    let config = format!("{CONFIG} dynamic_batching {{ max_queue_delay_microseconds: 100 }}");
    let fake = Fake {
        can_begin: true,
        ..Fake::default()
    };
    let bed = Bed::cpus(&config, fake, 1);
    for slot in 0..10 {
        assert!(bed.offer(slot).is_none());
    }
    assert_eq!(bed.recorder.wait(10).len(), 10);
    bed.stop();
}

/// Submits with offers, and executes two of three that are taken.
fn submit_many(bed: &Bed, slots: std::ops::Range<u64>) {
    for slot in slots {
        let leaves_open = slot % 7 == 0;
        bed.fake.leaves_open.store(leaves_open, Ordering::SeqCst);
        match bed.offer(slot) {
            Some(turn) if slot % 3 != 0 => drop(progress(turn)),
            turn => drop(turn),
        }
    }
}

#[test]
fn submitters_and_cores_together_lose_nothing() {
    const PER_THREAD: u64 = 2_000;
    const COUNT: usize = 6_000;
    for core_count in [1, 2] {
        let fake = Fake {
            can_begin: true,
            ..Fake::default()
        };
        let bed = &Bed::cpus(CONFIG, fake, core_count);
        std::thread::scope(|scope| {
            for first in [0, PER_THREAD, 2 * PER_THREAD] {
                scope.spawn(move || submit_many(bed, first..first + PER_THREAD));
            }
        });
        let replies = bed.recorder.wait(COUNT);
        let slots: HashSet<u64> = replies.iter().map(|reply| reply.slot()).collect();
        assert_eq!(slots.len(), COUNT);
    }
}
