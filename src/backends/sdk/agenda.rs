//! Work that is due later: one thread takes the steps of any number of tasks, each in its time.
//!
//! For backends that answer over time, so that a thousand requests which wait need one thread
//! instead of a thousand.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Error;

/// What is done step by step.
pub trait Task: Send + 'static {
    /// Takes the step that is due. Returns the time until the next one, none at the end of the
    /// task. It must not block: the other tasks wait meanwhile. One that panics is dropped.
    fn step(&mut self) -> Option<Duration>;
}

/// A thread with its tasks. Dropping it waits until all tasks came to their end.
#[derive(Debug)]
pub struct Agenda<T: Task> {
    arrivals: Option<Sender<Entry<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Task> Agenda<T> {
    /// # Errors
    /// `Unavailable` if no thread can be started.
    pub fn start(name: &str) -> Result<Self, Error> {
        let (arrivals, inbox) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&inbox))
            .map_err(|error| {
                Error::new(
                    crate::Code::Unavailable,
                    format!("cannot start the thread '{name}': {error}"),
                )
            })?;
        Ok(Agenda {
            arrivals: Some(arrivals),
            thread: Some(thread),
        })
    }

    /// Has `task` take its first step after `delay`. Steps that are due at the same time are taken
    /// in the order in which they were entered.
    pub fn add(&self, delay: Duration, task: T) {
        let entry = Entry {
            due: after(Instant::now(), delay),
            task,
        };
        // The thread ends after the sender, so it cannot be gone; if it were, dropping the task
        // would be all there is to do.
        let _ = self.arrivals.as_ref().map(|arrivals| arrivals.send(entry));
    }
}

impl<T: Task> Drop for Agenda<T> {
    fn drop(&mut self) {
        drop(self.arrivals.take());
        if let Some(thread) = self.thread.take() {
            // Failure: it panicked, of which the panic hook has told.
            let _ = thread.join();
        }
    }
}

struct Entry<T> {
    due: Instant,
    task: T,
}

fn run<T: Task>(inbox: &Receiver<Entry<T>>) {
    let mut calendar = Calendar {
        places: Vec::new(),
        free: Vec::new(),
        order: BinaryHeap::new(),
        entered: 0,
    };
    let mut is_open = true;
    while is_open || !calendar.order.is_empty() {
        let wait = calendar.next_due().map(|due| {
            let now = Instant::now();
            due.saturating_duration_since(now)
        });
        match wait {
            _ if !is_open => thread::sleep(wait.unwrap_or_default()),
            // A look at the arrivals before each step, so that a task without pauses keeps nobody
            // out.
            Some(wait) => match inbox.recv_timeout(wait) {
                Ok(Entry { due, task }) => calendar.enter(due, task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => is_open = false,
            },
            None => match inbox.recv() {
                Ok(Entry { due, task }) => calendar.enter(due, task),
                Err(_) => is_open = false,
            },
        }
        if calendar.next_due().is_some_and(|due| due <= Instant::now()) {
            calendar.step();
        }
    }
}

struct Calendar<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
    /// Due time, order of entry, place; the earliest on top.
    order: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    entered: u64,
}

impl<T: Task> Calendar<T> {
    fn next_due(&self) -> Option<Instant> {
        self.order.peek().map(|Reverse((due, _, _))| *due)
    }

    fn enter(&mut self, due: Instant, task: T) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(task);
        self.push(due, place);
    }

    fn push(&mut self, due: Instant, place: usize) {
        self.entered += 1;
        self.order.push(Reverse((due, self.entered, place)));
    }

    fn step(&mut self) {
        let Some(Reverse((_, _, place))) = self.order.pop() else {
            return;
        };
        let task = self.places[place].as_mut();
        // The panic hook has told of a panic; the task's own drop does the rest.
        let next =
            task.and_then(|task| catch_unwind(AssertUnwindSafe(|| task.step())).unwrap_or(None));
        match next {
            // From now, not from when it was due: a pause is never shorter than asked for.
            Some(delay) => self.push(after(Instant::now(), delay), place),
            None => {
                self.places[place] = None;
                self.free.push(place);
            }
        }
    }
}

/// A time that the clock cannot express is a day away: the task asks again then.
fn after(now: Instant, delay: Duration) -> Instant {
    now.checked_add(delay)
        .unwrap_or_else(|| now + Duration::from_secs(86_400))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    type Notes = Arc<Mutex<Vec<String>>>;

    /// Notes its name at each step, and its end.
    struct Note {
        name: &'static str,
        pauses_ms: Vec<u64>,
        notes: Notes,
    }

    impl Task for Note {
        fn step(&mut self) -> Option<Duration> {
            self.notes.lock().unwrap().push(self.name.to_owned());
            assert_ne!(self.name, "panics");
            let pause = self.pauses_ms.pop()?;
            Some(Duration::from_millis(pause))
        }
    }

    impl Drop for Note {
        fn drop(&mut self) {
            self.notes.lock().unwrap().push(format!("-{}", self.name));
        }
    }

    #[test]
    fn steps_come_in_their_time_and_the_end_waits_for_all() {
        let notes = Notes::default();
        let task = |name, pauses_ms: &[u64]| Note {
            name,
            pauses_ms: pauses_ms.to_vec(),
            notes: Arc::clone(&notes),
        };
        let agenda = Agenda::start("agenda").unwrap();
        agenda.add(Duration::from_millis(200), task("late", &[]));
        agenda.add(Duration::from_millis(50), task("panics", &[]));
        agenda.add(Duration::from_millis(20), task("twice", &[100]));
        agenda.add(Duration::ZERO, task("now", &[]));
        drop(agenda);
        let expected = [
            "now", "-now", "twice", "panics", "-panics", "twice", "-twice", "late", "-late",
        ];
        assert_eq!(*notes.lock().unwrap(), expected);
    }

    #[test]
    fn a_task_without_pauses_keeps_nobody_out() {
        let notes = Notes::default();
        let task = |name, pauses_ms: Vec<u64>| Note {
            name,
            pauses_ms,
            notes: Arc::clone(&notes),
        };
        let agenda = Agenda::start("agenda").unwrap();
        agenda.add(Duration::ZERO, task("busy", vec![0; 100_000]));
        while notes.lock().unwrap().is_empty() {
            thread::yield_now();
        }
        agenda.add(Duration::ZERO, task("other", Vec::new()));
        drop(agenda);
        let notes = notes.lock().unwrap();
        let place = |name| notes.iter().position(|note| note == name).unwrap();
        assert!(place("-other") < place("-busy"));
    }

    #[test]
    fn no_delay_is_too_long() {
        let now = Instant::now();
        assert!(after(now, Duration::MAX) > now);
    }
}
