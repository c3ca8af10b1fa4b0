//! Sequences that are under way while their model is loaded anew, on the fake backend.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_config::DataType;
use conch_engine::admission::admit;
use conch_engine::model::readiness::ReadinessAnswer;
use conch_engine::request::correlation_id::CorrelationId;
use conch_engine::testing::{Directory, until};
use conch_engine::{
    Code, Completion, Delivery, Draft, DraftInput, Error, InFlightPermit, ModelVersion,
    RequestPermits, RequestTarget, SequenceFlags, Timestamps, clock,
};

use super::control::{explicit, plain, polling, settle, shown};
use super::fake::{Host, fault};
use super::start;
use crate::Server;

const DIRECT: &str = "sequence_batching { max_sequence_idle_microseconds: 60000000 direct { } }";
const OLDEST: &str = "sequence_batching \
                      { max_sequence_idle_microseconds: 60000000 \
                      oldest { max_candidate_sequences: 4 } }";

type Outcome = Result<Arc<ModelVersion>, Error>;

/// What came back of requests: who executed each, or the refusal, by the order in which they were
/// answered.
#[derive(Default)]
struct Heard {
    count: AtomicUsize,
    answers: Mutex<Vec<(u64, Outcome)>>,
}

impl Completion for Heard {
    fn deliver(&self, delivery: Delivery) {
        let slot = delivery.slot();
        let outcome = delivery
            .into_outcome()
            .unwrap()
            .map(|response| Arc::clone(&response.model));
        self.answers.lock().unwrap().push((slot, outcome));
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn wake(&self) {}
}

impl Heard {
    fn wait(&self, count: usize) {
        until("answers", || self.count.load(Ordering::SeqCst) >= count);
    }
}

struct Stage {
    directory: Directory,
    host: Arc<Host>,
    server: Arc<Server>,
    reload_count: usize,
}

impl Stage {
    fn new(extra: &str) -> Stage {
        let directory = Directory::new();
        directory.model("r", "m", &["1"], extra);
        let (host, server) = start(explicit(&directory, &["r"]));
        plain(&server, "m").unwrap();
        Stage {
            directory,
            host,
            server,
            reload_count: 0,
        }
    }

    fn reload(&mut self) -> Arc<ModelVersion> {
        self.reload_count += 1;
        self.directory
            .file(&format!("r/m/1/file-{}", self.reload_count), "");
        plain(&self.server, "m").unwrap();
        self.version()
    }

    fn version(&self) -> Arc<ModelVersion> {
        let snapshot = self.server.registry().snapshot();
        Arc::clone(snapshot.find("m", None).unwrap())
    }

    fn reserve(
        &self,
        version: Option<i64>,
        id: u64,
        flags: SequenceFlags,
    ) -> Result<InFlightPermit, Error> {
        let snapshot = self.server.registry().snapshot();
        let model = snapshot.find("m", version)?;
        enter(
            &self.server,
            model,
            version,
            &CorrelationId::Unsigned(id),
            flags,
        )
    }

    /// Sends a request whose answer comes under its number.
    fn send(
        &self,
        heard: &Arc<Heard>,
        slot: u64,
        id: u64,
        flags: SequenceFlags,
    ) -> Result<(), Error> {
        submit(self.reserve(None, id, flags)?, heard, slot, id, flags)
    }

    /// Who answers a request, or the words of its refusal.
    fn ask(&self, id: u64, flags: SequenceFlags) -> Result<Arc<ModelVersion>, Error> {
        self.ask_version(None, id, flags)
    }

    fn ask_version(
        &self,
        version: Option<i64>,
        id: u64,
        flags: SequenceFlags,
    ) -> Result<Arc<ModelVersion>, Error> {
        let heard = Arc::new(Heard::default());
        let permit = self.reserve(version, id, flags)?;
        submit(permit, &heard, 0, id, flags)?;
        heard.wait(1);
        let (_, outcome) = heard.answers.lock().unwrap().pop().unwrap();
        outcome
    }

