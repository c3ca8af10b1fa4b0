//! Every call of this crate, on two devices of the double. The tests take turns, as they look at
//! counts and order faults.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conch_memory::{Block, ByteView, MemoryKind};
use conch_testkit_cuda::LoadedDouble;

use super::*;

const MIB: u64 = 1 << 20;

fn driver() -> Driver {
    LoadedDouble::get("devices=2;bytes=67108864;pci=0000:1B:00.0,0000:3d:00.0");
    Driver::load().expect("the double is there")
}

fn device(ordinal: usize) -> Arc<Device> {
    let driver = driver();
    let properties = driver.devices().unwrap().swap_remove(ordinal);
    driver.open(properties).unwrap()
}

/// The double for one test.
fn alone() -> (MutexGuard<'static, ()>, &'static LoadedDouble) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    driver();
    (guard, LoadedDouble::get(""))
}

fn host_address(bytes: &[u8]) -> DeviceAddress {
    DeviceAddress(bytes.as_ptr().addr() as u64)
}

/// The content of device memory.
fn content(stream: &Stream, at: DeviceAddress, len: usize) -> Vec<u8> {
    let bytes = vec![0; len];
    // SAFETY: both outlive the wait, and nobody else uses them.
    unsafe { stream.copy(host_address(&bytes), at, len) }.unwrap();
    stream.synchronize().unwrap();
    bytes
}

#[test]
fn devices_tell_what_they_are() {
    let (_alone, _) = alone();
    let driver = driver();
    assert_eq!(driver.version(), (12, 8));
    let devices = driver.devices().unwrap();
    let [first, second] = &devices[..] else {
        panic!("{devices:?}")
    };
    assert_eq!((first.ordinal, second.ordinal), (0, 1));
    assert_eq!(first.pci_address, "0000:1b:00.0");
    assert_eq!(first.capability.to_string(), "9.0");
    assert!(
        first.capability
            < ComputeCapability {
                major: 10,
                minor: 0
            }
    );
    assert_eq!(first.memory_bytes, 64 * MIB);
    assert!(first.uuid.starts_with("GPU-") && first.uuid != second.uuid);
    assert!(first.maps_memory);
}

#[test]
fn copies_reach_every_kind_of_memory() {
    let (_alone, _) = alone();
    let (near, far) = (device(0), device(1));
    assert_eq!(near.enable_peer_access(&far), Ok(true));
    assert_eq!(near.enable_peer_access(&far), Ok(true), "twice is no error");
    let stream = Stream::new(&near, 0).unwrap();
    let first = DeviceMemory::allocate(&near, 4096).unwrap();
    let second = DeviceMemory::allocate(&far, 4096).unwrap();
    let pinned = PinnedMemory::allocate(&near, 4096).unwrap();
    let bytes: Vec<u8> = (0..4096_u32).map(|index| index as u8).collect();
    let pinned_at = DeviceAddress(pinned.base().as_ptr().addr() as u64);
    // SAFETY: all of this outlives the wait in `content`, in one stream.
    unsafe {
        stream
            .copy(first.base(), host_address(&bytes), 4096)
            .unwrap();
        stream.copy(second.base(), first.base(), 4096).unwrap();
        stream.copy(pinned_at, second.base(), 4096).unwrap();
        stream.fill(first.base().at(8), 7, 8).unwrap();
        stream.copy(first.base(), pinned_at, 0).unwrap();
    }
    assert_eq!(content(&stream, pinned_at, 4096), bytes);
    assert_eq!(
        content(&stream, first.base().at(7), 10),
        [7, 7, 7, 7, 7, 7, 7, 7, 7, 16]
    );
}

