//! Copies: where from, where to, and when they happen.

use std::time::{Duration, Instant};

use super::support::{
    NONE, Session, alloc, count, cu, hold_copies, let_copies_go, ok, pinned, read, stream, write,
};

#[test]
fn bytes_arrive_in_every_direction() {
    let session = Session::start();
    let pattern: Vec<u8> = (0..10_000).map(|place| (place % 251) as u8).collect();
    let (first, second) = (alloc(10_000), alloc(10_000));
    ok!(cuCtxSetCurrent(session.contexts[1]));
    let far = alloc(10_000);
    ok!(cuCtxSetCurrent(session.contexts[0]));
    write(first, &pattern);
    ok!(cuMemcpyDtoDAsync_v2(second, first, 10_000, NONE));
    let [here, there] = session.contexts;
    ok!(cuMemcpyPeerAsync(far, there, second, here, 10_000, NONE));
    ok!(cuMemsetD8Async(first, 7, 5000, NONE));
    ok!(cuMemcpyAsync(first + 1, far, 100, NONE));
    let back = pinned(10_000);
    ok!(cuMemcpyAsync(back.as_mut_ptr() as u64, far, 10_000, NONE));
    ok!(cuStreamSynchronize(NONE));
    assert_eq!(back, pattern);
    let found = read(first, 10_000);
    assert_eq!(
        (found[0], found[101], &found[1..101]),
        (7, 7, &pattern[..100])
    );
    assert_eq!(found[5000..], pattern[5000..]);
    assert_eq!(cu!(cuMemcpyPeerAsync(far, here, second, here, 1, NONE)), 1);
    assert_eq!(
        cu!(cuMemcpyPeerAsync(far, NONE, second, here, 1, NONE)),
        201
    );
    assert_eq!(
        cu!(cuMemcpyDtoDAsync_v2(back.as_ptr() as u64, first, 1, NONE)),
        1
    );
    assert_eq!(
        cu!(cuMemcpyHtoDAsync_v2(first, second as *const _, 1, NONE)),
        1
    );
}

#[test]
fn host_memory_is_copied_to_host_memory() {
    let _session = Session::start();
    let (from, mut to) = ([1_u8, 2, 3], [0_u8; 3]);
    ok!(cuMemcpyAsync(
        to.as_mut_ptr() as u64,
        from.as_ptr() as u64,
        3,
        NONE
    ));
    assert_eq!(to, from);
}

#[test]
fn pinned_copies_return_at_once() {
    let _session = Session::start();
    let (stream, address) = (stream(), alloc(100));
    let (source, target) = (pinned(100), pinned(100));
    source.fill(1);
    hold_copies();
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        source.as_ptr().cast(),
        100,
        stream
    ));
    ok!(cuMemcpyDtoHAsync_v2(
        target.as_mut_ptr().cast(),
        address,
        100,
        stream
    ));
    assert_eq!(cu!(cuStreamQuery(stream)), 600);
    // The copy has not read its source yet.
    source.fill(2);
    let_copies_go();
    ok!(cuStreamSynchronize(stream));
    ok!(cuStreamQuery(stream));
    assert_eq!(target, [2; 100]);
}

#[test]
fn copies_take_their_time() {
    let _session = Session::start();
    let (stream, address, source) = (stream(), alloc(100), pinned(100));
    crate::conch_cuda_double_set_copy_us(20_000);
    let begin = Instant::now();
    for _ in 0..2 {
        ok!(cuMemcpyHtoDAsync_v2(
            address,
            source.as_ptr().cast(),
            100,
            stream
        ));
    }
    ok!(cuStreamSynchronize(stream));
    assert!(begin.elapsed() >= Duration::from_millis(40));
}

#[test]
fn registered_memory_is_pinned_memory() {
    let _session = Session::start();
    let (stream, address) = (stream(), alloc(100));
    let mut source = vec![1_u8; 100];
    let memory = source.as_mut_ptr();
    ok!(cuMemHostRegister_v2(memory.cast(), 100, 0));
    hold_copies();
    ok!(cuMemcpyDtoHAsync_v2(memory.cast(), address, 100, stream));
    assert_eq!(cu!(cuStreamQuery(stream)), 600);
    let_copies_go();
    ok!(cuStreamSynchronize(stream));
    ok!(cuMemHostUnregister(memory.cast()));
    assert_eq!(source, [0xc5; 100]);
}

#[test]
fn pageable_sources_are_staged_and_targets_awaited() {
    let _session = Session::start();
    let (stream, address) = (stream(), alloc(100));
    let mut bytes = vec![1_u8; 100];
    hold_copies();
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        bytes.as_ptr().cast(),
        100,
        stream
    ));
    assert_eq!(cu!(cuStreamQuery(stream)), 600);
    bytes.fill(2);
    crate::conch_cuda_double_set_copy_us(20_000);
    ok!(cuMemcpyDtoHAsync_v2(
        bytes.as_mut_ptr().cast(),
        address,
        100,
        stream
    ));
    assert_eq!(bytes, [1; 100]);
    ok!(cuStreamQuery(stream));
}

#[test]
fn freeing_under_a_copy_is_counted() {
    let _session = Session::start();
    let (stream, address, source) = (stream(), alloc(100), pinned(100));
    let before = count("freed_in_flight");
    hold_copies();
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        source.as_ptr().cast(),
        100,
        stream
    ));
    ok!(cuMemFree_v2(address));
    ok!(cuMemFreeHost(source.as_mut_ptr().cast()));
    assert_eq!(count("freed_in_flight"), before + 2);
    let_copies_go();
    ok!(cuStreamSynchronize(stream));
}

#[test]
fn streams_of_others_and_destroyed_ones_are_refused() {
    let session = Session::start();
    let (stream, address, bytes) = (stream(), alloc(16), [0_u8; 16]);
    let copy = || {
        cu!(cuMemcpyHtoDAsync_v2(
            address,
            bytes.as_ptr().cast(),
            16,
            stream
        ))
    };
    ok!(cuCtxSetCurrent(session.contexts[1]));
    assert_eq!(copy(), 400);
    assert_eq!(cu!(cuStreamSynchronize(stream)), 400);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), 400);
    ok!(cuCtxSetCurrent(session.contexts[0]));
    assert_eq!(copy(), 0);
    ok!(cuStreamDestroy_v2(stream));
    assert_eq!(
        [
            copy(),
            cu!(cuStreamQuery(stream)),
            cu!(cuStreamDestroy_v2(stream))
        ],
        [400; 3]
    );
    assert_eq!(cu!(cuStreamDestroy_v2(NONE)), 400);
    assert_eq!(count("live_streams"), 0);
    assert_eq!(cu!(cuStreamCreate(&mut { NONE }, 2)), 1);
    let (mut least, mut most, mut made) = (1, 1, NONE);
    ok!(cuCtxGetStreamPriorityRange(&mut least, &mut most));
    assert!(most < least);
    ok!(cuStreamCreateWithPriority(&mut made, 0, most));
}
