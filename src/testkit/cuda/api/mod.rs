//! The functions that the library exports, with the names and signatures of the driver's.

#![allow(non_snake_case)]

mod context;
mod control;
mod copy;
mod device;
mod event;
mod graph;
mod host;
mod ipc;
mod memory;
mod module;
mod nvml;
mod stream;
mod vmm;

pub use context::*;
pub use control::*;
pub use copy::*;
pub use device::*;
pub use event::*;
pub use graph::*;
pub use host::*;
pub use ipc::*;
pub use memory::*;
pub use module::*;
pub use nvml::*;
pub use stream::*;
pub use vmm::*;