#[test]
fn events_tell_when_copies_are_done() {
    let (_alone, double) = alone();
    let device = device(0);
    let (stream, later) = (
        Stream::new(&device, -1).unwrap(),
        Stream::new(&device, 0).unwrap(),
    );
    let event = Event::new(&device).unwrap();
    assert_eq!(event.is_reached(), Ok(true), "never recorded");
    let memory = DeviceMemory::allocate(&device, 64).unwrap();
    let pinned = PinnedMemory::allocate(&device, 64).unwrap();
    double.set_copy_us(u64::MAX);
    let pinned_at = DeviceAddress(pinned.base().as_ptr().addr() as u64);
    // SAFETY: both outlive the wait below.
    unsafe { stream.copy(memory.base(), pinned_at, 64) }.unwrap();
    stream.record(&event).unwrap();
    later.wait_for(&event).unwrap();
    assert_eq!(
        (event.is_reached(), stream.is_idle(), later.is_idle()),
        (Ok(false), Ok(false), Ok(false))
    );
    double.set_copy_us(0);
    event.wait().unwrap();
    later.synchronize().unwrap();
    assert_eq!((event.is_reached(), later.is_idle()), (Ok(true), Ok(true)));
    assert_eq!(content(&stream, memory.base(), 64), [0; 64]);
    assert_eq!(
        double.count(c"cuCtxSynchronize"),
        0,
        "nobody waits for the device"
    );
}

#[test]
fn a_threads_choice_of_device_is_left_alone() {
    let (_alone, _) = alone();
    let (near, far) = (device(0), device(1));
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: the result is writable.
        let code = unsafe { cudarc::driver::sys::cuCtxGetCurrent(&raw mut context) };
        crate::error::check("cuCtxGetCurrent", code).unwrap();
        context
    };
    let before = current();
    let chosen = far.current().unwrap();
    let of_far = current();
    assert_ne!(of_far, before);
    drop(DeviceMemory::allocate(&near, 64).unwrap());
    assert_eq!(current(), of_far);
    drop(chosen);
    assert_eq!(current(), before);
}

#[test]
fn memory_runs_out_and_comes_back() {
    let (_alone, double) = alone();
    let device = device(1);
    let before = double.count(c"live_allocations");
    let error = DeviceMemory::allocate(&device, 65 * MIB).unwrap_err();
    assert!(error.is_out_of_memory() && !error.is_sticky());
    assert_eq!(
        error.to_string().split(": ").take(2).collect::<Vec<_>>(),
        ["cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY"]
    );
    let (free_bytes, total_bytes) = device.memory_info().unwrap();
    let half = DeviceMemory::allocate(&device, 32 * MIB).unwrap();
    assert_eq!(
        device.memory_info(),
        Ok((free_bytes - 32 * MIB, total_bytes))
    );
    drop(half);
    assert_eq!(device.memory_info(), Ok((free_bytes, total_bytes)));
    assert_eq!(double.count(c"live_allocations"), before);
}

#[test]
fn growable_memory_grows_in_place() {
    let (_alone, double) = alone();
    let device = device(0);
    let stream = Stream::new(&device, 0).unwrap();
    let (retired, left) = RetiredQueue::new();
    let reserved = GrowableMemory::reserve(&device, 7 * MIB as usize, Some(retired));
    let memory = Arc::new(reserved.unwrap());
    assert_eq!(
        (memory.len(), memory.reserved_bytes()),
        (0, 8 * MIB as usize)
    );
    let grow = |bytes: u64| memory.grow(bytes as usize, &stream);
    assert_eq!(grow(1), Ok(true));
    assert_eq!(memory.len(), 2 * MIB as usize);
    assert_eq!(content(&stream, memory.base(), 100), [0; 100], "fresh");
    let view = memory.view(100).unwrap();
    stream.write(&[9; 100], &view).unwrap();
    assert_eq!(grow(5 * MIB), Ok(true));
    assert_eq!(grow(3), Ok(true));
    assert_eq!(memory.len(), 6 * MIB as usize);
    assert_eq!(content(&stream, memory.base(), 101)[99..], [9, 0]);
    assert_eq!(content(&stream, memory.base().at(6 * MIB - 1), 1), [0]);
    assert_eq!(grow(9 * MIB), Ok(false), "beyond the reservation");
    assert!(memory.view(6 * MIB as usize + 1).is_none());
    // What fails leaves what was there.
    let free_bytes = || device.memory_info().unwrap().0;
    let before = free_bytes();
    for function in [
        c"cuMemCreate",
        c"cuMemMap",
        c"cuMemSetAccess",
        c"cuMemsetD8Async",
    ] {
        double.fail(function, 0, 1, 2);
        assert!(grow(8 * MIB).is_err(), "{function:?}");
        assert_eq!((memory.len(), free_bytes()), (6 * MIB as usize, before));
    }
    assert_eq!(content(&stream, memory.base(), 100), [9; 100]);
    assert_eq!(grow(8 * MIB), Ok(true));
    // A view keeps all of it; what is left goes to who frees.
    drop(memory);
    assert!(!left.free_one());
    drop(view);
    assert_eq!(free_bytes(), before - 2 * MIB);
    assert!(left.free_one());
    assert_eq!(free_bytes(), before + 6 * MIB);
}

