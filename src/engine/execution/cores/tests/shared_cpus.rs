//! Cores that share their CPUs with shards, and defer wakes.

use super::*;

/// One core on CPUs of shards, whose requests' receiver is on them too.
fn bed() -> Bed {
    let instance_plan = InstancePlan {
        specs: vec![spec(0, InstanceKind::Cpu, 0)],
        policy: ExecutionPolicy::Blocking,
        is_parallel: false,
        warm_up: WarmUp::default(),
        limiter: None,
        device_cores: Arc::default(),
        progress: Arc::default(),
    };
    let cpus = Topology::detect().cpus;
    let fake = Arc::new(Fake::closed());
    let bed = Bed::start_at(CONFIG, &fake, instance_plan, &placement(&cpus)).unwrap();
    Bed {
        recorder: Arc::new(Recorder::near()),
        ..bed
    }
}

#[test]
fn whoever_got_an_answer_is_woken_in_the_end() {
    let bed = bed();
    bed.fake.let_go(usize::MAX / 2);
    let mut slot = 0;
    for burst in (1..40).chain([500, 1, 2]) {
        for _ in 0..burst {
            drop(bed.submit(slot));
            slot += 1;
        }
        assert_eq!(bed.recorder.wait(burst).len(), burst);
        bed.recorder.wait_for_wake();
    }
    bed.stop();
}

#[test]
fn a_backlog_of_brief_batches_wakes_its_receiver_few_times() {
    const BACKLOG: usize = 64;
    const FEW: usize = 8;
    // A busy machine may take the CPU from the core between two of them, in any one round.
    let mut rounds = (0..200).map(|round| {
        let bed = bed();
        (0..BACKLOG).for_each(|slot| drop(bed.submit(slot as u64)));
        // It is not brief, and defers nothing.
        bed.fake.wait_inside(1);
        bed.fake.let_go(BACKLOG);
        assert_eq!(bed.recorder.wait(BACKLOG).len(), BACKLOG, "round {round}");
        bed.recorder.wait_for_wake();
        let count = bed.recorder.wake_count();
        bed.stop();
        count
    });
    assert!(
        rounds.any(|count| count <= FEW),
        "each answer woke its receiver, in every round"
    );
}
