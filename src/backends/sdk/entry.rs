//! The entry points that a server looks up in a plug-in, as generic functions;
//! [`export_backend!`](crate::export_backend) gives them their C names.
//!
//! Every one catches panics: they must not unwind into the server. Who frees what: the state
//! pointer of a backend, model and instance is a `Box` made by its Initialize and taken back by its
//! Finalize; the server finalises instances before their model and models before their backend, so
//! the references between the boxes hold.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use conch_abi as abi;

use crate::Error;
use crate::backend::{
    Attributes, Backend, BackendContext, Instance, InstanceContext, Model, ModelContext,
    OpenInstance, Progress, Ready,
};
use crate::batch::{Batch, ExecutionStart, OpenBatch};
use crate::clock::monotonic_ns;
use crate::detached::{DetachedBatch, DetachingInstance};
use crate::factory::Factories;
use crate::guard::{caught, guard};
use crate::server::ServerScope;
use crate::slot::Slot;

/// The oldest minor version of the backend API that has every function the SDK calls. Servers older
/// than Triton 2.40 lack some.
const API_VERSION_MINOR_MIN: u32 = 16;

type RawError = *mut abi::TRITONSERVER_Error;

struct ModelCell<M> {
    model: M,
    max_batch_size: i64,
    is_decoupled: bool,
    /// Dropped after the model, which may call until then.
    _server: ServerScope,
}

struct InstanceCell<I: Instance> {
    instance: I,
    model: NonNull<ModelCell<I::Model>>,
    /// Kept between executions, so that a steady load allocates nothing here.
    slots: Vec<Slot>,
    /// What an execution left open.
    open: Option<OpenBatch>,
    factories: Arc<Factories>,
}

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
/// As for `TRITONBACKEND_ModelInstanceExecute`: the instance is live and executes nothing else;
/// `requests` points at `request_count` requests, which this call owns if it returns success.
pub unsafe fn instance_execute<I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> RawError {
    let begin = |instance: &mut I, model: &I::Model, batch: &Batch<'_>| {
        instance.execute(model, batch).map(|()| Progress::Done)
    };
    // SAFETY: by this function's contract.
    match unsafe { begin_execution(raw, requests, request_count, begin) } {
        Ok(_) => ptr::null_mut(),
        Err(error) => error,
    }
}

/// # Safety
/// As for `CONCH_ModelInstanceExecuteBegin`: as [`instance_execute`], and `is_open` is writable.
pub unsafe fn instance_execute_begin<I: OpenInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
    wait_ns: u64,
    is_open: *mut bool,
) -> RawError {
    let limit = Duration::from_nanos(wait_ns);
    let begin =
        |instance: &mut I, model: &I::Model, batch: &Batch<'_>| instance.begin(model, batch, limit);
    // SAFETY: by this function's contract.
    match unsafe { begin_execution(raw, requests, request_count, begin) } {
        Ok(progress) => {
            // SAFETY: by this function's contract.
            unsafe { is_open.write(progress == Progress::Open) };
            ptr::null_mut()
        }
        Err(error) => error,
    }
}

/// # Safety
/// As for `CONCH_ModelInstanceExecuteEnd`: the instance is live and was left open.
pub unsafe fn instance_execute_end<I: OpenInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> RawError {
    // SAFETY: by this function's contract.
    let cell = match unsafe { executing::<I>(raw) } {
        Ok(cell) => cell,
        Err(error) => return error.into_raw(),
    };
    let Some(open) = cell.open.take() else {
        return ptr::null_mut();
    };
    // SAFETY: the requests are the backend's since the execution began; the slots are as that left
    // them.
    let (batch, instance, model) = unsafe { parts(raw, cell, &open.requests, open.start) };
    let result = caught(|| instance.end(model, &batch));
    batch.finish(result)
}

/// # Safety
/// As [`instance_execute`].
pub unsafe fn instance_execute_detached<I: DetachingInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> RawError {
    let start = ExecutionStart {
        exec_ns: monotonic_ns(),
        compute_ns: 0,
    };
    // SAFETY: by this function's contract.
    let cell = match unsafe { executing::<I>(raw) } {
        Ok(cell) => cell,
        Err(error) => return error.into_raw(),
    };
    // SAFETY: by this function's contract.
    let requests = match unsafe { listed(requests, request_count) } {
        Ok(Some(requests)) => requests,
        Ok(None) => return ptr::null_mut(),
        Err(error) => return error,
    };
    // SAFETY: the model's box outlives its instances.
    let model = unsafe { cell.model.as_ref() };
    // SAFETY: the requests are the backend's, since this returns success from here on; Finalize,
    // before which the instance is live, waits for the factories.
    let batch = unsafe {
        DetachedBatch::new(
            raw,
            requests,
            model.max_batch_size,
            model.is_decoupled,
            start,
            &cell.factories,
        )
    };
    // A panic is logged by `caught`, and the batch answered by its drop.
    let instance = &mut cell.instance;
    let _ = caught(|| {
        instance.submit(&model.model, batch);
        Ok(())
    });
    ptr::null_mut()
}

