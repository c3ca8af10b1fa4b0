//! Cores with a backend whose executions the test lets go one by one.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use conch_config::{DataType, InstanceKind};

mod device_cores;
mod inline;
mod rate;
mod shared_cpus;
mod streams;

use crate::backend::{ExecutionPolicy, Instance, InstanceSpec};
use crate::execution::cores::*;

use crate::execution::rate_limiter::RateLimiter;
use crate::execution::warm_up::WarmUp;
use crate::testing::{Recorder, draft, input, queued};
use crate::threads::timer_thread::TimerThread;
use crate::threads::topology::Topology;
use crate::{
    Batch, Code, Completion, CorrelationId, Draft, InlineOffer, OwnedRequest, PendingResponses,
    Progress, RequestHandle, SequenceFlags, Timestamps, cancel,
};

const CONFIG: &str = "max_batch_size: 8 input [ { name: 'a' data_type: TYPE_INT32 dims: [ 1 ] } ] \
                      output [ { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";

/// Instances that wait at a gate inside Execute, and a record of what they did.
#[derive(Default)]
struct Fake {
    gate: Mutex<Gate>,
    changed: Condvar,
    batches: Mutex<Vec<Vec<u64>>>,
    threads: Mutex<HashSet<ThreadId>>,
    dropped: AtomicUsize,
    panics: bool,
    fails_at: Option<&'static str>,
    /// Whether instances execute in two parts, and leave the first open.
    can_begin: bool,
    leaves_open: AtomicBool,
    /// How long the first part takes.
    begin_takes: Duration,
    /// Where batches began.
    begun: Mutex<Vec<ThreadId>>,
    /// Lets so many requests into a batch; and whom it cancels while it looks at them.
    strategy: Option<(usize, u64)>,
}

#[derive(Default)]
struct Gate {
    is_closed: bool,
    passes: usize,
    waiting: usize,
}

impl Fake {
    fn closed() -> Fake {
        Fake {
            gate: Mutex::new(Gate {
                is_closed: true,
                ..Gate::default()
            }),
            ..Fake::default()
        }
    }

    fn pass(&self) {
        let mut gate = self.gate.lock().unwrap();
        if gate.is_closed {
            gate.waiting += 1;
            self.changed.notify_all();
            while gate.passes == 0 {
                gate = self.changed.wait(gate).unwrap();
            }
            gate.passes -= 1;
            gate.waiting -= 1;
            self.changed.notify_all();
        }
    }

    fn let_go(&self, count: usize) {
        self.gate.lock().unwrap().passes += count;
        self.changed.notify_all();
    }

    /// Waits until `count` executions are inside at once.
    fn wait_inside(&self, count: usize) {
        let gate = self.gate.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(gate, Duration::from_secs(20), |gate| gate.waiting != count)
            .unwrap();
        assert!(
            !waited.1.timed_out(),
            "{} of {count} inside",
            waited.0.waiting
        );
    }
}

struct FakeInstance {
    fake: Arc<Fake>,
    home: ThreadId,
    open: Batch,
}

impl backend::Model for Fake {
    fn config(&self) -> Arc<conch_config::ResolvedConfig> {
        unreachable!("the tests bring their configuration")
    }

    fn bind(&self, _: &Arc<ModelVersion>) {}

    fn batch_strategy(&self) -> Option<Box<dyn backend::BatchStrategy>> {
        let (most, cancels) = self.strategy?;
        let joined = 0;
        Some(Box::new(Few {
            most,
            cancels,
            joined,
        }))
    }

    fn create_instance(self: Arc<Self>, spec: InstanceSpec) -> Result<Box<dyn Instance>, Error> {
        if self.fails_at == Some(&*spec.name) {
            return Err(Error::internal("no such device"));
        }
        let home = std::thread::current().id();
        self.threads.lock().unwrap().insert(home);
        Ok(Box::new(FakeInstance {
            fake: self,
            home,
            open: Batch::new(),
        }))
    }
}

struct Few {
    most: usize,
    cancels: u64,
    joined: usize,
}

impl backend::BatchStrategy for Few {
    fn begin(&mut self) {
        self.joined = 0;
    }

