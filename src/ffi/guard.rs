//! Calls into plug-ins, through the C++ trampoline of `guard.cc`: an exception becomes an error
//! instead of ending the process.

use std::ffi::{c_char, c_void};

use conch_abi as abi;
use conch_engine::Error;

use crate::boundary::{ErrorHandle, accept, lossy_text};

pub(crate) type CaughtException =
    unsafe extern "C" fn(*const c_char) -> *mut abi::TRITONSERVER_Error;
/// An entry point of a plug-in that takes one handle.
pub(crate) type EntryPoint<A> = unsafe extern "C" fn(*mut A) -> *mut abi::TRITONSERVER_Error;
type Function1 = unsafe extern "C" fn(*mut c_void) -> *mut abi::TRITONSERVER_Error;
type Function2 = unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut abi::TRITONSERVER_Error;
type Function4 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> *mut abi::TRITONSERVER_Error;
type ExecuteFunction =
    unsafe extern "C" fn(*mut c_void, *mut *mut c_void, count: u32) -> *mut abi::TRITONSERVER_Error;
type ExecuteBeginFunction = unsafe extern "C" fn(
    *mut c_void,
    *mut *mut c_void,
    count: u32,
    wait_ns: u64,
    is_open: *mut bool,
) -> *mut abi::TRITONSERVER_Error;
type IncludeFunction =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut bool) -> *mut abi::TRITONSERVER_Error;
type ActionFunction =
    unsafe extern "C" fn(*mut c_void, *mut c_void, u32) -> *mut abi::TRITONSERVER_Error;

unsafe extern "C" {
    fn conch_guard_action(
        caught: CaughtException,
        function: ActionFunction,
        agent: *mut c_void,
        model: *mut c_void,
        action: u32,
    ) -> *mut abi::TRITONSERVER_Error;
    fn conch_guard_call1(
        caught: CaughtException,
        function: Function1,
        first: *mut c_void,
    ) -> *mut abi::TRITONSERVER_Error;
    fn conch_guard_call2(
        caught: CaughtException,
        function: Function2,
        first: *mut c_void,
        second: *mut c_void,
    ) -> *mut abi::TRITONSERVER_Error;
    fn conch_guard_call4(
        caught: CaughtException,
        function: Function4,
        first: *mut c_void,
        second: *mut c_void,
        third: *mut c_void,
        fourth: *mut c_void,
    ) -> *mut abi::TRITONSERVER_Error;
    fn conch_guard_execute(
        caught: CaughtException,
        function: ExecuteFunction,
        instance: *mut c_void,
        requests: *mut *mut c_void,
        count: u32,
    ) -> *mut abi::TRITONSERVER_Error;
    fn conch_guard_execute_begin(
        caught: CaughtException,
        function: ExecuteBeginFunction,
        instance: *mut c_void,
        requests: *mut *mut c_void,
        count: u32,
        wait_ns: u64,
        is_open: *mut bool,
    ) -> *mut abi::TRITONSERVER_Error;
    fn conch_guard_include(
        caught: CaughtException,
        function: IncludeFunction,
        request: *mut c_void,
        batch: *mut c_void,
        joins: *mut bool,
    ) -> *mut abi::TRITONSERVER_Error;
}

/// Called by the trampoline for each exception it catches.
///
/// # Safety
/// `what` is null or NUL-terminated.
pub(crate) unsafe extern "C" fn caught(what: *const c_char) -> *mut abi::TRITONSERVER_Error {
    // SAFETY: by this function's own contract.
    let what = unsafe { lossy_text(what) };
    let message = if what.is_empty() {
        "the plug-in threw an exception".to_owned()
    } else {
        format!("the plug-in threw an exception: {what}")
    };
    ErrorHandle::from_error(Error::internal(message))
}

/// Calls an entry point that takes one handle.
///
/// # Safety
/// `function` is an entry point of a loaded plug-in, and `first` is what its header says.
pub(crate) unsafe fn call1<A>(function: EntryPoint<A>, first: *mut A) -> Result<(), Error> {
    // SAFETY: the types differ only in what the pointer points to, which the calling convention
    // does not see.
    let function = unsafe { std::mem::transmute::<EntryPoint<A>, Function1>(function) };
    // SAFETY: by this function's contract; the error, if any, is ours and used once.
    unsafe { accept(conch_guard_call1(caught, function, first.cast())) }
}

/// Calls an entry point that takes two handles.
///
/// # Safety
/// As [`call1`].
pub(crate) unsafe fn call2<A, B>(
    function: unsafe extern "C" fn(*mut A, *mut B) -> *mut abi::TRITONSERVER_Error,
    first: *mut A,
    second: *mut B,
) -> Result<(), Error> {
    // SAFETY: as in `call1`.
    let function = unsafe {
        std::mem::transmute::<
            unsafe extern "C" fn(*mut A, *mut B) -> *mut abi::TRITONSERVER_Error,
            Function2,
        >(function)
    };
    // SAFETY: as in `call1`.
    unsafe {
        accept(conch_guard_call2(
            caught,
            function,
            first.cast(),
            second.cast(),
        ))
    }
}

/// Calls CacheInitialize.
///
/// # Safety
/// `function` is an entry point of a loaded plug-in, `cache` is writable, and `configuration` ends
/// with NUL.
pub(crate) unsafe fn cache_initialize(
    function: abi::TRITONCACHE_CacheInitializeFn,
    cache: *mut *mut abi::TRITONCACHE_Cache,
    configuration: *const c_char,
) -> Result<(), Error> {
    // SAFETY: as in `call1`.
    let function =
        unsafe { std::mem::transmute::<abi::TRITONCACHE_CacheInitializeFn, Function2>(function) };
    // SAFETY: by this function's contract; the error, if any, is ours and used once.
    unsafe {
        accept(conch_guard_call2(
            caught,
            function,
            cache.cast(),
            configuration.cast_mut().cast(),
        ))
    }
}

