//! The boxes behind the state pointers of models and instances.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::Error;
use crate::backend::Instance;
use crate::batch::OpenBatch;
use crate::factory::Factories;
use crate::server::ServerScope;
use crate::slot::Slot;

pub(super) struct ModelCell<M> {
    pub model: M,
    pub max_batch_size: i64,
    pub is_decoupled: bool,
    /// Dropped after the model, which may call until then.
    pub _server: ServerScope,
}

pub(super) struct InstanceCell<I: Instance> {
    pub instance: I,
    pub model: NonNull<ModelCell<I::Model>>,
    /// Kept between executions, so that a steady load allocates nothing here.
    pub slots: Vec<Slot>,
    /// What an execution left open.
    pub open: Option<OpenBatch>,
    pub factories: Arc<Factories>,
}

/// # Safety
/// `state` is null or a box of a `T` that lives during `'s` and is not borrowed mutably.
pub(super) unsafe fn shared<'s, T>(state: *mut c_void, what: &str) -> Result<&'s T, Error> {
    // SAFETY: by this function's contract.
    unsafe { state.cast::<T>().as_ref() }
        .ok_or_else(|| Error::internal(format!("{what} without a state")))
}

/// # Safety
/// `state` is null or a box of a `T` that nobody uses any more.
pub(super) unsafe fn drop_box<T>(state: *mut c_void) {
    if !state.is_null() {
        // SAFETY: by this function's contract.
        drop(unsafe { Box::from_raw(state.cast::<T>()) });
    }
}
