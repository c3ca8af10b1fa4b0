//! Memory for the tensors of one batch in flight.

use std::ffi::CStr;

use conch_backend_sdk as sdk;
use sdk::{DataType, DeviceBlock, DeviceBlocks, Error, MemorySource, StreamHandle};

use crate::facts::{Bounds, Facts, Tensor};
use crate::limits::largest_bytes;
use crate::roles::TensorRole;
use crate::trt::{Binding, Context, DataDependentOutput, HostTensor};

/// Where a tensor of a batch lies, unless it is used in place.
pub enum Buffer {
    /// Room for the largest shape.
    Device(DeviceBlock),
    /// Values of a shape tensor.
    Host(HostTensor),
    /// An output whose size is known when it is made.
    DataDependent(DataDependentOutput),
}

impl Buffer {
    pub fn binding(&self) -> Binding<'_> {
        match self {
            Buffer::Device(block) => Binding::Block(block),
            Buffer::Host(values) => Binding::Host(values),
            Buffer::DataDependent(output) => Binding::DataDependent(output),
        }
    }

    /// The device memory of it, for what the engine made.
    pub fn source(&self) -> Option<MemorySource<'_>> {
        match self {
            Buffer::Device(block) => Some(block.source()),
            Buffer::DataDependent(output) => Some(output.source()),
            Buffer::Host(_) => None,
        }
    }
}

/// A profile of an instance: its context, and the bounds of all tensors.
pub struct ProfileContext {
    pub name: String,
    pub context: Context,
    pub limits: Vec<Option<Bounds>>,
    /// Bytes of the tensors at most; none for those whose size is known late.
    pub largest: Vec<Option<usize>>,
}

impl ProfileContext {
    /// Asks TensorRT for the largest outputs.
    ///
    /// # Errors
    /// `Internal`, in upstream's words, if TensorRT does not take the largest shapes.
    pub fn new(
        name: String,
        mut context: Context,
        limits: Vec<Option<Bounds>>,
        instance: &str,
    ) -> Result<Self, Error> {
        let engine = std::sync::Arc::clone(context.engine());
        let facts = engine.facts();
        // Kept until the shapes are asked for.
        let mut values = Vec::new();
        for ((_, tensor), bounds) in inputs_with(facts, &limits) {
            set_shape(&mut context, tensor, &bounds.max, instance)?;
            if let Some([.., largest]) = &bounds.values {
                let host = HostTensor::new(largest.len());
                host.set(largest, tensor.data_type == Some(DataType::Int64));
                if !context.set_values(&tensor.name, &host) {
                    return Err(Error::internal(format!(
                        "trt failed to set the input shape binding for '{}' for {instance}",
                        tensor.name()
                    )));
                }
                values.push(host);
            }
        }
        if !context.infers_shapes() {
            return Err(unspecified());
        }
        let mut largest = Vec::with_capacity(facts.tensors.len());
        for (tensor, bounds) in facts.tensors.iter().zip(&limits) {
            let dims = match bounds {
                Some(bounds) => bounds.max.clone(),
                None => context.shape(&tensor.name)?,
            };
            largest.push(match dims.contains(&-1) {
                true => None,
                false => Some(largest_bytes(tensor, &dims, instance)?),
            });
        }
        drop(values);
        Ok(ProfileContext {
            name,
            context,
            limits,
            largest,
        })
    }
}

fn inputs_with<'f>(
    facts: &'f Facts,
    limits: &'f [Option<Bounds>],
) -> impl Iterator<Item = ((usize, &'f Tensor), &'f Bounds)> {
    facts
        .inputs()
        .filter_map(|(index, tensor)| Some(((index, tensor), limits.get(index)?.as_ref()?)))
}

/// # Errors
/// `Internal`, in upstream's words, with what TensorRT says.
pub fn set_shape(
    context: &mut Context,
    tensor: &Tensor,
    dims: &[i64],
    instance: &str,
) -> Result<(), Error> {
    // A shape that cannot change needs no telling.
    if !tensor.dims.contains(&-1) {
        return Ok(());
    }
    context.set_shape(&tensor.name, dims).map_err(|why| {
        Error::internal(format!(
            "trt failed to set binding dimension to {} for input '{}' for {instance}: {why}",
            crate::facts::text(dims),
            tensor.name()
        ))
    })
}

pub fn unspecified() -> Error {
    Error::internal(
        "failed to specify the dimensions of all input tensors or values of all input shape \
         tensors",
    )
}

/// The buffers of a batch in flight: room for the largest of all profiles.
///
/// # Errors
/// `Unavailable` if the device has no room.
pub fn buffers(
    facts: &Facts,
    profiles: &[ProfileContext],
    roles: &[TensorRole],
    stream: &StreamHandle,
    instance: &str,
) -> Result<Vec<Buffer>, Error> {
    let blocks = DeviceBlocks::of_driver(stream);
    let tensors = facts.tensors.iter().zip(roles).enumerate();
    tensors
        .map(|(index, (tensor, role))| {
            if tensor.is_shape {
                let count = tensor.dims.iter().product::<i64>();
                return Ok(Buffer::Host(HostTensor::new(
                    usize::try_from(count).unwrap_or(1),
                )));
            }
            let sizes = profiles
                .iter()
                .map(|profile| profile.largest.get(index).copied().flatten());
            let largest: Option<Vec<usize>> = sizes.collect();
            let len = largest
                .as_ref()
                .and_then(|sizes| sizes.iter().max())
                .copied();
            let block = blocks.zeroed(stream, len.unwrap_or(0)).map_err(|error| {
                let key = if matches!(role, TensorRole::Input(_)) {
                    "input"
                } else {
                    "output"
                };
                Error::new(
                    error.code(),
                    format!(
                        "unable to allocate memory for {key} '{}' for {instance}: {}",
                        tensor.name(),
                        error.message()
                    ),
                )
            })?;
            Ok(match len {
                Some(_) => Buffer::Device(block),
                None => Buffer::DataDependent(DataDependentOutput::new(&blocks, block)),
            })
        })
        .collect()
}

/// Bindings of all tensors to their buffers.
pub fn bindings<'b>(facts: &'b Facts, buffers: &'b [Buffer]) -> Vec<(&'b CStr, Binding<'b>)> {
    let tensors = facts.tensors.iter().zip(buffers);
    tensors
        .map(|(tensor, buffer)| (tensor.name.as_c_str(), buffer.binding()))
        .collect()
}
