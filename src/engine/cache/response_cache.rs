//! The trait of response caches, and a cached response.

use std::sync::Arc;

use conch_memory::{ALIGNMENT_BYTES, ByteView};

use crate::cache::CacheKey;
use crate::{Error, ModelVersion, Output, Parameter, ParameterValue, Response, ResponseParts};

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
        Response::from(ResponseParts {
            model: Arc::clone(model),
            outputs: self.outputs.iter().cloned().collect(),
            parameters: self.parameters.to_vec(),
        })
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
