//! Models that come when they are asked for, on the fake backend: room, waiters, refusals, and many
//! more models than fit while requests run.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use conch_engine::testing::{Directory, until};
use conch_engine::{Code, Completion, Draft, DraftInput, Error, InFlightPermit, Timestamps};

use super::control::{explicit, plain, shown};
use super::fake::fault;
use super::{Count, start};
use crate::Server;
use crate::on_demand::{LoadFuture, LoadOutcome};
use crate::options::{EngineOptions, OnDemandSettings};

/// Room for `count` models of [`model`].
fn on_demand(directory: &Directory, count: u64, patience_ms: u64) -> EngineOptions {
    EngineOptions {
        demand: Some(OnDemandSettings {
            budget_bytes: count * MODEL_BYTES + MODEL_BYTES / 2,
            patience: Duration::from_millis(patience_ms),
            waiting_max: 4,
        }),
        ..explicit(directory, &["r"])
    }
}

/// Far more than a configuration takes.
const MODEL_BYTES: u64 = 10_000;
const LONG_MS: u64 = 20_000;

fn model(directory: &Directory, name: &str, extra: &str) {
    directory.model("r", name, &["1"], extra);
    let weights = "w".repeat(MODEL_BYTES as usize - 500);
    directory.file(&format!("r/{name}/1/weights"), &weights);
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this thread.
fn wait(call: LoadFuture) -> Result<Option<InFlightPermit>, Error> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut call = std::pin::pin!(call);
    loop {
        match call.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(20)),
        }
    }
}

fn permit(server: &Arc<Server>, name: &str) -> Result<Option<InFlightPermit>, Error> {
    match server.ensure_loaded(name, None)? {
        LoadOutcome::Here(permit) => Ok(permit),
        LoadOutcome::Coming(call) => wait(call),
    }
}

fn message(outcome: Result<Option<InFlightPermit>, Error>) -> (Code, String) {
    let error = outcome.map(|permit| permit.is_some()).unwrap_err();
    (error.code, error.message.into_owned())
}

/// As a shard does: the permit is the request's place.
fn infer(server: &Arc<Server>, name: &str, count: &Arc<Count>) -> Result<(), Error> {
    let permit = permit(server, name)?.expect("there is room for a request");
    let mut draft = Draft::default();
    draft.inputs.push(DraftInput {
        name: "IN",
        data_type: conch_config::DataType::Int32,
        shape: [1, 1].into_iter().collect(),
        chunks: [conch_memory::ByteView::copy_of(&[1, 0, 0, 0])]
            .into_iter()
            .collect(),
    });
    let completion = Arc::clone(count) as Arc<dyn Completion>;
    let timestamps = Timestamps {
        request_start_ns: conch_engine::clock::monotonic_ns(),
        ..Timestamps::default()
    };
    let handle = conch_engine::admission::admit(permit, &mut draft, &completion, 0, timestamps)?;
    let model = Arc::clone(&handle.shared().model);
    model.submit(handle, &mut conch_engine::InlineOffer::none())
}

#[test]
fn a_model_comes_when_it_is_asked_for_and_the_one_used_least_lately_goes() {
    let directory = Directory::new();
    for name in ["a", "b", "c"] {
        model(&directory, name, "");
    }
    let (host, server) = start(on_demand(&directory, 2, LONG_MS));
    assert_eq!(shown(&server), ["a", "b", "c"], "nothing is loaded");
    let a = permit(&server, "a").unwrap().unwrap();
    assert_eq!(&*a.name, "a");
    drop(permit(&server, "b").unwrap());
    // Somebody holds the oldest.
    let b = permit(&server, "b").unwrap().unwrap();
    drop(a);
    drop(permit(&server, "c").unwrap().unwrap());
    assert_eq!(shown(&server), ["a:1 unloaded", "b:1 READY", "c:1 READY"]);
    drop(b);
    // A version that nobody has does not come by loading what is there.
    let ensured = server.ensure_loaded("b", Some(7));
    assert!(matches!(ensured, Ok(LoadOutcome::Here(None))));
    // A client's own load makes room, too.
    plain(&server, "a").unwrap();
    assert_eq!(shown(&server).len(), 3);
    until("one of the others is gone", || {
        shown(&server)
            .iter()
            .filter(|row| row.ends_with("unloaded"))
            .count()
            == 1
    });
    assert_eq!(host.events.count("load a"), 2);
    assert!(server.lifecycle().is_all_ready());
    server.stop().unwrap();
    assert_eq!(
        message(permit(&server, "b")),
        (Code::Unavailable, "Server not ready".into())
    );
}

