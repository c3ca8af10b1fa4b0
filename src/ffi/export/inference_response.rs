//! Responses to embedders and backends.

use std::ffi::{c_char, c_void};

use conch_abi as abi;

use super::export;
use super::parameter::write_parameter;
use crate::boundary::{borrow, delete, write, write_optional};
use crate::embed::location;

export! {
    fn TRITONSERVER_InferenceResponseDelete(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
    ) {
        delete(inference_response)
    }

    // A new object each time, that the caller deletes: what every known program does, whatever the
    // header says of ownership.
    fn TRITONSERVER_InferenceResponseError(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
    ) {
        borrow(inference_response)?.error()
    }

    fn TRITONSERVER_InferenceResponseModel(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
        model_name: *mut *const c_char,
        model_version: *mut i64,
    ) {
        let response = borrow(inference_response)?;
        write(model_name, response.model_name())?;
        write(model_version, response.model().version)
    }

    fn TRITONSERVER_InferenceResponseId(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
        request_id: *mut *const c_char,
    ) {
        write(request_id, borrow(inference_response)?.id())
    }

    fn TRITONSERVER_InferenceResponseParameterCount(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
        count: *mut u32,
    ) {
        write(
            count,
            super::count(borrow(inference_response)?.parameters().len())?,
        )
    }

    fn TRITONSERVER_InferenceResponseParameter(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
        index: u32,
        name: *mut *const c_char,
        kind: *mut abi::TRITONSERVER_ParameterType,
        vvalue: *mut *const c_void,
    ) {
        write_parameter(
            borrow(inference_response)?.parameters(),
            "response",
            index,
            (name, kind, vvalue),
        )
    }

    fn TRITONSERVER_InferenceResponseOutputCount(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
        count: *mut u32,
    ) {
        write(
            count,
            super::count(borrow(inference_response)?.outputs().len())?,
        )
    }

    fn TRITONSERVER_InferenceResponseOutput(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
        index: u32,
        name: *mut *const c_char,
        datatype: *mut abi::TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
        base: *mut *const c_void,
        byte_size: *mut usize,
        memory_type: *mut abi::TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
        userp: *mut *mut c_void,
    ) {
        let response = borrow(inference_response)?;
        let (place, output) = response.output(index)?;
        let (address, attributes, buffer_userp) = location(output);
        write(name, response.output_name(place))?;
        write(datatype, output.data_type.number())?;
        write(shape, output.shape.as_ptr())?;
        // Ranks fit 64 bits.
        write(dim_count, output.shape.len() as u64)?;
        write(base, address)?;
        write(
            byte_size,
            usize::try_from(attributes.byte_size).unwrap_or(usize::MAX),
        )?;
        write(memory_type, attributes.memory_type)?;
        write(memory_type_id, attributes.memory_type_id)?;
        write_optional(userp, buffer_userp);
        Ok(())
    }

    fn TRITONSERVER_InferenceResponseOutputClassificationLabel(
        inference_response: *mut abi::TRITONSERVER_InferenceResponse,
        index: u32,
        class_index: usize,
        label: *mut *const c_char,
    ) {
        let response = borrow(inference_response)?;
        let (_, output) = response.output(index)?;
        // Null if the model has no label for the class, as upstream.
        let found = response.model().label(&output.name, class_index);
        write(
            label,
            found.map_or(std::ptr::null(), |label| label.as_ptr()),
        )
    }
}
