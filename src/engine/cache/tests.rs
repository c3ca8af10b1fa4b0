//! Requests of a model whose one instance waits at a gate, with the local cache and with one that
//! is slow, fails or panics.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use conch_config::{DataType, InstanceKind};

use crate::backend;
use crate::cache::*;
use crate::execution::cores::{Cores, InstancePlan, start_cores};
use crate::execution::warm_up::WarmUp;
use crate::model::stats::{ExecutionSpan, InferenceStatistics};
use crate::testing::{Recorder, draft, input, parts, queued, until};
use crate::threads::placement::Placement;
use crate::threads::timer_thread::TimerThread;
use crate::threads::topology::Topology;
use crate::{
    Batch, Code, Completion, Delivery, Draft, Error, ExecutionPolicy, InlineOffer, Instance,
    InstanceSpec, ModelVersion, Output, PendingResponses, RequestHandle, Response, ResponseParts,
    Timestamps, VersionParts, cancel,
};

const CONFIG: &str = "max_batch_size: 8 response_cache { enable: true }
    input [ \
                      { name: 'a' data_type: TYPE_UINT8 dims: [ -1 ] } ] output [ \
                      { name: 'x' data_type: TYPE_UINT8 dims: [ -1 ] } ]";

/// Answers with the inputs, once the gate lets it. The input 'fails' fails.
#[derive(Default)]
struct Echo {
    /// Executions that may pass; none: all.
    passes: Mutex<Option<usize>>,
    changed: Condvar,
    execution_count: AtomicUsize,
}

impl Echo {
    fn let_go(&self, count: usize) {
        if let Some(passes) = &mut *self.passes.lock().unwrap() {
            *passes += count;
        }
        self.changed.notify_all();
    }

    fn executions(&self) -> usize {
        self.execution_count.load(Ordering::SeqCst)
    }

    fn wait_executions(&self, count: usize) {
        until("executions", || self.executions() >= count);
    }
}

struct EchoInstance(Arc<Echo>);

impl backend::Model for Echo {
    fn config(&self) -> Arc<conch_config::ResolvedConfig> {
        unreachable!("the tests bring their configuration")
    }

    fn bind(&self, _: &Arc<ModelVersion>) {}

    fn create_instance(self: Arc<Self>, _: InstanceSpec) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(EchoInstance(self)))
    }
}

impl Instance for EchoInstance {
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        self.0.execution_count.fetch_add(1, Ordering::SeqCst);
        let passes = self.0.passes.lock().unwrap();
        let mut passes = self
            .0
            .changed
            .wait_while(passes, |passes| *passes == Some(0))
            .unwrap();
        if let Some(passes) = &mut *passes {
            *passes -= 1;
        }
        drop(passes);
        for live in batch.drain(..) {
            let origin = Arc::clone(live.handle());
            let model = Arc::clone(&origin.shared().model);
            let given = &live.inputs[0];
            let outcome = if given.chunks[0].as_ref() == b"fails" {
                Err(Error::internal("told to"))
            } else {
                Ok(Response::from(ResponseParts {
                    model: Arc::clone(&model),
                    outputs: [Output {
                        name: "x".into(),
                        data_type: given.data_type,
                        shape: given.shape.clone(),
                        data: given.chunks[0].clone(),
                    }]
                    .into_iter()
                    .collect(),
                    parameters: Vec::new(),
                }))
            };
            let span = ExecutionSpan::default();
            model
                .statistics
                .report_request(None, outcome.is_ok(), &live.timestamps, 1, &span);
            drop(live);
            pending.push(origin.shared(), Some(outcome), true);
        }
    }
}

fn placement() -> Placement {
    let timer_thread = Arc::new(TimerThread::default());
    Placement::new(&Topology::detect(), &[], true, timer_thread, &[])
}

/// The same parts, with the cache in front.
fn in_front(caching: &Arc<CacheService>, parts: VersionParts) -> VersionParts {
    let executor = caching.in_front_of(
        parts.executor,
        &parts.namespace,
        &parts.config,
        parts.version,
    );
    VersionParts { executor, ..parts }
}

struct Bed {
    version: Arc<ModelVersion>,
    caching: Arc<CacheService>,
    echo: Arc<Echo>,
    recorder: Arc<Recorder>,
    cores: Option<Cores>,
}

