//! Decision forests: what a model file says, and the layout that answers requests.

mod columns;
mod compile;
mod key;
mod link;
pub mod model;
mod predict;
mod set;
mod shap;
#[cfg(test)]
mod tests;
mod walk;

pub use compile::Compiled;
pub use link::Link;
pub use predict::Predictor;
pub use shap::Shap;