#[test]
fn who_needs_memory_can_wait_for_what_was_given_up() {
    let (_alone, _) = alone();
    let device = device(0);
    let (retired, left) = RetiredQueue::new();
    let minute = Duration::from_secs(60);
    let reserve = || GrowableMemory::reserve(&device, 1, Some(retired.clone())).unwrap();
    assert!(
        !reserve().wait_until_freed(minute),
        "nothing to wait for but itself"
    );
    assert!(left.free_one());
    let memory = reserve();
    assert!(!memory.wait_until_freed(minute), "nothing is left");
    drop([reserve(), reserve()]);
    assert!(!memory.wait_until_freed(Duration::ZERO), "nobody frees");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| memory.wait_until_freed(minute));
        assert!(left.free_one() && left.free_one());
        // Either it waited, or it came when all was freed.
        let has_waited = waits.join().unwrap();
        assert!(has_waited || !memory.wait_until_freed(Duration::ZERO));
    });
    // Without a thread that frees, it is freed where it is given up.
    drop(left);
    let before = device.memory_info().unwrap().0;
    drop(memory);
    drop(reserve());
    assert_eq!(device.memory_info().unwrap().0, before);
    assert!(!retired.wait_until_freed(minute));
}

#[test]
fn pools_give_out_parts_of_their_memory() {
    let (_alone, _) = alone();
    let device = device(0);
    let pool = Arc::new(DevicePool::new(
        DeviceMemory::allocate(&device, MIB).unwrap(),
    ));
    let whole = PoolUsage {
        total_bytes: MIB,
        used_bytes: 0,
    };
    assert_eq!(pool.usage(), whole);
    let block = pool.block(600).unwrap();
    assert_eq!((block.len(), pool.usage().used_bytes), (768, 768));
    assert!(pool.block(MIB).is_none(), "no room");
    let address = pool.allocate(1).unwrap();
    assert!(!pool.free(address + 1) && pool.free(address) && !pool.free(address));
    assert!(!pool.free(1), "not of this pool");
    drop(block);
    assert_eq!(pool.usage(), whole);
}

#[test]
fn views_of_devices_are_read_by_copies() {
    let (_alone, _) = alone();
    let device = device(0);
    let stream = Stream::new(&device, 0).unwrap();
    // Of this process: the driver refuses to map it again.
    let memory = DeviceMemory::allocate(&device, 16).unwrap();
    let refused = IpcMapping::open(&device, memory.ipc_handle().unwrap());
    assert!(refused.is_err());
    let nothing = IpcMapping::open(&device, IpcHandle([1; IPC_HANDLE_BYTES]));
    assert!(nothing.is_err());
    let mut block = Block::with_capacity(64);
    let view = ByteView::copy_of(b"in host memory, too");
    stream.read(&view, &mut block).unwrap();
    assert_eq!(block.as_slice(), b"in host memory, too");
    assert_eq!(
        stream.write(b"not shared", &view),
        Err(TransferError::NoRoom),
        "nobody may write what others read"
    );
}

#[test]
fn failures_of_copies_are_told() {
    let (_alone, double) = alone();
    let device = device(1);
    let stream = Stream::new(&device, 0).unwrap();
    let memory = DeviceMemory::allocate(&device, 64).unwrap();
    double.fail(c"cuMemcpyAsync", 0, 1, 1);
    let mut block = Block::with_capacity(64);
    let view = ByteView::copy_of(&[1; 64]);
    let refused = stream.read(&view, &mut block).unwrap_err();
    assert!(matches!(refused, TransferError::Cuda(error) if error.code() == 1));
    assert!(block.is_empty());
    assert_eq!(stream.read(&view, &mut block), Ok(()), "only that one");
    drop(memory);
}

