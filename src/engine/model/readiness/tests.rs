//! Inspectors whose hooks answer what the test says, when it says so.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use crate::model::readiness::probe_queue::ReadinessProber;
use crate::model::readiness::*;
use crate::testing::{model, until};
use crate::{Error, ModelVersion, clock};

const CONFIG: &str = "input [ { name: 'a' data_type: TYPE_INT32 dims: [ 1 ] } ] output [ \
                      { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";

/// Each question takes the next answer, and waits until there is one.
struct Hook {
    answers: Mutex<mpsc::Receiver<Result<(), Error>>>,
    asked_count: AtomicUsize,
}

impl ReadinessCheck for Hook {
    fn check(&self) -> Result<(), Error> {
        self.asked_count.fetch_add(1, Ordering::SeqCst);
        let answers = self.answers.lock().unwrap();
        answers.recv().unwrap_or(Ok(()))
    }
}

struct Bed {
    /// First: their end lets hooks go, for which the readiness prober's end waits.
    answers: Vec<mpsc::Sender<Result<(), Error>>>,
    version: Arc<ModelVersion>,
    prober: ReadinessProber,
    hooks: Vec<Arc<Hook>>,
}

fn bed(instance_count: usize) -> Bed {
    let version = model(CONFIG);
    let (answers, hooks): (Vec<_>, Vec<_>) = (0..instance_count)
        .map(|_| {
            let (sender, receiver) = mpsc::channel();
            let hook = Hook {
                answers: Mutex::new(receiver),
                asked_count: AtomicUsize::new(0),
            };
            (sender, Arc::new(hook))
        })
        .unzip();
    let checks = hooks
        .iter()
        .map(|hook| Arc::clone(hook) as Arc<dyn ReadinessCheck>)
        .collect();
    let prober = ReadinessProber::start(&version.name, 1, &version.probes, checks)
        .unwrap()
        .unwrap();
    Bed {
        version,
        prober,
        hooks,
        answers,
    }
}

impl Bed {
    fn asked(&self) -> Vec<usize> {
        self.hooks
            .iter()
            .map(|hook| hook.asked_count.load(Ordering::SeqCst))
            .collect()
    }

    fn await_asked(&self, expected: &[usize]) {
        until(&format!("calls {expected:?} of hooks"), || {
            self.asked() == expected
        });
    }
}

struct Ignore;

impl Wake for Ignore {
    fn wake(self: Arc<Self>) {}
}

fn poll(probe: &mut ReadinessProbe) -> Poll<bool> {
    Pin::new(probe).poll(&mut Context::from_waker(&Waker::from(Arc::new(Ignore))))
}

fn no() -> Result<(), Error> {
    Err(Error::internal("no"))
}

#[test]
fn every_instance_is_asked_until_one_is_not_ready() {
    let bed = bed(3);
    for (answers, expected, asked) in [
        (vec![Ok(()), Ok(()), Ok(())], true, [1, 1, 1]),
        (vec![Ok(()), no()], false, [2, 2, 1]),
        (vec![no()], false, [3, 2, 1]),
        (vec![Ok(()), Ok(()), Ok(())], true, [4, 3, 2]),
    ] {
        for (sender, answer) in bed.answers.iter().zip(answers) {
            sender.send(answer).unwrap();
        }
        assert_eq!(ReadinessProbe::about(&bed.version).wait(), expected);
        assert_eq!(bed.asked(), asked);
    }
}

#[test]
fn all_models_must_agree_and_those_without_a_hook_do() {
    let (first, second) = (bed(1), bed(1));
    let models = [
        Arc::clone(&first.version),
        model(CONFIG),
        Arc::clone(&second.version),
    ];
    for (left, right, expected) in [
        (Ok(()), Some(Ok(())), true),
        (Ok(()), Some(no()), false),
        (no(), None, false),
    ] {
        first.answers[0].send(left).unwrap();
        if let Some(right) = right {
            second.answers[0].send(right).unwrap();
        }
        assert_eq!(ReadinessProbe::about_all(&models).wait(), expected);
    }
    assert_eq!(
        (first.asked(), second.asked()),
        (vec![3], vec![2]),
        "the first that is not ready decides"
    );
    second.prober.close();
    first.answers[0].send(Ok(())).unwrap();
    assert!(
        ReadinessProbe::about_all(&models).wait(),
        "one that is unloaded is no longer asked"
    );
    assert!(!ReadinessProbe::about(&second.version).wait());
}

#[test]
fn those_who_ask_meanwhile_share_a_round() {
    let bed = bed(1);
    let mut inquiries: Vec<_> = (0..100)
        .map(|_| ReadinessProbe::about(&bed.version))
        .collect();
    for probe in &mut inquiries {
        assert!(poll(probe).is_pending());
        assert!(poll(probe).is_pending(), "as often as one likes");
    }
    bed.await_asked(&[1]);
    assert_eq!(bed.version.probes.lock().waiting.len(), 100);
    inquiries.truncate(3);
    assert_eq!(
        bed.version.probes.lock().waiting.len(),
        3,
        "who leaves leaves nothing behind"
    );
    bed.answers[0].send(no()).unwrap();
    for probe in inquiries {
        assert!(!probe.wait());
    }
    assert_eq!(bed.asked(), [1]);
}

#[test]
fn a_hook_that_hangs_counts_as_not_ready() {
    let bed = bed(1);
    let mut probe = ReadinessProbe::about(&bed.version);
    assert!(poll(&mut probe).is_pending());
    bed.await_asked(&[1]);
    // As if it had been asked long ago.
    let queue = &bed.version.probes;
    let long_ago_ns = clock::monotonic_ns() - ANSWER_WITHIN.as_nanos() as u64;
    queue.lock().running_since_ns = Some(long_ago_ns);
    assert_eq!(
        poll(&mut ReadinessProbe::about(&bed.version)),
        Poll::Ready(false),
        "at once"
    );
    probe.deadline_ns = clock::monotonic_ns();
    assert!(!probe.wait(), "whoever waits gives up in time");
    bed.answers[0].send(Ok(())).unwrap();
    until("the end of the call", || {
        queue.lock().running_since_ns.is_none()
    });
    bed.answers[0].send(Ok(())).unwrap();
    assert!(
        ReadinessProbe::about(&bed.version).wait(),
        "it has come back, and is asked again"
    );
    assert_eq!(bed.asked(), [2]);
}

#[test]
fn the_end_of_a_prober_answers_all_who_wait() {
    let bed = bed(1);
    let (version, sender) = (Arc::clone(&bed.version), bed.answers[0].clone());
    let waiting = thread::spawn(move || ReadinessProbe::about(&version).wait());
    bed.await_asked(&[1]);
    bed.prober.close();
    assert!(!waiting.join().unwrap(), "though the hook hangs");
    sender.send(Ok(())).unwrap();
    drop(bed.prober);
}

#[test]
fn a_panic_is_not_ready() {
    struct Panics;
    impl ReadinessCheck for Panics {
        fn check(&self) -> Result<(), Error> {
            panic!("on purpose");
        }
    }
    let version = model(CONFIG);
    let _prober = ReadinessProber::start(&version.name, 1, &version.probes, vec![Arc::new(Panics)])
        .unwrap()
        .unwrap();
    assert!(!ReadinessProbe::about(&version).wait());
    assert!(
        !ReadinessProbe::about(&version).wait(),
        "the thread lives on"
    );
}
