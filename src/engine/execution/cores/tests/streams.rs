//! Cores whose instances keep batches in flight on a device that the test lets go on.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use conch_config::{RateLimit, RateResource};

use crate::Delivery;
use crate::execution::cores::tests::*;
use crate::execution::streams::device_cores::DeviceCores;
use crate::testing::until;

/// A device, and what it saw.
#[derive(Default)]
pub(super) struct Device {
    pub(super) depth_max: usize,
    /// Batches that may still end, over all instances; none: all at once.
    pub(super) may_end: Option<AtomicUsize>,
    /// Of the first instance no batch ends.
    pub(super) holds_first: AtomicBool,
    pub(super) in_flight: AtomicUsize,
    pub(super) in_flight_max: AtomicUsize,
    pub(super) polls: AtomicUsize,
    pub(super) fails_polls: AtomicBool,
    pub(super) panics_at: Option<u64>,
    /// Calls that enqueue do not return.
    pub(super) blocks: AtomicBool,
    /// How long each takes.
    pub(super) call_ms: u64,
    pub(super) batches: Mutex<Vec<(String, Vec<u64>)>>,
    pub(super) threads: Mutex<HashSet<ThreadId>>,
    pub(super) dropped: AtomicUsize,
}

impl Device {
    pub(super) fn held(depth_max: usize) -> Device {
        Device {
            depth_max,
            may_end: Some(AtomicUsize::new(0)),
            ..Device::default()
        }
    }

    pub(super) fn let_go(&self, count: usize) {
        let may_end = self.may_end.as_ref().unwrap();
        may_end.fetch_add(count, Ordering::SeqCst);
    }

    /// Whether one batch more may end.
    fn ends_one(&self) -> bool {
        let Some(may_end) = &self.may_end else {
            return true;
        };
        let left = may_end.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        left.is_ok()
    }

    pub(super) fn wait_in_flight(&self, count: usize) {
        until(&format!("{count} batches in flight"), || {
            self.in_flight.load(Ordering::SeqCst) == count
        });
    }

    fn slots(&self) -> Vec<Vec<u64>> {
        let batches = self.batches.lock().unwrap();
        batches.iter().map(|(_, slots)| slots.clone()).collect()
    }
}

struct StreamFake {
    device: Arc<Device>,
    name: String,
    flights: VecDeque<Batch>,
}

impl backend::Model for Device {
    fn config(&self) -> Arc<conch_config::ResolvedConfig> {
        unreachable!("the tests bring their configuration")
    }

    fn bind(&self, _: &Arc<ModelVersion>) {}

    fn create_instance(self: Arc<Self>, spec: InstanceSpec) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(StreamFake {
            device: self,
            name: spec.name,
            flights: VecDeque::new(),
        }))
    }
}

impl Instance for StreamFake {
    fn execute(&mut self, _: &mut Batch, _: &mut PendingResponses) {
        unreachable!("it is driven by enqueue and poll");
    }

    fn depth_max(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(self.device.depth_max)
    }

    fn enqueue(&mut self, batch: &mut Batch, _: &mut PendingResponses) -> bool {
        let slots: Vec<u64> = batch.iter().map(|live| live.shared().slot).collect();
        let device = &self.device;
        device
            .threads
            .lock()
            .unwrap()
            .insert(std::thread::current().id());
        let is_panic = device.panics_at.is_some_and(|slot| slots.contains(&slot));
        assert!(!is_panic, "the backend is broken");
        device
            .batches
            .lock()
            .unwrap()
            .push((self.name.clone(), slots));
        std::thread::sleep(Duration::from_millis(device.call_ms));
        while device.blocks.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.flights.push_back(std::mem::take(batch));
        assert!(self.flights.len() <= device.depth_max);
        let count = device.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        device.in_flight_max.fetch_max(count, Ordering::SeqCst);
        true
    }

