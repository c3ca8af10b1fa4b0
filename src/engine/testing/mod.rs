//! What the tests of this crate and of those above it share. Nothing else uses it.

mod directory;
mod fixture;

pub use directory::Directory;
pub use fixture::{Recorder, config, draft, input, model, model_with};
