//! A cache behind `tritoncache.h`: a library with four entry points, and the one cache that they
//! make.
//!
//! ```text
//! open ─► CacheInitialize ─► (CacheLookup, CacheInsert)* ─► CacheFinalize
//!             │ error, or no cache
//!             └──► close: nothing is left
//! ```
//!
//! The library stays open once it was initialised, as backends do. CacheInitialize runs on the
//! thread that starts the server, the other calls on the threads of the cache, several at a time,
//! and CacheFinalize after the last of them.

use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError, RwLock};

use conch_abi as abi;
use conch_engine::cache::{CacheKey, CachedResponse, ResponseCache};
use conch_engine::{Code, Error, Response};
use conch_log as log;
use conch_memory::Budget;
use libloading::os::unix::Library;

use super::super::library::{open_file, required};
use super::entry::{CacheEntry, EntryCopier};
use super::form::{self, EncodedEntry};
use crate::boundary::{as_handle, c_string};
use crate::guard;

/// A response cache behind the C ABI.
pub(crate) struct PluginCache {
    /// None once it is finalised.
    state: RwLock<Option<PluginObject>>,
    finalize: abi::TRITONCACHE_CacheFinalizeFn,
    lookup: abi::TRITONCACHE_CacheLookupFn,
    insert: abi::TRITONCACHE_CacheInsertFn,
    budget: Arc<Budget>,
    _library: ManuallyDrop<Library>,
}

/// The plug-in's own object.
struct PluginObject(NonNull<abi::TRITONCACHE_Cache>);

// SAFETY: `tritoncache.h` has caches called from any thread, and leaves it to them to lock.
unsafe impl Send for PluginObject {}
// SAFETY: as above.
unsafe impl Sync for PluginObject {}

impl PluginCache {
    /// Loads the library and makes its cache with `configuration`. Blocks as long as the plug-in
    /// does.
    ///
    /// # Errors
    /// NOT_FOUND if the file is no cache, else what CacheInitialize returned.
    pub(super) fn open(
        path: &Path,
        configuration: &str,
        budget: &Arc<Budget>,
    ) -> Result<Arc<PluginCache>, Error> {
        let library = open_file(path)?;
        // SAFETY: each name is paired with the type that `tritoncache.h` gives it.
        let (initialize, finalize, lookup, insert) = unsafe {
            let initialize: abi::TRITONCACHE_CacheInitializeFn =
                required(&library, "TRITONCACHE_CacheInitialize")?;
            (
                initialize,
                required(&library, "TRITONCACHE_CacheFinalize")?,
                required(&library, "TRITONCACHE_CacheLookup")?,
                required(&library, "TRITONCACHE_CacheInsert")?,
            )
        };
        let mut state = ptr::null_mut();
        let configuration = c_string(configuration);
        // SAFETY: the entry point of this library; the result is written and the text read during
        // the call only.
        unsafe { guard::cache_initialize(initialize, &raw mut state, configuration.as_ptr()) }?;
        let state = NonNull::new(state)
            .ok_or_else(|| Error::internal("Failed to initialize cache implementation"))?;
        Ok(Arc::new(PluginCache {
            state: RwLock::new(Some(PluginObject(state))),
            finalize,
            lookup,
            insert,
            budget: Arc::clone(budget),
            _library: ManuallyDrop::new(library),
        }))
    }

    /// Ends the cache after the calls that are inside it. Later calls fail.
    pub(crate) fn finalize(&self) {
        let state = self
            .state
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(PluginObject(state)) = state {
            // SAFETY: the entry point of this library with its cache, which nobody can reach any
            // more.
            if let Err(error) = unsafe { guard::call1(self.finalize, state.as_ptr()) } {
                log::error!("failed finalizing cache: {error}");
            }
        }
    }

    /// Calls CacheLookup or CacheInsert.
    fn call(
        &self,
        function: abi::TRITONCACHE_CacheLookupFn,
        key: CacheKey,
        entry: &CacheEntry,
        copier: &EntryCopier,
    ) -> Result<(), Error> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let Some(PluginObject(state)) = &*state else {
            return Err(Error::unavailable("the cache is finalized"));
        };
        let key: CString = c_string(&key.to_string());
        // SAFETY: an entry point of this library with its cache, which the lock keeps; the rest
        // lives as long as the call.
        unsafe {
            guard::cache_call(
                function,
                state.as_ptr(),
                key.as_ptr(),
                as_handle(entry),
                as_handle(copier),
            )
        }
    }
}

impl Drop for PluginCache {
    fn drop(&mut self) {
        self.finalize();
    }
}

impl ResponseCache for PluginCache {
    fn lookup(&self, key: CacheKey) -> Result<Option<Arc<CachedResponse>>, Error> {
        let (entry, copier) = (CacheEntry::empty(), EntryCopier::out_of_cache(&self.budget));
        match self.call(self.lookup, key, &entry, &copier) {
            Err(error) if error.code == Code::NotFound => return Ok(None),
            outcome => outcome?,
        }
        let found = copier
            .found()
            .ok_or_else(|| Error::internal("the cache has the key and copied nothing"))?;
        form::read(key, &found).map(|kept| Some(Arc::new(kept)))
    }

    fn insert(&self, key: CacheKey, response: &Response) -> Result<(), Error> {
        let form = EncodedEntry::of(key, response)?;
        let entry = CacheEntry::of_size(form.byte_size());
        self.call(self.insert, key, &entry, &EntryCopier::into_cache(form))
    }
}