    fn poll(&mut self, pending: &mut PendingResponses) -> Result<usize, Error> {
        self.device.polls.fetch_add(1, Ordering::SeqCst);
        if self.device.fails_polls.load(Ordering::SeqCst) {
            return Err(Error::internal("no such event"));
        }
        if self.name == "m_0_0" && self.device.holds_first.load(Ordering::SeqCst) {
            return Ok(self.flights.len());
        }
        while !self.flights.is_empty() && self.device.ends_one() {
            if let Some(mut batch) = self.flights.pop_front() {
                answer(&mut batch, pending);
                self.device.in_flight.fetch_sub(1, Ordering::SeqCst);
            }
        }
        Ok(self.flights.len())
    }

    fn abandon(&mut self, error: &Error, pending: &mut PendingResponses) {
        for live in self.flights.iter().flatten() {
            live.abandon();
            live.shared().model.free();
            pending.push(live.shared(), Some(Err(error.clone())), true);
        }
    }
}

impl Drop for StreamFake {
    fn drop(&mut self) {
        assert!(self.flights.is_empty(), "dropped with batches in flight");
        self.device.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) struct StreamBed {
    pub(super) version: Arc<ModelVersion>,
    pub(super) device: Arc<Device>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) cores: Arc<Cores>,
}

impl StreamBed {
    fn new(config: &str, device: Device, specs: Vec<InstanceSpec>) -> StreamBed {
        StreamBed::limited(config, device, specs, None)
    }

    fn limited(
        config: &str,
        device: Device,
        specs: Vec<InstanceSpec>,
        limiter: Option<Arc<RateLimiter>>,
    ) -> StreamBed {
        let device = Arc::new(device);
        StreamBed::serving(&device, StreamBed::start(config, &device, specs, limiter))
    }

    /// One whose device is that of others, too.
    pub(super) fn beside(
        device_cores: &Arc<DeviceCores>,
        config: &str,
        device: &Arc<Device>,
        specs: Vec<InstanceSpec>,
    ) -> StreamBed {
        let started = StreamBed::start_beside(device_cores, config, device, specs, None);
        StreamBed::serving(device, started)
    }

    fn serving(
        device: &Arc<Device>,
        (version, cores): (Arc<ModelVersion>, Result<Cores, Error>),
    ) -> StreamBed {
        StreamBed {
            version,
            device: Arc::clone(device),
            recorder: Arc::default(),
            cores: Arc::new(cores.unwrap()),
        }
    }

    /// A version, and its cores if they started.
    fn start(
        config: &str,
        device: &Arc<Device>,
        specs: Vec<InstanceSpec>,
        limiter: Option<Arc<RateLimiter>>,
    ) -> (Arc<ModelVersion>, Result<Cores, Error>) {
        StreamBed::start_beside(&Arc::default(), config, device, specs, limiter)
    }

    fn start_beside(
        device_cores: &Arc<DeviceCores>,
        config: &str,
        device: &Arc<Device>,
        specs: Vec<InstanceSpec>,
        limiter: Option<Arc<RateLimiter>>,
    ) -> (Arc<ModelVersion>, Result<Cores, Error>) {
        let mut instance_plan = InstancePlan {
            specs,
            policy: ExecutionPolicy::Blocking,
            is_parallel: false,
            warm_up: WarmUp::default(),
            limiter,
            device_cores: Arc::clone(device_cores),
            progress: Arc::default(),
        };
        let placement = placement(&[]);
        let as_model: Arc<dyn backend::Model> = Arc::clone(device) as _;
        let (parts, queue) = queued(config, &instance_plan, None, &placement.timer_thread);
        let version = Arc::new(ModelVersion::new(parts));
        let budget = conch_memory::Budget::new(1 << 20);
        instance_plan.warm_up =
            WarmUp::prepare(&version, std::path::Path::new("/"), &budget).unwrap();
        let cores = start_cores(&version, &queue, &as_model, instance_plan, &placement);
        (version, cores)
    }

