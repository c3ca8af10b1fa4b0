//! The steps of an ensemble and the tensors between them, and the course of one request through
//! them.

mod dataflow;
mod graph;
#[cfg(test)]
mod tests;

pub use dataflow::{Dataflow, DataflowProgress, StepStart};
pub use graph::{Graph, GraphStep};
