//! The log that TensorRT writes to.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use conch_backend_sdk as sdk;
use sdk::engine::text_at;

/// Messages that are kept until they are told; more say nothing new.
const KEPT_MAX: usize = 8;
/// Bytes of a message that are kept.
const TEXT_MAX: usize = 1000;
/// Lines in the server's log per second: a model that fails each of many requests says the same.
const LINES_PER_SECOND_MAX: u32 = 20;

/// A log that TensorRT's runtime writes to, from any thread. Its errors are kept for the message of
/// the backend, and its warnings, which are all that old versions say in some cases.
#[derive(Debug, Default)]
pub struct Log {
    kept: Mutex<Kept>,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Kept {
    errors: Vec<String>,
    warnings: Vec<String>,
}

/// Errors, warnings and news that were logged in the last second.
#[derive(Debug, Default)]
struct Told {
    since: Option<Instant>,
    line_count: u32,
}

impl Told {
    /// Whether another line may be logged now.
    fn may_tell(&mut self, now: Instant) -> bool {
        let is_over = |since: Instant| now.duration_since(since) >= Duration::from_secs(1);
        if self.since.is_none_or(is_over) {
            *self = Told {
                since: Some(now),
                line_count: 0,
            };
        }
        self.line_count = self.line_count.saturating_add(1);
        self.line_count <= LINES_PER_SECOND_MAX
    }
}

impl Log {
    /// Forgets what was said before a call.
    pub fn clear(&self) {
        *self.lock() = Kept::default();
    }

    /// What went wrong since then, in one line.
    pub fn errors(&self) -> String {
        let Kept { errors, warnings } = std::mem::take(&mut *self.lock());
        match (errors.is_empty(), warnings.is_empty()) {
            (false, _) => errors.join("; "),
            (true, false) => warnings.join("; "),
            (true, true) => "TensorRT gave no reason".to_owned(),
        }
    }

    /// What the runtime is given as its owner. Lives as long as the log.
    pub fn owner(self: &Arc<Self>) -> *mut c_void {
        Arc::as_ptr(self).cast_mut().cast()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, severity: i32, text: &str) {
        let line = one_line(text);
        // Verbose lines are whoever's who switched them on.
        let may_tell = severity > 3 || self.may_tell();
        match severity {
            0 | 1 if may_tell => sdk::error!("TensorRT: {line}"),
            2 if may_tell => sdk::warning!("TensorRT: {line}"),
            3 if may_tell => sdk::info!("TensorRT: {line}"),
            0..=3 => {}
            _ => sdk::verbose!("TensorRT: {line}"),
        }
        match severity {
            0 | 1 => keep(&mut self.lock().errors, line),
            2 => keep(&mut self.lock().warnings, line),
            _ => {}
        }
    }

    fn may_tell(&self) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.may_tell(Instant::now())
    }
}

fn keep(lines: &mut Vec<String>, line: String) {
    if lines.len() < KEPT_MAX {
        lines.push(line);
    }
}

/// A message as one bounded line.
fn one_line(text: &str) -> String {
    let mut line = text.trim().replace(['\n', '\r'], " ");
    if line.len() > TEXT_MAX {
        line.truncate(line.floor_char_boundary(TEXT_MAX));
        line.push_str("...");
    }
    line
}

/// `conch_tensorrt_log`.
pub extern "C" fn take_message(owner: *mut c_void, severity: i32, text: *const c_char) {
    // SAFETY: the owner is a log that outlives its runtime, by the runtime's own keeping; only
    // shared references to it are made.
    let log = unsafe { &*owner.cast::<Log>() };
    // SAFETY: TensorRT gives a NUL-terminated text for the time of the call.
    let text = unsafe { text_at(text) };
    log.take(severity, &text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_with_a_bound() {
        assert_eq!(one_line("a\nb\r\n"), "a b");
        let long = one_line(&"ä".repeat(2000));
        assert!(long.len() <= TEXT_MAX + 3 && long.ends_with("..."));
    }

    #[test]
    fn lines_have_a_rate() {
        let (mut told, now) = (Told::default(), Instant::now());
        let counted = (0..100).filter(|_| told.may_tell(now)).count();
        assert_eq!(counted, 20);
        assert!(told.may_tell(now + Duration::from_secs(1)));
    }

    #[test]
    fn nothing_said_is_said() {
        let log = Log::default();
        assert_eq!(log.errors(), "TensorRT gave no reason");
        keep(&mut log.lock().warnings, "careful".to_owned());
        assert_eq!(log.errors(), "careful");
        for line in ["one", "two"] {
            keep(&mut log.lock().errors, line.to_owned());
        }
        keep(&mut log.lock().warnings, "careful".to_owned());
        assert_eq!(log.errors(), "one; two");
        assert_eq!(log.errors(), "TensorRT gave no reason");
    }
}
