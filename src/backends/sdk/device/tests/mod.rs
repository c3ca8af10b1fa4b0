//! Copies of batches, on two devices of the double of the driver. The tests take turns, as they
//! look at counts and order faults.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_cuda::{Device, DeviceMemory, Driver, PinnedMemory};
use conch_memory::{MemoryKind, MemoryPlace};
use conch_testkit_cuda::LoadedDouble;

use super::allocator::{AllocateMemory, NoAllocator};
use super::staging::STAGING_BYTES_MAX;
use super::*;
use crate::{Code, Error};

pub(super) fn alone() -> (MutexGuard<'static, ()>, &'static LoadedDouble) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (guard, LoadedDouble::get("devices=2;bytes=268435456"))
}

fn device(ordinal: usize) -> Arc<Device> {
    let driver = Driver::load().expect("the double is there");
    let properties = driver.devices().unwrap().swap_remove(ordinal);
    driver.open(properties).unwrap()
}

/// Gives memory of the driver's until `room` blocks are out.
struct TestAllocator {
    device: Arc<Device>,
    room: usize,
    blocks: Mutex<Vec<Memory>>,
    freed: Arc<AtomicUsize>,
}

impl AllocateMemory for TestAllocator {
    fn allocate(&self, place: MemoryPlace, byte_count: usize) -> Result<u64, Error> {
        let mut blocks = self.blocks.lock().unwrap();
        if blocks.len() == self.room {
            return Err(Error::out_of_memory(byte_count));
        }
        let memory = if place.is_host() {
            Memory::Pinned(PinnedMemory::allocate(&self.device, byte_count).unwrap())
        } else {
            Memory::Device(DeviceMemory::allocate(&self.device, byte_count as u64).unwrap())
        };
        let address = memory.base().expose_provenance() as u64;
        blocks.push(memory);
        Ok(address)
    }

    fn free(&self, place: MemoryPlace, address: u64) {
        let mut blocks = self.blocks.lock().unwrap();
        let before = blocks.len();
        blocks.retain(|block| block.base().addr() as u64 != address || block.place() != place);
        assert_eq!(blocks.len() + 1, before, "it was given out");
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream that may have `room` blocks of memory, and how many of these came back.
pub(super) fn stream(ordinal: usize, room: usize) -> (DeviceStream, Arc<AtomicUsize>) {
    let device = device(ordinal);
    let freed = Arc::new(AtomicUsize::new(0));
    let allocator = TestAllocator {
        device: Arc::clone(&device),
        room,
        blocks: Mutex::default(),
        freed: Arc::clone(&freed),
    };
    let stream = DeviceStream::on(&device, 0, Arc::new(allocator)).unwrap();
    (stream, freed)
}

#[test]
fn memory_of_other_processes_is_checked() {
    let (_alone, _) = alone();
    let (stream, _) = stream(0, 0);
    let exported = stream.export(5000).unwrap();
    assert_eq!(exported.target(5000).unwrap().len(), 5000);
    assert!(exported.target(5001).is_err());
    // The driver opens no handle of this process, and none that it did not make.
    for handle in [*exported.handle(), [0; 64], [0xff; 64]] {
        let error = stream.import(&handle).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(
            error.message().contains("GPU 0: cuIpcOpenMemHandle_v2"),
            "{error}"
        );
    }
    let absent = DeviceStream::open_on(7, 0, Arc::new(NoAllocator))
        .err()
        .unwrap();
    assert_eq!(absent.message(), "there is no GPU 7");
}

/// Memory of one kind for a test.
pub(super) enum Memory {
    Pageable(Box<[u8]>),
    Pinned(PinnedMemory),
    Device(DeviceMemory),
}

pub(super) const KINDS: [&str; 4] = ["pageable", "pinned", "near", "far"];

impl Memory {
    pub(super) fn new(kind: &str, len: usize) -> Memory {
        match kind {
            "pageable" => Memory::Pageable(vec![0xEE; len].into()),
            "pinned" => Memory::Pinned(PinnedMemory::allocate(&device(0), len).unwrap()),
            "near" => Memory::Device(DeviceMemory::allocate(&device(0), len as u64).unwrap()),
            _ => Memory::Device(DeviceMemory::allocate(&device(1), len as u64).unwrap()),
        }
    }

    pub(super) fn with(kind: &str, bytes: &[u8]) -> Memory {
        let mut memory = Memory::new(kind, bytes.len());
        copy(
            Memory::Pageable(bytes.into()).source(0..bytes.len()),
            memory.target(bytes.len()),
        );
        memory
    }

    fn base(&self) -> *mut c_void {
        match self {
            Memory::Pageable(bytes) => bytes.as_ptr().cast_mut().cast(),
            Memory::Pinned(memory) => memory.base().as_ptr().cast(),
            Memory::Device(memory) => std::ptr::without_provenance_mut(memory.base().0 as usize),
        }
    }

    fn place(&self) -> MemoryPlace {
        match self {
            Memory::Pageable(_) => MemoryPlace::CPU,
            Memory::Pinned(_) => MemoryPlace {
                kind: MemoryKind::CpuPinned,
                id: 0,
            },
            Memory::Device(memory) => MemoryPlace {
                kind: MemoryKind::Gpu,
                id: i64::from(memory.device().ordinal()),
            },
        }
    }

    pub(super) fn source(&self, range: std::ops::Range<usize>) -> MemorySource<'_> {
        let base = self.base().wrapping_byte_add(range.start);
        // SAFETY: the tests give ranges that lie inside; the memory is borrowed.
        unsafe { MemorySource::new(base, range.len(), self.place()) }
    }

    pub(super) fn target(&mut self, len: usize) -> MemoryTarget<'_> {
        // SAFETY: as above, exclusively.
        unsafe { MemoryTarget::new(self.base(), len, self.place(), c"Y") }.unwrap()
    }

