//! Places in the queue.

use super::*;

#[test]
fn places_are_bounded_however_many_levels_there_are() {
    // As upstream's test of levels: its default is beyond 32 bits.
    let config = format!(
        "dynamic_batching {{ priority_levels: 18446744073709551615 default_priority_level: \
         4294967296
           default_queue_policy {{ max_queue_size: 2 }} priority_queue_policy \
         {{ key: 7000000000 value {{ }} }} priority_queue_policy {{ key: 9 value {{ \
         max_queue_size: 1 }} }} }} {BATCHING}"
    );
    let model = model_with(&config, 10);
    let at = |priority| Draft {
        priority,
        ..of(&[("a", Int32, &[1, 2], 8), ("b", Fp32, &[1, 1], 4)])
    };
    for (priority, level, max) in [
        (0, 4_294_967_296, Some(2)),
        (u64::MAX, u64::MAX, Some(2)),
        (7_000_000_000, 7_000_000_000, None),
        (9, 9, Some(1)),
        (1, 1, Some(2)),
    ] {
        for _ in 0..2 {
            let count = max.unwrap_or(5);
            let handles: Vec<_> = (0..count)
                .map(|_| try_admit(&model, at(priority)).unwrap())
                .collect();
            assert_eq!(handles[0].shared().facts.level, level);
            let next = try_admit(&model, at(priority));
            assert_eq!(next.is_err(), max.is_some(), "{priority}");
        }
    }
    assert_eq!(model.statistics.totals().pending_count, 0);
}

#[test]
fn places_are_bounded_and_given_back() {
    let config = format!(
        "dynamic_batching {{ priority_levels: 2 default_priority_level: 2 priority_queue_policy {{ \
         key: 1 value {{ max_queue_size: 1 }} }} }} {BATCHING}"
    );
    let model = model_with(&config, 3);
    let full = |priority| Draft {
        priority,
        id: "i",
        ..of(&[("a", Int32, &[1, 2], 8), ("b", Fp32, &[1, 1], 4)])
    };
    let refused = |priority| {
        let error = try_admit(&model, full(priority)).err().expect("refused");
        assert_eq!(
            (error.code, &*error.message),
            (
                Code::Unavailable,
                "[request id: i] Exceeds maximum queue size"
            )
        );
    };
    let first = try_admit(&model, full(1)).unwrap();
    refused(1);
    let second = try_admit(&model, full(9)).unwrap();
    assert_eq!(
        (first.shared().facts.level, second.shared().facts.level),
        (1, 2),
        "beyond the levels: the default"
    );
    assert_eq!(
        (model.live_count(), model.statistics.totals().pending_count),
        (2, 2)
    );
    assert!(cancel(&first).into_error().is_some() && cancel(&first).into_error().is_none());
    assert_eq!(model.statistics.totals().pending_count, 1);
    assert_eq!(model.live_count(), 2, "a handle counts while there is one");
    let third = try_admit(&model, full(1)).unwrap();
    refused(2);
    drop((first, second, third));
    assert_eq!(
        (model.live_count(), model.statistics.totals().pending_count),
        (0, 0)
    );
    let failures = model.statistics.totals().failures;
    assert_eq!(
        (failures[0], failures[1]),
        (0, 1),
        "cancelled; who was never queued does not count"
    );
}