    fn includes(&mut self, request: OwnedRequest) -> (OwnedRequest, bool) {
        if request.shared().slot == self.cancels {
            assert!(
                cancel(request.handle()).into_error().is_none(),
                "it is looked at"
            );
        }
        let joins = self.joined < self.most;
        self.joined += usize::from(joins);
        (request, joins)
    }

    fn end(&mut self) {
        self.joined = usize::MAX;
    }
}

impl Instance for FakeInstance {
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        assert_eq!(std::thread::current().id(), self.home);
        let slots = batch.iter().map(|live| live.shared().slot).collect();
        self.fake.batches.lock().unwrap().push(slots);
        self.fake.pass();
        assert!(!self.fake.panics, "the backend is broken");
        answer(batch, pending);
    }

    fn can_begin(&self) -> bool {
        self.fake.can_begin
    }

    fn begin(
        &mut self,
        batch: &mut Batch,
        pending: &mut PendingResponses,
        _limit: Duration,
    ) -> Progress {
        assert!(self.open.is_empty(), "it is executing");
        let own = std::thread::current().id();
        self.fake.begun.lock().unwrap().push(own);
        std::thread::sleep(self.fake.begin_takes);
        assert!(!self.fake.panics, "the backend is broken");
        if self.fake.leaves_open.load(Ordering::SeqCst) {
            self.open.append(batch);
            return Progress::Open;
        }
        answer(batch, pending);
        Progress::Done
    }

    fn end(&mut self, pending: &mut PendingResponses) {
        assert_eq!(std::thread::current().id(), self.home);
        assert!(!self.open.is_empty(), "nothing is open");
        self.fake.pass();
        answer(&mut self.open, pending);
    }
}

fn answer(batch: &mut Batch, pending: &mut PendingResponses) {
    for live in batch.drain(..) {
        pending.push(live.shared(), None, true);
    }
}

