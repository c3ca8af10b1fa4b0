//! Credits and the backlog that they may take from.

use std::time::Instant;

use conch_memory::ConnectionUsage;

use crate::flow_control::backlog::REQUEST_SHARE;
use crate::flow_control::credits::*;

#[test]
fn a_reader_that_reads_nothing_is_given_up_in_time() {
    let credits = Credits::default();
    for _ in 0..COUNT_MAX {
        assert_eq!(credits.pay(4), Payment::Made);
    }
    let start = Instant::now();
    assert_eq!(credits.pay(4), Payment::Refused);
    let waited = start.elapsed();
    assert!(waited >= HOLD_MAX, "{waited:?}");
    // For good, and at once.
    (0..COUNT_MAX).for_each(|_| credits.refund(4));
    assert_eq!(credits.pay(4), Payment::Refused);
    assert!(credits.is_overdrawn());
}

const LONG: Duration = Duration::from_secs(3_600);

/// How many small responses are sent for a reader that reads nothing, before one is refused.
fn sent_count(credits: &Credits) -> u64 {
    let sent = (0..1_000_000).find(|_| credits.pay(4) != Payment::Made);
    sent.expect("one is refused")
}

#[test]
fn one_client_leaves_room_in_the_backlog_for_others() {
    let budget = Budget::new(1 << 30);
    let usage = Arc::<ConnectionUsage>::default();
    let share = |name: &[u8]| budget.share(&usage, budget.client(name));
    // Names with different counters: of a few, two share one in a server of hundreds.
    let one = share(b"one");
    let other = (0..9u8)
        .map(|number| share(&[number]))
        .find(|other| other.charged_client() != one.charged_client())
        .unwrap();
    let backlog = StreamBacklog::new(LONG, 4 * 90 * SMALL_RESPONSE_BYTES);
    let wait_count = |credits: &[Credits]| -> usize {
        let waits = |credits: &Credits| {
            (0..1000)
                .take_while(|_| credits.take_excess(SMALL_RESPONSE_BYTES))
                .count()
        };
        credits.iter().map(waits).sum()
    };
    let requests = |budget: &Budget| -> Vec<Credits> {
        (0..20).map(|_| Credits::new(&backlog, budget)).collect()
    };
    let (hog, late) = (requests(&one), requests(&other));
    assert_eq!(wait_count(&hog), 80, "8/9");
    assert_eq!(wait_count(&late), 8, "8/9 of what is left");
    assert_eq!(wait_count(&hog), 0);
    drop(hog);
    assert_eq!(wait_count(&late), 72);
    drop(late);
    assert_eq!(backlog.held_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(wait_count(&requests(&one)), 80);
}

#[test]
fn responses_beyond_the_credits_wait_in_the_backlog() {
    let budget = &Budget::new(1 << 30);
    let small = StreamBacklog::new(LONG, 64 * SMALL_RESPONSE_BYTES);
    let credits = Credits::new(&small, budget);
    // A sixteenth of the budget, and the sender waits no longer than it may.
    assert_eq!(sent_count(&credits), COUNT_MAX + 4);
    assert_eq!(
        small.held_bytes.load(Ordering::Relaxed),
        4 * SMALL_RESPONSE_BYTES
    );
    // What is read frees it first.
    credits.refund(4);
    assert_eq!(
        small.held_bytes.load(Ordering::Relaxed),
        3 * SMALL_RESPONSE_BYTES
    );
    // All together have a quarter.
    let all: Vec<Credits> = (0..8).map(|_| Credits::new(&small, budget)).collect();
    for credits in &all {
        for _ in 0..COUNT_MAX + 4 {
            assert!(
                credits.try_take(4) || credits.try_take_excess(4) || {
                    small.held_bytes.load(Ordering::Relaxed) == small.bytes_max
                }
            );
        }
    }
    assert_eq!(
        small.held_bytes.load(Ordering::Relaxed),
        16 * SMALL_RESPONSE_BYTES
    );
    all[0].close();
    assert_eq!(
        small.held_bytes.load(Ordering::Relaxed),
        12 * SMALL_RESPONSE_BYTES
    );
    drop((all, credits));
    assert_eq!(small.held_bytes.load(Ordering::Relaxed), 0);
    // However much memory there is, the count stays in its word.
    let large = StreamBacklog::new(LONG, u64::MAX);
    let credits = Credits::new(&large, budget);
    for _ in 0..BACKLOG_COUNT_MAX {
        assert!(credits.try_take(4) || credits.try_take_excess(4));
    }
    assert!(!credits.try_take(4) && !credits.try_take_excess(4));
    (0..BACKLOG_COUNT_MAX).for_each(|_| credits.refund(4));
    assert!(credits.is_unused());
    assert_eq!(large.held_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_reader_that_pauses_for_longer_than_the_patience_is_given_up() {
    let budget = &Budget::new(1 << 30);
    let backlog = StreamBacklog::new(Duration::ZERO, u64::MAX);
    assert_eq!(sent_count(&Credits::new(&backlog, budget)), COUNT_MAX);
    let backlog = StreamBacklog::new(Duration::from_millis(20), u64::MAX);
    let credits = Credits::new(&backlog, budget);
    let since = |credits: &Credits| credits.stalled_since_ns.load(Ordering::Relaxed);
    (0..COUNT_MAX).for_each(|_| assert_eq!(credits.pay(4), Payment::Made));
    assert_eq!(since(&credits), 0, "it is not behind");
    assert!(!credits.is_stalled());
    assert_ne!(since(&credits), 0);
    // Longer than its patience, here and below. Whatever it reads, it begins anew.
    std::thread::sleep(Duration::from_millis(30));
    credits.refund(4);
    assert_eq!(since(&credits), 0);
    assert_eq!(credits.pay(4), Payment::Made);
    assert!(!credits.is_stalled());
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(credits.pay(4), Payment::Refused);
    assert_eq!(credits.pay(4), Payment::Refused, "for good");
}

/// The reader of one response gives back what a sender of another took. Sums that overflow
/// panic in the profiles of tests.
#[test]
fn senders_and_readers_of_one_request_never_give_back_too_much() {
    let budget = Budget::new(1 << 30);
    let share = budget.share(&Arc::<ConnectionUsage>::default(), budget.client(b"one"));
    let backlog = StreamBacklog::new(LONG, REQUEST_SHARE * 8 * SMALL_RESPONSE_BYTES);
    let credits = Credits::new(&backlog, &share);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut taken_count = 0;
            while taken_count < 300_000 {
                taken_count += u32::from(credits.take_excess(SMALL_RESPONSE_BYTES));
            }
        });
        while !sender.is_finished() {
            credits.uncharge_excess(SMALL_RESPONSE_BYTES);
        }
    });
    let held = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!(held(&backlog.held_bytes), held(&credits.excess_bytes));
    drop(credits);
    assert_eq!(held(&backlog.held_bytes), 0);
}

