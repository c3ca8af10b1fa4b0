//! Each report adds the right numbers, wrong ones are refused, and no reader sees half an update.

use std::sync::atomic::AtomicBool;

use crate::model::stats::*;

const SPAN: ExecutionSpan = ExecutionSpan {
    exec_start_ns: 1_000,
    compute_start_ns: 1_001,
    compute_end_ns: 1_011,
    exec_end_ns: 1_111,
};

fn statistics(core_count: usize, batch_size_max: u32) -> Statistics {
    let options = ObservationOptions::default();
    Statistics::new(core_count, batch_size_max, options, &[])
}

fn timestamps() -> Timestamps {
    Timestamps {
        request_start_ns: 100,
        queue_start_ns: 900,
        ..Timestamps::default()
    }
}

fn times(count: u64, duration_ns: u64) -> CountAndTime {
    CountAndTime { count, duration_ns }
}

#[test]
fn every_report_reaches_its_fields() {
    let statistics = statistics(1, 4);
    statistics.report_request(None, true, &timestamps(), 3, &SPAN);
    statistics.report_request(None, false, &timestamps(), 1, &SPAN);
    statistics.report_failure(FailureReason::Rejected, 7);
    statistics.report_failure(FailureReason::Canceled, 0);
    statistics.report_failure(FailureReason::Other, 0);
    statistics.report_batch(None, 3, &SPAN);
    statistics.report_batch(None, 3, &SPAN);
    statistics.report_batch(None, 4, &SPAN);
    statistics.report_batch(None, 1_000_000, &SPAN);
    statistics.report_batch(None, 0, &SPAN);
    statistics.report_cache_hit(&timestamps(), 950, 25);
    statistics.report_cache_miss(40);
    let totals = statistics.totals();
    assert_eq!((totals.inference_count, totals.execution_count), (3, 5));
    assert!(totals.last_inference_ms > 1_600_000_000_000);
    assert_eq!(totals.failures, [1, 1, 1, 1]);
    let inference = totals.inference;
    assert_eq!(inference.fail.count, 4);
    assert!(inference.fail.duration_ns > 7);
    assert_eq!(inference.success.count, 2);
    assert_eq!(inference.queue, times(2, 100 + 50));
    assert_eq!(inference.compute_input, times(1, 1));
    assert_eq!(inference.compute_infer, times(1, 10));
    assert_eq!(inference.compute_output, times(1, 100));
    assert_eq!(inference.cache_hit, times(1, 25));
    assert_eq!(inference.cache_miss, times(1, 40));
    let sizes: Vec<(u64, u64)> = totals
        .batches
        .values()
        .map(|batch| (batch.batch_size, batch.compute_infer.count))
        .collect();
    assert_eq!(sizes, [(0, 1), (3, 2), (4, 1), (1_000_000, 1)]);
    assert_eq!(totals.batches[&3].compute_output, times(2, 200));
    assert_eq!(totals.batches[&1_000_000].compute_input, times(1, 1));
}

#[test]
fn stages_out_of_order_count_as_nothing() {
    let statistics = statistics(1, 0);
    let span = ExecutionSpan {
        exec_start_ns: 500,
        compute_start_ns: 0,
        compute_end_ns: 800,
        exec_end_ns: 700,
    };
    statistics.report_request(
        None,
        true,
        &Timestamps {
            queue_start_ns: 600,
            ..timestamps()
        },
        0,
        &span,
    );
    let totals = statistics.totals();
    assert_eq!(totals.inference.queue.duration_ns, 0);
    assert_eq!(totals.inference.compute_input.duration_ns, 0);
    assert_eq!(totals.inference.compute_infer.duration_ns, 800);
    assert_eq!(totals.inference.compute_output.duration_ns, 0);
    assert_eq!(
        totals.inference_count, 1,
        "a request is at least one inference"
    );
}

fn sent(success: bool, start_ns: u64, output_start_ns: u64, end_ns: u64) -> ResponseReport {
    ResponseReport::Sent {
        success,
        start_ns,
        output_start_ns,
        end_ns,
    }
}