impl Bed {
    /// Instances pass `passes` executions (none: all) until [`Echo::let_go`].
    fn new(config: &str, cache: Arc<dyn ResponseCache>, passes: Option<usize>) -> Bed {
        let caching = CacheService::start(cache, &placement()).unwrap();
        Bed::with(config, caching, passes)
    }

    fn with(config: &str, caching: Arc<CacheService>, passes: Option<usize>) -> Bed {
        let echo = Arc::new(Echo {
            passes: Mutex::new(passes),
            ..Echo::default()
        });
        let as_model: Arc<dyn backend::Model> = echo.clone();
        let spec = InstanceSpec {
            name: "m_0".to_owned(),
            kind: InstanceKind::Cpu,
            device_id: 0,
            host_policy: String::new(),
            is_passive: false,
            profiles: Vec::new(),
            secondary_devices: Vec::new(),
            rate_limit: Default::default(),
        };
        let instance_plan = InstancePlan {
            specs: vec![spec],
            policy: ExecutionPolicy::Blocking,
            is_parallel: false,
            warm_up: WarmUp::default(),
            limiter: None,
            device_cores: Arc::default(),
            progress: Arc::default(),
        };
        let placement = placement();
        let (parts, queue) = queued(config, &instance_plan, None, &placement.timer_thread);
        let version = Arc::new(ModelVersion::new(in_front(&caching, parts)));
        let cores = start_cores(&version, &queue, &as_model, instance_plan, &placement).unwrap();
        Bed {
            version,
            caching,
            echo,
            recorder: Arc::default(),
            cores: Some(cores),
        }
    }

    fn local() -> Arc<dyn ResponseCache> {
        Arc::new(LocalCache::new(64 << 20))
    }

    fn try_send(&self, slot: u64, data: &[u8]) -> Result<RequestHandle, Error> {
        let handle = self.admit(slot, data)?;
        self.version
            .submit(Arc::clone(&handle), &mut InlineOffer::none())?;
        Ok(handle)
    }

    fn admit(&self, slot: u64, data: &[u8]) -> Result<RequestHandle, Error> {
        let completion: Arc<dyn Completion> = self.recorder.clone();
        let shape = [1, i64::try_from(data.len()).unwrap()];
        let drafted: Draft<'_> = draft(vec![input("a", DataType::Uint8, &shape, &[data])]);
        let timestamps = Timestamps {
            request_start_ns: crate::clock::monotonic_ns(),
            ..Timestamps::default()
        };
        crate::testing::admit(&self.version, drafted, &completion, slot, timestamps)
    }

    fn send(&self, slot: u64, data: &[u8]) -> RequestHandle {
        self.try_send(slot, data).unwrap()
    }

    /// The next delivery: its slot and its output's bytes.
    fn answer(&self) -> (u64, Vec<u8>) {
        let Some(Delivery::Final { slot, outcome }) = self.recorder.wait(1).pop() else {
            panic!("the answer is not the last");
        };
        let response = outcome.unwrap();
        (slot, response.outputs[0].data.as_ref().to_vec())
    }

    /// A thread of the cache holds a request for a moment longer than its client waits.
    fn wait_live(&self, count: u64) {
        until("live requests", || self.version.live_count() == count);
    }

    fn figures(&self) -> InferenceStatistics {
        self.version.statistics.totals().inference
    }

    fn hits_and_misses(&self) -> (u64, u64) {
        let figures = self.figures();
        (figures.cache_hit.count, figures.cache_miss.count)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.echo.let_go(1_000);
        drop(self.cores.take());
        self.caching.stop();
    }
}

