//! Captures, graphs and functions of the host.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use super::kernel::{counting, function, launch, load};
use super::support::*;

unsafe extern "C" fn count_up(counter: *mut c_void) {
    // SAFETY: the tests pass a counter that outlives the stream's work.
    let counter = unsafe { &*counter.cast::<AtomicU32>() };
    counter.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn host_functions_run_in_order() {
    let _session = Session::start();
    let (stream, device) = (stream(), alloc(4));
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let data = (&raw const CALLS).cast_mut().cast();
    ok!(cuMemsetD8Async(device, 7, 4, stream));
    ok!(cuLaunchHostFunc(stream, Some(count_up), data));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    assert_eq!(cu!(cuLaunchHostFunc(stream, None, data)), 1);
}

#[test]
fn what_is_captured_is_done_at_every_launch() {
    let _session = Session::start();
    let (stream, from, to) = (stream(), alloc(4), alloc(4));
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let data = (&raw const CALLS).cast_mut().cast();
    let (mut graph, mut executable, mut status) = (NONE, NONE, 0);
    write(to, &[1; 4]);
    ok!(cuStreamBeginCapture_v2(stream, 1));
    ok!(cuStreamIsCapturing(stream, &mut status));
    assert_eq!(status, 1);
    ok!(cuMemcpyAsync(to, from, 4, stream));
    ok!(cuLaunchHostFunc(stream, Some(count_up), data));
    ok!(cuStreamEndCapture(stream, &mut graph));
    ok!(cuStreamIsCapturing(stream, &mut status));
    assert_eq!(status, 0);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(
        (read(to, 4), CALLS.load(Ordering::Relaxed)),
        (vec![1; 4], 0)
    );

    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    ok!(cuGraphDestroy(graph));
    for round in 1..=2_u8 {
        write(from, &[round; 4]);
        ok!(cuGraphLaunch(executable, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(read(to, 4), [round; 4]);
        assert_eq!(CALLS.load(Ordering::Relaxed), u32::from(round));
    }
    assert_eq!(cu!(cuGraphLaunch(graph, stream)), 400, "it is gone");
    assert_eq!(count("live_graphs"), 1);
    ok!(cuGraphExecDestroy(executable));
    assert_eq!(count("live_graphs"), 0);
}

#[test]
fn captured_kernels_run_at_every_launch() {
    let _session = Session::start();
    let (stream, address) = (stream(), alloc(8));
    let kernel = function(load(&counting()));
    let (mut graph, mut executable) = (NONE, NONE);
    write(address, &[0; 8]);
    ok!(cuStreamBeginCapture_v2(stream, 1));
    // What no device can launch is refused at once, and not captured.
    assert_eq!(launch(kernel, 1, 129, stream, &mut [address, 2]), 1);
    assert_eq!(launch(kernel, 1, 2, stream, &mut [address, 2]), 0);
    ok!(cuStreamEndCapture(stream, &mut graph));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(read(address, 8), [0; 8]);
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    for round in 1..=2_u8 {
        ok!(cuGraphLaunch(executable, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(read(address, 8), [round, 0, 0, 0, round, 0, 0, 0]);
    }
    ok!(cuGraphDestroy(graph));
    ok!(cuGraphExecDestroy(executable));
}

#[test]
fn waiting_breaks_a_capture() {
    let _session = Session::start();
    let (stream, device) = (stream(), alloc(4));
    let mut graph = NONE;
    assert_eq!(cu!(cuStreamEndCapture(stream, &mut graph)), 1);
    ok!(cuStreamBeginCapture_v2(stream, 1));
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream, 1)), 1);
    ok!(cuMemsetD8Async(device, 7, 4, stream));
    assert_eq!(cu!(cuStreamSynchronize(stream)), 900);
    assert_eq!(cu!(cuStreamEndCapture(stream, &mut graph)), 901);
    assert!(graph.is_null());
    ok!(cuStreamSynchronize(stream));
    assert_eq!(cu!(cuStreamBeginCapture_v2(NONE, 1)), 1);
}
