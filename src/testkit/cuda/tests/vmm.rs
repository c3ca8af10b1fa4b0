//! Virtual memory management.

use super::support::{BYTES, NONE, Session, count, cu, ok, read, write};
use crate::ipc::Handle;
use crate::vmm::{Access, Location, Properties};

const UNIT: usize = 2 << 20;
const STEP: u64 = UNIT as u64;

fn properties(id: i32) -> Properties {
    let location = Location { kind: 1, id };
    Properties {
        kind: 1,
        handle_types: 0,
        location,
        win32: NONE,
        flags: [0; 8],
    }
}

fn create(size: usize) -> u64 {
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, size, &properties(0), 0));
    handle
}

fn reserve(size: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAddressReserve(&mut address, size, 0, 0, 0));
    address
}

fn set_access(address: u64, size: usize, flags: u32) -> u32 {
    let access = Access {
        location: Location { kind: 1, id: 0 },
        flags,
    };
    cu!(cuMemSetAccess(address, size, &access, 1))
}

/// Ends a mapping that fills a reservation.
fn end(address: u64, size: usize) {
    ok!(cuMemUnmap(address, size));
    ok!(cuMemAddressFree(address, size));
}

#[test]
fn neighbouring_mappings_are_one_range() {
    let _session = Session::start();
    let mut unit = 0;
    ok!(cuMemGetAllocationGranularity(&mut unit, &properties(0), 0));
    assert_eq!(unit, UNIT);
    let address = reserve(2 * UNIT);
    assert!(address.is_multiple_of(STEP));
    for place in 0..2 {
        let handle = create(UNIT);
        ok!(cuMemMap(address + place * STEP, UNIT, 0, handle, 0));
        ok!(cuMemRelease(handle));
        assert_eq!(cu!(cuMemRelease(handle)), 1);
    }
    assert_eq!(set_access(address, 2 * UNIT, 3), 0);
    let edge = address + STEP - 3;
    assert_eq!(read(edge, 6), [0xc5; 6]);
    write(edge, b"across");
    assert_eq!(read(edge, 6), b"across");
    assert_eq!(cu!(cuMemsetD8Async(address, 0, 2 * UNIT + 1, NONE)), 1);
    let mut handle = Handle { bytes: [0; 64] };
    assert_eq!(cu!(cuIpcGetMemHandle(&mut handle, address)), 1);
    assert_eq!(cu!(cuMemFree_v2(address)), 1);
    assert_eq!((count("live_allocations"), count("live_mappings")), (2, 2));
    end(address, 2 * UNIT);
    assert_eq!((count("live_allocations"), count("live_mappings")), (0, 0));
    assert_eq!(cu!(cuMemsetD8Async(address, 0, 1, NONE)), 1);
}

#[test]
fn released_memory_stays_until_it_is_unmapped() {
    let _session = Session::start();
    let (mut free, mut total) = (0, 0);
    let handle = create(UNIT);
    let address = reserve(UNIT);
    ok!(cuMemMap(address, UNIT, 0, handle, 0));
    ok!(cuMemRelease(handle));
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(free, BYTES - UNIT);
    assert_eq!(cu!(cuMemMap(address, UNIT, 0, handle, 0)), 1);
    assert_eq!(cu!(cuMemAddressFree(address, UNIT)), 1);
    end(address, UNIT);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(free, BYTES);
    assert_eq!(cu!(cuMemCreate(&mut 0, BYTES + UNIT, &properties(0), 0)), 2);
}

#[test]
fn sizes_and_places_must_fit() {
    let _session = Session::start();
    let handle = create(2 * UNIT);
    let address = reserve(4 * UNIT);
    let rows = [
        (address, UNIT - 1, 0),
        (address, 0, 0),
        (address, 3 * UNIT, 0),
        (address, UNIT, 1),
        (address + 4096, UNIT, 0),
        (address + 3 * STEP, 2 * UNIT, 0),
        (address + 4 * STEP, UNIT, 0),
        (address - STEP, UNIT, 0),
    ];
    for (at, size, offset) in rows {
        assert_eq!(
            cu!(cuMemMap(at, size, offset, handle, 0)),
            1,
            "{size}, {offset}"
        );
    }
    assert_eq!(cu!(cuMemMap(address, UNIT, 0, handle + 999, 0)), 1);
    ok!(cuMemMap(address + STEP, 2 * UNIT, 0, handle, 0));
    for place in [1, 2] {
        assert_eq!(cu!(cuMemMap(address + place * STEP, UNIT, 0, handle, 0)), 1);
    }
    assert_eq!(cu!(cuMemMap(address, 2 * UNIT, 0, handle, 0)), 1);
    for (place, size) in [(0, UNIT), (1, UNIT), (2, UNIT), (1, 3 * UNIT)] {
        assert_eq!(
            cu!(cuMemUnmap(address + place * STEP, size)),
            1,
            "{place}, {size}"
        );
        assert_eq!(set_access(address + place * STEP, size, 3), 1);
    }
    assert_eq!(set_access(address + STEP, 2 * UNIT, 2), 1);
    ok!(cuMemUnmap(address + STEP, 2 * UNIT));
    ok!(cuMemRelease(handle));
    assert_eq!(cu!(cuMemAddressFree(address, UNIT)), 1);
    ok!(cuMemAddressFree(address, 4 * UNIT));
    assert_eq!(cu!(cuMemAddressReserve(&mut 0, UNIT + 1, 0, 0, 0)), 1);
    assert_eq!(cu!(cuMemCreate(&mut 0, UNIT + 1, &properties(0), 0)), 1);
    assert_eq!(cu!(cuMemCreate(&mut 0, UNIT, &properties(2), 0)), 101);
    assert_eq!(count("live_reservations"), 0);
}

#[test]
fn access_before_it_is_granted_breaks_the_context() {
    let session = Session::start();
    let handle = create(UNIT);
    let address = reserve(UNIT);
    ok!(cuMemMap(address, UNIT, 0, handle, 0));
    ok!(cuMemsetD8Async(address, 0, 1, NONE));
    assert_eq!(cu!(cuStreamSynchronize(NONE)), 700);
    assert_eq!(cu!(cuCtxSetCurrent(session.contexts[0])), 700);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    ok!(cuDevicePrimaryCtxRetain(&mut { NONE }, 0));
    assert_eq!(set_access(address, UNIT, 3), 0);
    assert_eq!(read(address, 1), [0xc5]);
    assert_eq!(set_access(address, UNIT, 0), 0);
    ok!(cuMemsetD8Async(address, 0, 1, NONE));
    assert_eq!(cu!(cuStreamSynchronize(NONE)), 700);
    ok!(cuCtxSetCurrent(NONE));
    end(address, UNIT);
    ok!(cuMemRelease(handle));
}