    pub(super) fn bytes(&self, len: usize) -> Vec<u8> {
        let mut target = Memory::new("pageable", len);
        copy(self.source(0..len), target.target(len));
        match target {
            Memory::Pageable(bytes) => bytes.into(),
            _ => Vec::new(),
        }
    }
}

/// Copies by a stream of its own.
fn copy(source: MemorySource<'_>, target: MemoryTarget<'_>) {
    let (mut stream, _) = stream(0, 0);
    let mut target = target;
    let mut copies = stream.copies();
    copies.add(0, source, &mut target).unwrap();
    assert_eq!(copies.run(), []);
}

pub(super) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|index| ((index * 31) ^ (index >> 8) ^ seed) as u8)
        .collect()
}

#[test]
fn every_memory_reaches_every_other() {
    let (_alone, _) = alone();
    for room in [0, 2] {
        for (from, to) in KINDS.iter().flat_map(|from| KINDS.map(|to| (*from, to))) {
            for len in [0, 1, 4096, 300_001, STAGING_BYTES_MAX + 5] {
                if len > STAGING_BYTES_MAX && (room == 0 || from == to) {
                    continue;
                }
                let bytes = pattern(len, room);
                let source = Memory::with(from, &bytes);
                let mut target = Memory::new(to, len + 3);
                let (mut stream, _) = stream(0, room);
                let mut copies = stream.copies();
                let mut whole = target.target(len + 3);
                copies
                    .add(0, source.source(0..len / 3), &mut whole)
                    .unwrap();
                copies
                    .add(0, source.source(len / 3..len), &mut whole)
                    .unwrap();
                copies.zero_rest(0, &mut whole);
                assert_eq!(copies.run(), []);
                let found = target.bytes(len + 3);
                assert!(
                    found[..len] == bytes[..],
                    "{from} to {to}, {len} bytes, {room} blocks"
                );
                assert_eq!(found[len..], [0; 3], "{from} to {to}, {len} bytes");
            }
        }
    }
}