const KERNEL: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry fill(.param .u64 at, .param .u64 count, .param .u32 value, .param .f32 scale)
{
    .reg .pred %p; .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %d<3>;
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.u32 %r0, %r0, %r1, %r2;
    cvt.u64.u32 %d0, %r0;
    ld.param.u64 %d1, [count];
    setp.ge.u64 %p, %d0, %d1;
    @%p ret;
    ld.param.u32 %r3, [value]; cvt.rn.f32.u32 %f0, %r3;
    ld.param.f32 %f1, [scale]; mul.rn.f32 %f0, %f0, %f1;
    ld.param.u64 %d2, [at]; mad.wide.u32 %d2, %r0, 4, %d2;
    st.global.f32 [%d2], %f0;
    ret;
}";

#[test]
fn kernels_are_compiled_and_launched() {
    let (_alone, double) = alone();
    let device = device(0);
    let stream = Stream::new(&device, 0).unwrap();
    let memory = DeviceMemory::allocate(&device, 400).unwrap();
    let loaded = double.count(c"live_modules");
    let module = Module::compile(&device, KERNEL).unwrap();
    let absent = module.function(c"other").unwrap_err();
    assert!(
        absent.to_string().contains("CUDA_ERROR_NOT_FOUND"),
        "{absent}"
    );
    let function = module.function(c"fill").unwrap();
    drop(module);
    let (start, end) = (
        Event::timed(&device).unwrap(),
        Event::timed(&device).unwrap(),
    );
    assert!(end.ns_since(&start).is_err(), "never recorded");
    let grid = Grid {
        blocks: 2,
        rows: 1,
        threads_per_block: 64,
    };
    let arguments = [
        Argument::Address(memory.base()),
        Argument::U64(99),
        Argument::U32(7),
        Argument::F32(0.5),
    ];
    double.set_kernel_us(10_000);
    // SAFETY: the memory outlives the wait, and nobody else uses it.
    unsafe { stream.fill(memory.base(), 0, 400) }.unwrap();
    stream.record(&start).unwrap();
    // SAFETY: the arguments are the kernel's; it writes 99 words of the memory.
    unsafe { stream.launch(&function, grid, &arguments) }.unwrap();
    stream.record(&end).unwrap();
    end.wait().unwrap();
    double.set_kernel_us(0);
    assert!(end.ns_since(&start).unwrap() >= 10_000_000);
    let bytes = content(&stream, memory.base(), 400);
    assert_eq!(bytes[..396], 3.5_f32.to_le_bytes().repeat(99));
    assert_eq!(bytes[396..], [0; 4]);
    let empty = Grid { blocks: 0, ..grid };
    // SAFETY: the driver refuses it.
    assert!(unsafe { stream.launch(&function, empty, &arguments) }.is_err());
    assert_eq!(double.count(c"live_modules"), loaded + 1);
    drop(function);
    assert_eq!(double.count(c"live_modules"), loaded);
}

#[test]
fn texts_that_do_not_compile_are_told_with_the_compilers_log() {
    let (_alone, _) = alone();
    let device = device(0);
    let wrong = KERNEL.to_str().unwrap().replace("mul.rn", "mull.rn");
    let wrong = std::ffi::CString::new(wrong).unwrap();
    let error = Module::compile(&device, &wrong).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX"));
    assert!(
        text.contains("line 14;") && text.contains("'mull.rn.f32'"),
        "{text}"
    );
    assert!(!text.contains('\n'));
    assert!(matches!(error, KernelError::Compile { error, .. } if error.code() == 218));
    let unknown = crate::driver::first_missing(&["cuInit", "cuNoSuchFunction"]);
    assert_eq!(unknown, Some("cuNoSuchFunction"));
    let old = KernelError::TooOld("cuLaunchKernel").to_string();
    assert!(old.contains("no function cuLaunchKernel"), "{old}");
}

