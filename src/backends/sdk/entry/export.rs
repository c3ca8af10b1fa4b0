//! The C names of the entry points.

/// Exports the entry points of a plug-in for a [`Backend`] type. Once per `cdylib`, named
/// `libtriton_<backend>.so`.
///
/// `export_backend!(Type, ready)` also exports the readiness hook, for which the backend's model
/// implements [`Ready`]. `export_backend!(Type, open)` also exports executions in two parts, for
/// which its instance implements [`OpenInstance`]. Both: `export_backend!(Type, open, ready)`.
/// `export_backend!(Type, detached)` has batches overlap, for which its instance implements
/// [`DetachingInstance`]. `export_backend!(Type, stream)` also has the server keep them in flight
/// without a thread that waits, for which its instance implements [`StreamInstance`].
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
    ($backend:ty, stream) => {
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
                unsafe {
                    entry::instance_execute_stream::<Instance>(instance, requests, request_count)
                }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn CONCH_ModelInstanceEnqueue(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                requests: *mut *mut abi::TRITONBACKEND_Request,
                request_count: u32,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::instance_enqueue::<Instance>(instance, requests, request_count) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn CONCH_ModelInstancePoll(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                in_flight_count: *mut u32,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::instance_poll::<Instance>(instance, in_flight_count) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn CONCH_ModelInstanceDepthMax(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                depth_max: *mut u32,
            ) -> RawError {
                // SAFETY: both contracts are that of the header.
                unsafe { entry::instance_depth_max::<Instance>(instance, depth_max) }
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