#[test]
fn refusals_say_why() {
    let directory = Directory::new();
    model(&directory, "big", "");
    directory.file("r/big/1/more", &"w".repeat(30_000));
    model(&directory, "broken", &fault("load"));
    for name in ["held", "other"] {
        model(&directory, name, "");
    }
    let (host, server) = start(on_demand(&directory, 1, 30));
    let (code, text) = message(permit(&server, "big"));
    assert_eq!(code, Code::Unavailable);
    assert!(
        text.starts_with("model 'big' takes ") && text.contains("may take 15000"),
        "{text}"
    );
    for name in ["none", "..", "a/b", ""] {
        let expected = format!("Request for unknown model: '{name}' is not found");
        assert_eq!(message(permit(&server, name)), (Code::NotFound, expected));
    }
    // Once, and not again at once.
    for _ in 0..2 {
        let (code, text) = message(permit(&server, "broken"));
        assert_eq!(code, Code::Unavailable);
        assert_eq!(
            text,
            "model 'broken' could not be loaded: load failed for model 'broken': version 1 is at \
             UNAVAILABLE state: Internal: the weights are broken;"
        );
    }
    assert_eq!(host.events.count("load broken"), 1);
    // A client that asks for it by name tries again.
    assert!(plain(&server, "broken").is_err());
    assert_eq!(host.events.count("load broken"), 2);
    let held = permit(&server, "held").unwrap().unwrap();
    let (code, text) = message(permit(&server, "other"));
    assert_eq!(code, Code::Unavailable);
    assert_eq!(
        text,
        "there was no room for model 'other' within 0 s: the models that take it are in use"
    );
    assert_eq!(held.live_count(), 1, "it was not touched");
    drop(held);
    server.stop().unwrap();
}

#[test]
fn names_that_clients_make_up_leave_nothing() {
    let directory = Directory::new();
    model(&directory, "a", "");
    let (_, server) = start(on_demand(&directory, 2, LONG_MS));
    plain(&server, "a").unwrap();
    for number in 0..3 {
        plain(&server, &format!("absent-{number}")).unwrap_err();
    }
    assert_eq!(server.demand().unwrap().size_count(), 1);
}

#[test]
fn so_many_wait_and_who_leaves_makes_room() {
    let directory = Directory::new();
    model(&directory, "m", &fault("meet"));
    model(&directory, "n", &fault("meet"));
    let (host, server) = start(on_demand(&directory, 2, LONG_MS));
    let ensure_loaded = |name| server.ensure_loaded(name, None);
    let mut calls: Vec<LoadFuture> = (0..4)
        .map(|_| match ensure_loaded("m") {
            Ok(LoadOutcome::Coming(call)) => call,
            _ => panic!("its load waits for the other's"),
        })
        .collect();
    let refused = ensure_loaded("n").err().unwrap();
    assert_eq!(refused.code, Code::Exhausted);
    assert_eq!(
        refused.message,
        "as many requests wait for models as may (4), try again later"
    );
    calls.pop();
    let Ok(LoadOutcome::Coming(call)) = ensure_loaded("n") else {
        panic!("there is room for one")
    };
    assert!(wait(call).unwrap().is_some());
    for call in calls {
        assert!(wait(call).unwrap().is_some());
    }
    assert_eq!(host.events.count("load m"), 1, "one load for all");
    server.stop().unwrap();
}

#[test]
fn the_start_keeps_to_the_budget_and_wants_explicit_mode() {
    let directory = Directory::new();
    for name in ["a", "b", "c"] {
        model(&directory, name, "");
    }
    let options = EngineOptions {
        startup_models: vec!["*".to_owned()],
        ..on_demand(&directory, 2, LONG_MS)
    };
    let (_, server) = start(options);
    until("one has gone", || {
        let shown = shown(&server);
        shown.iter().filter(|row| row.ends_with("READY")).count() == 2
    });
    server.stop().unwrap();
    for options in [
        EngineOptions {
            model_control_mode: crate::ControlMode::None,
            ..on_demand(&directory, 2, LONG_MS)
        },
        EngineOptions {
            namespacing: true,
            ..on_demand(&directory, 2, LONG_MS)
        },
    ] {
        let host = Arc::new(super::fake::Host::default());
        let refused = Server::start(options, host).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArg);
    }
}

/// Many more models than fit turn over while requests run: none fails, none is dropped, and the
/// models never take more than they may.
#[test]
fn models_turn_over_and_no_request_fails() {
    const MODELS: usize = 12;
    const FIT: u64 = 3;
    const SENDERS: usize = 4;
    const EACH: usize = 150;
    let directory = Directory::new();
    for number in 0..MODELS {
        model(&directory, &format!("m{number}"), "");
    }
    let (host, server) = start(on_demand(&directory, FIT, LONG_MS));
    let count = Arc::new(Count::default());
    let is_over = AtomicBool::new(false);
    let (most_sender, most) = mpsc::channel();
    let lock = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut most_seen = 0;
            while !is_over.load(Ordering::Relaxed) {
                let residents = server.lifecycle().residents(&|_| Some(1), &|_| false);
                most_seen = most_seen.max(residents.len());
                // A sample now and then, for as long as the requests last.
                std::thread::sleep(Duration::from_micros(200));
            }
            most_sender.send(most_seen).unwrap();
        });
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (server, count, lock) = (&server, &count, &lock);
                scope.spawn(move || {
                    let mut random = conch_scheduler::testing::Random(sender as u64);
                    for _ in 0..EACH {
                        lock.fetch_add(1, Ordering::Relaxed);
                        let name = format!("m{}", random.below(MODELS as u64));
                        infer(server, &name, count)
                            .unwrap_or_else(|error| panic!("{name}: {error}"));
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = senders.into_iter().map(|sender| sender.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
    until("every request is answered", || {
        count.0.load(Ordering::SeqCst) == SENDERS * EACH
    });
    assert!(most.recv().unwrap() <= FIT as usize);
    assert!(host.events.count("drop model") > MODELS, "they turned over");
    server.stop().unwrap();
}