impl Drop for FakeInstance {
    fn drop(&mut self) {
        assert_eq!(std::thread::current().id(), self.home);
        self.fake.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn spec(index: usize, kind: InstanceKind, device_id: i32) -> InstanceSpec {
    InstanceSpec {
        name: format!("m_0_{index}"),
        kind,
        device_id,
        host_policy: String::new(),
        is_passive: false,
        profiles: Vec::new(),
        secondary_devices: Vec::new(),
        rate_limit: Default::default(),
    }
}

fn placement(shard_cpus: &[usize]) -> Placement {
    Placement::new(
        &Topology::detect(),
        shard_cpus,
        true,
        Arc::new(TimerThread::default()),
        &[],
    )
}

struct Bed {
    version: Arc<ModelVersion>,
    fake: Arc<Fake>,
    recorder: Arc<Recorder>,
    cores: Option<Cores>,
}

impl Bed {
    fn new(config: &str, fake: Fake, specs: Vec<InstanceSpec>, policy: ExecutionPolicy) -> Bed {
        Bed::try_new(config, fake, specs, policy, false).unwrap()
    }

    fn try_new(
        config: &str,
        fake: Fake,
        specs: Vec<InstanceSpec>,
        policy: ExecutionPolicy,
        parallel: bool,
    ) -> Result<Bed, Error> {
        let instance_plan = InstancePlan {
            specs,
            policy,
            is_parallel: parallel,
            warm_up: WarmUp::default(),
            limiter: None,
            device_cores: Arc::default(),
            progress: Arc::default(),
        };
        Bed::start(config, &Arc::new(fake), instance_plan)
    }

    fn start(config: &str, fake: &Arc<Fake>, instance_plan: InstancePlan) -> Result<Bed, Error> {
        Bed::start_at(config, fake, instance_plan, &placement(&[]))
    }

    fn start_at(
        config: &str,
        fake: &Arc<Fake>,
        instance_plan: InstancePlan,
        placement: &Placement,
    ) -> Result<Bed, Error> {
        let as_model: Arc<dyn backend::Model> = Arc::clone(fake) as _;
        let strategy = as_model.batch_strategy();
        let (parts, queue) = queued(config, &instance_plan, strategy, &placement.timer_thread);
        let version = Arc::new(ModelVersion::new(parts));
        let cores = start_cores(&version, &queue, &as_model, instance_plan, placement)?;
        Ok(Bed {
            version,
            fake: Arc::clone(fake),
            recorder: Arc::default(),
            cores: Some(cores),
        })
    }

    fn cpus(config: &str, fake: Fake, count: usize) -> Bed {
        Bed::new(
            config,
            fake,
            (0..count)
                .map(|index| spec(index, InstanceKind::Cpu, 0))
                .collect(),
            ExecutionPolicy::Blocking,
        )
    }

    fn admit(&self, slot: u64) -> Result<RequestHandle, Error> {
        self.admit_of(0, SequenceFlags::NONE, slot)
    }

    /// A request of sequence `id`.
    fn admit_of(
        &self,
        id: u64,
        sequence_flags: SequenceFlags,
        slot: u64,
    ) -> Result<RequestHandle, Error> {
        let drafted = Draft {
            correlation_id: CorrelationId::Unsigned(id),
            sequence_flags,
            ..draft(vec![input("a", DataType::Int32, &[1, 1], &[&[0; 4]])])
        };
        self.admit_draft(drafted, slot)
    }

    fn admit_draft(&self, drafted: Draft<'_>, slot: u64) -> Result<RequestHandle, Error> {
        let completion: Arc<dyn Completion> = self.recorder.clone();
        let timestamps = Timestamps {
            request_start_ns: crate::clock::monotonic_ns(),
            ..Timestamps::default()
        };
        crate::testing::admit(&self.version, drafted, &completion, slot, timestamps)
    }

    fn submit(&self, slot: u64) -> RequestHandle {
        let handle = self.admit(slot).unwrap();
        self.version
            .submit(Arc::clone(&handle), &mut InlineOffer::none())
            .unwrap();
        handle
    }

    fn batches(&self) -> Vec<Vec<u64>> {
        std::mem::take(&mut *self.fake.batches.lock().unwrap())
    }

    fn stop(mut self) {
        self.cores.take().unwrap().stop();
        assert_eq!(
            (
                self.version.live_count(),
                self.version.statistics.totals().pending_count
            ),
            (0, 0)
        );
    }
}

#[test]
fn three_instances_execute_three_requests_and_the_fourth_waits() {
    let bed = Bed::cpus(CONFIG, Fake::closed(), 3);
    (0..4).for_each(|slot| drop(bed.submit(slot)));
    bed.fake.wait_inside(3);
    // Time must pass in which nothing happens.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(bed.batches().len(), 3, "the fourth has not begun");
    bed.fake.let_go(1);
    bed.recorder.wait(1);
    bed.fake.wait_inside(3);
    assert_eq!(bed.batches(), [[3]]);
    bed.fake.let_go(3);
    assert_eq!(bed.recorder.wait(3).len(), 3);
    bed.stop();
}

#[test]
fn sequences_under_way_may_end_while_the_server_stops() {
    let bed = Bed::cpus(
        &format!("sequence_batching {{ }} {CONFIG}"),
        Fake::closed(),
        1,
    );
    let send = |id, flags, slot| {
        bed.version.submit(
            bed.admit_of(id, flags, slot).unwrap(),
            &mut InlineOffer::none(),
        )
    };
    send(7, SequenceFlags::START, 0).unwrap();
    bed.fake.wait_inside(1);
    bed.cores.as_ref().unwrap().close();
    assert!(bed.version.is_closed());
    send(7, SequenceFlags::END, 1).unwrap();
    for flags in [
        SequenceFlags::START,
        SequenceFlags::START | SequenceFlags::END,
    ] {
        let refused = send(8, flags, 2).unwrap_err();
        let words =
            "Server is stopping, scheduler for model has stopped accepting new inference requests";
        assert_eq!(
            (refused.code, &*refused.message),
            (Code::Unavailable, words)
        );
    }
    bed.fake.let_go(2);
    assert_eq!(bed.recorder.wait(2).len(), 2);
    assert_eq!(bed.batches(), [[0], [1]]);
    bed.stop();
}

#[test]
fn a_strategy_ends_batches_and_loses_no_cancel() {
    let fake = Fake {
        strategy: Some((3, 5)),
        ..Fake::closed()
    };
    let bed = Bed::cpus(&format!("dynamic_batching {{ }} {CONFIG}"), fake, 1);
    bed.submit(0);
    bed.fake.wait_inside(1);
    (1..9).for_each(|slot| drop(bed.submit(slot)));
    bed.fake.let_go(4);
    let answers = bed.recorder.wait(9);
    // Request 5 was cancelled in the place of the second of its batch, which request 6 took; the
    // strategy counted it.
    assert_eq!(
        bed.batches(),
        [vec![0], vec![1, 2, 3], vec![4, 6], vec![7, 8]]
    );
    for answer in &answers {
        match answer.outcome() {
            None => assert_ne!(answer.slot(), 5),
            Some(Err(error)) => assert_eq!((answer.slot(), error.code), (5, Code::Cancelled)),
            Some(Ok(_)) => panic!("the fake answers without responses"),
        }
        assert!(answer.is_final());
    }
    assert_eq!(bed.version.model_statistics().inference.fail.count, 1);
    bed.stop();
}

#[test]
fn a_batch_grows_while_the_instance_is_busy() {
    let bed = Bed::cpus(
        &format!("dynamic_batching {{ }} {CONFIG}"),
        Fake::closed(),
        1,
    );
    bed.submit(0);
    bed.fake.wait_inside(1);
    (1..12).for_each(|slot| drop(bed.submit(slot)));
    let cancelled = bed.submit(12);
    let wakes = bed.recorder.wake_count();
    assert!(cancel(&cancelled).into_error().is_some());
    bed.fake.let_go(3);
    bed.recorder.wait(12);
    assert_eq!(
        bed.batches(),
        [vec![0], (1..9).collect(), (9..12).collect()]
    );
    drop(cancelled);
    // A wake follows its deliveries: the last one is counted for certain once the core has ended.
    let recorder = Arc::clone(&bed.recorder);
    bed.stop();
    assert_eq!(recorder.wake_count() - wakes, 3, "one wake per batch");
}

#[test]
fn the_delay_gathers_a_batch_and_ends_on_time() {
    const DELAY: Duration = Duration::from_millis(40);
    let config = format!(
        "dynamic_batching {{ max_queue_delay_microseconds: 40000 preferred_batch_size: [ 4 ] }} \
         {CONFIG}"
    );
    let bed = Bed::cpus(&config, Fake::default(), 2);
    let start = Instant::now();
    (0..2).for_each(|slot| drop(bed.submit(slot)));
    bed.recorder.wait(2);
    assert!(start.elapsed() >= DELAY, "{:?}", start.elapsed());
    assert_eq!(bed.batches(), [[0, 1]]);
    (0..4).for_each(|slot| drop(bed.submit(slot)));
    bed.recorder.wait(4);
    assert_eq!(
        bed.batches(),
        [[0, 1, 2, 3]],
        "a preferred size does not wait"
    );
    bed.stop();
}

#[test]
fn timeouts_are_answered_while_every_core_executes() {
    let config = format!(
        "dynamic_batching {{ default_queue_policy {{ default_timeout_microseconds: 20000 }} }} \
         {CONFIG}"
    );
    let bed = Bed::cpus(&config, Fake::closed(), 1);
    bed.submit(0);
    bed.fake.wait_inside(1);
    // They come when no core looks at the inbox.
    (1..3).for_each(|slot| drop(bed.submit(slot)));
    let deliveries = bed.recorder.wait(2);
    for delivery in &deliveries {
        let error = delivery.outcome().unwrap().as_ref().unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (crate::Code::Unavailable, "Request timeout expired")
        );
    }
    assert_eq!(bed.version.statistics.totals().failures[0], 2, "rejected");
    bed.fake.let_go(1);
    bed.recorder.wait(1);
    bed.stop();
}

#[test]
fn a_panic_fails_the_batch_and_the_core_goes_on() {
    let bed = Bed::cpus(
        CONFIG,
        Fake {
            panics: true,
            ..Fake::default()
        },
        1,
    );
    for slot in 0..2 {
        bed.submit(slot);
        let deliveries = bed.recorder.wait(1);
        let error = deliveries[0].outcome().unwrap().as_ref().unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (
                crate::Code::Internal,
                "panic in the backend: the backend is broken"
            )
        );
    }
    bed.stop();
}

