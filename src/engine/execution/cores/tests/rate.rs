//! Cores whose executions are limited.

use conch_config::{RateLimit, RateResource};

use crate::execution::cores::tests::*;

/// Cores that need so many `R` each while they execute, of `capacity`.
fn limited(config: &str, needs: &[u32], limiter: &Arc<RateLimiter>) -> Bed {
    let specs = needs.iter().enumerate().map(|(index, count)| InstanceSpec {
        rate_limit: RateLimit {
            resources: vec![RateResource {
                name: "R".into(),
                is_global: true,
                count: *count,
            }],
            priority: 1,
        },
        ..spec(index, InstanceKind::Cpu, 0)
    });
    let instance_plan = InstancePlan {
        specs: specs.collect(),
        policy: ExecutionPolicy::Blocking,
        is_parallel: false,
        warm_up: WarmUp::default(),
        limiter: Some(Arc::clone(limiter)),
        device_cores: Arc::default(),
        progress: Arc::default(),
    };
    Bed::start(config, &Arc::new(Fake::closed()), instance_plan).unwrap()
}

fn limiter(capacity: u64) -> Arc<RateLimiter> {
    RateLimiter::new(vec![crate::ResourceCapacity {
        name: "R".to_owned(),
        count: capacity,
        device: None,
    }])
}

const DYNAMIC: &str = "dynamic_batching { max_queue_delay_microseconds: 0 }";

#[test]
fn what_waits_for_resources_grows_together() {
    let bed = limited(&format!("{DYNAMIC} {CONFIG}"), &[1, 1], &limiter(1));
    bed.submit(0);
    bed.fake.wait_inside(1);
    // An instance is idle, and there is no resource for it.
    (1..4).for_each(|slot| drop(bed.submit(slot)));
    bed.fake.let_go(1);
    assert_eq!(bed.recorder.wait(1).len(), 1);
    bed.fake.wait_inside(1);
    bed.fake.let_go(1);
    bed.recorder.wait(3);
    assert_eq!(bed.batches(), [vec![0], vec![1, 2, 3]]);
    bed.stop();
}

#[test]
fn models_share_and_the_idle_hold_nothing() {
    let limiter = limiter(2);
    let small = limited(CONFIG, &[1, 1], &limiter);
    let large = limited(CONFIG, &[2], &limiter);
    large.submit(0);
    large.fake.wait_inside(1);
    (0..3).for_each(|slot| drop(small.submit(slot)));
    large.fake.let_go(1);
    large.recorder.wait(1);
    small.fake.wait_inside(2);
    large.submit(1);
    small.fake.let_go(3);
    small.recorder.wait(3);
    large.fake.wait_inside(1);
    large.fake.let_go(1);
    large.recorder.wait(1);
    small.stop();
    large.submit(2);
    large.fake.wait_inside(1);
    large.fake.let_go(1);
    large.stop();
}

#[test]
fn a_stop_executes_what_waits_for_resources() {
    let limiter = limiter(1);
    let bed = limited(CONFIG, &[1, 1, 1], &limiter);
    (0..5).for_each(|slot| drop(bed.submit(slot)));
    bed.fake.wait_inside(1);
    bed.cores.as_ref().unwrap().close();
    bed.fake.let_go(5);
    bed.recorder.wait(5);
    bed.stop();
}

#[test]
fn timeouts_pass_while_resources_are_awaited() {
    let limiter = limiter(1);
    let busy = limited(CONFIG, &[1], &limiter);
    busy.submit(0);
    busy.fake.wait_inside(1);
    let timed = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 20000 } }";
    let bed = limited(&format!("{timed} {CONFIG}"), &[1], &limiter);
    bed.submit(1);
    let late = bed.recorder.wait(1);
    let error = late[0].outcome().unwrap().as_ref().unwrap_err();
    assert_eq!(error.message, "Request timeout expired");
    busy.fake.let_go(1);
    busy.stop();
    bed.stop();
}

#[test]
fn a_model_that_could_never_execute_is_refused() {
    let limiter = limiter(1);
    let specs = vec![InstanceSpec {
        rate_limit: RateLimit {
            resources: vec![RateResource {
                name: "R".into(),
                is_global: true,
                count: 2,
            }],
            priority: 0,
        },
        ..spec(0, InstanceKind::Cpu, 0)
    }];
    let fake = Arc::new(Fake::default());
    let instance_plan = InstancePlan {
        specs,
        policy: ExecutionPolicy::Blocking,
        is_parallel: false,
        warm_up: WarmUp::default(),
        limiter: Some(limiter),
        device_cores: Arc::default(),
        progress: Arc::default(),
    };
    let refused = Bed::start(CONFIG, &fake, instance_plan);
    assert_eq!(
        refused.err().unwrap(),
        Error::invalid(
            "Resource count for \"R\" is limited to 1 which will prevent scheduling of one or more \
             model instances, the minimum required count is 2"
        )
    );
    assert_eq!(
        fake.threads.lock().unwrap().len(),
        0,
        "no instance was made"
    );
}
