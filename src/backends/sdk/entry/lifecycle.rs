//! Entry points that make and end backends, models and instances, and tell of them.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use conch_abi as abi;

use super::RawError;
use super::cells::{InstanceCell, ModelCell, drop_box, shared};
use crate::Error;
use crate::backend::{
    Attributes, Backend, BackendContext, Instance, InstanceContext, Model, ModelContext, Ready,
};
use crate::factory::Factories;
use crate::guard::guard;

/// The oldest minor version of the backend API that has every function the SDK calls. Servers older
/// than Triton 2.40 lack some.
const API_VERSION_MINOR_MIN: u32 = 16;

/// # Safety
/// As for `TRITONBACKEND_Initialize`: the backend is live, and calls for it come one at a time.
pub unsafe fn initialize<B: Backend>(raw: *mut abi::TRITONBACKEND_Backend) -> RawError {
    guard(|| {
        check_version()?;
        // SAFETY: live during this call by the function's contract.
        let context = unsafe { BackendContext::new(raw)? };
        // These lines, and those of models and instances below, are what upstream's backends say.
        crate::info!("TRITONBACKEND_Initialize: {}", context.name());
        crate::info!(
            "'{}' TRITONBACKEND API version: {}.{}",
            context.name(),
            abi::TRITONBACKEND_API_VERSION_MAJOR,
            abi::TRITONBACKEND_API_VERSION_MINOR
        );
        crate::info!("backend configuration:\n{}", context.config().text());
        let state = Box::into_raw(Box::new(B::initialize(&context)?));
        // SAFETY: the backend is live; on failure the box, which nobody else saw, is taken back.
        unsafe {
            Error::check(abi::TRITONBACKEND_BackendSetState(raw, state.cast()))
                .inspect_err(|_| drop(Box::from_raw(state)))
        }
    })
}

/// # Safety
/// As for `TRITONBACKEND_Finalize`.
pub unsafe fn finalize<B: Backend>(raw: *mut abi::TRITONBACKEND_Backend) -> RawError {
    guard(|| {
        let mut state: *mut c_void = ptr::null_mut();
        // SAFETY: the backend is live; its state is the box of `initialize`, and nobody uses it any
        // more.
        unsafe {
            Error::check(abi::TRITONBACKEND_BackendState(raw, &raw mut state))?;
            drop_box::<B>(state);
        }
        Ok(())
    })
}

/// # Safety
/// As for `TRITONBACKEND_GetBackendAttribute`.
pub unsafe fn attributes<B: Backend>(
    raw: *mut abi::TRITONBACKEND_Backend,
    attributes: *mut abi::TRITONBACKEND_BackendAttribute,
) -> RawError {
    guard(|| {
        let mut state: *mut c_void = ptr::null_mut();
        // SAFETY: the backend is live and initialised, so its state is the box of `initialize`; the
        // attributes are live.
        unsafe {
            Error::check(abi::TRITONBACKEND_BackendState(raw, &raw mut state))?;
            let backend = shared::<B>(state, "backend")?;
            backend.attributes(&mut Attributes::new(attributes)?)
        }
    })
}

/// # Safety
/// As for `TRITONBACKEND_ModelInitialize`: the model is live, and calls for it come one at a time.
pub unsafe fn model_initialize<M: Model>(raw: *mut abi::TRITONBACKEND_Model) -> RawError {
    guard(|| {
        let mut backend = ptr::null_mut();
        let mut state: *mut c_void = ptr::null_mut();
        // SAFETY: model and backend are live; the backend's state is the box of `initialize`,
        // shared by models, which may start at the same time (`Backend` is `Sync`).
        let backend = unsafe {
            Error::check(abi::TRITONBACKEND_ModelBackend(raw, &raw mut backend))?;
            Error::check(abi::TRITONBACKEND_BackendState(backend, &raw mut state))?;
            shared::<M::Backend>(state, "backend")?
        };
        // SAFETY: the model is live during this call.
        let mut context = unsafe { ModelContext::new(raw)? };
        crate::info!(
            "TRITONBACKEND_ModelInitialize: {} (version {})",
            context.name(),
            context.version()
        );
        let model = M::initialize(backend, &mut context)?;
        let cell = Box::into_raw(Box::new(ModelCell {
            model,
            max_batch_size: context.config().max_batch_size(),
            is_decoupled: context.config().is_decoupled(),
            _server: context.into_server_scope(),
        }));
        // SAFETY: the model is live; on failure the box, which nobody else saw, is taken back.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelSetState(raw, cell.cast()))
                .inspect_err(|_| drop(Box::from_raw(cell)))
        }
    })
}