/// The requests of a call; `None` if there are none.
///
/// # Safety
/// `requests` is null or points at `request_count` entries, which live during `'r`.
unsafe fn listed<'r>(
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> Result<Option<&'r [NonNull<abi::TRITONBACKEND_Request>]>, RawError> {
    if requests.is_null() || request_count == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's array. It may hold nulls, so it is read as such first.
    let requests = unsafe { std::slice::from_raw_parts(requests, request_count as usize) };
    if requests.iter().any(|request| request.is_null()) {
        return Err(Error::internal("null request given to the backend").into_raw());
    }
    // SAFETY: the same array, now known to hold no nulls; NonNull has the layout of a pointer.
    Ok(Some(unsafe {
        std::slice::from_raw_parts(
            requests
                .as_ptr()
                .cast::<NonNull<abi::TRITONBACKEND_Request>>(),
            requests.len(),
        )
    }))
}

/// Executes by `begin`, and keeps what that leaves open.
///
/// # Safety
/// As [`instance_execute`].
unsafe fn begin_execution<I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
    begin: impl FnOnce(&mut I, &I::Model, &Batch<'_>) -> Result<Progress, Error>,
) -> Result<Progress, RawError> {
    let start = ExecutionStart {
        exec_ns: monotonic_ns(),
        compute_ns: 0,
    };
    // SAFETY: by this function's contract.
    let cell = unsafe { executing::<I>(raw) }.map_err(Error::into_raw)?;
    // SAFETY: by this function's contract.
    let Some(requests) = (unsafe { listed(requests, request_count) })? else {
        return Ok(Progress::Done);
    };
    cell.slots.clear();
    cell.slots.resize_with(requests.len(), Slot::default);
    let open = {
        // SAFETY: the requests are live and this thread's until Execute returns, or the backend's
        // if it leaves them open; there is one fresh slot per request.
        let (batch, instance, model) = unsafe { parts(raw, cell, requests, start) };
        match caught(|| begin(instance, model, &batch)) {
            Ok(Progress::Open) => batch.open(),
            result => {
                let error = batch.finish(result.map(drop));
                return match error.is_null() {
                    true => Ok(Progress::Done),
                    false => Err(error),
                };
            }
        }
    };
    cell.open = Some(open);
    Ok(Progress::Open)
}

/// # Safety
/// The instance is live, and its state is the box of `instance_initialize`, used by one execution
/// at a time.
unsafe fn executing<'s, I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> Result<&'s mut InstanceCell<I>, Error> {
    let mut state: *mut c_void = ptr::null_mut();
    // SAFETY: by this function's contract.
    unsafe {
        Error::check(abi::TRITONBACKEND_ModelInstanceState(raw, &raw mut state))?;
        state
            .cast::<InstanceCell<I>>()
            .as_mut()
            .ok_or_else(|| Error::internal("instance without a state"))
    }
}

