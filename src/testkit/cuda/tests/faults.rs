//! Faults that tests order.

use super::support::{
    NONE, Session, alloc, count, cu, event, fail, ok, pinned, read, run_child, stream,
};

#[test]
fn the_calls_in_question_fail() {
    let _session = Session::start();
    alloc(16);
    fail("cuMemAlloc_v2", 1, 2, 2);
    fail("cuNoSuch", 0, 1, 2);
    let before = count("cuMemAlloc_v2");
    let answers: Vec<u32> = (0..5).map(|_| cu!(cuMemAlloc_v2(&mut 0, 16))).collect();
    assert_eq!(answers, [0, 2, 2, 0, 0]);
    assert_eq!(count("cuMemAlloc_v2"), before + 5);
    fail("cuMemAlloc_v2", 0, u32::MAX, 2);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 16)), 2);
    fail("cuMemAlloc_v2", 0, 0, 0);
    alloc(16);
}

#[test]
fn a_copy_that_fails_is_told_once() {
    let _session = Session::start();
    let (stream, first, second) = (stream(), event(), event());
    let (address, source) = (alloc(16), pinned(16));
    let copy = || {
        cu!(cuMemcpyHtoDAsync_v2(
            address,
            source.as_ptr().cast(),
            16,
            stream
        ))
    };
    fail("copy", 1, 1, 2);
    assert_eq!([copy(), copy(), copy()], [0; 3]);
    assert_eq!(cu!(cuStreamSynchronize(stream)), 2);
    ok!(cuStreamSynchronize(stream));
    // An event after the failure tells it too.
    fail("copy", 0, 1, 2);
    ok!(cuEventRecord(first, stream));
    assert_eq!(copy(), 0);
    ok!(cuEventRecord(second, stream));
    ok!(cuEventSynchronize(first));
    assert_eq!(cu!(cuEventSynchronize(second)), 2);
    ok!(cuStreamSynchronize(stream));
    fail("copy", 0, 1, 2);
    assert_eq!(copy(), 0);
    while cu!(cuStreamQuery(stream)) == 600 {}
    ok!(cuStreamQuery(stream));
}

#[test]
fn a_pageable_target_tells_its_failure_itself() {
    let _session = Session::start();
    let (address, mut bytes) = (alloc(16), [0_u8; 16]);
    fail("copy", 0, 1, 999);
    assert_eq!(
        cu!(cuMemcpyDtoHAsync_v2(
            bytes.as_mut_ptr().cast(),
            address,
            16,
            NONE
        )),
        999
    );
    assert_eq!(read(address, 1), [0xc5]);
}

#[test]
fn a_sticky_error_stays_until_the_context_is_reset() {
    let session = Session::start();
    for code in [700, 719] {
        let (stream, event, address, source) = (stream(), event(), alloc(16), pinned(16));
        ok!(cuEventRecord(event, stream));
        fail("copy", 0, 1, code);
        ok!(cuMemcpyHtoDAsync_v2(
            address,
            source.as_ptr().cast(),
            16,
            stream
        ));
        assert_eq!(cu!(cuStreamSynchronize(stream)), code);
        let answers = [
            cu!(cuStreamQuery(stream)),
            cu!(cuStreamDestroy_v2(stream)),
            cu!(cuEventQuery(event)),
            cu!(cuMemAlloc_v2(&mut 0, 16)),
            cu!(cuMemFree_v2(address)),
            cu!(cuMemFreeHost(source.as_mut_ptr().cast())),
            cu!(cuCtxSetCurrent(session.contexts[0])),
            cu!(cuDevicePrimaryCtxRetain(&mut { NONE }, 0)),
        ];
        assert_eq!(answers, [code; 8]);
        // The other device is well.
        ok!(cuCtxSetCurrent(session.contexts[1]));
        alloc(16);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        ok!(cuDevicePrimaryCtxRetain(&mut { NONE }, 0));
        ok!(cuCtxSetCurrent(session.contexts[0]));
        alloc(16);
    }
}

#[test]
fn a_call_can_leave_a_sticky_error() {
    let _session = Session::start();
    fail("cuMemFree_v2", 0, 1, 700);
    let address = alloc(16);
    assert_eq!(cu!(cuMemFree_v2(address)), 700);
    assert_eq!(cu!(cuStreamQuery(NONE)), 700);
}

#[test]
fn a_lost_device_answers_nothing_else() {
    let session = Session::start();
    let (stream, address) = (stream(), alloc(16));
    fail("device:0", 0, 1, 46);
    let mut number = 0;
    let answers = [
        cu!(cuDeviceGet(&mut number, 0)),
        cu!(cuDeviceTotalMem_v2(&mut 0, 0)),
        cu!(cuDevicePrimaryCtxRetain(&mut { NONE }, 0)),
        cu!(cuDevicePrimaryCtxRelease_v2(0)),
        cu!(cuStreamSynchronize(stream)),
        cu!(cuMemFree_v2(address)),
        cu!(cuCtxSetCurrent(session.contexts[0])),
    ];
    assert_eq!(answers, [46; 7]);
    ok!(cuDeviceTotalMem_v2(&mut 0, 1));
    ok!(cuCtxSetCurrent(session.contexts[1]));
    alloc(16);
    // A call that answers 46 loses the device of the current context.
    fail("cuMemAlloc_v2", 0, 1, 46);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 16)), 46);
    assert_eq!(cu!(cuStreamQuery(NONE)), 46);
    ok!(cuDeviceGetCount(&mut number));
}

#[test]
fn the_environment_orders_faults() {
    let faults = "cuMemAlloc_v2:2:1:2,copy:1:1:700";
    run_child("environment_faults", &[("CONCH_CUDA_DOUBLE_FAIL", faults)]);
}

#[test]
fn a_file_orders_faults_while_the_driver_runs() {
    let path = std::env::temp_dir().join(format!("conch-cuda-double-{}", std::process::id()));
    run_child(
        "file_faults",
        &[("CONCH_CUDA_DOUBLE_FAULTS", path.to_str().unwrap())],
    );
}
