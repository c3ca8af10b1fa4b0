//! The functions of OpenVINO's C library that are used, and the types that they take.

use std::ffi::{c_char, c_int, c_void};

use conch_backend_sdk as sdk;

sdk::opaque_types! {
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

sdk::functions! {
    /// The functions in use. Contracts are those of the C headers.
    pub struct Functions;

    unsafe extern "C" {
        ov_get_openvino_version as get_openvino_version(*mut Version) -> Status;
        ov_version_free as version_free(*mut Version);
        ov_get_error_info as get_error_info(Status) -> *const c_char;
        ov_free as free(*const c_char);
        ov_core_create as core_create(*mut *mut OvCore) -> Status;
        ov_core_free as core_free(*mut OvCore);
        ov_core_read_model as core_read_model(
            *const OvCore, *const c_char, *const c_char, *mut *mut OvModel
        ) -> Status;
        ov_core_get_property as core_get_property(
            *const OvCore, *const c_char, *const c_char, *mut *mut c_char
        ) -> Status;
        ov_core_set_property as core_set_property(*const OvCore, *const c_char; ...) -> Status;
        ov_core_compile_model as core_compile_model(
            *const OvCore, *const OvModel, *const c_char, usize, *mut *mut OvCompiledModel; ...
        ) -> Status;
        ov_model_free as model_free(*mut OvModel);
        ov_model_is_dynamic as model_is_dynamic(*const OvModel) -> bool;
        ov_model_inputs_size as model_inputs_size(*const OvModel, *mut usize) -> Status;
        ov_model_outputs_size as model_outputs_size(*const OvModel, *mut usize) -> Status;
        ov_model_const_input_by_index as model_const_input_by_index(
            *const OvModel, usize, *mut *mut OvPort
        ) -> Status;
        ov_model_const_output_by_index as model_const_output_by_index(
            *const OvModel, usize, *mut *mut OvPort
        ) -> Status;
        ov_model_reshape as model_reshape(
            *const OvModel, *mut *const c_char, *const PartialShape, usize
        ) -> Status;
        ov_port_get_any_name as port_get_any_name(*const OvPort, *mut *mut c_char) -> Status;
        ov_port_get_partial_shape as port_get_partial_shape(
            *const OvPort, *mut PartialShape
        ) -> Status;
        ov_port_get_element_type as port_get_element_type(*const OvPort, *mut c_int) -> Status;
        ov_output_const_port_free as output_const_port_free(*mut OvPort);
        ov_partial_shape_free as partial_shape_free(*mut PartialShape);
        ov_preprocess_prepostprocessor_create as preprocessor_create(
            *const OvModel, *mut *mut OvPreprocessor
        ) -> Status;
        ov_preprocess_prepostprocessor_free as preprocessor_free(*mut OvPreprocessor);
        ov_preprocess_prepostprocessor_get_input_info_by_index as preprocessor_input(
            *const OvPreprocessor, usize, *mut *mut OvInputInfo
        ) -> Status;
        ov_preprocess_input_info_get_tensor_info as input_info_tensor(
            *const OvInputInfo, *mut *mut OvInputTensorInfo
        ) -> Status;
        ov_preprocess_input_tensor_info_set_element_type as input_tensor_set_element_type(
            *mut OvInputTensorInfo, c_int
        ) -> Status;
        ov_preprocess_input_tensor_info_free as input_tensor_free(*mut OvInputTensorInfo);
        ov_preprocess_input_info_free as input_info_free(*mut OvInputInfo);
        ov_preprocess_prepostprocessor_get_output_info_by_index as preprocessor_output(
            *const OvPreprocessor, usize, *mut *mut OvOutputInfo
        ) -> Status;
        ov_preprocess_output_info_get_tensor_info as output_info_tensor(
            *const OvOutputInfo, *mut *mut OvOutputTensorInfo
        ) -> Status;
        ov_preprocess_output_set_element_type as output_tensor_set_element_type(
            *mut OvOutputTensorInfo, c_int
        ) -> Status;
        ov_preprocess_output_tensor_info_free as output_tensor_free(*mut OvOutputTensorInfo);
        ov_preprocess_output_info_free as output_info_free(*mut OvOutputInfo);
        ov_preprocess_prepostprocessor_build as preprocessor_build(
            *const OvPreprocessor, *mut *mut OvModel
        ) -> Status;
        ov_compiled_model_create_infer_request as compiled_model_create_infer_request(
            *const OvCompiledModel, *mut *mut OvInferRequest
        ) -> Status;
        ov_compiled_model_get_property as compiled_model_get_property(
            *const OvCompiledModel, *const c_char, *mut *mut c_char
        ) -> Status;
        ov_compiled_model_free as compiled_model_free(*mut OvCompiledModel);
        ov_infer_request_set_input_tensor_by_index as infer_request_set_input(
            *mut OvInferRequest, usize, *const OvTensor
        ) -> Status;
        ov_infer_request_get_output_tensor_by_index as infer_request_get_output(
            *const OvInferRequest, usize, *mut *mut OvTensor
        ) -> Status;
        ov_infer_request_infer as infer_request_infer(*mut OvInferRequest) -> Status;
        ov_infer_request_cancel as infer_request_cancel(*mut OvInferRequest) -> Status;
        ov_infer_request_free as infer_request_free(*mut OvInferRequest);
        ov_tensor_create as tensor_create(c_int, Shape, *mut *mut OvTensor) -> Status;
        ov_tensor_create_from_host_ptr as tensor_create_from_host_ptr(
            c_int, Shape, *mut c_void, *mut *mut OvTensor
        ) -> Status;
        ov_tensor_get_shape as tensor_get_shape(*const OvTensor, *mut Shape) -> Status;
        ov_tensor_get_element_type as tensor_get_element_type(
            *const OvTensor, *mut c_int
        ) -> Status;
        ov_tensor_get_byte_size as tensor_get_byte_size(*const OvTensor, *mut usize) -> Status;
        ov_tensor_data as tensor_data(*const OvTensor, *mut *mut c_void) -> Status;
        ov_tensor_free as tensor_free(*mut OvTensor);
        ov_shape_free as shape_free(*mut Shape) -> Status;
    }
    // Missing in old libraries.
    optional {
        /// Text of the last error.
        ov_get_last_err_msg as get_last_err_msg() -> *const c_char;
        ov_core_add_extension as core_add_extension(*const OvCore, *const c_char) -> Status;
    }
}