#[test]
fn bytes_are_bounded_but_one_response_always_fits() {
    let credits = Credits::default();
    assert!(credits.try_take(BYTES_MAX * 4));
    assert!(!credits.try_take(1));
    credits.refund(BYTES_MAX * 4);
    assert!(credits.try_take(BYTES_MAX - 1) && credits.try_take(1));
    assert!(!credits.try_take(1));
    credits.refund(1);
    assert!(credits.try_take(1));
}

#[test]
fn a_slow_reader_that_goes_on_is_waited_for() {
    let credits = Arc::new(Credits::default());
    let reader = Arc::clone(&credits);
    let count = COUNT_MAX + 1_500;
    let reading = std::thread::spawn(move || {
        // About 900 per second for two seconds, which is longer than the patience.
        let mut left_count = count;
        while left_count > 0 {
            std::thread::sleep(Duration::from_millis(10));
            let taken_count = left_count
                .min(9)
                .min(reader.word.load(Ordering::Relaxed) >> COUNT_SHIFT);
            (0..taken_count).for_each(|_| reader.refund(4));
            left_count -= taken_count;
        }
    });
    for index in 0..count {
        assert_eq!(credits.pay(4), Payment::Made, "response {index}");
    }
    reading.join().unwrap();
}

#[test]
fn large_responses_may_take_their_time() {
    const LARGE: u64 = 200_000_000;
    let credits = Arc::new(Credits::default());
    let reader = Arc::clone(&credits);
    assert_eq!(credits.pay(LARGE), Payment::Made);
    let reading = std::thread::spawn(move || {
        // More than 16 MB per second, but longer for one than a small response is waited for.
        for _ in 0..2 {
            std::thread::sleep(HOLD_MAX + HOLD_MAX / 4);
            reader.refund(LARGE);
        }
    });
    assert_eq!(credits.pay(LARGE), Payment::Made);
    assert_eq!(credits.pay(LARGE), Payment::Made);
    reading.join().unwrap();
    let left_ns = credits.hold_ns.load(Ordering::Relaxed);
    assert!(left_ns <= credits.hold_max_ns.load(Ordering::Relaxed));
    assert_eq!(earned_ns(u64::MAX), PATIENCE.as_nanos() as i64);
}

#[test]
fn who_leaves_is_not_waited_for() {
    let credits = Arc::new(Credits::default());
    (0..COUNT_MAX).for_each(|_| assert_eq!(credits.pay(4), Payment::Made));
    let reader = Arc::clone(&credits);
    let leaving = std::thread::spawn(move || {
        // The sender most likely waits by then; if it does not, it need not.
        std::thread::sleep(Duration::from_millis(50));
        reader.close();
    });
    // One that had waited for its patience would be refused.
    assert_eq!(credits.pay(4), Payment::Unwanted);
    leaving.join().unwrap();
    assert!(!credits.is_overdrawn());
}
