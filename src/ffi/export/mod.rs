//! The functions that a process provides to plug-ins and embedders: the 281 of `tritonserver.h`,
//! `tritonbackend.h`, `tritoncache.h` and `tritonrepoagent.h`, one file per section of a header,
//! and conch's own (`conch/extension.h`).
//!
//! They run on whatever thread calls. A null argument is an error, a panic becomes one.

pub(crate) mod allocator;
mod api_version;
mod backend;
mod backend_model;
mod backend_request;
mod backend_response;
mod backend_state;
mod backend_statistics;
mod buffer_attributes;
mod cache;
mod custom_metrics;
mod data_type;
mod error;
mod extension;
mod inference_request;
mod inference_response;
mod input;
mod instance;
mod log;
mod memory_manager;
mod message;
mod metrics;
mod output;
mod parameter;
mod repository_agent;
mod server;
mod server_options;
mod trace;

pub use allocator::*;
pub use api_version::*;
pub use backend::*;
pub use backend_model::*;
pub use backend_request::*;
pub use backend_response::*;
pub use backend_state::*;
pub use backend_statistics::*;
pub use buffer_attributes::*;
pub use cache::*;
pub use custom_metrics::*;
pub use data_type::*;
pub use error::*;
pub use extension::*;
pub use inference_request::*;
pub use inference_response::*;
pub use input::*;
pub use instance::*;
pub use log::*;
pub use memory_manager::*;
pub use message::*;
pub use metrics::*;
pub use output::*;
pub use parameter::*;
pub use repository_agent::*;
pub use server::*;
pub use server_options::*;
pub use trace::*;

/// How many there are of something, as the C API says it.
///
/// # Errors
/// INTERNAL if that is more than it can say.
fn count(count: usize) -> Result<u32, conch_engine::Error> {
    u32::try_from(count).map_err(|_| conch_engine::Error::internal("more than 2^32 parts"))
}

/// Defines exported functions that return an error object. The body is a `Result<(), Error>`, run
/// under the panic guard.
macro_rules! export {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block
    )*) => {$(
        /// # Safety
        /// As in the header: handles are live and used as it allows, outputs are writable, strings
        /// end with NUL.
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($argument: $kind),*
        ) -> *mut conch_abi::TRITONSERVER_Error {
            #[allow(unused_unsafe)]
            // SAFETY: the calls inside pass on the caller's own promises about the arguments; null
            // is refused there.
            $crate::boundary::guard(|| unsafe { $body })
        }
    )*};
}
use export;

const EXPORT_COUNT: usize = conch_abi::EXPORT_COUNT + conch_abi::EXTENSION_COUNT;

/// A function pointer in the table below.
#[repr(transparent)]
pub struct Export(#[allow(dead_code, reason = "read by the linker only")] *const ());

// SAFETY: the address of code, never followed here.
unsafe impl Sync for Export {}

/// Lists all exports where the linker keeps them, and checks each definition against the header's
/// declaration.
macro_rules! exports_table {
    ($($name:ident,)*) => {
        /// Keeps every exported function in every artefact: without it, a build profile may drop
        /// those that no Rust code calls.
        #[used]
        pub static EXPORTS: [Export; EXPORT_COUNT] = [$(Export($name as *const ()),)*];

        /// Does not compile if a definition differs from its declaration.
        #[allow(dead_code, reason = "a check for the compiler")]
        fn signatures() {
            $(let _ = [conch_abi::$name, $name];)*
        }
    };
}
include!(concat!(env!("OUT_DIR"), "/exports.rs"));
