//! Pinned host memory.

use super::support::{NONE, Session, alloc, count, cu, ok, pinned};

#[test]
fn only_what_was_handed_out_is_freed() {
    let _session = Session::start();
    let memory = pinned(5000).as_mut_ptr();
    assert_eq!(cu!(cuMemFreeHost(memory.wrapping_add(1).cast())), 1);
    assert_eq!(cu!(cuMemFreeHost(NONE)), 1);
    assert_eq!(cu!(cuMemHostUnregister(memory.cast())), 713);
    assert_eq!(count("live_pinned"), 1);
    ok!(cuMemFreeHost(memory.cast()));
    assert_eq!(cu!(cuMemFreeHost(memory.cast())), 1);
    assert_eq!(count("live_pinned"), 0);
    assert_eq!(cu!(cuMemHostAlloc(&mut { NONE }, 0, 0)), 1);
    assert_eq!(cu!(cuMemHostAlloc(&mut { NONE }, 16, 8)), 1);
}

#[test]
fn memory_is_registered_once() {
    let _session = Session::start();
    let mut bytes = vec![0_u8; 1000];
    let memory = bytes.as_mut_ptr();
    let register = |offset, len| {
        cu!(cuMemHostRegister_v2(
            memory.wrapping_add(offset).cast(),
            len,
            1
        ))
    };
    let unregister = |offset| cu!(cuMemHostUnregister(memory.wrapping_add(offset).cast()));
    assert_eq!(unregister(0), 713);
    assert_eq!(register(100, 100), 0);
    for (offset, len) in [(100, 100), (0, 101), (199, 1), (0, 1000), (150, 10)] {
        assert_eq!(register(offset, len), 712, "{offset}, {len}");
    }
    assert_eq!(register(200, 100), 0);
    assert_eq!(register(0, 100), 0);
    assert_eq!(unregister(101), 713);
    assert_eq!(cu!(cuMemFreeHost(memory.cast())), 1);
    assert_eq!([unregister(0), unregister(100), unregister(200)], [0; 3]);
    assert_eq!(unregister(100), 713);
    assert_eq!(register(0, 0), 1);
    assert_eq!(cu!(cuMemHostRegister_v2(memory.cast(), 10, 16)), 1);
}

#[test]
fn a_range_over_the_end_of_pinned_memory_is_refused() {
    let _session = Session::start();
    let (memory, address) = (pinned(5000), alloc(6000));
    let from = memory.as_ptr().cast();
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(address, from, 5001, NONE)), 1);
    ok!(cuMemcpyHtoDAsync_v2(address, from, 5000, NONE));
}
