//! Holds executions back until a test lets them go.
//!
//! The file says how many executions of the model may go on, from its first: `3`. Numbers behind
//! that one may go on out of turn: `0 2` lets the third go, and neither the first nor the second.

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

    /// Waits until the file lets the execution go.
    ///
    /// # Errors
    /// `Unavailable` if there is no such number.
    pub fn pass(&self) -> Result<(), Error> {
        let before = self.arrived.fetch_add(1, Ordering::Relaxed);
        loop {
            let text = std::fs::read_to_string(&self.path)
                .map_err(|error| Error::unavailable(format!("no gate: {error}")))?;
            if lets_go(&text, before) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether `text` lets the execution go that has so many before it. One that is half written lets
/// none go.
fn lets_go(text: &str, before: u64) -> bool {
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let is_in_turn = matches!(numbers.next(), Some(Ok(count)) if count > before);
    is_in_turn || numbers.any(|number| number == Ok(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_who_may_go() {
        for (text, gone) in [
            ("", &[][..]),
            ("x", &[]),
            ("0\n", &[]),
            ("2", &[0, 1]),
            ("0 2", &[2]),
            ("1 3 2\n", &[0, 2, 3]),
        ] {
            let found: Vec<u64> = (0..5).filter(|before| lets_go(text, *before)).collect();
            assert_eq!(found, gone, "{text:?}");
        }
    }
}
