//! The functions of TensorFlow's C API that are used, looked up by name.
//!
//! Types and contracts are those of the headers in `tensorflow/c/`.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};

use conch_backend_sdk::Error;

macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub struct $name {
            opaque: [u8; 0],
        }
    )* };
}

opaque! {
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

macro_rules! table {
    ($($symbol:literal $name:ident ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions in use.
        pub struct Table {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Table {
            /// # Errors
            /// The name of the first function that the library lacks.
            ///
            /// # Safety
            /// The library is TensorFlow and stays loaded as long as the table is used.
            pub unsafe fn read(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Table {
                    $(
                        // SAFETY: the header gives the function of this name exactly this type.
                        $name: *unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                $symbol,
                            )
                        }
                        .map_err(|_| stringify!($name))?,
                    )*
                })
            }
        }
    };
}

table! {
    b"TF_Version\0" version() -> *const c_char;
    b"TF_NewStatus\0" new_status() -> *mut TF_Status;
    b"TF_DeleteStatus\0" delete_status(*mut TF_Status);
    b"TF_GetCode\0" code(*const TF_Status) -> c_int;
    b"TF_Message\0" message(*const TF_Status) -> *const c_char;
    b"TF_NewBuffer\0" new_buffer() -> *mut TF_Buffer;
    b"TF_DeleteBuffer\0" delete_buffer(*mut TF_Buffer);
    b"TF_GetAllOpList\0" all_operators() -> *mut TF_Buffer;
    b"TF_LoadLibrary\0" load_library(*const c_char, *mut TF_Status) -> *mut TF_Library;
    b"TF_NewSessionOptions\0" new_session_options() -> *mut TF_SessionOptions;
    b"TF_DeleteSessionOptions\0" delete_session_options(*mut TF_SessionOptions);
    b"TF_SetConfig\0" set_config(*mut TF_SessionOptions, *const c_void, usize, *mut TF_Status);
    b"TF_NewGraph\0" new_graph() -> *mut TF_Graph;
    b"TF_DeleteGraph\0" delete_graph(*mut TF_Graph);
    b"TF_NewImportGraphDefOptions\0" new_import_options() -> *mut TF_ImportGraphDefOptions;
    b"TF_DeleteImportGraphDefOptions\0" delete_import_options(*mut TF_ImportGraphDefOptions);
    b"TF_GraphImportGraphDef\0" import(
        *mut TF_Graph, *const TF_Buffer, *const TF_ImportGraphDefOptions, *mut TF_Status
    );
    b"TF_GraphOperationByName\0" operation(*mut TF_Graph, *const c_char) -> *mut TF_Operation;
    b"TF_OperationNumOutputs\0" output_count(*mut TF_Operation) -> c_int;
    b"TF_OperationOutputType\0" output_type(TF_Output) -> c_int;
    b"TF_GraphGetTensorNumDims\0" rank(*mut TF_Graph, TF_Output, *mut TF_Status) -> c_int;
    b"TF_NewSession\0" new_session(
        *mut TF_Graph, *const TF_SessionOptions, *mut TF_Status
    ) -> *mut TF_Session;
    b"TF_LoadSessionFromSavedModel\0" load_saved_model(
        *const TF_SessionOptions, *const TF_Buffer, *const c_char, *const *const c_char, c_int,
        *mut TF_Graph, *mut TF_Buffer, *mut TF_Status
    ) -> *mut TF_Session;
    b"TF_CloseSession\0" close_session(*mut TF_Session, *mut TF_Status);
    b"TF_DeleteSession\0" delete_session(*mut TF_Session, *mut TF_Status);
    b"TF_SessionRun\0" run(
        *mut TF_Session, *const TF_Buffer, *const TF_Output, *const *mut TF_Tensor, c_int,
        *const TF_Output, *mut *mut TF_Tensor, c_int, *const *const TF_Operation, c_int,
        *mut TF_Buffer, *mut TF_Status
    );
    b"TF_NewTensor\0" new_tensor(
        c_int, *const i64, c_int, *mut c_void, usize, Deallocator, *mut c_void
    ) -> *mut TF_Tensor;
    b"TF_AllocateTensor\0" allocate_tensor(c_int, *const i64, c_int, usize) -> *mut TF_Tensor;
    b"TF_DeleteTensor\0" delete_tensor(*mut TF_Tensor);
    b"TF_TensorType\0" tensor_type(*const TF_Tensor) -> c_int;
    b"TF_NumDims\0" tensor_rank(*const TF_Tensor) -> c_int;
    b"TF_Dim\0" tensor_dim(*const TF_Tensor, c_int) -> i64;
    b"TF_TensorByteSize\0" tensor_bytes(*const TF_Tensor) -> usize;
    b"TF_TensorData\0" tensor_data(*const TF_Tensor) -> *mut c_void;
    b"TF_StringInit\0" string_init(*mut TF_TString);
    b"TF_StringCopy\0" string_copy(*mut TF_TString, *const c_char, usize);
    b"TF_StringDealloc\0" string_dealloc(*mut TF_TString);
    b"TF_StringGetDataPointer\0" string_data(*const TF_TString) -> *const c_char;
    b"TF_StringGetSize\0" string_size(*const TF_TString) -> usize;
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
                _ => owned((self.message)(status)),
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

/// # Safety
/// `text` is null or NUL-terminated.
pub unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
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
