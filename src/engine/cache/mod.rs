//! The response cache: requests of a model that asks for it are answered from earlier responses to
//! the same request.
//!
//! ```text
//!                    ┌─ hit ──► the kept response, at once: no place in the queue, no instance
//! submit ─► look up ─┤
//!                    └─ miss ─► queue ─► execution ─► response ─► kept, then delivered
//! ```
//!
//! A [`ResponseCache`] keeps the bytes: [`LocalCache`] in this process, or a plug-in behind the C
//! ABI. What is instant is done on the thread that submits; a plug-in's calls, and the hashing of
//! long inputs, are done on threads of the cache's own (`threads`). Nothing that goes wrong here
//! fails a request: it executes as if there were no cache, and a line in the log says why.

mod course;
mod key;
mod local;
mod segment;
mod threads;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use conch_config::Scheduling;
use conch_log::LogLimiter;
use conch_memory::{ALIGNMENT_BYTES, ByteView};
use xxhash_rust::xxh3::Xxh3;

use crate::topology::Placement;
use crate::{Error, ModelVersion, Output, Parameter, ParameterValue, Response};

pub(crate) use course::CacheInsert;
pub use key::CacheKey;
pub use local::LocalCache;
use threads::CacheThreads;

/// Keeps responses. Called from many threads at once.
pub trait ResponseCache: Send + Sync {
    /// Whether insertions are done on the thread that has the response. Otherwise all calls come
    /// from the cache's threads.
    fn is_instant(&self) -> bool {
        false
    }

    /// Looks `key` up if that takes no more than microseconds; none if it would have to wait, now
    /// or always.
    fn try_lookup(&self, _key: CacheKey) -> Option<Result<Option<Arc<CachedResponse>>, Error>> {
        None
    }

    /// What is kept under `key`. May block.
    ///
    /// # Errors
    /// Whatever keeps it from telling; the request executes then.
    fn lookup(&self, key: CacheKey) -> Result<Option<Arc<CachedResponse>>, Error>;

    /// Keeps a copy of `response`. May block.
    ///
    /// # Errors
    /// ALREADY_EXISTS if the key is taken, else whatever keeps it from keeping.
    fn insert(&self, key: CacheKey, response: &Response) -> Result<(), Error>;

    /// The figures that the cache itself publishes, by family.
    fn gauges(&self) -> Vec<CacheGauge> {
        Vec::new()
    }
}

/// A figure of a cache, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheGauge {
    pub name: &'static str,
    pub help: &'static str,
    pub value: f64,
}

/// A response without the model that gave it: a cache must not keep a model alive.
#[derive(Debug, Default)]
pub struct CachedResponse {
    pub outputs: Box<[Output]>,
    pub parameters: Box<[Parameter]>,
}

impl CachedResponse {
    /// A copy of `response` in memory of its own. The copy keeps buffers out of the cache that
    /// belong to someone else, are charged to the requests' budget, or are larger than what lies in
    /// them; it costs a miss one pass over its outputs.
    ///
    /// # Errors
    /// INVALID_ARG if the CPU cannot read an output; without memory for the copy.
    pub fn copy_of(response: &Response) -> Result<CachedResponse, Error> {
        let mut outputs = Vec::with_capacity(response.outputs.len());
        for output in &response.outputs {
            let bytes = output.data.as_slice().ok_or_else(not_readable)?;
            outputs.push(Output {
                data: ByteView::try_copy_of(bytes)?,
                ..output.clone()
            });
        }
        Ok(CachedResponse {
            outputs: outputs.into(),
            parameters: response.parameters.clone().into(),
        })
    }

    /// Roughly what it takes up, names and book-keeping included.
    pub fn byte_size(&self) -> u64 {
        let outputs = self.outputs.iter().map(|output| {
            output.data.len().next_multiple_of(ALIGNMENT_BYTES) + OUTPUT_OVERHEAD_BYTES
        });
        let parameters = self.parameters.iter().map(|parameter| {
            let value = match &parameter.value {
                ParameterValue::Text(text) => text.len(),
                _ => 0,
            };
            parameter.name.len() + value + size_of::<Parameter>()
        });
        (outputs.chain(parameters).sum::<usize>() + OVERHEAD_BYTES) as u64
    }

    /// The response once more, from `model`. Shares the bytes.
    pub(crate) fn to_response(&self, model: &Arc<ModelVersion>) -> Response {
        Response {
            model: Arc::clone(model),
            outputs: self.outputs.iter().cloned().collect(),
            parameters: self.parameters.to_vec(),
        }
    }
}

/// What an entry and each of its outputs cost beside their bytes: rows of tables that double as
/// they grow, objects with their reference counts, the heads of allocations. Full caches of 128 MiB
/// were seen to take up 109 to 134 MiB, with outputs of 8 to 500,000 bytes.
const OVERHEAD_BYTES: usize = 256;
const OUTPUT_OVERHEAD_BYTES: usize = size_of::<Output>() + 160;

/// # Errors always
pub(crate) fn not_readable() -> Error {
    Error::invalid("Only input buffers in CPU memory are allowed in cache currently")
}

/// Namespace, name and number.
type VersionId = (Arc<str>, Arc<str>, i64);

/// A server's cache with its threads.
pub struct CacheService {
    cache: Arc<dyn ResponseCache>,
    threads: Arc<CacheThreads>,
    seed: u64,
    /// How often each version was loaded.
    load_counts: Mutex<HashMap<VersionId, u64>>,
    log_limiter: LogLimiter,
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

    /// Lets a version use the cache, if its configuration wants that. Called once per load, before
    /// the version is published.
    pub fn enroll(self: &Arc<Self>, version: &ModelVersion) {
        // A configuration that wants both is refused; this is where it would matter.
        let has_one_answer = !version.config.is_decoupled
            && matches!(
                version.config.scheduling,
                Scheduling::Default | Scheduling::Dynamic(_) | Scheduling::Ensemble
            );
        if version.config.has_response_cache && has_one_answer {
            version.cache.get_or_init(|| self.member(version));
        }
    }

    fn member(self: &Arc<Self>, model: &ModelVersion) -> ModelCache {
        let (namespace, name, version) = (&model.namespace, &model.name, model.version);
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
        ModelCache {
            caching: Arc::clone(self),
            start,
        }
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

/// What a model version with a cache holds.
pub(crate) struct ModelCache {
    caching: Arc<CacheService>,
    /// The hash of the version's identity, which the keys of its requests go on from.
    start: Xxh3,
}

#[cfg(test)]
mod tests;