/// How many copies, events and waits a batch takes.
fn calls(double: &LoadedDouble, work: impl FnOnce()) -> [u64; 4] {
    const NAMES: [&CStr; 4] = [
        c"cuMemcpyAsync",
        c"cuEventRecord",
        c"cuEventSynchronize",
        c"cuStreamSynchronize",
    ];
    let before = NAMES.map(|name| double.count(name));
    work();
    let after = NAMES.map(|name| double.count(name));
    std::array::from_fn(|index| after[index] - before[index])
}

#[test]
fn contiguous_pieces_are_one_copy() {
    let (_alone, double) = alone();
    const LEN: usize = 120;
    // Where the pieces of 10 bytes of the source begin; the target is filled in order.
    let in_order: Vec<usize> = (0..12).map(|index| index * 10).collect();
    let with_gap = [0, 10, 20, 50, 60, 70];
    let backwards = [30, 20, 10, 0];
    for (from, to, starts, copies_expected) in [
        ("near", "near", &in_order[..], 1),
        ("near", "far", &in_order, 1),
        ("pinned", "near", &in_order, 1),
        ("near", "near", &with_gap, 2),
        ("near", "near", &backwards, 4),
        // Staging memory is filled in order, wherever the pieces lie.
        ("pageable", "near", &with_gap, 1),
        ("pageable", "near", &backwards, 1),
        ("near", "pageable", &in_order, 1),
        ("near", "pageable", &with_gap, 2),
        ("pageable", "pinned", &with_gap, 0),
    ] {
        let bytes = pattern(LEN, 0);
        let source = Memory::with(from, &bytes);
        let mut target = Memory::new(to, LEN);
        let (mut stream, _) = stream(0, 1);
        let found = calls(double, || {
            let mut whole = target.target(LEN);
            let mut copies = stream.copies();
            for (owner, start) in starts.iter().enumerate() {
                copies
                    .add(owner, source.source(*start..start + 10), &mut whole)
                    .unwrap();
            }
            assert_eq!(copies.run(), []);
        });
        let waits = u64::from(copies_expected > 0);
        assert_eq!(
            found,
            [copies_expected, waits, waits, 0],
            "{from} to {to}: {starts:?}"
        );
        let expected: Vec<u8> = starts
            .iter()
            .flat_map(|start| bytes[*start..start + 10].to_vec())
            .collect();
        assert_eq!(
            target.bytes(expected.len()),
            expected,
            "{from} to {to}: {starts:?}"
        );
    }
    assert_eq!(
        double.count(c"cuCtxSynchronize"),
        0,
        "nobody waits for the device"
    );
}

#[test]
fn failures_are_their_owners() {
    let (_alone, double) = alone();
    let bytes = pattern(40, 0);
    let source = Memory::with("near", &bytes);
    // The second request's bytes lie apart from the others', so that it has a copy of its own.
    let starts = [0, 20, 10];
    let (mut stream, _) = stream(0, 1);
    let mut run = |name: &CStr, after, count| {
        let mut target = Memory::new("near", 30);
        let mut whole = target.target(30);
        let mut copies = stream.copies();
        for (owner, start) in starts.into_iter().enumerate() {
            copies
                .add(owner, source.source(start..start + 10), &mut whole)
                .unwrap();
        }
        double.fail(name, after, count, 1);
        let failures = copies.run();
        double.fail(name, 0, 0, 0);
        for (_, error) in &failures {
            assert!(error.message().starts_with("GPU 0: cu"), "{error}");
            assert!(
                error.message().contains(": CUDA_ERROR_INVALID_VALUE"),
                "{error}"
            );
        }
        failures
            .into_iter()
            .map(|(owner, _)| owner)
            .collect::<Vec<_>>()
    };
    for (name, after, count, expected) in [
        (c"cuMemcpyAsync", 0, 0, &[][..]),
        (c"cuMemcpyAsync", 1, 1, &[1]),
        (c"cuMemcpyAsync", 0, 3, &[0, 1, 2]),
        // In the stream: nobody knows whose.
        (c"copy", 1, 1, &[0, 1, 2]),
        (c"cuEventSynchronize", 0, 1, &[0, 1, 2]),
        // The stream is waited for instead.
        (c"cuEventRecord", 0, 1, &[]),
        (c"cuMemcpyAsync", 0, 0, &[]),
    ] {
        assert_eq!(
            run(name, after, count),
            expected,
            "{name:?} {after} {count}"
        );
    }
    assert_eq!(double.count(c"freed_in_flight"), 0);
}