#[test]
fn the_second_request_is_a_hit_though_the_instance_is_blocked_and_the_queue_full() {
    let config =
        format!("{CONFIG} dynamic_batching {{ default_queue_policy {{ max_queue_size: 1 }} }}");
    let bed = Bed::new(&config, Bed::local(), Some(1));
    bed.send(1, b"known");
    assert_eq!(bed.answer(), (1, b"known".to_vec()));
    assert_eq!(bed.hits_and_misses(), (0, 1));
    // One inside, one in the queue: it is full.
    bed.send(2, b"inside");
    bed.echo.wait_executions(2);
    bed.send(3, b"queued");
    let refused = bed.try_send(4, b"too many").map(drop).unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.ends_with("Exceeds maximum queue size"));
    for slot in 5..10 {
        bed.send(slot, b"known");
        assert_eq!(bed.answer(), (slot, b"known".to_vec()));
    }
    let figures = bed.figures();
    assert_eq!((figures.cache_hit.count, figures.cache_miss.count), (5, 1));
    assert_eq!(figures.success.count, 6);
    assert_eq!(figures.queue.count, 6);
    assert_eq!(figures.compute_infer.count, 1, "a hit computes nothing");
    assert_eq!(figures.fail.count, 0, "a full queue is no failure");
    assert!(figures.success.duration_ns >= figures.cache_hit.duration_ns);
    let totals = bed.version.statistics.totals();
    assert_eq!((totals.inference_count, totals.pending_count), (1, 1));
    assert_eq!(bed.version.live_count(), 2);
    bed.echo.let_go(2);
    assert_eq!(bed.recorder.wait(2).len(), 2);
    assert_eq!(bed.hits_and_misses(), (5, 3));
}

#[test]
fn the_submitter_executes_what_the_cache_does_not_know() {
    let config = format!(
        "{CONFIG} instance_group [ {{ kind: KIND_CPU }} ] \
         parameters {{ key: 'CONCH_INLINE' value {{ string_value: 'true' }} }}"
    );
    let bed = Bed::new(&config, Bed::local(), None);
    let offer = |slot: u64, data: &[u8]| {
        let mut offer = InlineOffer::new(true);
        let handle = bed.admit(slot, data).unwrap();
        bed.version.submit(handle, &mut offer).unwrap();
        offer.into_turn()
    };
    let slot = Cell::new(0_u64);
    // The first ones are the core's, and so is what comes before it sleeps.
    until("an offer that is taken", || {
        slot.set(slot.get() + 1);
        let data = slot.get().to_le_bytes();
        let turn = offer(slot.get(), &data);
        let is_executed = turn.is_some_and(|turn| turn.run(Duration::from_secs(1)).is_some());
        assert_eq!(bed.answer(), (slot.get(), data.to_vec()));
        is_executed
    });
    let known = slot.get().to_le_bytes();
    let executions = bed.echo.executions();
    assert!(offer(0, &known).is_none(), "it is a hit");
    assert_eq!(bed.answer(), (0, known.to_vec()));
    assert_eq!(bed.echo.executions(), executions);
}

#[test]
fn a_miss_costs_its_overhead_in_the_request_and_in_the_miss() {
    let bed = Bed::new(CONFIG, Arc::new(Slow::default()), None);
    bed.send(1, b"x");
    bed.answer();
    let figures = bed.figures();
    // A lookup and an insertion of 20 ms each.
    assert!(figures.cache_miss.duration_ns >= 40_000_000);
    // The lookup was in the request's time before the backend reported, and the overhead is added:
    // as upstream counts.
    assert!(figures.success.duration_ns >= 60_000_000);
}

#[test]
fn failures_and_oversized_responses_are_not_kept() {
    let bed = Bed::new(CONFIG, Arc::new(LocalCache::new(2_000)), None);
    for slot in 1..3 {
        bed.send(slot, b"fails");
        let delivery = bed.recorder.wait(1).pop().unwrap();
        assert_eq!(
            delivery.into_outcome().unwrap().map(drop).unwrap_err(),
            Error::internal("told to")
        );
    }
    assert_eq!(bed.echo.executions(), 2);
    assert_eq!(bed.hits_and_misses(), (0, 0), "only successes count");
    for slot in 3..5 {
        bed.send(slot, &[7; 3_000]);
        assert_eq!(bed.answer(), (slot, vec![7; 3_000]));
    }
    assert_eq!(bed.echo.executions(), 4);
    assert_eq!(
        bed.hits_and_misses(),
        (0, 2),
        "a failed insertion is a miss"
    );
}

#[test]
fn a_version_that_is_loaded_anew_answers_for_itself() {
    let bed = Bed::new(CONFIG, Bed::local(), None);
    bed.send(1, b"x");
    bed.answer();
    let again = Bed::with(CONFIG, Arc::clone(&bed.caching), None);
    for (slot, expected) in [(1, (0, 1)), (2, (1, 1))] {
        again.send(slot, b"x");
        again.answer();
        assert_eq!(again.hits_and_misses(), expected);
    }
}

