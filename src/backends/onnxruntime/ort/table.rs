//! The functions of ONNX Runtime's C API that are used, read from its table by index.
//!
//! The API is a struct of function pointers that only ever grows at its end. Indices are those of
//! `OrtApi` in `onnxruntime_c_api.h`.

use std::ffi::{c_char, c_int, c_void};

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::text_at;

sdk::opaque_types! {
    OrtStatus OrtEnv OrtSession OrtSessionOptions OrtRunOptions OrtValue OrtTypeInfo
    OrtTensorTypeAndShapeInfo OrtMemoryInfo OrtAllocator OrtThreadingOptions OrtIoBinding
    OrtCudaOptions OrtTensorRtOptions
}

/// Entry point of the library: `OrtGetApiBase`.
#[repr(C)]
pub struct OrtApiBase {
    pub get_api: unsafe extern "C" fn(version: u32) -> *const *const c_void,
    pub get_version: unsafe extern "C" fn() -> *const c_char,
}

sdk::functions! {
    /// What the library itself has; all else is in the table that this gives.
    pub struct EntryPoint;

    unsafe extern "C" {
        OrtGetApiBase as get_api_base() -> *const OrtApiBase;
    }
}

/// Logging callback: parameter, severity, category, id, code location, message.
pub type LogFunction = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
);

/// Null is success; otherwise the caller releases it.
pub type Status = *mut OrtStatus;

