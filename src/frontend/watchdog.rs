//! The thread that keeps the shards honest.
//!
//! Ten times per second it pokes each shard: the shard then ends connections that stalled, and by answering shows that it turns. A
//! poke wakes the shard's executor even if it sleeps on tasks that are ready: such a sleep lasts no longer than the poke's period. A shard
//! with no connection and no request has nothing to look after, and is poked once per second: each poke costs a wake-up, also on a machine
//! that is to do nothing.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use conch_engine::{Error, log};

use crate::shard::link::Link;

const PERIOD: Duration = Duration::from_millis(100);
/// Pokes without an answer before an alarm: one second. A shard turn is meant to last at most 500 us.
const PATIENCE: u32 = 10;
/// Of so many pokes a quiet shard gets one.
const QUIET_EVERY: u32 = 10;

pub(crate) struct Watchdog {
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn start(links: Vec<Arc<Link>>) -> Result<Watchdog, Error> {
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || {
                let mut missed_counts = vec![0u32; links.len()];
                let mut round = 0_u32;
                while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                    round = round.wrapping_add(1);
                    for (index, (link, missed_count)) in links.iter().zip(&mut missed_counts).enumerate() {
                        if link.is_quiet() && !round.is_multiple_of(QUIET_EVERY) {
                            continue;
                        }
                        if link.poke() {
                            if *missed_count >= PATIENCE {
                                log::warning!("shard {index} turns again after {missed_count} missed pokes");
                            }
                            *missed_count = 0;
                            continue;
                        }
                        *missed_count += 1;
                        if *missed_count == PATIENCE {
                            log::error!(
                                "shard {index} does not turn; it had {} requests in flight and has {} connections",
                                link.in_flight_count(),
                                link.connection_count()
                            );
                        }
                    }
                }
            })
            .map_err(|error| Error::internal(format!("cannot start the watchdog: {error}")))?;
        Ok(Watchdog {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the watchdog panicked");
        }
    }
}
