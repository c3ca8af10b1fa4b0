//! For authors of backends and repository agents: Triton's C plug-in ABIs as safe Rust.
//!
//! Implement [`Backend`], [`Model`] and [`Instance`], name the backend type in [`export_backend!`],
//! build a `cdylib` called `libtriton_<name>.so`, and have its build script link the stub server
//! library (see `build.rs` of the identity backend). The result loads into any server with the ABI.
//! `unsafe` stays in this crate; it installs no global allocator, since a plug-in is a guest in its
//! process. For repository agents see [`agent`].

pub mod agenda;
pub mod agent;
pub mod backend;
mod batch;
mod batch_tensor;
mod cancellation;
pub mod clock;
pub mod config;
mod correlation;
mod data_type;
mod detached;
mod device;
pub mod engine;
#[doc(hidden)]
pub mod entry;
mod error;
mod factory;
mod gather;
mod guard;
mod input;
mod library;
pub mod log;
mod memory_charge;
mod metrics;
mod owned_response;
mod parameter;
mod request;
mod response;
mod scatter;
mod server;
mod slot;
mod state;
mod stream_instance;
mod symbol;
mod tensor_bytes;
mod trace;

pub use backend::{
    Attributes, Backend, BackendContext, Instance, InstanceContext, Kind, Model, ModelContext,
    OpenInstance, Progress, Ready,
};
pub use batch::Batch;
pub use batch_tensor::{BatchInput, BatchInputKind, BatchOutput};
pub use cancellation::{CancellationWatch, Interrupt};
#[doc(hidden)]
pub use conch_abi as abi;
pub use conch_memory::{MemoryKind, MemoryPlace};
pub use config::{BackendConfig, ModelConfig, StateConfig, TensorConfig};
pub use correlation::CorrelationId;
pub use data_type::{DataType, element_count, shape_text};
pub use detached::{DetachedBatch, DetachingInstance};
pub use device::{
    BatchStreams, Copies, CopyPlan, CudaGraph, DEVICE_ALIGNMENT, DeviceAccess, DeviceAddress,
    DeviceBatches, DeviceBlock, DeviceBlocks, DeviceConstants, DeviceGather, DeviceKernel,
    DeviceRange, DeviceStream, DeviceWork, ExportedMemory, ImportedMemory, KernelArgument,
    MemorySource, MemoryTarget, StreamHandle,
};
pub use error::{Code, Error};
pub use factory::{FactoryResponse, ResponseFactory, ResponseTimes};
pub use gather::{Gather, Gathered, Join};
pub use input::Input;
pub use library::library_directory;
pub use memory_charge::MemoryCharge;
pub use metrics::{Metric, MetricFamily, MetricKind};
pub use parameter::{Parameter, ParameterValue};
pub use request::Request;
pub use response::{Buffer, Outgoing, Response};
pub use scatter::{Scatter, Share};
pub use serde_json;
pub use server::{
    HostMemory, OutputMemory, Server, ServerCall, ServerDelivery, ServerOutput, ServerRequest,
    ServerResponse, TensorMemory,
};
pub use state::State;
pub use stream_instance::StreamInstance;
pub use tensor_bytes::{Element, TensorBytes};
pub use trace::{RequestTrace, TraceParent};

/// Keeps the example in the documentation compiling.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/BACKENDS.md")]
struct Documentation;
