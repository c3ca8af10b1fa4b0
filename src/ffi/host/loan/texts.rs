//! What of a request has to be put into C's form: its texts and parameters, made on demand.

use std::ffi::{CString, c_void};
use std::sync::OnceLock;

use conch_engine::{Parameter, ParameterValue};

use crate::boundary::c_string;

/// C strings made on demand.
#[derive(Default)]
pub(super) struct Texts {
    pub(super) id: OnceLock<CString>,
    pub(super) correlation_id: OnceLock<CString>,
    pub(super) parameters: OnceLock<Vec<LentParameter>>,
}

/// One request parameter in C's form.
pub(crate) struct LentParameter {
    pub(crate) name: CString,
    pub(crate) value: LentValue,
}

impl LentParameter {
    pub(crate) fn of(parameter: &Parameter) -> LentParameter {
        LentParameter {
            name: c_string(&parameter.name),
            value: LentValue::of(&parameter.value),
        }
    }
}

pub(crate) enum LentValue {
    Text(CString),
    Int(i64),
    Bool(bool),
    Double(f64),
}

impl LentValue {
    /// Where the value lies: the characters themselves for text.
    pub(crate) fn address(&self) -> *const c_void {
        match self {
            LentValue::Text(text) => text.as_ptr().cast(),
            LentValue::Int(value) => std::ptr::from_ref(value).cast(),
            LentValue::Bool(value) => std::ptr::from_ref(value).cast(),
            LentValue::Double(value) => std::ptr::from_ref(value).cast(),
        }
    }

    fn of(value: &ParameterValue) -> LentValue {
        match value {
            ParameterValue::Text(text) => LentValue::Text(c_string(text)),
            ParameterValue::Int(value) => LentValue::Int(*value),
            ParameterValue::Bool(value) => LentValue::Bool(*value),
            ParameterValue::Double(value) => LentValue::Double(*value),
        }
    }
}