#[test]
fn models_that_do_not_ask_for_it_have_no_cache() {
    let caching = CacheService::start(Bed::local(), &placement()).unwrap();
    for config in [
        "",
        "response_cache { enable: false }",
        "response_cache { }",
        "dynamic_batching { } max_batch_size: 1",
    ] {
        let config = crate::testing::config(&format!("backend: 'fake' {config}"));
        let bare = parts("m", 1, &config);
        let executor = Arc::clone(&bare.executor);
        let cached = in_front(&caching, bare).executor;
        assert!(Arc::ptr_eq(&cached, &executor), "{config:?}");
    }
    caching.stop();
}

#[test]
fn under_preserve_ordering_a_hit_waits_for_what_executes() {
    let config = format!("{CONFIG} dynamic_batching {{ preserve_ordering: true }}");
    let bed = Bed::new(&config, Bed::local(), Some(1));
    bed.send(1, b"known");
    bed.answer();
    bed.send(2, b"inside");
    bed.echo.wait_executions(2);
    bed.send(3, b"known");
    assert_eq!(bed.hits_and_misses(), (1, 1), "it is found at once");
    bed.echo.let_go(1);
    let slots: Vec<u64> = bed
        .recorder
        .wait_in_order(2)
        .iter()
        .map(|delivery| delivery.slot())
        .collect();
    assert_eq!(slots, [2, 3]);
}

#[test]
fn a_model_that_stops_answers_nothing_more() {
    let bed = Bed::new(CONFIG, Bed::local(), None);
    bed.send(1, b"x");
    bed.answer();
    bed.cores.as_ref().unwrap().close();
    let error = bed.try_send(2, b"x").map(drop).unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
    assert!(error.message.contains("Server is stopping"));
    assert_eq!(bed.version.live_count(), 0);
}

/// Remembers on which threads it was called; its lookups and insertions take 20 ms, or wait at a
/// gate.
#[derive(Default)]
struct Slow {
    kept: Mutex<HashMap<CacheKey, Arc<CachedResponse>>>,
    threads: Mutex<Vec<String>>,
    gate: Mutex<bool>,
    waiting: AtomicUsize,
    opened: Condvar,
    fails: bool,
    panics: bool,
    is_instant: bool,
}

impl Slow {
    fn enter(&self, what: &str) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        self.threads.lock().unwrap().push(format!("{what} {name}"));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(
            self.opened
                .wait_while(self.gate.lock().unwrap(), |is_closed| *is_closed)
                .unwrap(),
        );
        // It is slow: what does not wait for it has gone on by then.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!self.panics, "told to");
    }

    fn open(&self) {
        *self.gate.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn wait_inside(&self, count: usize) {
        until("calls of the cache", || {
            self.waiting.load(Ordering::SeqCst) >= count
        });
    }

    fn failure(&self) -> Result<(), Error> {
        match self.fails {
            true => Err(Error::internal("the cache is broken")),
            false => Ok(()),
        }
    }
}

impl ResponseCache for Slow {
    fn is_instant(&self) -> bool {
        self.is_instant
    }

    fn lookup(&self, key: CacheKey) -> Result<Option<Arc<CachedResponse>>, Error> {
        self.enter("lookup");
        self.failure()?;
        Ok(self.kept.lock().unwrap().get(&key).cloned())
    }

    fn insert(&self, key: CacheKey, response: &Response) -> Result<(), Error> {
        self.enter("insert");
        self.failure()?;
        let kept = Arc::new(CachedResponse::copy_of(response)?);
        match self.kept.lock().unwrap().insert(key, kept) {
            None => Ok(()),
            Some(_) => Err(Error::new(Code::AlreadyExists, "there")),
        }
    }
}

#[test]
fn a_slow_cache_is_called_on_its_own_threads_and_found_by_the_next_request() {
    let cache = Arc::new(Slow::default());
    let bed = Bed::new(CONFIG, cache.clone(), None);
    for slot in 1..4 {
        bed.send(slot, b"x");
        assert_eq!(bed.answer(), (slot, b"x".to_vec()));
    }
    assert_eq!(bed.echo.executions(), 1);
    assert_eq!(bed.hits_and_misses(), (2, 1));
    let threads = cache.threads.lock().unwrap().clone();
    assert_eq!(threads.len(), 4);
    assert!(
        threads.iter().all(|entry| entry.contains(" cache-")),
        "{threads:?}"
    );
}

