//! Model repositories: which directory is which model, what lies in it, and whether it changed.

pub(crate) mod fingerprint;
pub(crate) mod misplaced;
pub(crate) mod model_directory;
pub mod remote;
mod repositories;
mod scratch;
mod standalone;

pub use remote::RemoteRepositories;
pub(crate) use repositories::{Repositories, RepositoryScan, check_local};
pub use scratch::ScratchDirectory;
pub use standalone::{StandaloneModel, StandaloneRepository, standalone_models};
