//! Events.

use super::support::{
    NONE, Session, alloc, count, cu, event, hold_copies, let_copies_go, ok, pinned, stream,
};

#[test]
fn an_event_is_reached_after_what_came_before_it() {
    let _session = Session::start();
    let (stream, event) = (stream(), event());
    ok!(cuEventQuery(event));
    ok!(cuEventSynchronize(event));
    ok!(cuStreamWaitEvent(stream, event, 0));
    let (address, source) = (alloc(16), pinned(16));
    hold_copies();
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        source.as_ptr().cast(),
        16,
        stream
    ));
    ok!(cuEventRecord(event, stream));
    assert_eq!(cu!(cuEventQuery(event)), 600);
    let_copies_go();
    ok!(cuEventSynchronize(event));
    ok!(cuEventQuery(event));
    // Recorded again, it is not reached until the stream gets there.
    hold_copies();
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        source.as_ptr().cast(),
        16,
        stream
    ));
    ok!(cuEventRecord(event, stream));
    assert_eq!(cu!(cuEventQuery(event)), 600);
    let_copies_go();
    ok!(cuStreamSynchronize(stream));
    ok!(cuEventQuery(event));
}

#[test]
fn streams_wait_for_events_of_other_devices() {
    let session = Session::start();
    let (first, event) = (stream(), event());
    let (address, source, target) = (alloc(16), pinned(16), pinned(16));
    source.fill(5);
    hold_copies();
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        source.as_ptr().cast(),
        16,
        first
    ));
    ok!(cuEventRecord(event, first));
    ok!(cuCtxSetCurrent(session.contexts[1]));
    let (second, third, unheld) = (stream(), stream(), alloc(16));
    ok!(cuStreamWaitEvent(second, event, 0));
    ok!(cuMemsetD8Async(unheld, 0, 16, second));
    ok!(cuMemcpyDtoHAsync_v2(
        target.as_mut_ptr().cast(),
        address,
        16,
        second
    ));
    // A stream beside them goes its own way.
    ok!(cuMemsetD8Async(unheld, 0, 16, third));
    ok!(cuStreamSynchronize(third));
    assert_eq!(cu!(cuStreamQuery(second)), 600);
    assert_eq!(cu!(cuEventQuery(event)), 600);
    let_copies_go();
    ok!(cuStreamSynchronize(second));
    assert_eq!(target, [5; 16]);
    ok!(cuEventQuery(event));
}

#[test]
fn an_event_belongs_to_its_context() {
    let session = Session::start();
    let (stream, own) = (stream(), event());
    ok!(cuCtxSetCurrent(session.contexts[1]));
    let other = event();
    assert_eq!(cu!(cuEventRecord(own, NONE)), 400);
    ok!(cuEventRecord(other, NONE));
    assert_eq!(cu!(cuEventRecord(own, stream)), 400);
    ok!(cuCtxSetCurrent(session.contexts[0]));
    assert_eq!(cu!(cuEventRecord(other, stream)), 400);
    ok!(cuEventSynchronize(other));
}

#[test]
fn destroyed_events_are_refused() {
    let _session = Session::start();
    let (stream, event) = (stream(), event());
    ok!(cuEventRecord(event, stream));
    ok!(cuEventDestroy_v2(event));
    let answers = [
        cu!(cuEventQuery(event)),
        cu!(cuEventSynchronize(event)),
        cu!(cuEventRecord(event, stream)),
        cu!(cuStreamWaitEvent(stream, event, 0)),
        cu!(cuEventDestroy_v2(event)),
        cu!(cuEventQuery(NONE)),
        cu!(cuEventQuery(stream)),
    ];
    assert_eq!(answers, [400; 7]);
    assert_eq!(cu!(cuEventCreate(&mut { NONE }, 8)), 1);
    assert_eq!(count("live_events"), 0);
}

/// Nobody reaches the mark of a destroyed stream's queue but its thread, which ends later.
#[test]
fn a_destroyed_stream_still_reaches_its_events() {
    let _session = Session::start();
    let (stream, event) = (stream(), event());
    let (address, source) = (alloc(16), pinned(16));
    hold_copies();
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        source.as_ptr().cast(),
        16,
        stream
    ));
    ok!(cuEventRecord(event, stream));
    ok!(cuStreamDestroy_v2(stream));
    assert_eq!(cu!(cuEventQuery(event)), 600);
    let_copies_go();
    ok!(cuEventSynchronize(event));
}

#[test]
fn timed_events_tell_how_far_they_are_apart() {
    let _session = Session::start();
    let stream = stream();
    let (mut first, mut last) = (NONE, NONE);
    ok!(cuEventCreate(&mut first, 0));
    ok!(cuEventCreate(&mut last, 1));
    let mut milliseconds = -1.0f32;
    // Never recorded.
    assert_eq!(cu!(cuEventElapsedTime(&mut milliseconds, first, last)), 400);
    let (address, source) = (alloc(16), pinned(16));
    ok!(cuEventRecord(first, stream));
    // Reached before the copy is held, however busy the machine is.
    ok!(cuEventSynchronize(first));
    hold_copies();
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        source.as_ptr().cast(),
        16,
        stream
    ));
    ok!(cuEventRecord(last, stream));
    assert_eq!(cu!(cuEventElapsedTime(&mut milliseconds, first, last)), 600);
    std::thread::sleep(std::time::Duration::from_millis(5));
    let_copies_go();
    ok!(cuEventSynchronize(last));
    ok!(cuEventElapsedTime(&mut milliseconds, first, last));
    assert!(milliseconds >= 5.0, "{milliseconds} ms");
    let forth = milliseconds;
    ok!(cuEventElapsedTime(&mut milliseconds, last, first));
    assert!((milliseconds + forth).abs() < 0.01, "{milliseconds} ms");
    // One without times.
    assert_eq!(
        cu!(cuEventElapsedTime(&mut milliseconds, first, event())),
        400
    );
}
