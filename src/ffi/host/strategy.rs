//! A model's own batching library: where it lies, and its five functions.
//!
//! Loaded with the model, after ModelInitialize, on the loading thread. Finalised before the model.
//! As upstream's `SetBatchingStrategy`.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use conch_abi as abi;
use conch_config::{ResolvedConfig as ModelConfig, Scheduling};
use conch_engine::Error;
use conch_log as log;
use libloading::os::unix::Library;

use super::library;
use crate::guard;

/// A batching library, initialised for one model.
pub(crate) struct CustomBatcher {
    functions: BatcherFunctions,
    /// What BatcherInitialize made; the library's own.
    batcher: *mut abi::TRITONBACKEND_Batcher,
    model: String,
    /// Closed after the last of its functions.
    _library: Library,
}

// SAFETY: the batcher is only passed back to its library, whose functions upstream calls from
// several threads, too: initialised by a loading thread, used by whoever forms a batch, finalised
// by whoever unloads the model.
unsafe impl Send for CustomBatcher {}
// SAFETY: as above.
unsafe impl Sync for CustomBatcher {}

#[derive(Clone, Copy)]
struct BatcherFunctions {
    batcher_finalize: abi::TRITONBACKEND_ModelBatcherFinalizeFn,
    initialize: BatchInitializeFn,
    include: abi::TRITONBACKEND_ModelBatchIncludeRequestFn,
    finalize: abi::TRITONBACKEND_ModelBatchFinalizeFn,
}

/// `TRITONBACKEND_ModelBatchInitialize`, but for the `const` of what it reads.
type BatchInitializeFn = unsafe extern "C" fn(
    *mut abi::TRITONBACKEND_Batcher,
    *mut *mut c_void,
) -> *mut abi::TRITONSERVER_Error;

impl CustomBatcher {
    /// The strategy of a model, if it has a library that defines one. Blocks as long as the library
    /// does.
    ///
    /// # Errors
    /// The library cannot be used, in upstream's words, or what its BatcherInitialize returned.
    ///
    /// # Safety
    /// `model` is the handle of a model that is initialised and outlives what this returns.
    pub(super) unsafe fn load(
        model: *mut abi::TRITONBACKEND_Model,
        name: &CStr,
        config: &ModelConfig,
        directories: &[PathBuf; 3],
    ) -> Result<Option<CustomBatcher>, Error> {
        let Some(path) = find(config, directories)? else {
            return Ok(None);
        };
        let name = name.to_string_lossy().into_owned();
        log::info!(
            "Loading custom batching strategy library {} for model {name}",
            path.display()
        );
        if !matches!(config.scheduling, Scheduling::Dynamic(_)) {
            // Nobody asks it then, upstream neither, though it is initialised.
            log::warning!(
                "the custom batching library '{}' of model '{name}' has no effect: the model has \
                 no dynamic batching",
                path.display()
            );
        }
        let library = library::open_file(&path)?;
        // SAFETY: each name is paired with the type that `tritonbackend.h` gives it.
        let functions = unsafe {
            (
                library::optional(&library, "TRITONBACKEND_ModelBatcherInitialize"),
                library::optional(&library, "TRITONBACKEND_ModelBatcherFinalize"),
                library::optional(&library, "TRITONBACKEND_ModelBatchInitialize"),
                library::optional(&library, "TRITONBACKEND_ModelBatchIncludeRequest"),
                library::optional(&library, "TRITONBACKEND_ModelBatchFinalize"),
            )
        };
        let (batcher_initialize, functions) = match functions {
            (None, None, None, None, None) => return Ok(None),
            (
                Some(batcher_initialize),
                Some(batcher_finalize),
                Some(initialize),
                Some(include),
                Some(finalize),
            ) => {
                let batcher_initialize: abi::TRITONBACKEND_ModelBatcherInitializeFn =
                    batcher_initialize;
                let functions = BatcherFunctions {
                    batcher_finalize,
                    initialize,
                    include,
                    finalize,
                };
                (batcher_initialize, functions)
            }
            _ => {
                return Err(Error::invalid(format!(
                    "{} does not define all required custom batching functions for model {name}",
                    path.display()
                )));
            }
        };
        let mut batcher = ptr::null_mut();
        // SAFETY: the library's function; the batcher is writable, and the model is live and
        // initialised.
        let initialized = unsafe { guard::call2(batcher_initialize, &raw mut batcher, model) };
        // Made before the error is looked at: Finalize follows a failure, too, as upstream has it.
        let strategy = CustomBatcher {
            functions,
            batcher,
            model: name,
            _library: library,
        };
        initialized.map(|()| Some(strategy))
    }

    /// Begins a batch. The library writes to `batch` what it keeps about it.
    pub(super) fn begin(&self, batch: &mut *mut c_void) {
        // SAFETY: the library's own function and batcher; the batch is writable.
        let begun = unsafe { guard::call2(self.functions.initialize, self.batcher, batch) };
        self.report("initialization", begun);
    }

    /// Whether a request joins the batch.
    ///
    /// # Safety
    /// `request` is live during the call, and `batch` is what [`CustomBatcher::begin`] wrote.
    pub(super) unsafe fn includes(
        &self,
        request: *mut abi::TRITONBACKEND_Request,
        batch: *mut c_void,
    ) -> bool {
        let mut joins = false;
        // SAFETY: the library's own function; the rest by this function's contract, and the answer
        // is writable.
        let included =
            unsafe { guard::include(self.functions.include, request, batch, &raw mut joins) };
        // As upstream: what the function wrote counts, also if it failed.
        self.report("include", included);
        joins
    }