/// What a call that executes needs.
///
/// # Safety
/// As [`Batch::new`].
unsafe fn parts<'c, I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    cell: &'c mut InstanceCell<I>,
    requests: &'c [NonNull<abi::TRITONBACKEND_Request>],
    start: ExecutionStart,
) -> (Batch<'c>, &'c mut I, &'c I::Model) {
    // SAFETY: the model's box outlives its instances.
    let model = unsafe { cell.model.as_ref() };
    // SAFETY: by this function's contract.
    let batch = unsafe {
        Batch::new(
            raw,
            requests,
            &cell.slots,
            model.max_batch_size,
            model.is_decoupled,
            start,
            &cell.factories,
        )
    };
    (batch, &mut cell.instance, &model.model)
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

/// # Safety
/// `state` is null or a box of a `T` that lives during `'s` and is not borrowed mutably.
unsafe fn shared<'s, T>(state: *mut c_void, what: &str) -> Result<&'s T, Error> {
    // SAFETY: by this function's contract.
    unsafe { state.cast::<T>().as_ref() }
        .ok_or_else(|| Error::internal(format!("{what} without a state")))
}

/// # Safety
/// `state` is null or a box of a `T` that nobody uses any more.
unsafe fn drop_box<T>(state: *mut c_void) {
    if !state.is_null() {
        // SAFETY: by this function's contract.
        drop(unsafe { Box::from_raw(state.cast::<T>()) });
    }
}

/// Exports the entry points of a plug-in for a [`Backend`] type. Once per `cdylib`, named
/// `libtriton_<backend>.so`.
///
/// `export_backend!(Type, ready)` also exports the readiness hook, for which the backend's model
/// implements [`Ready`]. `export_backend!(Type, open)` also exports executions in two parts, for
/// which its instance implements [`OpenInstance`]. Both: `export_backend!(Type, open, ready)`.
/// `export_backend!(Type, detached)` has batches overlap, for which its instance implements
/// [`DetachingInstance`].
#[macro_export]
macro_rules! export_backend {
    (@all_but_execute $backend:ty) => {
        const _: () = {
            use $crate::abi;
            use $crate::entry;
            type Model = <$backend as $crate::Backend>::Model;
            type Instance = <Model as $crate::Model>::Instance;
            type RawError = *mut abi::TRITONSERVER_Error;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_Initialize(
                backend: *mut abi::TRITONBACKEND_Backend,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::initialize::<$backend>(backend) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_Finalize(
                backend: *mut abi::TRITONBACKEND_Backend,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::finalize::<$backend>(backend) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_GetBackendAttribute(
                backend: *mut abi::TRITONBACKEND_Backend,
                attributes: *mut abi::TRITONBACKEND_BackendAttribute,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::attributes::<$backend>(backend, attributes) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInitialize(
                model: *mut abi::TRITONBACKEND_Model,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::model_initialize::<Model>(model) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelFinalize(
                model: *mut abi::TRITONBACKEND_Model,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::model_finalize::<Model>(model) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInstanceInitialize(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::instance_initialize::<Instance>(instance) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInstanceFinalize(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::instance_finalize::<Instance>(instance) }
            }
        };
    };
    ($backend:ty, detached) => {
        $crate::export_backend!(@all_but_execute $backend);

        const _: () = {
            use $crate::abi;
            use $crate::entry;
            type Instance = <<$backend as $crate::Backend>::Model as $crate::Model>::Instance;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInstanceExecute(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                requests: *mut *mut abi::TRITONBACKEND_Request,
                request_count: u32,
            ) -> *mut abi::TRITONSERVER_Error {
                // SAFETY: both contracts are that of the header.
                unsafe {
                    entry::instance_execute_detached::<Instance>(instance, requests, request_count)
                }
            }
        };
    };
    ($backend:ty, open $(, $more:ident)?) => {
        $crate::export_backend!($backend $(, $more)?);

        const _: () = {
            use $crate::abi;
            use $crate::entry;
            type Instance = <<$backend as $crate::Backend>::Model as $crate::Model>::Instance;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn CONCH_ModelInstanceExecuteBegin(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                requests: *mut *mut abi::TRITONBACKEND_Request,
                request_count: u32,
                wait_ns: u64,
                is_open: *mut bool,
            ) -> *mut abi::TRITONSERVER_Error {
                // SAFETY: both contracts are that of the header.
                unsafe {
                    entry::instance_execute_begin::<Instance>(
                        instance,
                        requests,
                        request_count,
                        wait_ns,
                        is_open,
                    )
                }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn CONCH_ModelInstanceExecuteEnd(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
            ) -> *mut abi::TRITONSERVER_Error {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::instance_execute_end::<Instance>(instance) }
            }
        };
    };
    ($backend:ty, ready) => {
        $crate::export_backend!($backend);

        const _: () = {
            use $crate::abi;
            use $crate::entry;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInstanceReady(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
            ) -> *mut abi::TRITONSERVER_Error {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::instance_ready::<<$backend as $crate::Backend>::Model>(instance) }
            }
        };
    };
    ($backend:ty) => {
        $crate::export_backend!(@all_but_execute $backend);

        const _: () = {
            use $crate::abi;
            use $crate::entry;
            type Instance = <<$backend as $crate::Backend>::Model as $crate::Model>::Instance;
            type RawError = *mut abi::TRITONSERVER_Error;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInstanceExecute(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                requests: *mut *mut abi::TRITONBACKEND_Request,
                request_count: u32,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::instance_execute::<Instance>(instance, requests, request_count) }
            }
        };
    };
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