/// Calls CacheLookup or CacheInsert, which are of one type.
///
/// # Safety
/// `function` belongs to the plug-in of `cache`, `key` ends with NUL, and the others are live
/// during the call.
pub(crate) unsafe fn cache_call(
    function: abi::TRITONCACHE_CacheLookupFn,
    cache: *mut abi::TRITONCACHE_Cache,
    key: *const c_char,
    entry: *mut abi::TRITONCACHE_CacheEntry,
    allocator: *mut abi::TRITONCACHE_Allocator,
) -> Result<(), Error> {
    // SAFETY: as in `call1`.
    let function =
        unsafe { std::mem::transmute::<abi::TRITONCACHE_CacheLookupFn, Function4>(function) };
    // SAFETY: by this function's contract; the error, if any, is ours and used once.
    unsafe {
        accept(conch_guard_call4(
            caught,
            function,
            cache.cast(),
            key.cast_mut().cast(),
            entry.cast(),
            allocator.cast(),
        ))
    }
}

/// Calls ModelInstanceExecute.
///
/// # Safety
/// `function` belongs to the plug-in of `instance`, no other thread executes that instance, and
/// `requests` are `count` live handles.
pub(crate) unsafe fn execute(
    function: abi::TRITONBACKEND_ModelInstanceExecuteFn,
    instance: *mut abi::TRITONBACKEND_ModelInstance,
    requests: &mut [*mut abi::TRITONBACKEND_Request],
    count: u32,
) -> Result<(), Error> {
    // SAFETY: as in `call1`.
    let function = unsafe {
        std::mem::transmute::<abi::TRITONBACKEND_ModelInstanceExecuteFn, ExecuteFunction>(function)
    };
    // SAFETY: by this function's contract; the error, if any, is ours and used once.
    unsafe {
        accept(conch_guard_execute(
            caught,
            function,
            instance.cast(),
            requests.as_mut_ptr().cast(),
            count,
        ))
    }
}

/// Calls ModelInstanceExecuteBegin; whether the execution is left open.
///
/// # Safety
/// As [`execute`].
pub(crate) unsafe fn execute_begin(
    function: abi::CONCH_ModelInstanceExecuteBeginFn,
    instance: *mut abi::TRITONBACKEND_ModelInstance,
    requests: &mut [*mut abi::TRITONBACKEND_Request],
    count: u32,
    wait_ns: u64,
) -> Result<bool, Error> {
    // SAFETY: as in `call1`.
    let function = unsafe {
        std::mem::transmute::<abi::CONCH_ModelInstanceExecuteBeginFn, ExecuteBeginFunction>(
            function,
        )
    };
    let mut is_open = false;
    // SAFETY: by this function's contract, and the flag is writable; the error, if any, is ours and
    // used once.
    unsafe {
        accept(conch_guard_execute_begin(
            caught,
            function,
            instance.cast(),
            requests.as_mut_ptr().cast(),
            count,
            wait_ns,
            &raw mut is_open,
        ))
    }?;
    Ok(is_open)
}

/// Calls ModelInstancePoll or ModelInstanceDepthMax, which are of one type. Returns the count that
/// it wrote.
///
/// # Safety
/// `function` belongs to the plug-in of `instance`, which no other thread executes.
pub(crate) unsafe fn batch_count(
    function: abi::CONCH_ModelInstancePollFn,
    instance: *mut abi::TRITONBACKEND_ModelInstance,
) -> Result<u32, Error> {
    let mut count = 0;
    // SAFETY: by this function's contract; the count is writable.
    unsafe { call2(function, instance, &raw mut count) }?;
    Ok(count)
}

/// Calls ModelBatchIncludeRequest.
///
/// # Safety
/// `function` belongs to the batching library that made `batch`, `request` is live during the call,
/// and `joins` is writable.
pub(crate) unsafe fn include(
    function: abi::TRITONBACKEND_ModelBatchIncludeRequestFn,
    request: *mut abi::TRITONBACKEND_Request,
    batch: *mut c_void,
    joins: *mut bool,
) -> Result<(), Error> {
    // SAFETY: as in `call1`.
    let function = unsafe {
        std::mem::transmute::<abi::TRITONBACKEND_ModelBatchIncludeRequestFn, IncludeFunction>(
            function,
        )
    };
    // SAFETY: by this function's contract; the error, if any, is ours and used once.
    unsafe {
        accept(conch_guard_include(
            caught,
            function,
            request.cast(),
            batch,
            joins,
        ))
    }
}

/// Calls ModelAction of a repository agent.
///
/// # Safety
/// `function` belongs to the library of `agent`, and `model` is one of its models.
pub(crate) unsafe fn agent_action(
    function: abi::TRITONREPOAGENT_ModelActionFn,
    agent: *mut abi::TRITONREPOAGENT_Agent,
    model: *mut abi::TRITONREPOAGENT_AgentModel,
    action: abi::TRITONREPOAGENT_ActionType,
) -> Result<(), Error> {
    // SAFETY: as in `call1`.
    let function = unsafe {
        std::mem::transmute::<abi::TRITONREPOAGENT_ModelActionFn, ActionFunction>(function)
    };
    // SAFETY: by this function's contract; the error, if any, is ours and used once.
    unsafe {
        accept(conch_guard_action(
            caught,
            function,
            agent.cast(),
            model.cast(),
            action,
        ))
    }
}