    fn gpu(config: &str, device: Device, count: usize) -> StreamBed {
        let specs = (0..count).map(|index| spec(index, InstanceKind::Gpu, 0));
        StreamBed::new(config, device, specs.collect())
    }

    fn try_submit(&self, slot: u64, id: u64, flags: SequenceFlags) -> Result<RequestHandle, Error> {
        let drafted = Draft {
            correlation_id: CorrelationId::Unsigned(id),
            sequence_flags: flags,
            ..draft(vec![input("a", DataType::Int32, &[1, 1], &[&[0; 4]])])
        };
        let completion: Arc<dyn Completion> = self.recorder.clone();
        let timestamps = Timestamps {
            request_start_ns: crate::clock::monotonic_ns(),
            ..Timestamps::default()
        };
        let handle = crate::testing::admit(&self.version, drafted, &completion, slot, timestamps)?;
        self.version
            .submit(Arc::clone(&handle), &mut InlineOffer::none())?;
        Ok(handle)
    }

    pub(super) fn submit(&self, slots: std::ops::Range<u64>) {
        for slot in slots {
            self.try_submit(slot, 0, SequenceFlags::NONE).unwrap();
        }
    }

    pub(super) fn slots_of(deliveries: &[Delivery]) -> Vec<u64> {
        deliveries.iter().map(Delivery::slot).collect()
    }

    pub(super) fn stop(self, instance_count: usize) {
        self.cores.stop();
        assert_eq!(self.device.dropped.load(Ordering::SeqCst), instance_count);
        assert_eq!(self.version.live_count(), 0);
        assert_eq!(self.version.statistics.totals().pending_count, 0);
    }
}

/// Time must pass in which nothing happens.
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn the_next_batch_goes_on_the_device_while_one_is_there_and_the_rest_waits() {
    let bed = StreamBed::gpu(CONFIG, Device::held(8), 1);
    bed.submit(0..5);
    bed.device.wait_in_flight(2);
    pause();
    assert_eq!(
        bed.device.slots(),
        [[0], [1]],
        "the others wait in the scheduler"
    );
    for slot in 0..3 {
        bed.device.let_go(1);
        let done = bed.recorder.wait(1);
        assert_eq!(StreamBed::slots_of(&done), [slot]);
        bed.device.wait_in_flight(2);
    }
    bed.device.let_go(2);
    bed.recorder.wait(2);
    assert_eq!(bed.device.in_flight_max.load(Ordering::SeqCst), 2);
    bed.stop(1);
}

#[test]
fn instances_of_one_gpu_share_a_core_and_take_turns() {
    let bed = StreamBed::gpu(CONFIG, Device::held(2), 3);
    bed.submit(0..7);
    bed.device.wait_in_flight(6);
    pause();
    let mut names: Vec<String> = bed
        .device
        .batches
        .lock()
        .unwrap()
        .iter()
        .map(|(name, _)| name.clone())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["m_0_0", "m_0_0", "m_0_1", "m_0_1", "m_0_2", "m_0_2"]
    );
    bed.device.let_go(7);
    bed.recorder.wait(7);
    assert_eq!(bed.device.threads.lock().unwrap().len(), 1);
    bed.stop(3);
}

#[test]
fn an_arrival_is_enqueued_while_the_core_waits_for_the_device() {
    let bed = StreamBed::gpu(CONFIG, Device::held(2), 1);
    bed.submit(0..1);
    bed.device.wait_in_flight(1);
    pause();
    bed.submit(1..2);
    bed.device.wait_in_flight(2);
    bed.device.let_go(2);
    bed.recorder.wait(2);
    bed.stop(1);
}

#[test]
fn what_is_in_flight_and_queued_ends_before_the_cores_do() {
    let bed = StreamBed::gpu(CONFIG, Device::held(2), 2);
    bed.submit(0..6);
    bed.device.wait_in_flight(4);
    let cores = Arc::clone(&bed.cores);
    let stopping = std::thread::spawn(move || cores.stop());
    until("the queue is closed", || bed.version.is_closed());
    assert!(!stopping.is_finished());
    bed.device.let_go(6);
    assert_eq!(
        StreamBed::slots_of(&bed.recorder.wait(6)),
        [0, 1, 2, 3, 4, 5]
    );
    stopping.join().unwrap();
    bed.stop(2);
}

