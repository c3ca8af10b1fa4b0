//! The thread that reads signals, from before the first model is loaded until the end.
//!
//! SIGINT, SIGTERM and SIGUSR2 go on to the main thread, which waits for them once models are
//! loaded. While models load SIGINT and SIGTERM ask the start to give up, and the process ends when
//! the time for its end is over, whatever backends are at; SIGUSR2 changes nothing. SIGHUP opens
//! the log file anew and has certificates and rules of callers read again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use conch_log as log;
use conch_net::signal::{self, Signals};

/// What the process is asked to do once it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// To end, by this signal.
    Stop(i32),
    /// To have another executable started in its place.
    Upgrade,
    /// To leave its clients to this process, which serves by now.
    Leave(u32),
}

/// The far end of the thread.
pub struct SignalWatch {
    demands: mpsc::Receiver<Demand>,
    sender: mpsc::Sender<Demand>,
    is_started: Arc<AtomicBool>,
}

impl SignalWatch {
    /// Starts the thread. `stop_request` is set if the server is to end before it has started;
    /// `reload` is called on SIGHUP.
    ///
    /// # Errors
    /// If no thread is to be had.
    pub fn start(
        signals: Signals,
        exit_timeout: Duration,
        stop_request: Arc<AtomicBool>,
        reload: impl Fn() + Send + 'static,
    ) -> io::Result<SignalWatch> {
        let (sender, demands) = mpsc::channel();
        let own_sender = sender.clone();
        let is_started = Arc::new(AtomicBool::new(false));
        let watch = SignalWatch {
            demands,
            sender: own_sender,
            is_started: Arc::clone(&is_started),
        };
        let run = move || {
            while let Ok(number) = signals.wait() {
                if number == signal::RELOAD {
                    reload();
                    continue;
                }
                if number == signal::UPGRADE {
                    if !is_started.load(Ordering::Acquire) {
                        log::warning!("SIGUSR2 received while models load, which changes nothing");
                    } else if sender.send(Demand::Upgrade).is_err() {
                        return;
                    }
                    continue;
                }
                if !is_started.load(Ordering::Acquire) && !stop_request.load(Ordering::Relaxed) {
                    let name = signal_name(number);
                    log::info!("{name} received while models load, stopping");
                    stop_request.store(true, Ordering::Relaxed);
                    end_start_within(exit_timeout, &is_started);
                }
                if sender.send(Demand::Stop(number)).is_err() {
                    return;
                }
            }
            log::error!("signals cannot be read");
            let _ = sender.send(Demand::Stop(0));
        };
        thread::Builder::new()
            .name(String::from("signals"))
            .spawn(run)?;
        Ok(watch)
    }

    /// The start is over: from here on whoever waits sees to the end.
    pub fn started(&self) {
        self.is_started.store(true, Ordering::Release);
    }

    /// Blocks until something is to be done.
    pub fn wait(&self) -> Demand {
        // There is a sender as long as this value is there.
        self.demands.recv().unwrap_or(Demand::Stop(0))
    }

    /// Where other threads put demands.
    pub fn sender(&self) -> mpsc::Sender<Demand> {
        self.sender.clone()
    }
}

/// Ends the process if the start is not over by then.
fn end_start_within(exit_timeout: Duration, is_started: &Arc<AtomicBool>) {
    let is_started = Arc::clone(is_started);
    let end = move || {
        thread::sleep(exit_timeout);
        if !is_started.load(Ordering::Acquire) {
            log::error!("Exit timeout expired. Exiting immediately.");
            log::flush(log::EXIT_FLUSH);
            signal::end_process(1);
        }
    };
    let spawned = thread::Builder::new().name(String::from("exit")).spawn(end);
    if let Err(cause) = spawned {
        log::error!("cannot start a thread, exiting immediately: {cause}");
        log::flush(log::EXIT_FLUSH);
        signal::end_process(1);
    }
}

/// The usual name of a signal that stops the server.
pub fn signal_name(number: i32) -> &'static str {
    match number {
        2 => "SIGINT",
        15 => "SIGTERM",
        _ => "a signal",
    }
}