#[test]
fn stop_executes_what_is_queued_and_refuses_the_rest() {
    let bed = Bed::cpus(CONFIG, Fake::closed(), 2);
    (0..5).for_each(|slot| drop(bed.submit(slot)));
    bed.fake.wait_inside(2);
    bed.cores.as_ref().unwrap().close();
    let error = bed
        .version
        .submit(bed.admit(9).unwrap(), &mut InlineOffer::none())
        .unwrap_err();
    assert_eq!(
        (error.code, &*error.message),
        (
            crate::Code::Unavailable,
            "[request id: <id_unknown>] Server is stopping, scheduler for model has stopped \
             accepting new inference requests"
        )
    );
    bed.fake.let_go(5);
    let (recorder, fake) = (Arc::clone(&bed.recorder), Arc::clone(&bed.fake));
    bed.stop();
    assert_eq!(recorder.wait(5).len(), 5);
    assert_eq!(fake.dropped.load(Ordering::SeqCst), 2);
}

#[test]
fn responses_keep_the_order_of_batches_if_asked_to() {
    let config = format!(
        "dynamic_batching {{ preserve_ordering: true preferred_batch_size: [ 1 ] }} {CONFIG}"
    );
    let bed = Bed::cpus(&config, Fake::closed(), 2);
    bed.submit(0);
    bed.fake.wait_inside(1);
    bed.submit(1);
    bed.fake.wait_inside(2);
    // Whichever goes first, slot 0 is delivered before slot 1: the recorder sorts, so wait for each
    // alone.
    bed.fake.let_go(1);
    bed.fake.wait_inside(1);
    bed.fake.let_go(1);
    let deliveries = bed.recorder.wait(2);
    assert_eq!(
        deliveries
            .iter()
            .map(|delivery| delivery.slot())
            .collect::<Vec<_>>(),
        [0, 1]
    );
    bed.stop();
}