#[test]
fn at_the_end_no_instance_waits_for_another() {
    let bed = StreamBed::gpu(CONFIG, Device::held(1), 2);
    bed.device.holds_first.store(true, Ordering::SeqCst);
    bed.submit(0..2);
    bed.device.wait_in_flight(2);
    let cores = Arc::clone(&bed.cores);
    let stopping = std::thread::spawn(move || cores.stop());
    until("the queue is closed", || bed.version.is_closed());
    pause();
    bed.device.let_go(2);
    // Either may have taken the first batch.
    let mut batches = bed.device.batches.lock().unwrap().clone();
    batches.sort();
    let [(_, held), (_, other)] = &batches[..] else {
        panic!("two batches are there: {batches:?}");
    };
    assert_eq!(StreamBed::slots_of(&bed.recorder.wait(1)), *other);
    bed.device.holds_first.store(false, Ordering::SeqCst);
    assert_eq!(StreamBed::slots_of(&bed.recorder.wait(1)), *held);
    stopping.join().unwrap();
    bed.stop(2);
}

#[test]
fn a_device_that_works_for_long_keeps_no_cpu_busy() {
    let bed = StreamBed::gpu(CONFIG, Device::held(1), 1);
    bed.submit(0..1);
    bed.device.wait_in_flight(1);
    // Past the spin.
    pause();
    let before = bed.device.polls.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(200));
    let polls = bed.device.polls.load(Ordering::SeqCst) - before;
    // One each 2.5 ms at first, later each 5 ms; a busy CPU would look 100,000 times.
    assert!(polls <= 200, "{polls} polls in 200 ms");
    bed.device.let_go(1);
    bed.recorder.wait(1);
    bed.stop(1);
}

#[test]
fn requests_are_cancelled_in_the_queue_and_not_on_the_device() {
    let bed = StreamBed::gpu(CONFIG, Device::held(1), 1);
    let on_device = bed.try_submit(0, 0, SequenceFlags::NONE).unwrap();
    bed.device.wait_in_flight(1);
    let waiting = bed.try_submit(1, 0, SequenceFlags::NONE).unwrap();
    cancel(&waiting).deliver();
    assert_eq!(StreamBed::slots_of(&bed.recorder.wait(1)), [1]);
    cancel(&on_device).deliver();
    assert!(on_device.is_cancelled());
    bed.device.let_go(1);
    assert_eq!(StreamBed::slots_of(&bed.recorder.wait(1)), [0]);
    drop((on_device, waiting));
    bed.stop(1);
}

/// Requests of two sequences: slot, sequence and what it does.
const TWO_SEQUENCES: [(u64, u64, SequenceFlags); 5] = [
    (0, 7, SequenceFlags::START),
    (1, 7, SequenceFlags::NONE),
    (2, 8, SequenceFlags::START),
    (3, 7, SequenceFlags::END),
    (4, 8, SequenceFlags::END),
];

#[test]
fn different_sequences_overlap_and_the_requests_of_one_do_not() {
    let config =
        format!("sequence_batching {{ oldest {{ max_candidate_sequences: 4 }} }} {CONFIG}");
    let bed = StreamBed::gpu(&config, Device::held(4), 1);
    let [first, second, other, rest @ ..] = TWO_SEQUENCES;
    for (slot, id, flags) in [first, second] {
        bed.try_submit(slot, id, flags).unwrap();
    }
    bed.device.wait_in_flight(1);
    pause();
    assert_eq!(
        bed.device.slots(),
        [[0]],
        "its sequence goes on once it ends"
    );
    bed.try_submit(other.0, other.1, other.2).unwrap();
    bed.device.wait_in_flight(2);
    assert_eq!(bed.device.slots(), [[0], [2]]);
    for (slot, id, flags) in rest {
        bed.try_submit(slot, id, flags).unwrap();
    }
    for expected in [0, 2, 1, 4, 3] {
        bed.device.let_go(1);
        assert_eq!(StreamBed::slots_of(&bed.recorder.wait(1)), [expected]);
    }
    assert_eq!(bed.device.in_flight_max.load(Ordering::SeqCst), 2);
    bed.stop(1);
}

