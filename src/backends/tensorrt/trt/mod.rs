//! TensorRT behind the shim: libraries, engines and contexts as safe types.
//!
//! A [`Library`] is TensorRT's own library, opened by the shim for its major version. A [`Runtime`]
//! reads plans; an [`Engine`] is what it made of one, and is shared by the instances of a device; a
//! [`Context`] runs it, for one instance. Each keeps what it was made from. TensorRT reports by a
//! [`Log`]: its messages go to the server's log, and its errors into the backend's.

mod context;
mod engine;
mod library;
mod log;
mod runtime;
mod shim;

pub use context::{AllocationStrategy, Binding, Context, DataDependentOutput, HostTensor};
pub use engine::Engine;
pub use library::{Library, Places, register_plugins};
pub use runtime::Runtime;
