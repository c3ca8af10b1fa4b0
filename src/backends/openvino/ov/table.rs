//! The functions of OpenVINO's C library that are used, and the types that they take.

use std::ffi::{c_char, c_int, c_void};

macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub struct $name {
            opaque: [u8; 0],
        }
    )* };
}

opaque! {
    OvCore OvModel OvCompiledModel OvInferRequest OvTensor OvPort OvPreprocessor OvInputInfo
    OvInputTensorInfo OvOutputInfo OvOutputTensorInfo
}

/// `ov_status_e`: 0 is success.
pub type Status = c_int;

/// `ov_version_t`.
#[repr(C)]
pub struct Version {
    pub build_number: *const c_char,
    pub description: *const c_char,
}

/// `ov_dimension_t`, and the rank of a partial shape: fixed where both are the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dimension {
    pub min: i64,
    pub max: i64,
}

/// `ov_partial_shape_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PartialShape {
    pub rank: Dimension,
    pub dims: *mut Dimension,
}

/// `ov_shape_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Shape {
    pub rank: i64,
    pub dims: *mut i64,
}

macro_rules! functions {
    ($($name:ident ($($argument:ty),* $(; $more:tt)?) $(-> $result:ty)?;)*) => {
        /// The functions in use, without their prefix `ov_`. Contracts are those of the C headers.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),* $(, $more)?) $(-> $result)?,)*
            /// Text of the last error; missing in old libraries.
            pub get_last_err_msg: Option<unsafe extern "C" fn() -> *const c_char>,
            /// Missing in old libraries.
            pub core_add_extension:
                Option<unsafe extern "C" fn(*const OvCore, *const c_char) -> Status>,
        }

        impl Functions {
            /// # Errors
            /// The library's words for a function that it lacks.
            ///
            /// # Safety
            /// `library` is OpenVINO's C library.
            pub unsafe fn read(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the headers give the functions of these names exactly these types.
                unsafe {
                    Ok(Functions {
                        $($name: *library
                            .get(concat!("ov_", stringify!($name), "\0").as_bytes())?,)*
                        get_last_err_msg: library
                            .get(b"ov_get_last_err_msg\0")
                            .ok()
                            .map(|function| *function),
                        core_add_extension: library
                            .get(b"ov_core_add_extension\0")
                            .ok()
                            .map(|function| *function),
                    })
                }
            }
        }
    };
}

functions! {
    get_openvino_version(*mut Version) -> Status;
    version_free(*mut Version);
    get_error_info(Status) -> *const c_char;
    free(*const c_char);
    core_create(*mut *mut OvCore) -> Status;
    core_free(*mut OvCore);
    core_read_model(*const OvCore, *const c_char, *const c_char, *mut *mut OvModel) -> Status;
    core_get_property(
        *const OvCore, *const c_char, *const c_char, *mut *mut c_char
    ) -> Status;
    core_set_property(*const OvCore, *const c_char; ...) -> Status;
    core_compile_model(
        *const OvCore, *const OvModel, *const c_char, usize, *mut *mut OvCompiledModel; ...
    ) -> Status;
    model_free(*mut OvModel);
    model_is_dynamic(*const OvModel) -> bool;
    model_inputs_size(*const OvModel, *mut usize) -> Status;
    model_outputs_size(*const OvModel, *mut usize) -> Status;
    model_const_input_by_index(*const OvModel, usize, *mut *mut OvPort) -> Status;
    model_const_output_by_index(*const OvModel, usize, *mut *mut OvPort) -> Status;
    model_reshape(*const OvModel, *mut *const c_char, *const PartialShape, usize) -> Status;
    port_get_any_name(*const OvPort, *mut *mut c_char) -> Status;
    port_get_partial_shape(*const OvPort, *mut PartialShape) -> Status;
    port_get_element_type(*const OvPort, *mut c_int) -> Status;
    output_const_port_free(*mut OvPort);
    partial_shape_free(*mut PartialShape);
    preprocess_prepostprocessor_create(*const OvModel, *mut *mut OvPreprocessor) -> Status;
    preprocess_prepostprocessor_free(*mut OvPreprocessor);
    preprocess_prepostprocessor_get_input_info_by_index(
        *const OvPreprocessor, usize, *mut *mut OvInputInfo
    ) -> Status;
    preprocess_input_info_get_tensor_info(
        *const OvInputInfo, *mut *mut OvInputTensorInfo
    ) -> Status;
    preprocess_input_tensor_info_set_element_type(*mut OvInputTensorInfo, c_int) -> Status;
    preprocess_input_tensor_info_free(*mut OvInputTensorInfo);
    preprocess_input_info_free(*mut OvInputInfo);
    preprocess_prepostprocessor_get_output_info_by_index(
        *const OvPreprocessor, usize, *mut *mut OvOutputInfo
    ) -> Status;
    preprocess_output_info_get_tensor_info(
        *const OvOutputInfo, *mut *mut OvOutputTensorInfo
    ) -> Status;
    preprocess_output_set_element_type(*mut OvOutputTensorInfo, c_int) -> Status;
    preprocess_output_tensor_info_free(*mut OvOutputTensorInfo);
    preprocess_output_info_free(*mut OvOutputInfo);
    preprocess_prepostprocessor_build(*const OvPreprocessor, *mut *mut OvModel) -> Status;
    compiled_model_create_infer_request(
        *const OvCompiledModel, *mut *mut OvInferRequest
    ) -> Status;
    compiled_model_get_property(
        *const OvCompiledModel, *const c_char, *mut *mut c_char
    ) -> Status;
    compiled_model_free(*mut OvCompiledModel);
    infer_request_set_input_tensor_by_index(
        *mut OvInferRequest, usize, *const OvTensor
    ) -> Status;
    infer_request_get_output_tensor_by_index(
        *const OvInferRequest, usize, *mut *mut OvTensor
    ) -> Status;
    infer_request_infer(*mut OvInferRequest) -> Status;
    infer_request_cancel(*mut OvInferRequest) -> Status;
    infer_request_free(*mut OvInferRequest);
    tensor_create(c_int, Shape, *mut *mut OvTensor) -> Status;
    tensor_create_from_host_ptr(c_int, Shape, *mut c_void, *mut *mut OvTensor) -> Status;
    tensor_get_shape(*const OvTensor, *mut Shape) -> Status;
    tensor_get_element_type(*const OvTensor, *mut c_int) -> Status;
    tensor_get_byte_size(*const OvTensor, *mut usize) -> Status;
    tensor_data(*const OvTensor, *mut *mut c_void) -> Status;
    tensor_free(*mut OvTensor);
    shape_free(*mut Shape) -> Status;
}