#[test]
fn direct_sequences_have_one_batch_on_the_device() {
    let config = format!("sequence_batching {{ direct {{}} }} {CONFIG}");
    let bed = StreamBed::gpu(&config, Device::held(4), 1);
    for (slot, id, flags) in TWO_SEQUENCES {
        bed.try_submit(slot, id, flags).unwrap();
        bed.device.wait_in_flight(1);
    }
    let mut left = TWO_SEQUENCES.len();
    while left > 0 {
        bed.device.wait_in_flight(1);
        pause();
        let count = bed.device.slots().last().map_or(0, Vec::len);
        bed.device.let_go(1);
        bed.recorder.wait(count);
        left -= count;
    }
    assert_eq!(bed.device.in_flight_max.load(Ordering::SeqCst), 1);
    bed.stop(1);
}

#[test]
fn resources_are_held_until_the_device_is_done() {
    let limiter = RateLimiter::new(vec![crate::ResourceCapacity {
        name: "R".to_owned(),
        count: 1,
        device: None,
    }]);
    let specs = (0..2).map(|index| InstanceSpec {
        rate_limit: RateLimit {
            resources: vec![RateResource {
                name: "R".into(),
                is_global: true,
                count: 1,
            }],
            priority: 1,
        },
        ..spec(index, InstanceKind::Gpu, 0)
    });
    let bed = StreamBed::limited(CONFIG, Device::held(4), specs.collect(), Some(limiter));
    bed.submit(0..4);
    for _ in 0..4 {
        bed.device.wait_in_flight(1);
        pause();
        bed.device.let_go(1);
        bed.recorder.wait(1);
    }
    assert_eq!(bed.device.in_flight_max.load(Ordering::SeqCst), 1);
    bed.stop(2);
}

#[test]
fn a_batch_that_cannot_be_enqueued_fails_alone() {
    let device = Device {
        panics_at: Some(1),
        ..Device::held(2)
    };
    let bed = StreamBed::gpu(CONFIG, device, 1);
    bed.submit(0..3);
    let failed = bed.recorder.wait(1);
    assert_eq!(StreamBed::slots_of(&failed), [1]);
    bed.device.let_go(2);
    assert_eq!(StreamBed::slots_of(&bed.recorder.wait(2)), [0, 2]);
    bed.stop(1);
}

pub(super) const TIMEOUT: &str =
    "parameters { key: 'CONCH_EXECUTION_TIMEOUT_SECONDS' value { string_value: '1' } }";

/// The error of a delivery.
pub(super) fn error_of(delivery: Delivery) -> Error {
    match delivery {
        Delivery::Final { outcome, .. } => outcome.err().unwrap(),
        other => panic!("{other:?} is no error"),
    }
}

/// Has the device of `bed` hang: two batches are on it, and others wait.
fn check_fault(bed: StreamBed, text: &str, dropped: usize) {
    let in_flight = bed.device.in_flight.load(Ordering::SeqCst);
    let failed = bed.recorder.wait(4);
    for delivery in failed {
        let is_on_device = (delivery.slot() as usize) < in_flight;
        let error = error_of(delivery);
        let code = if is_on_device {
            Code::Internal
        } else {
            Code::Unavailable
        };
        assert_eq!((error.code, &*error.message), (code, text));
    }
    let refused = bed.try_submit(9, 0, SequenceFlags::NONE).err().unwrap();
    assert_eq!((refused.code, &*refused.message), (Code::Unavailable, text));
    assert_eq!(
        bed.version.fault().map(|fault| fault.message),
        Some(text.into())
    );
    bed.stop(dropped);
}