    /// Ends a batch.
    ///
    /// # Safety
    /// `batch` is what [`CustomBatcher::begin`] wrote, and is not used again.
    pub(super) unsafe fn end(&self, batch: *mut c_void) {
        // SAFETY: the library's own function; the rest by this function's contract.
        let ended = unsafe { guard::call1(self.functions.finalize, batch) };
        self.report("finalization", ended);
    }

    fn report(&self, step: &str, result: Result<(), Error>) {
        if let Err(error) = result {
            log::error!(
                "Custom batching {step} function failed for model {}: {}",
                self.model,
                error.message
            );
        }
    }
}

impl Drop for CustomBatcher {
    fn drop(&mut self) {
        // SAFETY: the library's own function and batcher, which nobody uses any more.
        if let Err(error) = unsafe { guard::call1(self.functions.batcher_finalize, self.batcher) } {
            log::error!(
                "Custom batcher finalization failed for model {}: {}",
                self.model,
                error.message
            );
        }
    }
}

/// The library that the configuration names, else the first `batchstrategy.so` in `directories`:
/// the version's, the model's, the backend's.
///
/// # Errors
/// INVALID_ARG if the named one is not in the model's directory or cannot be used by its scheduler,
/// NOT_FOUND if it is not there.
fn find(config: &ModelConfig, directories: &[PathBuf; 3]) -> Result<Option<PathBuf>, Error> {
    let named = config.parameters.get(PATH_PARAMETER);
    if matches!(config.scheduling, Scheduling::Sequence(_)) {
        return match named {
            Some(_) => Err(Error::invalid(format!(
                "{PATH_PARAMETER} cannot be specified with sequence batcher, using default \
                 batching strategy"
            ))),
            None => Ok(None),
        };
    }
    let Some(named) = named.map(Path::new) else {
        let mut files = directories
            .iter()
            .map(|directory| directory.join(FILE_NAME));
        return Ok(files.find(|file| file.exists()));
    };
    let [_, model, _] = directories;
    let model = model.canonicalize().map_err(|error| {
        Error::invalid(format!(
            "Failed to canonicalize parent path '{}': {error}",
            model.display()
        ))
    })?;
    if !resolved(named).starts_with(model) {
        return Err(Error::invalid(
            "Batching library path escapes model repository.",
        ));
    }
    if !named.exists() {
        return Err(Error::not_found(format!(
            "Batching library path not found: {}",
            named.display()
        )));
    }
    Ok(Some(named.to_owned()))
}

/// The path without links and dots, as far as it exists; what does not exist can hide none.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in absolute.ancestors() {
        if let Ok(real) = ancestor.canonicalize() {
            let rest = absolute.strip_prefix(ancestor).unwrap_or(Path::new(""));
            let mut whole = real;
            for part in rest.components() {
                match part {
                    std::path::Component::ParentDir => {
                        whole.pop();
                    }
                    part => whole.push(part),
                }
            }
            return whole;
        }
    }
    absolute
}

/// The parameter of the configuration that names the library.
const PATH_PARAMETER: &str = "TRITON_BATCH_STRATEGY_PATH";

/// What the library is called where no parameter names it.
const FILE_NAME: &str = "batchstrategy.so";

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> ModelConfig {
        let text = format!("name: 'm' backend: 'b' max_batch_size: 4 {more}");
        let mut message = conch_config::parse_text("config.pbtxt", &text).unwrap();
        conch_config::normalize(&mut message);
        ModelConfig::from_partial(message).unwrap()
    }

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn the_nearest_library_is_found_and_a_named_one_must_be_the_models() {
        let root = std::env::temp_dir().join(format!("conch-strategy-{}", std::process::id()));
        let directories = ["models/m/1", "models/m", "backends/b"].map(|path| root.join(path));
        for directory in &directories {
            std::fs::create_dir_all(directory).unwrap();
        }
        let find = |more: &str| {
            find(&config(more), &directories)
                .map(|found| found.map(|path| path.strip_prefix(&root).unwrap().to_owned()))
                .map_err(|error| error.to_string())
        };
        let found = |path: &str| Ok(Some(PathBuf::from(path)));
        let named = |path: &str| {
            format!(
                "parameters {{ key: 'TRITON_BATCH_STRATEGY_PATH' value {{ string_value: \
                 '{}/{path}' }} }}",
                root.display()
            )
        };
        assert_eq!(find(""), Ok(None));
        for path in ["backends/b", "models/m", "models/m/1"] {
            let file = format!("{path}/batchstrategy.so");
            touch(&root.join(&file));
            assert_eq!(find(""), found(&file));
        }
        touch(&root.join("models/m/own.so"));
        assert_eq!(find(&named("models/m/own.so")), found("models/m/own.so"));
        assert_eq!(
            find(&named("models/m/1/none.so")),
            Err(format!(
                "Not found: Batching library path not found: {}/models/m/1/none.so",
                root.display()
            ))
        );
        std::os::unix::fs::symlink(root.join("backends/b"), root.join("models/m/link")).unwrap();
        let escapes =
            Err("Invalid argument: Batching library path escapes model repository.".to_owned());
        for path in [
            "models/m/../own.so",
            "models/m/none/../../own.so",
            "models/m2/own.so",
            "models/m/link/batchstrategy.so",
            "backends/b/batchstrategy.so",
        ] {
            assert_eq!(find(&named(path)), escapes, "{path}");
        }
        assert_eq!(find("sequence_batching { }"), Ok(None));
        assert_eq!(
            find(&format!(
                "sequence_batching {{ }} {}",
                named("models/m/own.so")
            )),
            Err(
                "Invalid argument: TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence \
                 batcher, using default batching strategy"
                    .to_owned()
            )
        );
        std::fs::remove_dir_all(&root).unwrap();
    }
}
