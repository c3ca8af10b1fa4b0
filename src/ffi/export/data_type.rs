//! Names and sizes of data types, memory types, parameter types and kinds of instance groups.

use std::ffi::{CStr, c_char};
use std::ptr;

use conch_abi as abi;
use conch_config::DataType;

use crate::boundary::{guard_value, text};

/// The C string at `index`; `fallback` (null if none) for numbers outside.
fn name_at(names: &[&'static CStr], index: u32, fallback: Option<&'static CStr>) -> *const c_char {
    let name = usize::try_from(index)
        .ok()
        .and_then(|index| names.get(index).copied());
    name.or(fallback).map_or(ptr::null(), CStr::as_ptr)
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_DataTypeString(
    datatype: abi::TRITONSERVER_DataType,
) -> *const c_char {
    const NAMES: [&CStr; 15] = [
        c"<invalid>",
        c"BOOL",
        c"UINT8",
        c"UINT16",
        c"UINT32",
        c"UINT64",
        c"INT8",
        c"INT16",
        c"INT32",
        c"INT64",
        c"FP16",
        c"FP32",
        c"FP64",
        c"BYTES",
        c"BF16",
    ];
    name_at(&NAMES, datatype, Some(c"<invalid>"))
}

/// # Safety
/// `dtype` is null or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_StringToDataType(
    dtype: *const c_char,
) -> abi::TRITONSERVER_DataType {
    guard_value(abi::TRITONSERVER_TYPE_INVALID, || {
        // SAFETY: by this function's contract.
        let name = unsafe { text(dtype, "dtype") };
        let data_type = name.ok().and_then(DataType::from_name);
        data_type.map_or(abi::TRITONSERVER_TYPE_INVALID, DataType::number)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_DataTypeByteSize(datatype: abi::TRITONSERVER_DataType) -> u32 {
    let bytes = DataType::from_number(datatype).and_then(DataType::element_bytes);
    bytes
        .and_then(|bytes| u32::try_from(bytes).ok())
        .unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_MemoryTypeString(
    memtype: abi::TRITONSERVER_MemoryType,
) -> *const c_char {
    name_at(
        &[c"CPU", c"CPU_PINNED", c"GPU"],
        memtype,
        Some(c"<invalid>"),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_ParameterTypeString(
    paramtype: abi::TRITONSERVER_ParameterType,
) -> *const c_char {
    name_at(
        &[c"STRING", c"INT", c"BOOL", c"DOUBLE", c"BYTES"],
        paramtype,
        Some(c"<invalid>"),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_InstanceGroupKindString(
    kind: abi::TRITONSERVER_InstanceGroupKind,
) -> *const c_char {
    name_at(
        &[c"AUTO", c"CPU", c"GPU", c"MODEL"],
        kind,
        Some(c"<invalid>"),
    )
}
