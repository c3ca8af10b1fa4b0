//! A backend's shared library and its entry points.

use std::path::Path;

use conch_abi as abi;
use conch_abi::{
    CONCH_ModelInstanceDepthMaxFn, CONCH_ModelInstanceEnqueueFn, CONCH_ModelInstanceExecuteBeginFn,
    CONCH_ModelInstanceExecuteEndFn, CONCH_ModelInstancePollFn,
};
use conch_engine::Error;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// The functions of a plug-in. They stay callable while the library is open.
pub(crate) struct EntryPoints {
    pub(crate) initialize: Option<abi::TRITONBACKEND_InitializeFn>,
    pub(crate) finalize: Option<abi::TRITONBACKEND_FinalizeFn>,
    pub(crate) attribute: Option<abi::TRITONBACKEND_GetBackendAttributeFn>,
    pub(crate) model_initialize: Option<abi::TRITONBACKEND_ModelInitializeFn>,
    pub(crate) model_finalize: Option<abi::TRITONBACKEND_ModelFinalizeFn>,
    pub(crate) instance_initialize: Option<abi::TRITONBACKEND_ModelInstanceInitializeFn>,
    pub(crate) instance_finalize: Option<abi::TRITONBACKEND_ModelInstanceFinalizeFn>,
    pub(crate) execute: abi::TRITONBACKEND_ModelInstanceExecuteFn,
    pub(crate) ready: Option<abi::TRITONBACKEND_ModelInstanceReadyFn>,
    /// Both or none.
    pub(crate) execute_open: Option<OpenExecution>,
    /// All or none.
    pub(crate) streams: Option<StreamExecution>,
}

/// How a backend executes in two parts.
#[derive(Clone, Copy)]
pub(crate) struct OpenExecution {
    pub(crate) begin: CONCH_ModelInstanceExecuteBeginFn,
    pub(crate) end: CONCH_ModelInstanceExecuteEndFn,
}

/// How a backend keeps batches in flight.
#[derive(Clone, Copy)]
pub(crate) struct StreamExecution {
    pub(crate) enqueue: CONCH_ModelInstanceEnqueueFn,
    pub(crate) poll: CONCH_ModelInstancePollFn,
    pub(crate) depth_max: CONCH_ModelInstanceDepthMaxFn,
}

/// Opens the library and looks its entry points up. Runs the library's constructors.
///
/// # Errors
/// NOT_FOUND if the file cannot be loaded or has no Execute.
pub(crate) fn open(path: &Path) -> Result<(Library, EntryPoints), Error> {
    let library = open_file(path)?;
    // SAFETY: each name is paired with the type that `tritonbackend.h` gives it.
    let entry_points = unsafe {
        EntryPoints {
            initialize: optional(&library, "TRITONBACKEND_Initialize"),
            finalize: optional(&library, "TRITONBACKEND_Finalize"),
            attribute: optional(&library, "TRITONBACKEND_GetBackendAttribute"),
            model_initialize: optional(&library, "TRITONBACKEND_ModelInitialize"),
            model_finalize: optional(&library, "TRITONBACKEND_ModelFinalize"),
            instance_initialize: optional(&library, "TRITONBACKEND_ModelInstanceInitialize"),
            instance_finalize: optional(&library, "TRITONBACKEND_ModelInstanceFinalize"),
            execute: required(&library, "TRITONBACKEND_ModelInstanceExecute")?,
            ready: optional(&library, "TRITONBACKEND_ModelInstanceReady"),
            execute_open: open_execution(&library),
            streams: stream_execution(&library),
        }
    };
    Ok((library, entry_points))
}

/// # Safety
/// The functions, if the library has them, are what `conch/extension.h` says.
unsafe fn open_execution(library: &Library) -> Option<OpenExecution> {
    // SAFETY: by this function's contract.
    unsafe {
        Some(OpenExecution {
            begin: optional(library, "CONCH_ModelInstanceExecuteBegin")?,
            end: optional(library, "CONCH_ModelInstanceExecuteEnd")?,
        })
    }
}

/// # Safety
/// As [`open_execution`].
unsafe fn stream_execution(library: &Library) -> Option<StreamExecution> {
    // SAFETY: by this function's contract.
    unsafe {
        Some(StreamExecution {
            enqueue: optional(library, "CONCH_ModelInstanceEnqueue")?,
            poll: optional(library, "CONCH_ModelInstancePoll")?,
            depth_max: optional(library, "CONCH_ModelInstanceDepthMax")?,
        })
    }
}

/// Opens a shared library. Runs its constructors.
///
/// # Errors
/// NOT_FOUND if the file cannot be loaded.
pub(super) fn open_file(path: &Path) -> Result<Library, Error> {
    // SAFETY: loading runs the constructors of a file that the operator installed as a plug-in;
    // what they do is theirs to answer for.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        Error::not_found(format!("unable to load shared library: {}", reason(&error)))
    })
}

/// # Safety
/// `name`, if the library has it, is a function of type `F`.
pub(super) unsafe fn optional<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: by this function's contract.
    unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol)
}

/// # Safety
/// As [`optional`].
pub(super) unsafe fn required<F: Copy>(library: &Library, name: &str) -> Result<F, Error> {
    // SAFETY: by this function's contract.
    let symbol = unsafe { library.get::<F>(name) };
    symbol.map(|symbol| *symbol).map_err(|error| {
        Error::not_found(format!(
            "unable to find required entrypoint '{name}' in shared library: {}",
            reason(&error)
        ))
    })
}

/// What the dynamic linker says, which the error itself does not.
fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_reason_is_told() {
        let path = std::env::temp_dir().join(format!("conch-library-{}.so", std::process::id()));
        std::fs::write(
            &path,
            "no library at all, though long enough to be asked for its header",
        )
        .unwrap();
        let error = open(&path).err().unwrap();
        assert_eq!(
            error.message,
            format!(
                "unable to load shared library: {}: invalid ELF header",
                path.display()
            )
        );
        std::fs::remove_file(&path).unwrap();
        // Has no entry points.
        let error = open(Path::new("libm.so.6")).err().unwrap();
        let expected = "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in \
                        shared library: ";
        let told = error.message.strip_prefix(expected).unwrap();
        assert!(
            told.contains("undefined symbol: TRITONBACKEND_ModelInstanceExecute"),
            "{told}"
        );
    }
}