    fn refused(&self, id: u64) {
        let error = self.ask(id, SequenceFlags::NONE).unwrap_err();
        assert_eq!(
            error.message,
            format!(
                "inference request for sequence {id} to model 'm' must specify the START flag on \
                 the first request of the sequence"
            )
        );
    }

    fn wait_for_ends(&self, count: usize) {
        until("the end of a version", || {
            self.host.events.count("drop model") == count
        });
    }
}

fn submit(
    permit: InFlightPermit,
    heard: &Arc<Heard>,
    slot: u64,
    id: u64,
    flags: SequenceFlags,
) -> Result<(), Error> {
    let mut draft = Draft {
        correlation_id: CorrelationId::Unsigned(id),
        sequence_flags: flags,
        ..Draft::default()
    };
    draft.inputs.push(DraftInput {
        name: "IN",
        data_type: DataType::Int32,
        shape: [1, 1].into_iter().collect(),
        chunks: [conch_memory::ByteView::copy_of(&[1, 0, 0, 0])]
            .into_iter()
            .collect(),
    });
    let timestamps = Timestamps {
        request_start_ns: clock::monotonic_ns(),
        ..Timestamps::default()
    };
    let completion = Arc::clone(heard) as Arc<dyn Completion>;
    let handle = admit(permit, &mut draft, &completion, slot, timestamps)?;
    let model = Arc::clone(&handle.shared().model);
    model.submit(handle, &mut conch_engine::InlineOffer::none())
}

/// As a shard or an embedder does.
fn enter(
    server: &Server,
    model: &Arc<ModelVersion>,
    version: Option<i64>,
    correlation_id: &CorrelationId,
    sequence_flags: SequenceFlags,
) -> Result<InFlightPermit, Error> {
    let target = RequestTarget {
        model,
        version,
        id: "",
        tenant: None,
        correlation_id,
        sequence_flags,
        keeps_kind: true,
    };
    server.engine().enter(target, RequestPermits::default())
}

fn same(left: &Arc<ModelVersion>, right: &Arc<ModelVersion>) -> bool {
    Arc::ptr_eq(left, right)
}

#[test]
fn a_sequence_goes_on_where_it_began_until_it_ends() {
    for strategy in [DIRECT, OLDEST] {
        let mut stage = Stage::new(strategy);
        let before = stage.version();
        for id in 1..=3 {
            assert!(same(&stage.ask(id, SequenceFlags::START).unwrap(), &before));
        }
        let after = stage.reload();
        assert!(!same(&before, &after));
        // Those under way there, new ones here, also under a name that is under way there.
        for (id, flags, expected) in [
            (1, SequenceFlags::NONE, &before),
            (4, SequenceFlags::START, &after),
            (4, SequenceFlags::NONE, &after),
            (2, SequenceFlags::NONE, &before),
            (3, SequenceFlags::START, &after),
            (3, SequenceFlags::NONE, &after),
            (1, SequenceFlags::END, &before),
        ] {
            let answered = stage.ask(id, flags).unwrap();
            assert!(same(&answered, expected), "{strategy}: {id} {flags}");
        }
        stage.refused(1);
        assert_eq!(stage.host.events.count("drop model"), 0, "2 is under way");
        assert!(same(&stage.ask(2, SequenceFlags::END).unwrap(), &before));
        stage.wait_for_ends(1);
        stage.refused(2);
        assert!(same(&stage.ask(3, SequenceFlags::END).unwrap(), &after));
        assert!(same(
            &stage
                .ask(1, SequenceFlags::START | SequenceFlags::END)
                .unwrap(),
            &after
        ));
        assert_eq!(shown(&stage.server), ["m:1 READY"]);
        stage.server.stop().unwrap();
    }
}

#[test]
fn a_sequence_that_idles_keeps_no_version() {
    let mut stage = Stage::new(
        "sequence_batching { max_sequence_idle_microseconds: 20000 direct { } } instance_group [ \
         { kind: KIND_CPU count: 2 } ]",
    );
    // One on each instance.
    stage.ask(1, SequenceFlags::START).unwrap();
    stage.ask(2, SequenceFlags::START).unwrap();
    stage.reload();
    stage.wait_for_ends(1);
    stage.refused(1);
    stage.refused(2);
    stage.server.stop().unwrap();
}

/// A core that sleeps after a batch has said that it is done with it: else its sequences never idle
/// for whoever keeps the time.
#[test]
fn sequences_idle_on_each_core_whoever_keeps_the_time() {
    let stage = Stage::new(
        "sequence_batching { max_sequence_idle_microseconds: 20000 direct { } } instance_group [ \
         { kind: KIND_CPU count: 3 } ]",
    );
    let version = stage.version();
    // A look wakes cores, which would hide it; so one look per round, far beyond the time. The
    // machine may be slow in one of them.
    let over_count = (0..6)
        .filter(|_| {
            for id in 1..=3 {
                stage.ask(id, SequenceFlags::START).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(300));
            version.sequence_count() == Some(0)
        })
        .count();
    assert!(over_count >= 5, "a sequence did not end: {over_count} of 6");
    stage.server.stop().unwrap();
}

#[test]
fn several_reloads_in_a_row_keep_the_last_generations() {
    let mut stage = Stage::new(DIRECT);
    let mut versions = vec![stage.version()];
    for id in 0..5_u64 {
        assert!(same(
            &stage.ask(10 + id, SequenceFlags::START).unwrap(),
            &versions[id as usize]
        ));
        versions.push(stage.reload());
    }
    // Two were given up for those that came after them.
    stage.wait_for_ends(2);
    stage.refused(10);
    stage.refused(11);
    for id in 2..5_u64 {
        assert!(same(
            &stage.ask(10 + id, SequenceFlags::NONE).unwrap(),
            &versions[id as usize]
        ));
    }
    // In any order.
    for (id, end_count) in [(3, 3), (4, 4), (2, 5)] {
        stage.ask(10 + id, SequenceFlags::END).unwrap();
        stage.wait_for_ends(end_count);
    }
    let last = Arc::clone(&versions[5]);
    drop(versions);
    assert!(same(
        &stage
            .ask(1, SequenceFlags::START | SequenceFlags::END)
            .unwrap(),
        &last
    ));
    stage.server.stop().unwrap();
}

#[test]
fn what_waits_and_what_is_on_its_way_goes_on_too() {
    let mut stage = Stage::new(&format!("{DIRECT} {}", fault("hold")));
    let heard = Arc::new(Heard::default());
    let before = stage.version();
    // The only instance executes the first; what follows is not even looked at by a core.
    stage.send(&heard, 0, 1, SequenceFlags::START).unwrap();
    stage.send(&heard, 1, 2, SequenceFlags::START).unwrap();
    // Its place is in the version that goes, but it comes after that has gone.
    let late = stage.reserve(None, 3, SequenceFlags::START).unwrap();
    let after = stage.reload();
    stage.send(&heard, 2, 2, SequenceFlags::NONE).unwrap();
    stage.send(&heard, 3, 1, SequenceFlags::END).unwrap();
    submit(late, &heard, 4, 3, SequenceFlags::START).unwrap();
    stage.send(&heard, 5, 3, SequenceFlags::END).unwrap();
    stage.send(&heard, 6, 2, SequenceFlags::END).unwrap();
    stage
        .send(&heard, 7, 4, SequenceFlags::START | SequenceFlags::END)
        .unwrap();
    stage.host.gate.open();
    heard.wait(8);
    let mut answers = heard.answers.lock().unwrap();
    let place = |slot: u64| answers.iter().position(|(other, _)| *other == slot);
    for pair in [[1, 2], [2, 6], [0, 3], [4, 5]] {
        assert!(place(pair[0]) < place(pair[1]), "{pair:?}");
    }
    for (slot, outcome) in answers.drain(..) {
        let expected = if slot == 7 { &after } else { &before };
        assert!(same(&outcome.unwrap(), expected), "{slot}");
    }
    stage.wait_for_ends(1);
    stage.server.stop().unwrap();
}

#[test]
fn another_version_takes_requests_over_that_name_none() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], DIRECT);
    let (host, server) = start(polling(&directory, &["r"]));
    let stage = Stage {
        directory,
        host,
        server,
        reload_count: 0,
    };
    stage.ask(1, SequenceFlags::START).unwrap();
    stage.ask_version(Some(1), 2, SequenceFlags::START).unwrap();
    stage.directory.folder("r/m/2");
    stage.server.poll_repositories().unwrap();
    assert_eq!(shown(&stage.server), ["m:1 UNLOADING", "m:2 READY"]);
    // It is not on its way out for want of health.
    assert!(matches!(
        stage.server.readiness(),
        ReadinessAnswer::Known(true)
    ));
    assert_eq!(stage.ask(1, SequenceFlags::NONE).unwrap().version, 1);
    assert_eq!(stage.ask(2, SequenceFlags::NONE).unwrap().version, 1);
    assert_eq!(stage.ask(3, SequenceFlags::START).unwrap().version, 2);
    // Who names a version means it.
    let error = stage
        .ask_version(Some(1), 2, SequenceFlags::NONE)
        .unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
    let error = stage
        .ask_version(Some(2), 2, SequenceFlags::NONE)
        .unwrap_err();
    assert!(error.message.contains("must specify the START flag"));
    assert_eq!(stage.ask(1, SequenceFlags::END).unwrap().version, 1);
    assert_eq!(stage.ask(2, SequenceFlags::END).unwrap().version, 1);
    settle(&stage.server);
    assert_eq!(shown(&stage.server), ["m:1 unloaded", "m:2 READY"]);
    stage.server.stop().unwrap();
}

