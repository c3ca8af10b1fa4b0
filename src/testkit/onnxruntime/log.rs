//! What the execution providers log of a graph while a session is made, by the orders of a test.

use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use crate::real::{LogFunction, Raw, Status, check, real, status};
use crate::settings::settings;

const INFO: c_int = 1;
const WARNING: c_int = 2;

#[derive(Clone, Copy)]
struct Logger {
    function: LogFunction,
    parameter: usize,
    severity: c_int,
}

/// Of the environment.
static LOGGER: Mutex<Option<Logger>> = Mutex::new(None);

fn logger() -> std::sync::MutexGuard<'static, Option<Logger>> {
    LOGGER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(function: LogFunction, parameter: Raw, severity: c_int) {
    *logger() = Some(Logger {
        function,
        parameter: parameter.addr(),
        severity,
    });
}

unsafe extern "C" fn create_env(
    function: LogFunction,
    parameter: Raw,
    severity: c_int,
    id: *const c_char,
    env: *mut Raw,
) -> Status {
    keep(function, parameter, severity);
    status((|| {
        // SAFETY: the contracts are the same.
        check(unsafe { real()?.create_env(function, parameter, severity, id, env) })
    })())
}

unsafe extern "C" fn create_env_with_threads(
    function: LogFunction,
    parameter: Raw,
    severity: c_int,
    id: *const c_char,
    options: Raw,
    env: *mut Raw,
) -> Status {
    keep(function, parameter, severity);
    status((|| {
        // SAFETY: the contracts are the same.
        check(unsafe {
            real()?.create_env_with_threads(function, parameter, severity, id, options, env)
        })
    })())
}

unsafe extern "C" fn set_env_severity(env: Raw, severity: c_int) -> Status {
    if let Some(logger) = logger().as_mut() {
        logger.severity = severity;
    }
    status((|| {
        // SAFETY: the contracts are the same.
        check(unsafe { real()?.set_env_severity(env, severity) })
    })())
}

/// Says what is ordered of the graph of a session. TensorRT says it to the environment's log, and
/// of graphs within operators before that of the whole.
pub fn tell_placement(has_tensorrt: bool) {
    let Some(logger) = *logger() else { return };
    let whole = "[TensorRT EP] Whole graph will run on TensorRT execution provider";
    let partitioned = "[TensorRT EP] Graph is partitioned and number of subgraphs running on \
                       TensorRT execution provider is 2";
    match (has_tensorrt, settings().copies) {
        (true, _) if logger.severity > INFO => {}
        (true, _) => {
            logger.tell(INFO, whole);
            if settings().is_partitioned {
                logger.tell(INFO, partitioned);
            }
        }
        (false, 0) => {}
        (false, count) => logger.tell(
            WARNING,
            &format!(
                "{count} Memcpy nodes are added to the graph test for CUDAExecutionProvider. It \
                 might have negative impact on performance"
            ),
        ),
    }
}

impl Logger {
    fn tell(&self, severity: c_int, message: &str) {
        let message = CString::new(message).unwrap_or_default();
        let texts = [c"onnxruntime", c"", c"double.cc:1 ApplyImpl"];
        let [category, id, location] = texts.map(|text| text.as_ptr());
        let parameter = std::ptr::with_exposed_provenance_mut(self.parameter);
        // SAFETY: the server's function, for these texts, on the thread that makes the session.
        unsafe {
            (self.function)(
                parameter,
                severity,
                category,
                id,
                location,
                message.as_ptr(),
            )
        };
    }
}

/// The functions of this module, by their index in the table.
pub fn functions() -> [(usize, *const std::ffi::c_void); 3] {
    [
        (4, create_env as *const std::ffi::c_void),
        (151, create_env_with_threads as *const std::ffi::c_void),
        (226, set_env_severity as *const std::ffi::c_void),
    ]
}
