//! The stop of a server: what is in flight, what comes meanwhile, and the time allowed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use conch_engine::Code;
use conch_engine::testing::Directory;

use super::fake::fault;
use super::{Count, options, start, submit};

#[test]
fn stopping_answers_what_is_in_flight_and_refuses_the_rest() {
    let directory = Directory::new();
    directory.model("r", "slow", &["1"], &fault("hold"));
    let (host, server) = start(options(&directory, &["r"]));
    let count = Arc::new(Count::default());
    submit(&server, "slow", &count).unwrap();
    server.begin_drain();
    assert!(!server.readiness().wait() && server.is_live(), "draining");
    submit(&server, "slow", &count).unwrap();
    let stopping = {
        let server = Arc::clone(&server);
        std::thread::spawn(move || server.stop())
    };
    let refused = loop {
        match submit(&server, "slow", &count) {
            Ok(()) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.contains("Server is stopping"), "{refused}");
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    host.gate.open();
    stopping.join().unwrap().unwrap();
    assert!(count.0.load(Ordering::SeqCst) >= 2);
    let events = host.events.all();
    assert_eq!(
        events[events.len() - 3..],
        [
            "drop instance slow:1 slow_0",
            "drop model slow:1",
            "finalize"
        ]
    );
    server.stop().expect("a second stop does nothing");
    let error = server
        .registry()
        .snapshot()
        .find("slow", Some(1))
        .map(|_| ())
        .unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
}

#[test]
fn stopping_gives_up_when_the_time_is_up() {
    let directory = Directory::new();
    directory.model("r", "stuck", &["1"], &fault("hold"));
    let (host, server) = start(options(&directory, &["r"]));
    let count = Arc::new(Count::default());
    submit(&server, "stuck", &count).unwrap();
    let started = Instant::now();
    let error = server.stop_within(Duration::from_millis(50)).unwrap_err();
    assert_eq!(
        (error.code, &*error.message),
        (Code::Internal, "Exit timeout expired. Exiting immediately.")
    );
    assert!(
        started.elapsed() >= Duration::from_millis(50)
            && started.elapsed() < Duration::from_secs(5)
    );
    assert_eq!(host.events.count("finalize"), 0, "a model still executes");
    host.gate.open();
}
