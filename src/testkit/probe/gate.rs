//! Holds executions back until a test lets them go.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use conch_backend_sdk::Error;

pub struct Gate {
    path: PathBuf,
    arrived: AtomicU64,
}

impl Gate {
    pub fn new(path: &str) -> Gate {
        Gate {
            path: path.into(),
            arrived: AtomicU64::new(0),
        }
    }

    /// Waits until the number in the file is larger than that of the executions before this one.
    ///
    /// # Errors
    /// `Unavailable` if there is no such number.
    pub fn pass(&self) -> Result<(), Error> {
        let before = self.arrived.fetch_add(1, Ordering::Relaxed);
        loop {
            let text = std::fs::read_to_string(&self.path)
                .map_err(|error| Error::unavailable(format!("no gate: {error}")))?;
            // Half written: looked at again.
            if text.trim().parse().is_ok_and(|let_go: u64| let_go > before) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
