//! The server's response cache, and a model version's part in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use conch_config::{ResolvedConfig, Scheduling};
use conch_log::LogLimiter;
use xxhash_rust::xxh3::Xxh3;

use crate::Error;
use crate::cache::threads::CacheThreads;
use crate::cache::{ResponseCache, key};
use crate::request::context::Executor;
use crate::threads::placement::Placement;

/// Namespace, name and number.
type VersionId = (Arc<str>, Arc<str>, i64);

/// A server's cache with its threads.
pub struct CacheService {
    pub(crate) cache: Arc<dyn ResponseCache>,
    pub(crate) threads: Arc<CacheThreads>,
    seed: u64,
    /// How often each version was loaded.
    load_counts: Mutex<HashMap<VersionId, u64>>,
    pub(crate) log_limiter: LogLimiter,
}

impl CacheService {
    /// Starts the cache's threads.
    ///
    /// # Errors
    /// INTERNAL if the system has no thread left.
    pub fn start(
        cache: Arc<dyn ResponseCache>,
        placement: &Placement,
    ) -> Result<Arc<CacheService>, Error> {
        let seed = if cache.is_instant() {
            // Keys stay in this process, so strangers shall not know how to make two requests of
            // one key.
            key::random_seed()
        } else {
            // Servers may share what is behind a plug-in.
            0
        };
        Ok(Arc::new(CacheService {
            threads: CacheThreads::start(placement)?,
            cache,
            seed,
            load_counts: Mutex::default(),
            log_limiter: LogLimiter::default(),
        }))
    }

    /// `executor` behind the cache, if the configuration wants that, else itself. Called once per
    /// load of the version.
    pub fn in_front_of(
        self: &Arc<Self>,
        executor: Arc<dyn Executor>,
        namespace: &Arc<str>,
        config: &ResolvedConfig,
        version: i64,
    ) -> Arc<dyn Executor> {
        // A configuration that wants both is refused; this is where it would matter.
        let has_one_answer = !config.is_decoupled
            && matches!(
                config.scheduling,
                Scheduling::Default | Scheduling::Dynamic(_) | Scheduling::Ensemble
            );
        if !config.has_response_cache || !has_one_answer {
            return executor;
        }
        let name = &config.name;
        let mut counts = self
            .load_counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let id = (Arc::clone(namespace), Arc::clone(name), version);
        let count = counts.entry(id).or_default();
        // What a version answered before it was loaded anew may not be its answer any more.
        // Upstream goes on giving it.
        let start = key::start(self.seed, namespace, name, version, *count);
        *count += 1;
        Arc::new(CachedExecutor(Arc::new(ModelCache {
            caching: Arc::clone(self),
            start,
            executor,
        })))
    }

    pub fn cache(&self) -> &Arc<dyn ResponseCache> {
        &self.cache
    }

    /// Ends the cache's threads after what they have to do. No request is live any more. Blocks.
    pub fn stop(&self) {
        self.threads.stop();
    }
}

impl Drop for CacheService {
    fn drop(&mut self) {
        self.threads.stop();
    }
}

impl std::fmt::Debug for CacheService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caching").finish_non_exhaustive()
    }
}

/// A model version's part in the cache.
pub(crate) struct ModelCache {
    pub(crate) caching: Arc<CacheService>,
    /// The hash of the version's identity, which the keys of its requests go on from.
    pub(crate) start: Xxh3,
    /// What executes requests that the cache does not answer.
    pub(crate) executor: Arc<dyn Executor>,
}

/// An executor that asks the cache first.
pub(crate) struct CachedExecutor(pub(crate) Arc<ModelCache>);