#[test]
fn responses_are_counted_by_index_and_checked() {
    let table: [(ResponseReport, Result<[u64; 6], &str>); 9] = [
        (sent(true, 10, 15, 18), Ok([1, 1, 1, 0, 0, 0])),
        (
            sent(true, 10, 9, 18),
            Err("Response start cannot happen after compute output start"),
        ),
        (
            sent(true, 10, 19, 18),
            Err("Compute output start cannot happen after response end"),
        ),
        (sent(false, 10, 15, 18), Ok([1, 1, 0, 1, 0, 0])),
        (sent(false, 10, 0, 18), Ok([1, 0, 0, 1, 0, 0])),
        (
            sent(false, 20, 0, 18),
            Err("Response start cannot happen after response end"),
        ),
        (
            ResponseReport::Empty {
                start_ns: 10,
                end_ns: 12,
            },
            Ok([1, 0, 0, 0, 1, 0]),
        ),
        (
            ResponseReport::Cancelled {
                start_ns: 10,
                end_ns: 12,
            },
            Ok([0, 0, 0, 0, 0, 1]),
        ),
        (
            ResponseReport::Cancelled {
                start_ns: 13,
                end_ns: 12,
            },
            Err("Response start cannot happen after response end"),
        ),
    ];
    for (index, (report, expected)) in (0_u64..).zip(table) {
        let statistics = statistics(1, 0);
        assert_eq!(
            statistics.report_response(index, report),
            expected.map(|_| ()),
            "{report:?}"
        );
        let totals = statistics.totals();
        let counts = totals.responses.get(&index).map(|seen| {
            [
                seen.compute_infer,
                seen.compute_output,
                seen.success,
                seen.fail,
                seen.empty_response,
                seen.cancel,
            ]
            .map(|tally| tally.count)
        });
        assert_eq!(counts, expected.ok(), "{report:?}");
    }
}

#[test]
fn responses_of_one_index_are_summed() {
    let statistics = statistics(1, 0);
    statistics
        .report_response(0, sent(true, 10, 15, 18))
        .unwrap();
    statistics
        .report_response(0, sent(true, 10, 15, 18))
        .unwrap();
    let seen = statistics.totals().responses[&0];
    assert_eq!(
        seen.compute_infer,
        CountAndTime {
            count: 2,
            duration_ns: 10
        }
    );
    assert_eq!(
        seen.compute_output,
        CountAndTime {
            count: 2,
            duration_ns: 6
        }
    );
    assert_eq!(
        seen.success,
        CountAndTime {
            count: 2,
            duration_ns: 16
        }
    );
}

#[test]
fn memory_is_replaced_per_owner_and_summed() {
    let statistics = statistics(1, 0);
    let usage = |kind, id, bytes| MemoryUsage { kind, id, bytes };
    statistics.report_memory(0, usage(MemoryKind::Cpu, 0, 100));
    statistics.report_memory(0, usage(MemoryKind::Cpu, 0, 70));
    statistics.report_memory(1, usage(MemoryKind::Cpu, 0, 5));
    statistics.report_memory(1, usage(MemoryKind::Gpu, 2, 9));
    assert_eq!(
        statistics.totals().memory_usage,
        [usage(MemoryKind::Cpu, 0, 75), usage(MemoryKind::Gpu, 2, 9)]
    );
    statistics.forget_memory(1);
    assert_eq!(
        statistics.totals().memory_usage,
        [usage(MemoryKind::Cpu, 0, 70)]
    );
}

/// The relations between fields that each writer below keeps.
fn assert_not_torn(totals: &Totals) {
    let inference = &totals.inference;
    let success_count = inference.success.count;
    assert_eq!(totals.inference_count, 3 * success_count);
    assert_eq!(inference.queue.duration_ns, 100 * success_count);
    assert_eq!(inference.compute_output.duration_ns, 100 * success_count);
    assert_eq!(inference.fail.duration_ns, 7 * totals.failures[0]);
    let batches = totals.batches.values();
    let executions: u64 = batches.map(|batch| batch.compute_infer.count).sum();
    assert_eq!(executions, totals.execution_count);
    for batch in totals.batches.values() {
        let (infer, output) = (&batch.compute_infer, &batch.compute_output);
        assert_eq!(infer.duration_ns, 10 * infer.count);
        assert_eq!(output.duration_ns, 100 * output.count);
    }
}