#[test]
fn sequences_end_with_a_version_that_has_no_successor() {
    // Another kind of model, on purpose.
    let mut stage = Stage::new(DIRECT);
    stage.ask(1, SequenceFlags::START).unwrap();
    stage.directory.model("r", "m", &[], "");
    plain(&stage.server, "m").unwrap();
    stage.wait_for_ends(1);
    stage.server.stop().unwrap();
    // As the operator wants it.
    stage = Stage::new(&format!(
        "{DIRECT} parameters {{ key: 'CONCH_SEQUENCE_DRAIN_SECONDS' value {{ string_value: '0' }} \
         }}"
    ));
    stage.ask(1, SequenceFlags::START).unwrap();
    stage.reload();
    stage.wait_for_ends(1);
    stage.refused(1);
    stage.server.stop().unwrap();
    // The time is over, although it is not idle.
    stage = Stage::new(&format!(
        "{DIRECT} parameters {{ key: 'CONCH_SEQUENCE_DRAIN_SECONDS' value {{ string_value: '1' }} \
         }}"
    ));
    stage.ask(1, SequenceFlags::START).unwrap();
    stage.reload();
    assert!(stage.ask(1, SequenceFlags::NONE).is_ok());
    stage.wait_for_ends(1);
    stage.refused(1);
    stage.server.stop().unwrap();
    // The successor is unloaded, or the server stops.
    for stops in [false, true] {
        stage = Stage::new(DIRECT);
        stage.ask(1, SequenceFlags::START).unwrap();
        stage.reload();
        stage.reload();
        if !stops {
            stage.server.unload_model("m", false).unwrap();
            stage.wait_for_ends(3);
        }
        stage.server.stop().unwrap();
        stage.wait_for_ends(3);
    }
}

