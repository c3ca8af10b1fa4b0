//! The functions of DALI's C API that are used, with the structures they take, as `dali.h` declares
//! them.

use std::ffi::{c_char, c_int, c_uint, c_void};

use conch_backend_sdk as sdk;

sdk::opaque_types! { RawPipeline RawOutputs RawTensorList }

/// `daliPipelineParams_t`: what replaces the parameters of a serialised pipeline.
#[repr(C)]
#[derive(Default)]
pub struct PipelineParams {
    /// Which of the fields below are set, by bit.
    pub present: u64,
    pub max_batch_size: c_int,
    pub num_threads: c_int,
    pub device_id: c_int,
    pub seed: i64,
    pub exec_type: c_int,
    pub exec_flags: c_int,
    pub prefetch_cpu: c_int,
    pub prefetch_gpu: c_int,
    pub enable_checkpointing: u8,
    pub enable_memory_stats: u8,
    pub bytes_per_sample_hint: usize,
}

impl PipelineParams {
    pub const MAX_BATCH_SIZE: u64 = 1 << 0;
    pub const NUM_THREADS: u64 = 1 << 1;
    pub const DEVICE_ID: u64 = 1 << 2;
    pub const EXEC_TYPE: u64 = 1 << 4;
    pub const PREFETCH: u64 = 1 << 6;
}

/// `daliPipelineIODesc_t`.
#[repr(C)]
pub struct PortDescription {
    pub name: *const c_char,
    pub device: c_int,
    /// Bit 0: `data_type` is set; bit 1: `dim_count` is.
    pub present: c_uint,
    pub data_type: c_int,
    pub dim_count: c_int,
    pub layout: *const c_char,
}

/// `daliTensorDesc_t`.
#[repr(C)]
pub struct TensorDescription {
    pub dim_count: c_int,
    pub shape: *const i64,
    pub data_type: c_int,
    pub layout: *const c_char,
    pub data: *mut c_void,
}

/// `daliBufferPlacement_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct BufferPlacement {
    pub device_type: c_int,
    pub device_id: c_int,
    pub pinned: u8,
}

pub const STORAGE_CPU: c_int = 0;
pub const STORAGE_GPU: c_int = 1;
/// `DALI_EXEC_SIMPLE`.
pub const EXEC_SIMPLE: c_int = 0;
/// `DALI_FEED_INPUT_NO_COPY`.
pub const FEED_NO_COPY: c_int = 4;
/// `DALI_COPY_SYNC`.
pub const COPY_SYNC: c_int = 2;
/// `DALI_ERROR_INVALID_KEY`.
pub const ERROR_INVALID_KEY: c_int = c_int::MIN + 6;
/// `DALI_ERROR_OUT_OF_MEMORY`.
pub const ERROR_OUT_OF_MEMORY: c_int = c_int::MIN + 0x100;

/// `daliResult_t`: negative for an error.
pub type Status = c_int;

sdk::functions! {
    /// The functions in use. Contracts are those of the C headers.
    pub struct Table;

    unsafe extern "C" {
        daliInit as init() -> Status;
        daliGetLastErrorMessage as last_error_message() -> *const c_char;
        // Of the first version, which throws; it takes what is known to load.
        daliLoadLibrary as load_plugin(*const c_char);
        // Of the first version too; it cannot fail.
        daliReleaseUnusedMemory as release_unused_memory();
        daliPipelineDeserialize as deserialize(
            *mut *mut RawPipeline, *const c_void, usize, *const PipelineParams
        ) -> Status;
        daliPipelineBuild as build(*mut RawPipeline) -> Status;
        daliPipelineDestroy as destroy(*mut RawPipeline) -> Status;
        daliPipelineGetInputCount as input_count(*mut RawPipeline, *mut c_int) -> Status;
        daliPipelineGetInputDescByIdx as input(
            *mut RawPipeline, *mut PortDescription, c_int
        ) -> Status;
        daliPipelineGetOutputCount as output_count(*mut RawPipeline, *mut c_int) -> Status;
        daliPipelineGetOutputDesc as output(
            *mut RawPipeline, *mut PortDescription, c_int
        ) -> Status;
        daliPipelineFeedInput as feed(
            *mut RawPipeline, *const c_char, *mut RawTensorList, *const c_char, c_int, *const c_void
        ) -> Status;
        daliPipelineRun as run(*mut RawPipeline) -> Status;
        daliPipelinePopOutputs as pop_outputs(*mut RawPipeline, *mut *mut RawOutputs) -> Status;
        daliPipelineOutputsDestroy as destroy_outputs(*mut RawOutputs) -> Status;
        daliPipelineOutputsGet as output_list(
            *mut RawOutputs, *mut *mut RawTensorList, c_int
        ) -> Status;
        daliPipelineOutputsGetTrace as output_trace(
            *mut RawOutputs, *mut *const c_char, *const c_char, *const c_char
        ) -> Status;
        daliTensorListCreate as create_list(*mut *mut RawTensorList, BufferPlacement) -> Status;
        daliTensorListResize as resize_list(
            *mut RawTensorList, c_int, c_int, *const i64, c_int, *const c_char
        ) -> Status;
        daliTensorListDecRef as release_list(*mut RawTensorList, *mut c_int) -> Status;
        daliTensorListGetShape as list_shape(
            *mut RawTensorList, *mut c_int, *mut c_int, *mut *const i64
        ) -> Status;
        daliTensorListGetDType as list_type(*mut RawTensorList, *mut c_int) -> Status;
        daliTensorListGetBufferPlacement as list_placement(
            *mut RawTensorList, *mut BufferPlacement
        ) -> Status;
        daliTensorListGetTensorDesc as list_sample(
            *mut RawTensorList, *mut TensorDescription, c_int
        ) -> Status;
        daliTensorListCopyOut as copy_list(
            *mut RawTensorList, *mut c_void, BufferPlacement, *const c_void, c_int
        ) -> Status;
    }
}