#[test]
fn threads_follow_the_execution_policy() {
    let specs = || {
        let mut specs: Vec<_> = [0, 1, 0, 1]
            .into_iter()
            .enumerate()
            .map(|(index, device)| spec(index, InstanceKind::Gpu, device))
            .collect();
        specs.push(InstanceSpec {
            is_passive: true,
            ..spec(4, InstanceKind::Gpu, 0)
        });
        specs
    };
    for (policy, threads) in [
        (ExecutionPolicy::Blocking, 5),
        (ExecutionPolicy::DeviceBlocking, 3),
    ] {
        let bed = Bed::new(CONFIG, Fake::default(), specs(), policy);
        assert_eq!(bed.fake.threads.lock().unwrap().len(), threads);
        (0..20).for_each(|slot| drop(bed.submit(slot)));
        bed.recorder.wait(20);
        let fake = Arc::clone(&bed.fake);
        bed.stop();
        assert_eq!(fake.dropped.load(Ordering::SeqCst), 5, "passive ones too");
    }
}

#[test]
fn a_failing_instance_fails_the_start_and_the_others_are_dropped() {
    for parallel in [false, true] {
        let fake = Fake {
            fails_at: Some("m_0_1"),
            ..Fake::default()
        };
        let specs = (0..3)
            .map(|index| spec(index, InstanceKind::Cpu, 0))
            .collect();
        let error = Bed::try_new(CONFIG, fake, specs, ExecutionPolicy::Blocking, parallel)
            .err()
            .expect("instance 1 fails");
        assert_eq!(&*error.message, "no such device");
    }
}

#[test]
fn names_of_threads_fit_the_system() {
    for (instance, expected) in [
        ("m_0_1", "m_0_1"),
        ("a_very_long_model_name_0_12", "odel_name_0_12"),
        ("", ""),
    ] {
        assert!(
            thread_name(instance).len() <= 15 && thread_name(instance).ends_with(expected),
            "{instance}"
        );
    }
}