#[test]
fn an_ensembles_steps_go_on_where_their_sequences_are() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], DIRECT);
    directory.folder("r/e/1");
    directory.file(
        "r/e/config.pbtxt",
        "platform: 'ensemble' max_batch_size: 8
         input \
         { name: 'IN' data_type: TYPE_INT32 dims: 1 } output \
         { name: 'OUT' data_type: TYPE_INT32 dims: 1 }
         ensemble_scheduling \
         { step { model_name: 'm' model_version: -1 input_map { key: 'IN' value: 'IN' }
         output_map { key: 'OUT' value: 'OUT' } } }",
    );
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "e").unwrap();
    let mut stage = Stage {
        directory,
        host,
        server,
        reload_count: 0,
    };
    let ask = |stage: &Stage, id: u64, flags: SequenceFlags| {
        let snapshot = stage.server.registry().snapshot();
        let heard = Arc::new(Heard::default());
        let permit = InFlightPermit::new(snapshot.find("e", None).unwrap()).unwrap();
        submit(permit, &heard, 0, id, flags).unwrap();
        heard.wait(1);
        let (_, outcome) = heard.answers.lock().unwrap().pop().unwrap();
        outcome.map(|_| ())
    };
    let before = stage.version();
    ask(&stage, 1, SequenceFlags::START).unwrap();
    let after = stage.reload();
    ask(&stage, 1, SequenceFlags::NONE).unwrap();
    ask(&stage, 2, SequenceFlags::START | SequenceFlags::END).unwrap();
    ask(&stage, 1, SequenceFlags::END).unwrap();
    let count = |version: &ModelVersion| version.statistics.totals().inference_count;
    assert_eq!((count(&before), count(&after)), (3, 1));
    assert!(ask(&stage, 1, SequenceFlags::NONE).is_err());
    drop(before);
    stage.wait_for_ends(1);
    stage.server.stop().unwrap();
}

