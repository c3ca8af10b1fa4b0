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

pub mod course;
pub mod key;
pub mod local;
pub mod response_cache;
pub mod segment;
pub mod service;
#[cfg(test)]
mod tests;
pub mod threads;

pub use key::CacheKey;
pub use local::LocalCache;
pub use response_cache::{CacheGauge, CachedResponse, ResponseCache};
pub use service::CacheService;
