//! Texts and parameters of a request in C's form, made on demand.

use std::ffi::{CString, c_void};
use std::sync::OnceLock;

use conch_engine::{Parameter, ParameterValue};

use crate::boundary::c_string;

/// C strings made on demand.
#[derive(Default)]
pub(super) struct CStrings {
    pub(super) id: OnceLock<CString>,
    pub(super) correlation_id: OnceLock<CString>,
    pub(super) parameters: OnceLock<Vec<BackendParameter>>,
}

/// One request parameter in C's form.
pub(crate) struct BackendParameter {
    pub(crate) name: CString,
    pub(crate) value: BackendParameterValue,
}

impl BackendParameter {
    pub(crate) fn of(parameter: &Parameter) -> BackendParameter {
        BackendParameter {
            name: c_string(&parameter.name),
            value: BackendParameterValue::of(&parameter.value),
        }
    }
}

pub(crate) enum BackendParameterValue {
    Text(CString),
    Int(i64),
    Bool(bool),
    Double(f64),
}

impl BackendParameterValue {
    /// Where the value lies: the characters themselves for text.
    pub(crate) fn address(&self) -> *const c_void {
        match self {
            BackendParameterValue::Text(text) => text.as_ptr().cast(),
            BackendParameterValue::Int(value) => std::ptr::from_ref(value).cast(),
            BackendParameterValue::Bool(value) => std::ptr::from_ref(value).cast(),
            BackendParameterValue::Double(value) => std::ptr::from_ref(value).cast(),
        }
    }

    fn of(value: &ParameterValue) -> BackendParameterValue {
        match value {
            ParameterValue::Text(text) => BackendParameterValue::Text(c_string(text)),
            ParameterValue::Int(value) => BackendParameterValue::Int(*value),
            ParameterValue::Bool(value) => BackendParameterValue::Bool(*value),
            ParameterValue::Double(value) => BackendParameterValue::Double(*value),
        }
    }
}