/// Each writer keeps a relation between fields; a torn read would break it.
#[test]
fn reads_are_never_torn() {
    const WRITERS: usize = 4;
    const ROUNDS: u64 = 4_000;
    // Fewer cells than writers, so that some share one.
    let statistics = statistics(2, 2);
    assert_eq!(statistics.cells.len(), 2);
    let is_done = AtomicBool::new(false);
    let read_count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = Totals::default();
            while !is_done.load(Ordering::Acquire) {
                let totals = statistics.totals();
                assert_not_torn(&totals);
                assert!(
                    totals.inference_count >= last.inference_count
                        && totals.execution_count >= last.execution_count
                );
                // Of the last reading: what was removed is read before what was added, so the
                // requests that came between the two are in the difference. All of them succeeded
                // by now but for one per writer; of those that had succeeded before it, all but one
                // per writer had been removed.
                let between = totals.inference.success.count - last.inference.success.count;
                assert!(
                    last.pending_count <= between + 2 * WRITERS as u64,
                    "{} pending, {between} requests since",
                    last.pending_count
                );
                last = totals;
                read_count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        statistics.add_pending();
                        statistics.report_request(None, true, &timestamps(), 3, &SPAN);
                        statistics.report_failure(FailureReason::Rejected, 7);
                        // Sizes with a row, and one without.
                        statistics.report_batch(None, 1 + round % 3, &SPAN);
                        statistics.remove_pending(1);
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        while read_count.load(Ordering::Relaxed) == 0 && !reader.is_finished() {
            std::thread::yield_now();
        }
        is_done.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    let totals = statistics.totals();
    let expected = WRITERS as u64 * ROUNDS;
    assert_eq!(
        (totals.inference.success.count, totals.execution_count),
        (expected, expected)
    );
    assert_eq!(
        (totals.failures, totals.pending_count),
        ([expected, 0, 0, 0], 0)
    );
}

#[test]
fn responses_without_end_share_a_row() {
    let statistics = statistics(1, 0);
    for index in [0, INDEX_MAX - 1, INDEX_MAX, INDEX_MAX + 1, u64::MAX] {
        let report = ResponseReport::Sent {
            success: true,
            start_ns: 10,
            output_start_ns: 15,
            end_ns: 18,
        };
        statistics.report_response(index, report).unwrap();
    }
    let rows: Vec<(u64, u64)> = statistics
        .totals()
        .responses
        .iter()
        .map(|(index, seen)| (*index, seen.success.count))
        .collect();
    assert_eq!(rows, [(0, 1), (INDEX_MAX - 1, 1), (INDEX_MAX, 3)]);
}

#[test]
fn devices_have_counts_of_their_own() {
    let statistics = statistics(2, 4);
    assert!(statistics.totals().devices.is_empty());
    assert!(statistics.device_cells.get().is_none(), "nothing is made");
    let report = |device_id, success| {
        let span = ExecutionSpan::default();
        statistics.report_request(device_id, success, &Timestamps::default(), 2, &span);
        statistics.report_batch(device_id, 2, &span);
    };
    statistics.open_device(3);
    // Neither is a device with cells.
    for device_id in [None, Some(-1), Some(1_000)] {
        report(device_id, true);
    }
    for (device_id, success) in [(0, true), (0, false), (1, true)] {
        report(Some(device_id), success);
    }
    let totals = statistics.totals();
    let counts = |figures: &DeviceTotals| {
        let figures = *figures;
        let failed = figures.failures.iter().sum::<u64>();
        let success = figures.inference.success.count;
        (
            success,
            failed,
            figures.inference_count,
            figures.execution_count,
        )
    };
    let by_device: Vec<_> = totals
        .devices
        .iter()
        .map(|(device_id, figures)| (*device_id, counts(figures)))
        .collect();
    let expected = [(0, (1, 1, 2, 2)), (1, (1, 0, 2, 1)), (3, (0, 0, 0, 0))];
    assert_eq!(by_device, expected);
    assert_eq!(counts(&totals.without_devices()), (3, 0, 6, 3));
    assert_eq!(counts(&DeviceTotals::of(&totals)), (5, 1, 10, 6));
    assert_eq!(totals.batches[&2].compute_infer.count, 6);
    let mut both = totals.clone();
    both.include(&totals);
    assert_eq!(counts(&both.devices[&0]), (2, 2, 4, 4));
    assert_eq!(counts(&both.without_devices()), (6, 0, 12, 6));
}