/// Ends the clients of a test, also if it fails.
struct Over<'t>(&'t AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whole sequences of one client, one after the other, until `is_over`; each is counted in `lock`,
/// and answered by one version alone.
fn send_sequences(server: &Server, client: usize, lock: &AtomicUsize, is_over: &AtomicBool) {
    let mut reader = server.registry().reader();
    while !is_over.load(Ordering::Relaxed) {
        let number = lock.load(Ordering::Relaxed);
        let id = (1 + 10 * client + number % 3) as u64;
        let heard = Arc::new(Heard::default());
        let middle = [SequenceFlags::NONE; 3];
        let flags = [SequenceFlags::START].into_iter().chain(middle);
        let flags = flags.chain([SequenceFlags::END]);
        for (slot, flags) in flags.enumerate() {
            // As a shard: by a snapshot that may be old.
            let key = CorrelationId::Unsigned(id);
            let found = Arc::clone(reader.load().find("m", None).unwrap());
            let permit = enter(server, &found, None, &key, flags).unwrap();
            if (number + slot).is_multiple_of(7) {
                std::thread::yield_now();
            }
            submit(permit, &heard, slot as u64, id, flags).unwrap();
        }
        heard.wait(5);
        let mut versions = heard.answers.lock().unwrap();
        let mut versions = versions.drain(..).map(|(_, outcome)| outcome.unwrap());
        let first = versions.next().unwrap();
        assert!(
            versions.all(|version| same(&version, &first)),
            "{id} is torn"
        );
        lock.fetch_add(1, Ordering::Relaxed);
    }
}

/// Nobody waits for an answer before the next request of a sequence: some are on their way, some
/// wait, some execute when the version goes.
#[test]
fn no_sequence_is_torn_by_a_reload_wherever_its_requests_are() {
    const CLIENTS: usize = 4;
    const RELOADS: usize = 40;
    for strategy in [DIRECT, OLDEST] {
        let mut stage = Stage::new(&format!(
            "{strategy} instance_group [ {{ kind: KIND_CPU count: 2 }} ]"
        ));
        let is_over = AtomicBool::new(false);
        let locks: [AtomicUsize; CLIENTS] = Default::default();
        let server = Arc::clone(&stage.server);
        std::thread::scope(|scope| {
            for (client, lock) in locks.iter().enumerate() {
                let (server, is_over) = (&server, &is_over);
                scope.spawn(move || send_sequences(server, client, lock, is_over));
            }
            let over = Over(&is_over);
            for _ in 0..RELOADS {
                let seen: Vec<usize> = locks
                    .iter()
                    .map(|lock| lock.load(Ordering::Relaxed))
                    .collect();
                // What began before the last reload has ended: no version is given up.
                until("the clients", || {
                    let mut pairs = locks.iter().zip(&seen);
                    pairs.all(|(lock, seen)| lock.load(Ordering::Relaxed) >= seen + 2)
                });
                stage.reload();
            }
            drop(over);
        });
        stage.wait_for_ends(RELOADS);
        stage.server.stop().unwrap();
    }
}
