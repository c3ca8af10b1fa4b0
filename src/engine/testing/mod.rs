//! Shared by the tests of this crate and of those above it. Nothing else uses it.

mod directory;
mod fixture;
mod wait;

pub use crate::testing::directory::Directory;
pub use crate::testing::fixture::{
    Recorder, admit, config, draft, input, model, model_with, parts, queued, version,
};
pub use crate::testing::wait::until;