#[test]
fn a_hit_of_a_slow_cache_needs_no_instance() {
    let cache = Arc::new(Slow::default());
    let bed = Bed::new(CONFIG, cache, Some(1));
    bed.send(1, b"known");
    bed.answer();
    bed.send(2, b"inside");
    bed.echo.wait_executions(2);
    bed.send(3, b"known");
    assert_eq!(bed.answer(), (3, b"known".to_vec()));
}

#[test]
fn what_waits_for_a_slow_cache_can_be_withdrawn() {
    let cache = Arc::new(Slow {
        gate: Mutex::new(true),
        ..Slow::default()
    });
    let bed = Bed::new(CONFIG, cache.clone(), None);
    let handle = bed.send(1, b"x");
    cache.wait_inside(1);
    let error = cancel(&handle).into_error().expect("nobody else has it");
    assert_eq!(error.code, Code::Cancelled);
    drop(handle);
    cache.open();
    bed.send(2, b"x");
    assert_eq!(bed.answer(), (2, b"x".to_vec()));
    assert_eq!(
        bed.echo.executions(),
        1,
        "the withdrawn one did not execute"
    );
    assert_eq!(bed.figures().fail.count, 1);
    bed.wait_live(0);
}

#[test]
fn a_cache_that_fails_or_panics_fails_no_request() {
    for (fails, panics, is_instant) in [
        (true, false, false),
        (false, true, false),
        (true, false, true),
    ] {
        let cache = Arc::new(Slow {
            fails,
            panics,
            is_instant,
            ..Slow::default()
        });
        let bed = Bed::new(CONFIG, cache, None);
        for slot in 1..3 {
            bed.send(slot, b"x");
            assert_eq!(bed.answer(), (slot, b"x".to_vec()));
        }
        assert_eq!(bed.echo.executions(), 2);
    }
}

#[test]
fn a_full_queue_is_the_answer_to_a_request_that_a_slow_cache_did_not_know() {
    let config =
        format!("{CONFIG} dynamic_batching {{ default_queue_policy {{ max_queue_size: 1 }} }}");
    let bed = Bed::new(&config, Arc::new(Slow::default()), Some(0));
    bed.send(1, b"inside");
    bed.echo.wait_executions(1);
    bed.send(2, b"queued");
    until("a pending request", || {
        bed.version.statistics.totals().pending_count > 0
    });
    bed.send(3, b"too many");
    let delivery = bed.recorder.wait(1).pop().unwrap();
    assert_eq!(delivery.slot(), 3);
    let error = delivery.into_outcome().unwrap().map(drop).unwrap_err();
    assert!(error.message.ends_with("Exceeds maximum queue size"));
    bed.wait_live(2);
}

/// The local cache, which tells what was asked of it where.
struct Watched {
    inner: LocalCache,
    threads: Mutex<Vec<String>>,
}

impl Watched {
    fn note(&self, what: &str) {
        let thread = std::thread::current();
        let is_cache_thread = thread.name().is_some_and(|name| name.starts_with("cache-"));
        let place = if is_cache_thread { "there" } else { "here" };
        self.threads.lock().unwrap().push(format!("{what} {place}"));
    }
}

impl ResponseCache for Watched {
    fn is_instant(&self) -> bool {
        true
    }

    fn try_lookup(&self, key: CacheKey) -> Option<Result<Option<Arc<CachedResponse>>, Error>> {
        self.note("try");
        self.inner.try_lookup(key)
    }

    fn lookup(&self, key: CacheKey) -> Result<Option<Arc<CachedResponse>>, Error> {
        self.note("lookup");
        self.inner.lookup(key)
    }

    fn insert(&self, key: CacheKey, response: &Response) -> Result<(), Error> {
        self.inner.insert(key, response)
    }
}

#[test]
fn long_inputs_are_hashed_on_a_thread_of_the_cache() {
    for (size, expected) in [(256 << 10, "try here"), ((256 << 10) + 1, "lookup there")] {
        let cache = Arc::new(Watched {
            inner: LocalCache::new(64 << 20),
            threads: Mutex::default(),
        });
        let bed = Bed::new(CONFIG, cache.clone(), None);
        let data = vec![3; size];
        for slot in 1..3 {
            bed.send(slot, &data);
            assert_eq!(bed.answer(), (slot, data.clone()));
        }
        assert_eq!(bed.hits_and_misses(), (1, 1));
        assert_eq!(*cache.threads.lock().unwrap(), [expected, expected]);
    }
}