#[test]
fn captured_work_is_done_at_every_launch() {
    let (_alone, double) = alone();
    let device = device(0);
    let stream = Stream::new(&device, 0).unwrap();
    let memory = DeviceMemory::allocate(&device, 4).unwrap();
    let fill = |value| {
        // SAFETY: the memory outlives the stream's work, and nobody else uses it.
        unsafe { stream.fill(memory.base(), value, 4) }
    };
    fill(1).unwrap();
    let graph = stream.capture(|| fill(2)).unwrap();
    assert_eq!(
        content(&stream, memory.base(), 4),
        [1; 4],
        "nothing is done"
    );
    for _ in 0..2 {
        fill(3).unwrap();
        // SAFETY: as above; the graph lives until the stream was waited for.
        unsafe { stream.launch_graph(&graph) }.unwrap();
        assert_eq!(content(&stream, memory.base(), 4), [2; 4]);
    }
    drop(graph);
    assert_eq!(double.count(c"live_graphs"), 0);

    let failed = stream.capture(|| Err("no work")).unwrap_err();
    assert!(matches!(failed, CaptureError::Work("no work")));
    let waited = stream.capture(|| stream.synchronize());
    assert!(matches!(waited, Err(CaptureError::Work(error)) if error.code() == 900));
    let unseen = stream.capture(|| {
        let _ = stream.synchronize();
        Ok::<_, CudaError>(())
    });
    assert!(matches!(unseen, Err(CaptureError::Refused(error)) if error.code() == 901));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.capture::<CudaError>(|| panic!("as a defect of a caller would"))
    }));
    assert!(panicked.is_err());
    assert_eq!(
        content(&stream, memory.base(), 4),
        [2; 4],
        "the stream is of use"
    );
    assert_eq!(double.count(c"live_graphs"), 0);
}

#[test]
fn parts_of_pools_hold_tensors() {
    let (_alone, _) = alone();
    let device = device(0);
    let pinned = PinnedMemory::allocate(&device, 1 << 16).unwrap();
    let pinned = Arc::new(PinnedPool::new(pinned));
    let memory = pinned.block(600).unwrap().into_memory(600, ()).unwrap();
    let mut block = Block::from(memory);
    assert_eq!(
        (block.capacity(), block.place().kind),
        (600, MemoryKind::CpuPinned)
    );
    block.extend_from_slice(b"from pinned memory");
    assert!(pinned.block(600).unwrap().into_memory(1000, ()).is_none());
    let view = ByteView::from(block);
    assert_eq!(view.place().kind, MemoryKind::CpuPinned);
    assert_eq!(pinned.usage().used_bytes, 768);

    struct Kept(PoolBlock<DeviceMemory>);
    impl AsRef<PoolBlock<DeviceMemory>> for Kept {
        fn as_ref(&self) -> &PoolBlock<DeviceMemory> {
            &self.0
        }
    }
    let pool = DeviceMemory::allocate(&device, 4096).unwrap();
    let pool = Arc::new(DevicePool::new(pool));
    let part = pool.block(18).unwrap();
    let stream = Stream::new(&device, 0).unwrap();
    stream.clear(&part).unwrap();
    let on_device = PoolBlock::view(Arc::new(Kept(part)), 18);
    assert_eq!(on_device.place().kind, MemoryKind::Gpu);
    let mut target = Block::with_capacity(64);
    stream.read(&on_device, &mut target).unwrap();
    assert_eq!(target.as_slice(), [0; 18]);
    drop((view, on_device));
    assert_eq!(pinned.usage().used_bytes, 0);
    assert_eq!(pool.usage().used_bytes, 0);
}

#[test]
fn timed_events_tell_the_time_between_them() {
    let (_alone, _) = alone();
    let device = device(0);
    let stream = Stream::new(&device, 0).unwrap();
    let event = || Event::timed(&device).unwrap();
    let (first, last) = (event(), event());
    assert!(last.ns_since(&first).is_err(), "neither was recorded");
    stream.record(&first).unwrap();
    stream.synchronize().unwrap();
    let pause = std::time::Duration::from_millis(3);
    std::thread::sleep(pause);
    stream.record(&last).unwrap();
    last.wait().unwrap();
    let since_ns = last.ns_since(&first).unwrap();
    assert!(i128::from(since_ns) >= pause.as_nanos() as i128);
    assert_eq!(first.ns_since(&last), Ok(-since_ns), "the other way round");
    let untimed = Event::new(&device).unwrap();
    stream.record(&untimed).unwrap();
    stream.synchronize().unwrap();
    assert!(untimed.ns_since(&first).is_err());
}
