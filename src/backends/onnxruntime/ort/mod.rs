//! ONNX Runtime itself: its C function table, and safe wrappers of what the backend needs of it.
//! The only place of this crate with `unsafe`.
//!
//! The library is opened at run time, so nothing here is needed to build. Version floor: 1.17
//! ([`API_VERSION`]), the oldest table that has every function used; newer libraries keep old
//! tables.

mod device_run;
mod gpu_memory;
mod graphs;
mod io_binding;
mod options;
mod placement;
mod providers;
mod raw_session;
mod run_options;
mod runtime;
mod session;
mod signature;
mod table;
mod value;

pub use graphs::GraphOptions;
pub use options::{GraphOptimization, Provider, SessionOptions};
pub use providers::{CUDA, Entries, Gpu, TENSORRT};
pub use runtime::{GlobalThreads, PLACE, Runtime};
pub use session::Session;
pub use value::Value;
#[cfg(feature = "embedded")]
pub(crate) use value::data_type_from_onnx;

/// The function table that is asked for.
pub const API_VERSION: u32 = 17;
