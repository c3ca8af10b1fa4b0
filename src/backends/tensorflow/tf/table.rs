//! The functions of TensorFlow's C API that are used, looked up by name.
//!
//! Types and contracts are those of the headers in `tensorflow/c/`.

use std::ffi::{c_char, c_int, c_uchar, c_void};

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::text_at;

sdk::opaque_types! {
    TF_Status TF_Graph TF_Session TF_SessionOptions TF_ImportGraphDefOptions TF_Operation TF_Tensor
    TF_Library
}

/// `TF_Buffer`: bytes, as a rule a message.
#[repr(C)]
pub struct TF_Buffer {
    pub data: *const c_void,
    pub length: usize,
    pub data_deallocator: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

/// `TF_Output`: one output of an operation of a graph.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TF_Output {
    pub operation: *mut TF_Operation,
    pub index: c_int,
}

/// `TF_TString`: 24 bytes, only to be used through the `TF_String` functions.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TF_TString {
    opaque: [u64; 3],
}

/// Frees memory of a tensor: address, bytes, the argument that was given with it.
pub type Deallocator = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

sdk::functions! {
    /// The functions in use.
    pub struct Table;

    unsafe extern "C" {
        TF_Version as version() -> *const c_char;
        TF_NewStatus as new_status() -> *mut TF_Status;
        TF_DeleteStatus as delete_status(*mut TF_Status);
        TF_GetCode as code(*const TF_Status) -> c_int;
        TF_Message as message(*const TF_Status) -> *const c_char;
        TF_NewBuffer as new_buffer() -> *mut TF_Buffer;
        TF_DeleteBuffer as delete_buffer(*mut TF_Buffer);
        TF_GetAllOpList as all_operators() -> *mut TF_Buffer;
        TF_LoadLibrary as load_library(*const c_char, *mut TF_Status) -> *mut TF_Library;
        TF_NewSessionOptions as new_session_options() -> *mut TF_SessionOptions;
        TF_DeleteSessionOptions as delete_session_options(*mut TF_SessionOptions);
        TF_SetConfig as set_config(*mut TF_SessionOptions, *const c_void, usize, *mut TF_Status);
        TF_NewGraph as new_graph() -> *mut TF_Graph;
        TF_DeleteGraph as delete_graph(*mut TF_Graph);
        TF_NewImportGraphDefOptions as new_import_options() -> *mut TF_ImportGraphDefOptions;
        TF_DeleteImportGraphDefOptions as delete_import_options(*mut TF_ImportGraphDefOptions);
        TF_GraphImportGraphDef as import(
            *mut TF_Graph, *const TF_Buffer, *const TF_ImportGraphDefOptions, *mut TF_Status
        );
        TF_GraphOperationByName as operation(*mut TF_Graph, *const c_char) -> *mut TF_Operation;
        TF_OperationNumOutputs as output_count(*mut TF_Operation) -> c_int;
        TF_OperationOutputType as output_type(TF_Output) -> c_int;
        TF_GraphGetTensorNumDims as rank(*mut TF_Graph, TF_Output, *mut TF_Status) -> c_int;
        TF_NewSession as new_session(
            *mut TF_Graph, *const TF_SessionOptions, *mut TF_Status
        ) -> *mut TF_Session;
        TF_LoadSessionFromSavedModel as load_saved_model(
            *const TF_SessionOptions, *const TF_Buffer, *const c_char, *const *const c_char, c_int,
            *mut TF_Graph, *mut TF_Buffer, *mut TF_Status
        ) -> *mut TF_Session;
        TF_CloseSession as close_session(*mut TF_Session, *mut TF_Status);
        TF_DeleteSession as delete_session(*mut TF_Session, *mut TF_Status);
        TF_SessionRun as run(
            *mut TF_Session, *const TF_Buffer, *const TF_Output, *const *mut TF_Tensor, c_int,
            *const TF_Output, *mut *mut TF_Tensor, c_int, *const *const TF_Operation, c_int,
            *mut TF_Buffer, *mut TF_Status
        );
        TF_NewTensor as new_tensor(
            c_int, *const i64, c_int, *mut c_void, usize, Deallocator, *mut c_void
        ) -> *mut TF_Tensor;
        TF_AllocateTensor as allocate_tensor(c_int, *const i64, c_int, usize) -> *mut TF_Tensor;
        TF_DeleteTensor as delete_tensor(*mut TF_Tensor);
        TF_TensorType as tensor_type(*const TF_Tensor) -> c_int;
        TF_NumDims as tensor_rank(*const TF_Tensor) -> c_int;
        TF_Dim as tensor_dim(*const TF_Tensor, c_int) -> i64;
        TF_TensorByteSize as tensor_bytes(*const TF_Tensor) -> usize;
        TF_TensorData as tensor_data(*const TF_Tensor) -> *mut c_void;
        TF_StringInit as string_init(*mut TF_TString);
        TF_StringCopy as string_copy(*mut TF_TString, *const c_char, usize);
        TF_StringDealloc as string_dealloc(*mut TF_TString);
        TF_StringGetDataPointer as string_data(*const TF_TString) -> *const c_char;
        TF_StringGetSize as string_size(*const TF_TString) -> usize;
    }
}

impl Table {
    /// Calls `with` with a status to write to. `Internal` with TensorFlow's own words unless it
    /// says that all is well.
    ///
    /// # Safety
    /// `with` does with the status what the header says, and does not keep it.
    pub unsafe fn check<T>(&self, with: impl FnOnce(*mut TF_Status) -> T) -> Result<T, Error> {
        // SAFETY: makes a status, which is ours and deleted below; null if there is no memory,
        // which no function takes.
        let status = unsafe { (self.new_status)() };
        if status.is_null() {
            return Err(Error::unavailable("TensorFlow gave no status"));
        }
        let value = with(status);
        // SAFETY: live until deleted; its message is NUL-terminated and lives as long.
        let (code, message) = unsafe {
            let code = (self.code)(status);
            let message = match code {
                0 => String::new(),
                _ => text_at((self.message)(status)),
            };
            (self.delete_status)(status);
            (code, message)
        };
        match code {
            0 => Ok(value),
            _ if message.is_empty() => Err(Error::internal(format!("TensorFlow error {code}"))),
            _ => Err(Error::internal(message)),
        }
    }
}

/// The bytes of a buffer.
///
/// # Safety
/// `buffer` is live and not written during `'b`.
pub unsafe fn contents<'b>(buffer: *const TF_Buffer) -> &'b [u8] {
    // SAFETY: live by this function's contract.
    let (data, length) = unsafe { ((*buffer).data, (*buffer).length) };
    if data.is_null() {
        return &[];
    }
    // SAFETY: a buffer has that many bytes, by the header.
    unsafe { std::slice::from_raw_parts(data.cast::<c_uchar>(), length) }
}
