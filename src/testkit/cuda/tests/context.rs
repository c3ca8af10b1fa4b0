//! Primary contexts.

use super::support::{NONE, Session, alloc, count, cu, event, ok, pinned, run_child, stream};

#[test]
fn the_current_context_is_one_per_thread() {
    let session = Session::start();
    let (mut context, mut device) = (NONE, 9);
    ok!(cuCtxGetCurrent(&mut context));
    assert_eq!(context, session.contexts[0]);
    std::thread::spawn(|| {
        let (mut context, mut device) = (NONE, 0);
        ok!(cuCtxGetCurrent(&mut context));
        assert!(context.is_null());
        assert_eq!(cu!(cuCtxGetDevice(&mut device)), 201);
    })
    .join()
    .unwrap();
    ok!(cuCtxSetCurrent(session.contexts[1]));
    ok!(cuCtxGetDevice(&mut device));
    assert_eq!(device, 1);
    assert_eq!(
        cu!(cuCtxSetCurrent(std::ptr::without_provenance_mut(77))),
        201
    );
}

#[test]
fn without_a_context_everything_is_refused() {
    let _session = Session::start();
    let (stream, event, address) = (stream(), event(), alloc(16));
    let memory = pinned(16).as_mut_ptr().cast();
    ok!(cuCtxSetCurrent(NONE));
    let (mut pointer, mut size) = (NONE, 0);
    let answers = [
        cu!(cuCtxSynchronize()),
        cu!(cuCtxGetStreamPriorityRange(&mut 0, &mut 0)),
        cu!(cuCtxEnablePeerAccess(NONE, 0)),
        cu!(cuMemGetInfo_v2(&mut size, &mut 0)),
        cu!(cuMemAlloc_v2(&mut 0, 16)),
        cu!(cuMemFree_v2(address)),
        cu!(cuMemHostAlloc(&mut pointer, 16, 0)),
        cu!(cuMemFreeHost(memory)),
        cu!(cuMemHostRegister_v2(memory, 16, 0)),
        cu!(cuMemHostUnregister(memory)),
        cu!(cuMemcpyAsync(address, address, 1, stream)),
        cu!(cuMemcpyAsync(address, address, 1, NONE)),
        cu!(cuMemcpyPeerAsync(address, NONE, address, NONE, 1, stream)),
        cu!(cuMemsetD8Async(address, 0, 1, stream)),
        cu!(cuStreamCreate(&mut pointer, 0)),
        cu!(cuStreamDestroy_v2(stream)),
        cu!(cuStreamSynchronize(stream)),
        cu!(cuStreamQuery(stream)),
        cu!(cuStreamWaitEvent(stream, event, 0)),
        cu!(cuEventCreate(&mut pointer, 0)),
        cu!(cuEventDestroy_v2(event)),
        cu!(cuEventRecord(event, stream)),
        cu!(cuIpcCloseMemHandle(address)),
        cu!(cuMemGetAddressRange_v2(&mut 0, &mut size, address)),
    ];
    assert_eq!(answers, [201; 24]);
}

#[test]
fn the_last_release_ends_what_the_context_holds() {
    let session = Session::start();
    ok!(cuCtxSetCurrent(session.contexts[1]));
    alloc(4096);
    ok!(cuCtxSetCurrent(session.contexts[0]));
    let mut context = NONE;
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
    assert_eq!(context, session.contexts[0]);
    let (stream, address) = (stream(), alloc(4096));
    event();
    pinned(4096);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(count("live_allocations"), 2);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    let live = [
        "live_allocations",
        "live_streams",
        "live_events",
        "live_pinned",
        "live_contexts",
    ];
    assert_eq!(live.map(count), [1, 0, 0, 0, 1]);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 201);
    assert_eq!(cu!(cuStreamQuery(stream)), 709);
    assert_eq!(cu!(cuCtxSetCurrent(context)), 201);
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
    assert_eq!(cu!(cuStreamQuery(stream)), 400);
    assert_eq!(cu!(cuMemFree_v2(address)), 1);
}

#[test]
fn peer_access_is_enabled_once() {
    let session = Session::start();
    assert_eq!(cu!(cuCtxEnablePeerAccess(session.contexts[1], 1)), 1);
    ok!(cuCtxEnablePeerAccess(session.contexts[1], 0));
    assert_eq!(cu!(cuCtxEnablePeerAccess(session.contexts[1], 0)), 704);
    assert_eq!(cu!(cuCtxEnablePeerAccess(session.contexts[0], 0)), 201);
    let mut answer = 1;
    ok!(cuDeviceCanAccessPeer(&mut answer, 1, 1));
    assert_eq!(answer, 0);
    assert_eq!(cu!(cuDeviceCanAccessPeer(&mut answer, 1, 2)), 101);
    run_child("no_peer", &[("CONCH_CUDA_DOUBLE", "devices=2;peer=0")]);
}

#[test]
fn synchronising_a_context_is_counted() {
    let _session = Session::start();
    let before = count("cuCtxSynchronize");
    ok!(cuCtxSynchronize());
    assert_eq!(count("cuCtxSynchronize"), before + 1);
}