#[test]
fn a_batch_that_never_ends_takes_its_instance_out_of_service() {
    let bed = StreamBed::gpu(&format!("{TIMEOUT} {CONFIG}"), Device::held(2), 1);
    let told_count = Arc::new(AtomicUsize::new(0));
    let listen = || {
        let told_count = Arc::clone(&told_count);
        let listener = move || {
            told_count.fetch_add(1, Ordering::SeqCst);
        };
        bed.cores.queue().when_failed(Box::new(listener));
    };
    listen();
    bed.submit(0..4);
    bed.device.wait_in_flight(2);
    until("the queue is closed", || bed.version.fault().is_some());
    until("it is told", || told_count.load(Ordering::SeqCst) == 1);
    listen();
    assert_eq!(
        told_count.load(Ordering::SeqCst),
        2,
        "late, and told at once"
    );
    let text =
        "instance 'm_0_0' is out of service: an execution did not end on its device within 1 s";
    check_fault(bed, text, 0);
}

#[test]
fn a_device_whose_polls_fail_for_good_is_given_up() {
    let device = Device::held(2);
    device.fails_polls.store(true, Ordering::SeqCst);
    let bed = StreamBed::gpu(CONFIG, device, 1);
    bed.submit(0..4);
    let text = "instance 'm_0_0' is out of service: 100 polls failed one after the other";
    bed.device.wait_in_flight(2);
    check_fault(bed, text, 0);
}

#[test]
fn a_sequence_on_a_device_that_hangs_does_not_keep_its_core() {
    let config = format!(
        "{TIMEOUT} sequence_batching {{ oldest {{ max_candidate_sequences: 4 }} }} {CONFIG}"
    );
    let bed = StreamBed::gpu(&config, Device::held(2), 1);
    bed.try_submit(0, 7, SequenceFlags::START).unwrap();
    bed.device.wait_in_flight(1);
    let failed = bed.recorder.wait(1).remove(0);
    assert_eq!(error_of(failed).code, Code::Internal);
    bed.stop(0);
}

/// A configuration whose warm-up executes `count` batches.
fn warmed_up(config: &str, count: u32) -> String {
    format!(
        "{config} model_warmup {{ name: 'one' batch_size: 1 count: {count} inputs {{ key: 'a' \
         value {{ data_type: TYPE_INT32 dims: 1 zero_data: true }} }} }}"
    )
}

#[test]
fn a_warm_up_that_never_ends_fails_the_load_alone() {
    let config = warmed_up(&format!("{TIMEOUT} {CONFIG}"), 0);
    let device = Arc::new(Device::held(2));
    let specs = vec![spec(0, InstanceKind::Gpu, 0)];
    let (version, cores) = StreamBed::start(&config, &device, specs, None);
    assert_eq!(
        cores.err(),
        Some(Error::unavailable(
            "instance 'm_0_0' is out of service: an execution did not end on its device within 1 s"
        ))
    );
    // Other instances of the queue, if it served already, would go on.
    assert_eq!(version.fault(), None);
    assert_eq!(device.dropped.load(Ordering::SeqCst), 0, "it may be in use");
}

#[test]
fn a_warm_up_does_not_show_that_more_batches_help() {
    let device = Device::held(8);
    device.let_go(99);
    let bed = StreamBed::gpu(&warmed_up(CONFIG, 99), device, 1);
    bed.submit(0..4);
    until("two are in flight", || {
        bed.device.in_flight.load(Ordering::SeqCst) >= 2
    });
    pause();
    let in_flight = bed.device.in_flight.load(Ordering::SeqCst);
    bed.device.let_go(4);
    bed.recorder.wait(4);
    assert_eq!(in_flight, 2);
    bed.stop(1);
}
