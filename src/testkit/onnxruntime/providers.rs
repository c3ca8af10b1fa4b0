//! Options of the execution providers CUDA and TensorRT.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::real::{Failure, Raw, Status, check, real, status, text};
use crate::session::{self, Options};
use crate::settings::settings;

/// Options that the provider CUDA knows.
const CUDA_KEYS: [&str; 21] = [
    "device_id",
    "has_user_compute_stream",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "cudnn_conv_algo_search",
    "do_copy_in_default_stream",
    "cudnn_conv_use_max_workspace",
    "enable_cuda_graph",
    "cudnn_conv1d_pad_to_nc1d",
    "tunable_op_enable",
    "tunable_op_tuning_enable",
    "tunable_op_max_tuning_duration_ms",
    "enable_skip_layer_norm_strict_mode",
    "prefer_nhwc",
    "use_ep_level_unified_stream",
    "use_tf32",
    "fuse_conv_bias",
    "sdpa_kernel",
    "user_compute_stream",
    "gpu_external_alloc",
    "gpu_external_free",
];

unsafe extern "C" fn create(options: *mut *mut Options) -> Status {
    let made = Box::into_raw(Box::<Options>::default());
    // SAFETY: the result is writable.
    unsafe { options.write(made) };
    ptr::null_mut()
}

unsafe extern "C" fn release(options: *mut Options) {
    if !options.is_null() {
        // SAFETY: made by `create`, released once.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// # Safety
/// The options are live, the arrays as long as said and of C strings.
unsafe fn update(
    options: *mut Options,
    keys: *const *const c_char,
    values: *const *const c_char,
    count: usize,
    provider: &str,
) -> Result<(), Failure> {
    if let Some(missing) = &settings().missing {
        return Err(Failure::Double(format!(
            "/double/provider_bridge.cc:1 Provider& Get() [ONNXRuntimeError] : 1 : FAIL \
             : Failed to load library /double/libonnxruntime_providers_{provider}.so with error: \
             {missing}: cannot open shared object file: No such file or directory\n"
        )));
    }
    for index in 0..count {
        // SAFETY: by this function's contract.
        let (key, value) = unsafe { (text(*keys.add(index)), text(*values.add(index))) };
        let is_known = match provider {
            "cuda" => CUDA_KEYS.contains(&key.as_str()),
            _ => key.starts_with("trt_") || CUDA_KEYS[..2].contains(&key.as_str()),
        };
        if !is_known {
            return Err(Failure::Double(format!(
                "Unknown provider option: \"{key}\"."
            )));
        }
        // SAFETY: by this function's contract.
        unsafe { (*options).entries.insert(key, value) };
    }
    Ok(())
}

unsafe extern "C" fn update_cuda(
    options: *mut Options,
    keys: *const *const c_char,
    values: *const *const c_char,
    count: usize,
) -> Status {
    // SAFETY: the contracts are the same.
    status(unsafe { update(options, keys, values, count, "cuda") })
}

unsafe extern "C" fn update_tensorrt(
    options: *mut Options,
    keys: *const *const c_char,
    values: *const *const c_char,
    count: usize,
) -> Status {
    // SAFETY: the contracts are the same.
    status(unsafe { update(options, keys, values, count, "tensorrt") })
}

unsafe extern "C" fn set_pointer(
    options: *mut Options,
    key: *const c_char,
    value: *mut c_void,
) -> Status {
    // SAFETY: the key is a C string.
    let key = unsafe { text(key) };
    if key != "user_compute_stream" {
        return status(Err(Failure::Double(format!(
            "misuse: pointer option '{key}'"
        ))));
    }
    // SAFETY: the options are live.
    unsafe { (*options).stream = value.addr() };
    ptr::null_mut()
}

unsafe extern "C" fn options_text(
    options: *const Options,
    allocator: Raw,
    result: *mut *mut c_char,
) -> Status {
    // SAFETY: the options are live.
    let entries = unsafe { &(*options).entries };
    let shown: Vec<_> = entries
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let mut shown = shown.join(";").into_bytes();
    shown.push(0);
    status((|| {
        let mut memory = ptr::null_mut();
        // SAFETY: the allocator is the real library's; its memory is as long as asked for, and the
        // result is writable.
        unsafe {
            check(real()?.allocate(allocator, shown.len(), &raw mut memory))?;
            ptr::copy_nonoverlapping(shown.as_ptr(), memory.cast::<u8>(), shown.len());
            result.write(memory.cast());
        }
        Ok(())
    })())
}

unsafe extern "C" fn append_cuda(session: Raw, options: *const Options) -> Status {
    // SAFETY: the options are live.
    session::append(session, "CUDA", unsafe { &*options }.clone());
    ptr::null_mut()
}

unsafe extern "C" fn append_tensorrt(session: Raw, options: *const Options) -> Status {
    // SAFETY: the options are live.
    session::append(session, "Tensorrt", unsafe { &*options }.clone());
    ptr::null_mut()
}

unsafe extern "C" fn available(names: *mut *mut *mut c_char, count: *mut c_int) -> Status {
    let texts = settings()
        .providers
        .iter()
        .map(String::as_str)
        .chain(["CPU"]);
    let mut list: Vec<*mut c_char> = texts
        .map(|name| {
            let name = format!("{name}ExecutionProvider");
            std::ffi::CString::new(name).unwrap_or_default().into_raw()
        })
        .collect();
    list.shrink_to_fit();
    let len = c_int::try_from(list.len()).unwrap_or(0);
    let base = Box::leak(list.into_boxed_slice()).as_mut_ptr();
    // SAFETY: the results are writable.
    unsafe {
        names.write(base);
        count.write(len);
    }
    ptr::null_mut()
}

unsafe extern "C" fn release_available(names: *mut *mut c_char, count: c_int) -> Status {
    let len = usize::try_from(count).unwrap_or(0);
    // SAFETY: a list of `available`, which made its names and itself, released once.
    unsafe {
        let list = Box::from_raw(ptr::slice_from_raw_parts_mut(names, len));
        for name in list {
            drop(std::ffi::CString::from_raw(name));
        }
    }
    ptr::null_mut()
}

/// The functions of this module, by their index in the table.
pub fn functions() -> [(usize, *const c_void); 13] {
    [
        (125, available as *const c_void),
        (126, release_available as *const c_void),
        (170, append_tensorrt as *const c_void),
        (171, create as *const c_void),
        (172, update_tensorrt as *const c_void),
        (174, release as *const c_void),
        (204, append_cuda as *const c_void),
        (205, create as *const c_void),
        (206, update_cuda as *const c_void),
        (207, options_text as *const c_void),
        (208, release as *const c_void),
        (261, set_pointer as *const c_void),
        (263, set_pointer as *const c_void),
    ]
}
