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
    ($backend:ty) => {
        $crate::export_backend!(@all_but_execute $backend);
        $crate::export_backend!(@execute $backend, instance_execute);
    };
    ($backend:ty, detached) => {
        $crate::export_backend!(@all_but_execute $backend);
        $crate::export_backend!(@execute $backend, instance_execute_detached);
    };
    ($backend:ty, stream) => {
        $crate::export_backend!(@all_but_execute $backend);
        $crate::export_backend!(@execute $backend, instance_execute_stream);
        $crate::export_backend!(@functions $backend;
            CONCH_ModelInstanceEnqueue = instance_enqueue::<Instance>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                requests: *mut *mut abi::TRITONBACKEND_Request,
                request_count: u32,
            );
            CONCH_ModelInstancePoll = instance_poll::<Instance>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                in_flight_count: *mut u32,
            );
            CONCH_ModelInstanceDepthMax = instance_depth_max::<Instance>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                depth_max: *mut u32,
            );
        );
    };
    ($backend:ty, open $(, $more:ident)?) => {
        $crate::export_backend!($backend $(, $more)?);
        $crate::export_backend!(@functions $backend;
            CONCH_ModelInstanceExecuteBegin = instance_execute_begin::<Instance>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                requests: *mut *mut abi::TRITONBACKEND_Request,
                request_count: u32,
                wait_ns: u64,
                is_open: *mut bool,
            );
            CONCH_ModelInstanceExecuteEnd = instance_execute_end::<Instance>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
            );
        );
    };
    ($backend:ty, ready) => {
        $crate::export_backend!($backend);
        $crate::export_backend!(@functions $backend;
            TRITONBACKEND_ModelInstanceReady = instance_ready::<Model>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
            );
        );
    };
    (@all_but_execute $backend:ty) => {
        $crate::export_backend!(@functions $backend;
            TRITONBACKEND_Initialize = initialize::<ExportedBackend>(
                backend: *mut abi::TRITONBACKEND_Backend,
            );
            TRITONBACKEND_Finalize = finalize::<ExportedBackend>(
                backend: *mut abi::TRITONBACKEND_Backend,
            );
            TRITONBACKEND_GetBackendAttribute = attributes::<ExportedBackend>(
                backend: *mut abi::TRITONBACKEND_Backend,
                attributes: *mut abi::TRITONBACKEND_BackendAttribute,
            );
            TRITONBACKEND_ModelInitialize = model_initialize::<Model>(
                model: *mut abi::TRITONBACKEND_Model,
            );
            TRITONBACKEND_ModelFinalize = model_finalize::<Model>(
                model: *mut abi::TRITONBACKEND_Model,
            );
            TRITONBACKEND_ModelInstanceInitialize = instance_initialize::<Instance>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
            );
            TRITONBACKEND_ModelInstanceFinalize = instance_finalize::<Instance>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
            );
        );
    };
    (@execute $backend:ty, $entry:ident) => {
        $crate::export_backend!(@functions $backend;
            TRITONBACKEND_ModelInstanceExecute = $entry::<Instance>(
                instance: *mut abi::TRITONBACKEND_ModelInstance,
                requests: *mut *mut abi::TRITONBACKEND_Request,
                request_count: u32,
            );
        );
    };
    (@functions $backend:ty; $(
        $name:ident = $entry:ident::<$of:ident>($($argument:ident: $kind:ty),* $(,)?);
    )*) => {
        const _: () = {
            use $crate::abi;
            use $crate::entry;
            type ExportedBackend = $backend;
            type Model = <ExportedBackend as $crate::Backend>::Model;
            #[allow(dead_code)] // Not all functions are of instances.
            type Instance = <Model as $crate::Model>::Instance;

            $(
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name(
                    $($argument: $kind),*
                ) -> *mut abi::TRITONSERVER_Error {
                    // SAFETY: both contracts are that of the header.
                    unsafe { entry::$entry::<$of>($($argument),*) }
                }
            )*
        };
    };
}