#[test]
fn a_run_that_is_refused_is_tried_in_pieces() {
    let (_alone, double) = alone();
    let bytes = pattern(30, 0);
    let source = Memory::with("near", &bytes);
    let mut target = Memory::new("near", 30);
    let (mut stream, _) = stream(0, 0);
    let mut whole = target.target(30);
    let mut copies = stream.copies();
    for owner in 0..3 {
        copies
            .add(
                owner,
                source.source(10 * owner..10 * owner + 10),
                &mut whole,
            )
            .unwrap();
    }
    // The run, and its second piece.
    double.fail(c"cuMemcpyAsync", 0, 1, 1);
    double.fail(c"cuMemcpyAsync", 2, 1, 1);
    let failures = copies.run();
    double.fail(c"cuMemcpyAsync", 0, 0, 0);
    assert_eq!(
        failures.iter().map(|(owner, _)| *owner).collect::<Vec<_>>(),
        [1]
    );
    let found = target.bytes(30);
    assert_eq!((&found[..10], &found[20..]), (&bytes[..10], &bytes[20..]));
}

#[test]
fn nothing_is_in_flight_after_a_wait_that_failed() {
    let (_alone, double) = alone();
    let source = Memory::with("near", &pattern(64, 0));
    let (mut stream, _) = stream(0, 0);
    for name in [c"cuEventSynchronize", c"cuEventRecord"] {
        let mut target = Memory::new("far", 64);
        let mut copies = stream.copies();
        copies
            .add(0, source.source(0..64), &mut target.target(64))
            .unwrap();
        double.set_copy_us(20_000);
        double.fail(name, 0, 1, 1);
        copies.run();
        double.set_copy_us(0);
        double.fail(name, 0, 0, 0);
        drop(target);
    }
    assert_eq!(double.count(c"freed_in_flight"), 0);
}

#[test]
fn staging_memory_stays_and_grows_to_a_bound() {
    let (_alone, double) = alone();
    let source = Memory::new("pageable", STAGING_BYTES_MAX + (1 << 20));
    let mut target = Memory::new("near", STAGING_BYTES_MAX + (1 << 20));
    let pinned = || double.count(c"live_pinned");
    let before = pinned();
    let (mut stream, freed) = stream(0, 2);
    for (len, freed_expected) in [
        (10, 0),
        (60_000, 0),
        (70_000, 1),
        (1000, 1),
        (STAGING_BYTES_MAX + 1, 2),
        (STAGING_BYTES_MAX, 2),
    ] {
        let mut copies = stream.copies();
        copies
            .add(0, source.source(0..len), &mut target.target(len))
            .unwrap();
        assert_eq!(copies.run(), []);
        assert_eq!(freed.load(Ordering::Relaxed), freed_expected, "{len}");
        assert_eq!(pinned(), before + 1, "{len}");
    }
    drop(stream);
    assert_eq!((freed.load(Ordering::Relaxed), pinned()), (3, before));
}

