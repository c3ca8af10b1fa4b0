use std::time::{Duration, Instant};

/// Waits until `is_so`, for what another thread does in its own time.
///
/// # Panics
/// After 20 s; the message says `what` did not come.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