/// # Safety
/// As for `TRITONBACKEND_ModelFinalize`.
pub unsafe fn model_finalize<M: Model>(raw: *mut abi::TRITONBACKEND_Model) -> RawError {
    guard(|| {
        let mut state: *mut c_void = ptr::null_mut();
        // SAFETY: the model is live; its state is the box of `model_initialize`, and its instances
        // are gone.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelState(raw, &raw mut state))?;
            crate::info!("TRITONBACKEND_ModelFinalize: delete model state");
            drop_box::<ModelCell<M>>(state);
        }
        Ok(())
    })
}

/// # Safety
/// As for `TRITONBACKEND_ModelInstanceInitialize`: the instance is live and used by this thread
/// alone.
pub unsafe fn instance_initialize<I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> RawError {
    guard(|| {
        let mut model = ptr::null_mut();
        let mut state: *mut c_void = ptr::null_mut();
        // SAFETY: instance and model are live; the model's state is the box of `model_initialize`,
        // which outlives its instances.
        let model: &ModelCell<I::Model> = unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceModel(raw, &raw mut model))?;
            Error::check(abi::TRITONBACKEND_ModelState(model, &raw mut state))?;
            shared(state, "model")?
        };
        // SAFETY: the instance is live during this call.
        let context = unsafe { InstanceContext::new(raw)? };
        crate::info!(
            "TRITONBACKEND_ModelInstanceInitialize: {} ({} device {})",
            context.name,
            context.kind.name(),
            context.device_id
        );
        let cell = Box::into_raw(Box::new(InstanceCell {
            instance: I::initialize(&model.model, &context)?,
            model: NonNull::from(model),
            slots: Vec::new(),
            open: None,
            // SAFETY: Finalize, before which the instance is live, waits for the factories.
            factories: unsafe { Factories::new(raw) },
        }));
        // SAFETY: the instance is live; on failure the box, which nobody else saw, is taken back.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceSetState(raw, cell.cast()))
                .inspect_err(|_| drop(Box::from_raw(cell)))
        }
    })
}

/// # Safety
/// As for `TRITONBACKEND_ModelInstanceFinalize`.
pub unsafe fn instance_finalize<I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> RawError {
    guard(|| {
        let mut state: *mut c_void = ptr::null_mut();
        // SAFETY: the instance is live; its state is the box of `instance_initialize`, and it
        // executes nothing any more.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceState(raw, &raw mut state))?;
            let Some(cell) = NonNull::new(state.cast::<InstanceCell<I>>()) else {
                return Ok(());
            };
            crate::info!("TRITONBACKEND_ModelInstanceFinalize: delete instance state");
            let cell = *Box::from_raw(cell.as_ptr());
            // The instance first: it tells the threads to end that hold its factories.
            drop(cell.instance);
            cell.factories.wait_until_none();
        }
        Ok(())
    })
}

/// # Safety
/// As for `TRITONBACKEND_ModelInstanceReady`: the instance is live; it may be executing on another
/// thread.
pub unsafe fn instance_ready<M: Ready>(raw: *mut abi::TRITONBACKEND_ModelInstance) -> RawError {
    guard(|| {
        let mut model = ptr::null_mut();
        let mut state: *mut c_void = ptr::null_mut();
        // SAFETY: instance and model are live; the model's state is the box of `model_initialize`,
        // which outlives its instances and is only ever shared (`Model` is `Sync`). The instance's
        // own box is left alone: an execution may be using it.
        let model: &ModelCell<M> = unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceModel(raw, &raw mut model))?;
            Error::check(abi::TRITONBACKEND_ModelState(model, &raw mut state))?;
            shared(state, "model")?
        };
        model.model.check_ready()
    })
}

/// The server must have the same major version and at least the functions that the SDK calls; a
/// newer or older minor is no matter.
fn check_version() -> Result<(), Error> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both results are writable.
    unsafe {
        Error::check(abi::TRITONBACKEND_ApiVersion(
            &raw mut major,
            &raw mut minor,
        ))?;
    }
    if is_version_enough(major, minor) {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "the server's backend API is {major}.{minor}, this backend needs \
         {}.{API_VERSION_MINOR_MIN} or a later minor version",
        abi::TRITONBACKEND_API_VERSION_MAJOR
    )))
}

fn is_version_enough(major: u32, minor: u32) -> bool {
    major == abi::TRITONBACKEND_API_VERSION_MAJOR && minor >= API_VERSION_MINOR_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_newer_and_slightly_older_servers() {
        for (major, minor, expected) in [
            (1, API_VERSION_MINOR_MIN, true),
            (1, 19, true),
            (1, 99, true),
            (1, API_VERSION_MINOR_MIN - 1, false),
            (2, 19, false),
            (0, 19, false),
        ] {
            assert_eq!(is_version_enough(major, minor), expected, "{major}.{minor}");
        }
    }
}