#[test]
fn targets_are_not_written_past_their_end() {
    let (_alone, _) = alone();
    let source = Memory::new("pageable", 8);
    let mut target = Memory::new("pageable", 8);
    let (mut stream, _) = stream(0, 0);
    let mut copies = stream.copies();
    let mut whole = target.target(6);
    copies.add(0, source.source(0..4), &mut whole).unwrap();
    let refused = copies.add(0, source.source(0..3), &mut whole).unwrap_err();
    assert_eq!(refused.message(), "3 bytes do not fit behind 4 of 6");
    copies.zero_rest(0, &mut whole);
    assert_eq!(copies.run(), []);
    assert_eq!(target.bytes(8), [0xEE, 0xEE, 0xEE, 0xEE, 0, 0, 0xEE, 0xEE]);
    // SAFETY: nothing is written to no memory.
    let none = unsafe { MemoryTarget::new(std::ptr::null_mut(), 1, MemoryPlace::CPU, c"Y") };
    assert_eq!(none.unwrap_err().message(), "server gave no buffer for 'Y'");
}

/// Joins parts as a batch does, and waits for them.
fn join<'a>(
    gather: &'a mut DeviceGather,
    stream: &'a mut DeviceStream,
    parts: &[MemorySource<'a>],
) -> Result<MemorySource<'a>, Error> {
    let mut copies = stream.copies();
    let joined = gather.plan(parts, &mut copies)?;
    match copies.run().pop() {
        Some((_, error)) => Err(error),
        None => Ok(joined),
    }
}

#[test]
fn parts_are_joined_on_the_device() {
    let (_alone, double) = alone();
    let bytes = pattern(3000, 0);
    let memories = KINDS.map(|kind| Memory::with(kind, &bytes));
    let [pageable, pinned, near, far] = &memories;
    let (mut stream, freed) = stream(0, 2);
    let mut gather = DeviceGather::new(&stream);
    // Parts; how many blocks came back; how many copies are made.
    for (parts, freed_expected, copies_expected) in [
        (vec![], 0, 0),
        (vec![(near, 0..2000)], 0, 0),
        (vec![(far, 5..300)], 0, 1),
        // At an address that engines do not take.
        (vec![(near, 5..300)], 0, 1),
        (vec![(pageable, 0..10), (pageable, 700..710)], 0, 1),
        (vec![(near, 0..100), (near, 100..150)], 0, 1),
        (vec![(near, 0..1), (far, 0..0), (pinned, 1..290)], 0, 2),
        (vec![(far, 0..3000), (pinned, 0..3000), (near, 7..70)], 1, 3),
        (vec![(pageable, 1..3)], 1, 1),
    ] {
        let expected: Vec<u8> = parts
            .iter()
            .flat_map(|(_, range)| bytes[range.clone()].to_vec())
            .collect();
        let sources: Vec<_> = parts
            .iter()
            .map(|(memory, range)| memory.source(range.clone()))
            .collect();
        let before = double.count(c"cuMemcpyAsync");
        let joined = join(&mut gather, &mut stream, &sources).unwrap();
        assert_eq!(double.count(c"cuMemcpyAsync") - before, copies_expected);
        assert_eq!(joined.place(), near.place());
        let mut found = Memory::new("pageable", expected.len());
        copy(joined, found.target(expected.len()));
        assert_eq!(found.bytes(expected.len()), expected);
        assert_eq!(freed.load(Ordering::Relaxed), freed_expected);
    }
    // The pinned block is out, and the one on the device makes room for a larger one.
    let large = Memory::new("pageable", 10_000);
    let parts = [large.source(0..10_000)];
    assert_eq!(
        join(&mut gather, &mut stream, &parts).unwrap().len(),
        10_000
    );
    let (mut full, _) = self::stream(0, 0);
    let mut none = DeviceGather::new(&full);
    let refused = join(&mut none, &mut full, &parts).err().unwrap();
    assert_eq!(refused.code(), Code::Unavailable);
    double.fail(c"copy", 0, 1, 1);
    let refused = join(&mut gather, &mut stream, &parts).err().unwrap();
    double.fail(c"copy", 0, 0, 0);
    assert!(refused.message().starts_with("GPU 0: cu"), "{refused}");
    assert!(join(&mut gather, &mut stream, &parts).is_ok());
}
