//! The table that the double hands out: the real one, with some functions replaced.

use std::ffi::c_void;

use crate::real::RealLibrary;
use crate::{binding, log, memory, providers, session};

/// A table of functions, as ONNX Runtime lays it out.
pub struct Table(Vec<*const c_void>);

// SAFETY: addresses of functions.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    pub fn over(real: &RealLibrary) -> Self {
        let mut table = real.entries().to_vec();
        let own = [
            (49, memory::create_tensor_with_data as *const c_void),
            (68, memory::create_memory_info as *const c_void),
            (94, memory::release_memory_info as *const c_void),
            (96, memory::release_value as *const c_void),
        ];
        let others = providers::functions()
            .into_iter()
            .chain(session::functions())
            .chain(log::functions());
        for (index, function) in own.into_iter().chain(others).chain(binding::functions()) {
            if let Some(entry) = table.get_mut(index) {
                *entry = function;
            }
        }
        Table(table)
    }

    pub fn as_ptr(&self) -> *const *const c_void {
        self.0.as_ptr()
    }
}