macro_rules! table {
    ($($index:literal $name:ident ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions in use. Contracts are those of the C header.
        pub struct Table {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Table {
            /// # Safety
            /// `api` is a table that the library returned for [`API_VERSION`](super::API_VERSION)
            /// or later.
            pub unsafe fn read(api: *const *const c_void) -> Option<Self> {
                $(
                    // SAFETY: the table has at least as many entries as this version of the API.
                    let $name = unsafe { api.add($index).read() };
                    if $name.is_null() {
                        return None;
                    }
                )*
                Some(Table {
                    $(
                        // SAFETY: the header gives the function at this index exactly this type.
                        $name: unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >($name)
                        },
                    )*
                })
            }
        }
    };
}

table! {
    1 get_error_code(*const OrtStatus) -> c_int;
    2 get_error_message(*const OrtStatus) -> *const c_char;
    4 create_env_with_logger(
        LogFunction, *mut c_void, c_int, *const c_char, *mut *mut OrtEnv
    ) -> Status;
    7 create_session(
        *const OrtEnv, *const c_char, *const OrtSessionOptions, *mut *mut OrtSession
    ) -> Status;
    9 run(
        *mut OrtSession, *const OrtRunOptions, *const *const c_char, *const *const OrtValue, usize,
        *const *const c_char, usize, *mut *mut OrtValue
    ) -> Status;
    10 create_session_options(*mut *mut OrtSessionOptions) -> Status;
    13 set_execution_mode(*mut OrtSessionOptions, c_int) -> Status;
    14 enable_profiling(*mut OrtSessionOptions, *const c_char) -> Status;
    16 enable_mem_pattern(*mut OrtSessionOptions) -> Status;
    17 disable_mem_pattern(*mut OrtSessionOptions) -> Status;
    18 enable_cpu_mem_arena(*mut OrtSessionOptions) -> Status;
    19 disable_cpu_mem_arena(*mut OrtSessionOptions) -> Status;
    20 set_session_log_id(*mut OrtSessionOptions, *const c_char) -> Status;
    22 set_session_severity(*mut OrtSessionOptions, c_int) -> Status;
    23 set_graph_optimization(*mut OrtSessionOptions, c_int) -> Status;
    24 set_intra_op_threads(*mut OrtSessionOptions, c_int) -> Status;
    25 set_inter_op_threads(*mut OrtSessionOptions, c_int) -> Status;
    30 input_count(*const OrtSession, *mut usize) -> Status;
    31 output_count(*const OrtSession, *mut usize) -> Status;
    32 initializer_count(*const OrtSession, *mut usize) -> Status;
    33 input_type(*const OrtSession, usize, *mut *mut OrtTypeInfo) -> Status;
    34 output_type(*const OrtSession, usize, *mut *mut OrtTypeInfo) -> Status;
    35 initializer_type(*const OrtSession, usize, *mut *mut OrtTypeInfo) -> Status;
    36 input_name(*const OrtSession, usize, *mut OrtAllocator, *mut *mut c_char) -> Status;
    37 output_name(*const OrtSession, usize, *mut OrtAllocator, *mut *mut c_char) -> Status;
    38 initializer_name(*const OrtSession, usize, *mut OrtAllocator, *mut *mut c_char) -> Status;
    39 create_run_options(*mut *mut OrtRunOptions) -> Status;
    46 set_terminate(*mut OrtRunOptions) -> Status;
    47 unset_terminate(*mut OrtRunOptions) -> Status;
    48 create_tensor(*mut OrtAllocator, *const i64, usize, c_int, *mut *mut OrtValue) -> Status;
    49 create_tensor_with_data(
        *const OrtMemoryInfo, *mut c_void, usize, *const i64, usize, c_int, *mut *mut OrtValue
    ) -> Status;
    51 tensor_data(*mut OrtValue, *mut *mut c_void) -> Status;
    53 string_tensor_bytes(*const OrtValue, *mut usize) -> Status;
    54 string_tensor_content(*const OrtValue, *mut c_void, usize, *mut usize, usize) -> Status;
    55 cast_to_tensor_info(*const OrtTypeInfo, *mut *const OrtTensorTypeAndShapeInfo) -> Status;
    56 onnx_type(*const OrtTypeInfo, *mut c_int) -> Status;
    60 element_type(*const OrtTensorTypeAndShapeInfo, *mut c_int) -> Status;
    61 dimension_count(*const OrtTensorTypeAndShapeInfo, *mut usize) -> Status;
    62 dimensions(*const OrtTensorTypeAndShapeInfo, *mut i64, usize) -> Status;
    65 tensor_info(*const OrtValue, *mut *mut OrtTensorTypeAndShapeInfo) -> Status;
    68 create_memory_info(*const c_char, c_int, c_int, c_int, *mut *mut OrtMemoryInfo) -> Status;
    69 create_cpu_memory_info(c_int, c_int, *mut *mut OrtMemoryInfo) -> Status;
    76 allocator_free(*mut OrtAllocator, *mut c_void) -> Status;
    78 default_allocator(*mut *mut OrtAllocator) -> Status;
    92 release_env(*mut OrtEnv);
    93 release_status(*mut OrtStatus);
    94 release_memory_info(*mut OrtMemoryInfo);
    95 release_session(*mut OrtSession);
    96 release_value(*mut OrtValue);
    97 release_run_options(*mut OrtRunOptions);
    98 release_type_info(*mut OrtTypeInfo);
    99 release_tensor_info(*mut OrtTensorTypeAndShapeInfo);
    100 release_session_options(*mut OrtSessionOptions);
    110 end_profiling(*mut OrtSession, *mut OrtAllocator, *mut *mut c_char) -> Status;
    120 disable_per_session_threads(*mut OrtSessionOptions) -> Status;
    121 create_threading_options(*mut *mut OrtThreadingOptions) -> Status;
    122 release_threading_options(*mut OrtThreadingOptions);
    125 available_providers(*mut *mut *mut c_char, *mut c_int) -> Status;
    126 release_available_providers(*mut *mut c_char, c_int) -> Status;
    130 add_session_config(*mut OrtSessionOptions, *const c_char, *const c_char) -> Status;
    133 run_with_binding(*mut OrtSession, *const OrtRunOptions, *const OrtIoBinding) -> Status;
    134 create_binding(*mut OrtSession, *mut *mut OrtIoBinding) -> Status;
    135 release_binding(*mut OrtIoBinding);
    136 bind_input(*mut OrtIoBinding, *const c_char, *const OrtValue) -> Status;
    137 bind_output(*mut OrtIoBinding, *const c_char, *const OrtValue) -> Status;
    138 bind_output_to_device(*mut OrtIoBinding, *const c_char, *const OrtMemoryInfo) -> Status;
    140 bound_output_values(
        *const OrtIoBinding, *mut OrtAllocator, *mut *mut *mut OrtValue, *mut usize
    ) -> Status;
    141 clear_bound_inputs(*mut OrtIoBinding);
    142 clear_bound_outputs(*mut OrtIoBinding);
    147 set_global_intra_op_threads(*mut OrtThreadingOptions, c_int) -> Status;
    148 set_global_inter_op_threads(*mut OrtThreadingOptions, c_int) -> Status;
    151 create_env_with_logger_and_threads(
        LogFunction, *mut c_void, c_int, *const c_char, *const OrtThreadingOptions, *mut *mut OrtEnv
    ) -> Status;
    165 add_run_config(*mut OrtRunOptions, *const c_char, *const c_char) -> Status;
    170 append_tensorrt(*mut OrtSessionOptions, *const OrtTensorRtOptions) -> Status;
    171 create_tensorrt_options(*mut *mut OrtTensorRtOptions) -> Status;
    172 update_tensorrt_options(
        *mut OrtTensorRtOptions, *const *const c_char, *const *const c_char, usize
    ) -> Status;
    174 release_tensorrt_options(*mut OrtTensorRtOptions);
    204 append_cuda(*mut OrtSessionOptions, *const OrtCudaOptions) -> Status;
    205 create_cuda_options(*mut *mut OrtCudaOptions) -> Status;
    206 update_cuda_options(
        *mut OrtCudaOptions, *const *const c_char, *const *const c_char, usize
    ) -> Status;
    207 cuda_options_text(*const OrtCudaOptions, *mut OrtAllocator, *mut *mut c_char) -> Status;
    208 release_cuda_options(*mut OrtCudaOptions);
    216 append_provider(
        *mut OrtSessionOptions, *const c_char, *const *const c_char, *const *const c_char, usize
    ) -> Status;
    226 set_env_severity(*mut OrtEnv, c_int) -> Status;
    228 register_custom_ops(*mut OrtSessionOptions, *const c_char) -> Status;
    252 resized_string_element(*mut OrtValue, usize, usize, *mut *mut c_char) -> Status;
    261 set_tensorrt_pointer(*mut OrtTensorRtOptions, *const c_char, *mut c_void) -> Status;
    263 set_cuda_pointer(*mut OrtCudaOptions, *const c_char, *mut c_void) -> Status;
}

impl Table {
    /// Takes over a status: `Err` with code and message unless it is null.
    ///
    /// # Safety
    /// `status` is null or owned by the caller.
    pub unsafe fn check(&self, status: Status) -> Result<(), Error> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: live until released below; the message is NUL-terminated and lives as long as the
        // status.
        unsafe {
            let code = (self.get_error_code)(status);
            let message = (self.get_error_message)(status);
            let message = text_at(message);
            (self.release_status)(status);
            Err(Error::internal(format!(
                "onnx runtime error {code}: {message}"
            )))
        }
    }

    /// Element type and dimensions of a tensor.
    ///
    /// # Safety
    /// `info` is live.
    pub unsafe fn shape_of(
        &self,
        info: *const OrtTensorTypeAndShapeInfo,
    ) -> Result<(c_int, Vec<i64>), Error> {
        let mut element = 0;
        let mut count = 0;
        // SAFETY: live by this function's contract; the results are writable, the array as long as
        // said.
        unsafe {
            self.check((self.element_type)(info, &raw mut element))?;
            self.check((self.dimension_count)(info, &raw mut count))?;
            let mut dims = vec![0i64; count];
            self.check((self.dimensions)(info, dims.as_mut_ptr(), dims.len()))?;
            Ok((element, dims))
        }
    }
}
