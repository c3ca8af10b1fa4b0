//! Progress of a load, as text for the repository index.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

/// Written by who loads, read by who asks for the index; control threads both.
#[derive(Debug, Default)]
pub struct LoadProgress(Mutex<ProgressText>);

#[derive(Debug, Default)]
struct ProgressText {
    /// Which attempt this is, if not the first.
    attempt: String,
    stage: String,
}

impl LoadProgress {
    pub fn reach(&self, stage: impl Display) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stage = stage.to_string();
    }

    /// A further attempt begins.
    pub fn begin_attempt(&self, attempt: u32, count: u32) {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words.attempt = format!("attempt {attempt} of {count}: ");
        words.stage.clear();
    }

    pub fn text(&self) -> String {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{}{}", words.attempt, words.stage)
    }
}
