//! Device memory and questions about pointers.

use std::ffi::c_void;

use super::support::{BYTES, NONE, Session, alloc, count, cu, ok, pinned, read};

fn free() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(total, BYTES);
    free
}

#[test]
fn memory_runs_out_per_device() {
    let session = Session::start();
    let first = alloc(BYTES - 4096);
    assert_eq!(free(), 4096);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 4097)), 2);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, usize::MAX)), 2);
    let second = alloc(4096);
    assert_eq!(free(), 0);
    ok!(cuCtxSetCurrent(session.contexts[1]));
    assert_eq!(free(), BYTES);
    alloc(4096);
    ok!(cuCtxSetCurrent(session.contexts[0]));
    ok!(cuMemFree_v2(first));
    ok!(cuMemFree_v2(second));
    assert_eq!(free(), BYTES);
}

#[test]
fn fresh_memory_is_aligned_and_not_zero() {
    let _session = Session::start();
    let addresses: Vec<u64> = (1..50).map(|size| alloc(size * 100)).collect();
    for (address, size) in addresses.iter().zip(1..) {
        assert!(address.is_multiple_of(256));
        assert!(read(*address, size * 100).iter().all(|byte| *byte == 0xc5));
    }
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 0)), 1);
    assert_eq!(cu!(cuMemAlloc_v2(std::ptr::null_mut(), 1)), 1);
}

/// A system call that would read the memory is refused as the CPU would be.
#[test]
fn the_cpu_cannot_touch_device_memory() {
    let _session = Session::start();
    let address = alloc(4096);
    let mut ends = [0; 2];
    // SAFETY: makes a pipe.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the kernel checks the address, and refuses it.
    let written = unsafe { libc::write(ends[1], address as *const c_void, 1) };
    let error = std::io::Error::last_os_error();
    assert_eq!((written, error.raw_os_error()), (-1, Some(libc::EFAULT)));
    for end in ends {
        // SAFETY: the pipe is this test's.
        unsafe { libc::close(end) };
    }
}

#[test]
fn only_what_was_allocated_is_freed_and_once() {
    let _session = Session::start();
    let address = alloc(8192);
    assert_eq!(cu!(cuMemFree_v2(address + 4096)), 1);
    assert_eq!(cu!(cuMemFree_v2(0)), 1);
    assert_eq!(cu!(cuMemFree_v2(0x1234_5000)), 1);
    assert_eq!(count("live_allocations"), 1);
    ok!(cuMemFree_v2(address));
    assert_eq!(cu!(cuMemFree_v2(address)), 1);
    assert_eq!(count("live_allocations"), 0);
}

#[test]
fn stale_and_overlong_ranges_are_refused() {
    let _session = Session::start();
    let (address, other) = (alloc(1000), alloc(1000));
    let copy = |to, from, len| cu!(cuMemcpyDtoDAsync_v2(to, from, len, NONE));
    assert_eq!(copy(address, other, 1001), 1);
    assert_eq!(copy(address + 1, other, 1000), 1);
    assert_eq!(copy(address, other + 1000, 1), 1);
    assert_eq!(cu!(cuMemsetD8Async(address, 0, 1001, NONE)), 1);
    ok!(cuMemFree_v2(other));
    assert_eq!(copy(address, other, 1), 1);
    assert_eq!(cu!(cuMemcpyAsync(address, other, 1, NONE)), 1);
    assert_eq!(cu!(cuMemGetAddressRange_v2(&mut 0, &mut 0, other)), 1);
    let mut byte = 0_u8;
    assert_eq!(
        cu!(cuMemcpyDtoHAsync_v2((&raw mut byte).cast(), other, 1, NONE)),
        1
    );
    assert_eq!(
        cu!(cuMemcpyHtoDAsync_v2(address, std::ptr::null(), 1, NONE)),
        1
    );
    assert_eq!(copy(address, other, 0), 0);
}

fn attribute<T: Default>(attribute: u32, address: u64) -> Result<T, u32> {
    let mut value = T::default();
    match cu!(cuPointerGetAttribute(
        (&raw mut value).cast(),
        attribute,
        address
    )) {
        0 => Ok(value),
        code => Err(code),
    }
}

#[test]
fn pointers_say_what_they_are() {
    let session = Session::start();
    let host = pinned(100).as_ptr() as u64;
    ok!(cuCtxSetCurrent(session.contexts[1]));
    let address = alloc(5000);
    let inside = address + 4999;
    assert_eq!(
        attribute::<usize>(1, inside),
        Ok(session.contexts[1].addr())
    );
    assert_eq!(attribute::<u32>(2, inside), Ok(2));
    assert_eq!(attribute::<i32>(9, inside), Ok(1));
    assert_eq!(attribute::<u64>(11, inside), Ok(address));
    assert_eq!(attribute::<usize>(12, inside), Ok(5000));
    assert_eq!(attribute::<u32>(2, host + 99), Ok(1));
    assert_eq!(attribute::<i32>(9, host), Ok(0));
    assert_eq!(attribute::<usize>(12, host), Ok(100));
    let local = 0_u8;
    for unknown in [address + 5000, (&raw const local) as u64, 0] {
        assert_eq!(attribute::<u32>(2, unknown), Err(1));
    }
    assert_eq!(attribute::<u32>(99, address), Err(1));
    let (mut start, mut size) = (0, 0);
    ok!(cuMemGetAddressRange_v2(&mut start, &mut size, inside));
    assert_eq!((start, size), (address, 5000));
}
