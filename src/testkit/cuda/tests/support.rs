//! What the tests share: the one driver of this process, and children with drivers of their own.

use std::ffi::{CString, c_void};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::*;

/// Calls a function of the driver.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        #[allow(unused_unsafe)]
        // SAFETY: the test passes pointers to what it owns, for as long as the driver uses them.
        let answer = unsafe { crate::$function($($argument),*) };
        answer
    }};
}

/// Calls a function of the driver, which must succeed.
macro_rules! ok {
    ($($call:tt)*) => {
        assert_eq!(cu!($($call)*), 0, "{}", stringify!($($call)*))
    };
}

pub(super) use {cu, ok};

pub const CHILD: &str = "CONCH_CUDA_DOUBLE_CHILD";
pub const BYTES: usize = 64 << 20;
pub const NONE: *mut c_void = std::ptr::null_mut();

static TURN: Mutex<()> = Mutex::new(());

/// A driver with two devices, both retained, the first current. Everything ends with it.
pub struct Session {
    pub contexts: [Context; 2],
    _turn: MutexGuard<'static, ()>,
}

impl Session {
    pub fn start() -> Session {
        static ENVIRONMENT: OnceLock<()> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        ENVIRONMENT.get_or_init(|| {
            if std::env::var_os(CHILD).is_none() {
                // SAFETY: no other thread reads the environment: all tests begin here.
                unsafe {
                    std::env::set_var("CONCH_CUDA_DOUBLE", format!("devices=2;bytes={BYTES}"))
                };
            }
        });
        ok!(cuInit(0));
        let mut contexts = [NONE; 2];
        for (context, ordinal) in contexts.iter_mut().zip(0..) {
            ok!(cuDevicePrimaryCtxRetain(context, ordinal));
        }
        ok!(cuCtxSetCurrent(contexts[0]));
        Session {
            contexts,
            _turn: turn,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What a failed test held back would be waited for below.
        let_copies_go();
        conch_cuda_double_set_kernel_us(0);
        for name in [
            "copy",
            "memset",
            "kernel",
            "hang",
            "host_function",
            "cuMemAlloc_v2",
            "cuMemFree_v2",
            "cuDeviceGetCount",
        ] {
            fail(name, 0, 0, 0);
        }
        for ordinal in 0..2 {
            fail(&format!("device:{ordinal}"), 0, 1, 0);
            while cu!(cuDevicePrimaryCtxRelease_v2(ordinal)) == 0 {}
        }
        let _ = cu!(cuCtxSetCurrent(NONE));
    }
}

pub fn fail(name: &str, after: u32, count: u32, code: u32) {
    let name = CString::new(name).unwrap();
    cu!(conch_cuda_double_fail(name.as_ptr(), after, count, code));
}

/// Holds copies back until [`let_copies_go`].
pub fn hold_copies() {
    conch_cuda_double_set_copy_us(u64::MAX);
}

pub fn let_copies_go() {
    conch_cuda_double_set_copy_us(0);
}

pub fn count(name: &str) -> u64 {
    let name = CString::new(name).unwrap();
    cu!(conch_cuda_double_count(name.as_ptr()))
}

pub fn alloc(size: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, size));
    address
}

pub fn stream() -> Stream {
    let mut stream = NONE;
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}

pub fn event() -> Event {
    let mut event = NONE;
    ok!(cuEventCreate(&mut event, 2));
    event
}

/// Pinned memory of the driver.
pub fn pinned(size: usize) -> &'static mut [u8] {
    let mut address = NONE;
    ok!(cuMemHostAlloc(&mut address, size, 0));
    // SAFETY: fresh memory of this size; the tests do not use it after they freed it.
    unsafe { std::slice::from_raw_parts_mut(address.cast(), size) }
}

/// Device memory, read through the default stream.
pub fn read(address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ok!(cuMemcpyDtoHAsync_v2(
        bytes.as_mut_ptr().cast(),
        address,
        len,
        NONE
    ));
    bytes
}

pub fn write(address: u64, bytes: &[u8]) {
    ok!(cuMemcpyHtoDAsync_v2(
        address,
        bytes.as_ptr().cast(),
        bytes.len(),
        NONE
    ));
    ok!(cuStreamSynchronize(NONE));
}

/// This test binary again, to run one of the functions in [`super::children`].
pub fn child(name: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "tests::children::child",
        "--nocapture",
        "--test-threads=1",
    ]);
    for variable in ["CONCH_CUDA_DOUBLE", "CUDA_VISIBLE_DEVICES"] {
        command.env_remove(variable);
    }
    command.env(CHILD, name).envs(environment.iter().copied());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a child to its end, which must be a good one.
pub fn run_child(name: &str, environment: &[(&str, &str)]) {
    let output = child(name, environment).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name} with {environment:?}: {text}"
    );
}
