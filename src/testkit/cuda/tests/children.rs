//! What runs in processes of its own: other environments, and the other end of shared memory.

use std::io::{BufRead, Write};

use super::support::{CHILD, NONE, alloc, count, cu, ok, read, stream, write};
use crate::ipc::Handle;

#[test]
fn child() {
    let Ok(name) = std::env::var(CHILD) else {
        return;
    };
    match name.as_str() {
        "before_init" => before_init(),
        "no_peer" => no_peer(),
        "count" => count_devices(),
        "environment_faults" => environment_faults(),
        "file_faults" => file_faults(),
        "import" => import(),
        "export" => export(),
        "tally" => {
            start();
            super::kernel::tally();
        }
        other => panic!("no child {other}"),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn start() {
    ok!(cuInit(0));
    let mut context = NONE;
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(cuCtxSetCurrent(context));
}

/// Nothing works before `cuInit` but what tells versions and errors.
fn before_init() {
    let (mut number, mut address, mut size, mut pointer) = (0, 0, 0, NONE);
    assert_eq!(cu!(cuDeviceGetCount(&mut number)), 3);
    assert_eq!(cu!(cuDeviceGet(&mut number, 0)), 3);
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut pointer, 0)), 3);
    assert_eq!(cu!(cuCtxSetCurrent(NONE)), 3);
    assert_eq!(cu!(cuMemAlloc_v2(&mut address, 1)), 3);
    assert_eq!(cu!(cuMemGetInfo_v2(&mut size, &mut 0)), 3);
    assert_eq!(cu!(cuStreamCreate(&mut pointer, 0)), 3);
    assert_eq!(cu!(cuEventQuery(NONE)), 3);
    assert_eq!(cu!(cuMemRelease(1)), 3);
    assert_eq!(cu!(cuIpcCloseMemHandle(1)), 3);
    ok!(cuDriverGetVersion(&mut number));
    assert_eq!(number, 12040);
    assert_eq!(cu!(cuInit(1)), 1);
    start();
    assert_eq!(count("cuInit"), 2);
    // A fork of the process has no driver.
    // SAFETY: the child only calls the driver, which takes no lock for it, and exits.
    let fork = unsafe { libc::fork() };
    if fork == 0 {
        let answer = crate::cuCtxSynchronize();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(answer as i32) };
    }
    let mut status = 0;
    // SAFETY: waits for the child of this function.
    unsafe { libc::waitpid(fork, &mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 3);
}

/// `WANT` is the count of devices, or 0 where `cuInit` finds none.
fn count_devices() {
    let want: i32 = variable("WANT").parse().unwrap();
    if want == 0 {
        assert_eq!(cu!(cuInit(0)), 100);
        return;
    }
    ok!(cuInit(0));
    let mut number = 0;
    ok!(cuDeviceGetCount(&mut number));
    assert_eq!(number, want);
    ok!(cuDeviceGetAttribute(&mut number, 33, 0));
    assert_eq!(number, i32::from_str_radix(&variable("BUS"), 16).unwrap());
}

/// Neither device reaches the other.
fn no_peer() {
    start();
    let (mut answer, mut other) = (1, NONE);
    ok!(cuDeviceCanAccessPeer(&mut answer, 0, 1));
    assert_eq!(answer, 0);
    assert_eq!(cu!(cuCtxEnablePeerAccess(other, 0)), 201);
    ok!(cuDevicePrimaryCtxRetain(&mut other, 1));
    assert_eq!(cu!(cuCtxEnablePeerAccess(other, 0)), 217);
}

/// The third allocation fails, and the second copy leaves a sticky error.
fn environment_faults() {
    start();
    let address = alloc(4096);
    alloc(4096);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 4096)), 2);
    alloc(4096);
    assert_eq!(read(address, 1), [0xc5]);
    let mut byte = 0_u8;
    let answer = cu!(cuMemcpyDtoHAsync_v2(
        (&raw mut byte).cast(),
        address,
        1,
        NONE
    ));
    assert_eq!(answer, 700);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 4096)), 700);
}

/// The file is written, changed and taken away while the driver runs.
fn file_faults() {
    let path = variable("CONCH_CUDA_DOUBLE_FAULTS");
    let pause = || std::thread::sleep(std::time::Duration::from_millis(60));
    start();
    alloc(4096);
    std::fs::write(&path, "cuMemAlloc_v2:1:1:2\ncuNoSuch:0:1:2, nonsense").unwrap();
    pause();
    alloc(4096);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 4096)), 2);
    alloc(4096);
    std::fs::write(&path, "device:0:0:1:46").unwrap();
    pause();
    let _ = cu!(cuDeviceGetCount(&mut 0));
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 4096)), 46);
    std::fs::write(&path, "device:0:0:1:0,cuMemAlloc_v2:0:1000:2").unwrap();
    pause();
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 4096)), 2);
    std::fs::remove_file(&path).unwrap();
    pause();
    alloc(4096);
}

fn parse(text: &str) -> Handle {
    let mut bytes = [0; 64];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).unwrap();
    }
    Handle { bytes }
}

pub fn hex(handle: &Handle) -> String {
    handle
        .bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Opens the handle in `HANDLE`, whose memory begins with "shared", and writes "answer" there.
/// Then waits for a line, and reads it once more: the exporter may be gone by then.
fn import() {
    let handle = parse(&variable("HANDLE"));
    start();
    let mut address = 0;
    let open = |address: &mut u64, flags| cu!(cuIpcOpenMemHandle_v2(address, handle, flags));
    assert_eq!(open(&mut address, 2), 1);
    let mut wrong = handle;
    wrong.bytes[0] ^= 1;
    assert_eq!(cu!(cuIpcOpenMemHandle_v2(&mut address, wrong, 1)), 1);
    if variable("WANT") != "0" {
        assert_eq!(open(&mut address, 1).to_string(), variable("WANT"));
        return;
    }
    assert_eq!(open(&mut address, 1), 0);
    let mut again = 0;
    assert_eq!((open(&mut again, 1), again), (0, address), "it is counted");
    ok!(cuIpcCloseMemHandle(address));
    assert_eq!(count("live_ipc"), 1);
    let (mut start, mut size) = (0, 0);
    ok!(cuMemGetAddressRange_v2(&mut start, &mut size, address + 5));
    assert_eq!((start, size), (address, 10_000));
    assert_eq!(read(address, 6), b"shared");
    write(address, b"answer");
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(address, address, 10_001, NONE)), 1);
    println!("ready");
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
    assert_eq!(read(address, 6), b"answer");
    assert_eq!(cu!(cuMemFree_v2(address)), 1);
    assert_eq!(cu!(cuIpcGetMemHandle(&mut wrong, address)), 1);
    assert_eq!(cu!(cuIpcCloseMemHandle(address + 1)), 1);
    ok!(cuIpcCloseMemHandle(address));
    assert_eq!(cu!(cuIpcCloseMemHandle(address)), 1);
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(address, address, 1, NONE)), 1);
    assert_eq!(count("live_ipc"), 0);
}

/// Prints the handle of memory that begins with "shared", and lives until a line comes.
fn export() {
    start();
    stream();
    let address = alloc(10_000);
    write(address, b"shared");
    let mut handle = Handle { bytes: [0; 64] };
    ok!(cuIpcGetMemHandle(&mut handle, address + 9_999));
    println!("handle {}", hex(&handle));
    std::io::stdout().flush().unwrap();
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
}
