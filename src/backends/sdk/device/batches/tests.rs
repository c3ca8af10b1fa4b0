//! Ranges, copies and kernels of a batch, on the double of the driver.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::batch::ExecutionStart;
use crate::device::kernel::{DeviceAddress, KernelArgument};
use crate::device::tests::{KINDS, Memory, alone, pattern, stream};
use crate::factory::Factories;
use crate::{Batch, Code};

const INCREMENT: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry increment(.param .u64 from, .param .u64 to, .param .u32 count)
{
    .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<3>;
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.u32 %r0, %r0, %r1, %r2;
    ld.param.u32 %r1, [count]; setp.ge.u32 %p, %r0, %r1; @%p ret;
    ld.param.u64 %d0, [from]; mad.wide.u32 %d0, %r0, 2, %d0; ld.global.u16 %r3, [%d0];
    add.u32 %r3, %r3, 1;
    ld.param.u64 %d1, [to]; mad.wide.u32 %d1, %r0, 2, %d1; st.global.u16 [%d1], %r3;
    ret;
}";

/// A slot on one stream.
fn slot(stream: &DeviceStream) -> BatchSlot {
    BatchSlot::new(BatchStreams::one(stream), &stream.allocator).unwrap()
}

fn factories() -> Arc<Factories> {
    // SAFETY: nothing is asked of an instance without requests.
    unsafe { Factories::new(std::ptr::null_mut()) }
}

/// A batch without requests.
fn empty(factories: &Arc<Factories>) -> Batch<'_> {
    let start = ExecutionStart {
        exec_ns: 0,
        compute_ns: 0,
    };
    // SAFETY: nothing is asked of the instance, and there are as many slots as requests.
    unsafe { Batch::new(std::ptr::null_mut(), &[], &[], 0, false, start, factories) }
}

/// Both halves of `source`, each to its place in `target`, by kernels of two-byte numbers.
fn incremented(stream: &DeviceStream, source: &Memory, target: &mut Memory, skip: usize) {
    const HALF: usize = 600;
    let kernel = stream.compile(INCREMENT, c"increment").unwrap();
    let (mut slot, factories) = (slot(stream), factories());
    let batch = empty(&factories);
    let mut whole = target.target(2 * HALF + skip);
    let mut work = DeviceWork::new(&mut slot, &batch, &[], PendingWork::default());
    // The first half in two pieces, if it does not lie in one.
    let first = [
        source.source(skip..skip + 100),
        source.source(skip + 100..skip + HALF),
    ];
    let second = [source.source(skip + HALF..skip + 2 * HALF)];
    let inputs = [work.input(0, &first, 0, 2), work.input(0, &second, 0, 2)];
    whole.take(skip).unwrap();
    let output = work.output(0, whole, 1, 2);
    work.place_ranges().unwrap();
    assert_eq!(work.address(output) % 2, 0);
    for (index, input) in inputs.into_iter().enumerate() {
        let to = work.address(output) + (index * HALF) as u64;
        let arguments = [
            KernelArgument::Address(DeviceAddress(work.address(input))),
            KernelArgument::Address(DeviceAddress(to)),
            KernelArgument::U32((HALF / 2) as u32),
        ];
        // SAFETY: the kernel reads the input and writes half of the output.
        unsafe { work.launch(&kernel, (HALF / 2) as u32, 1, &arguments) }.unwrap();
    }
    let enqueued = work.end(Ok(()));
    assert!(enqueued.is_marked);
    slot.wait().unwrap();
    // SAFETY: the slot was waited for and has the staging memory; the target is borrowed.
    assert_eq!(unsafe { enqueued.pending.finish() }, []);
}

#[test]
fn kernels_reach_memory_of_every_kind() {
    let (_alone, double) = alone();
    let bytes = pattern(1203, 0);
    for room in [1, 9] {
        for (from, to) in KINDS.iter().flat_map(|from| KINDS.map(|to| (*from, to))) {
            // At addresses that two-byte numbers may have, and at others.
            for skip in [0, 3] {
                let source = Memory::with(from, &bytes);
                let mut target = Memory::new(to, 1203);
                let (stream, freed) = stream(0, room);
                let counts = || (double.count(c"copy"), double.count(c"cuEventRecord"));
                let before = counts();
                incremented(&stream, &source, &mut target, skip);
                let after = counts();
                let (copies, marks) = (after.0 - before.0, after.1 - before.1);
                let given = bytes[skip..skip + 1200].chunks(2);
                let numbers = given.map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
                let expected: Vec<u8> = numbers
                    .flat_map(|number| number.wrapping_add(1).to_le_bytes())
                    .collect();
                let case = format!("{from} to {to}, {room} blocks, {skip} skipped");
                assert_eq!(target.bytes(1200 + skip)[skip..], expected, "{case}");
                // The pieces of the first half are copied in any case.
                let gathered = if from == "near" && skip == 0 { 1 } else { 2 };
                let scattered = u64::from(to != "near" || skip != 0);
                // Where the batch begins and ends, and where a stage of copies ends or begins.
                assert_eq!(marks, 3 + scattered, "{case}");
                if from != "pageable" {
                    assert!(copies <= gathered + scattered, "{case}: {copies} copies");
                }
                drop(stream);
                assert!(freed.load(Ordering::Relaxed) <= room);
            }
        }
    }
}

#[test]
fn work_that_nobody_takes_over_is_waited_for() {
    let (_alone, double) = alone();
    let (stream, _) = stream(0, 2);
    let source = Memory::with("pinned", &pattern(64, 0));
    let (mut slot, factories) = (slot(&stream), factories());
    let batch = empty(&factories);
    double.set_copy_us(20_000);
    let mut work = DeviceWork::new(&mut slot, &batch, &[], PendingWork::default());
    work.input(0, &[source.source(0..64)], 0, 1);
    work.place_ranges().unwrap();
    assert_eq!(stream.stream.is_idle(), Ok(false));
    drop(work);
    double.set_copy_us(0);
    assert_eq!(stream.stream.is_idle(), Ok(true));
}

#[test]
fn no_room_and_wrong_texts_are_told() {
    let (_alone, double) = alone();
    let (stream, _) = stream(0, 0);
    let source = Memory::with("pageable", &pattern(64, 0));
    let (mut slot, factories) = (slot(&stream), factories());
    let batch = empty(&factories);
    let mut work = DeviceWork::new(&mut slot, &batch, &[], PendingWork::default());
    work.input(0, &[source.source(0..64)], 0, 1);
    assert_eq!(work.place_ranges().unwrap_err().code(), Code::Unavailable);
    drop(work);
    let text = INCREMENT.to_str().unwrap().replace("add.u32", "sum.u32");
    let text = std::ffi::CString::new(text).unwrap();
    let error = stream.compile(&text, c"increment").unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(
        error
            .message()
            .starts_with("GPU 0: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX"),
        "{error}"
    );
    assert!(error.message().contains("'sum.u32'"), "{error}");
    double.fail(c"cuModuleGetFunction", 0, 1, 500);
    assert!(stream.compile(INCREMENT, c"increment").is_err());
}
