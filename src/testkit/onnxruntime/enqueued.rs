//! Runs that are left on their stream: the real library computes them when the stream gets there.
//!
//! Memory of outputs is there when the run is enqueued, as with the real provider, so their sizes
//! have to follow from those of the inputs. Other runs wait for their stream, as the provider does
//! where an operator reads what was computed.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::time::Duration;

use serde_json::json;

use crate::cuda::Cuda;
use crate::io_binding::{IoBinding, OutputBinding};
use crate::memory::{self, DeviceValue, TensorDescription, describe, tensor_over};
use crate::output_memory::{byte_count, target};
use crate::real::{Failure, Raw, check, real};
use crate::record::record;
use crate::session::GpuSession;
use crate::settings::settings;

/// A tensor of a run, and where it lies on the device.
struct DeviceTensor {
    name: CString,
    element: c_int,
    shape: Vec<i64>,
    address: u64,
    len: usize,
}

/// A run, and what the stream needs of it.
pub struct EnqueuedRun {
    session: usize,
    device: i32,
    stream: usize,
    inputs: Vec<DeviceTensor>,
    outputs: Vec<DeviceTensor>,
    /// Of all outputs, in their order.
    made: Vec<Raw>,
}

/// Prepares a run whose tensors all lie on the device, with sizes that are known; none: it has
/// others.
///
/// # Safety
/// The session is live, and so are the values that are bound.
pub unsafe fn prepare(
    session: Raw,
    binding: &IoBinding,
    gpu: &GpuSession,
    cuda: &Cuda,
) -> Result<Option<EnqueuedRun>, Failure> {
    let mut inputs = Vec::with_capacity(binding.inputs.len());
    for (name, value) in &binding.inputs {
        let Some(DeviceValue { address, len, .. }) = memory::value(*value) else {
            return Ok(None);
        };
        // SAFETY: the value is live, and holds no strings on a device.
        let TensorDescription { element, shape, .. } = unsafe { describe(*value)? };
        inputs.push(DeviceTensor {
            name: name.clone(),
            element,
            shape,
            address,
            len,
        });
    }
    let shapes: Vec<_> = inputs
        .iter()
        .map(|input| (input.name.as_c_str(), input.shape.clone()))
        .collect();
    let mut known = Vec::with_capacity(binding.outputs.len());
    for (name, bound_to) in &binding.outputs {
        let is_on_device = match bound_to {
            OutputBinding::Value(value) => memory::value(*value).is_some(),
            OutputBinding::Device(device) => *device == gpu.device,
            OutputBinding::Host => false,
        };
        match gpu.signature.output(name, &shapes) {
            Some(told) if is_on_device => known.push(told),
            _ => return Ok(None),
        }
    }
    let mut run = EnqueuedRun {
        session: session.expose_provenance(),
        device: gpu.device,
        stream: gpu.stream,
        inputs,
        outputs: Vec::new(),
        made: Vec::new(),
    };
    for ((name, bound_to), (element, shape)) in binding.outputs.iter().zip(known) {
        let len = byte_count(element, &shape)?;
        let given = match bound_to {
            OutputBinding::Value(value) => memory::value(*value),
            _ => None,
        };
        let made = target(given, gpu, cuda, len)?;
        let data = ptr::without_provenance_mut(usize::try_from(made.address).unwrap_or(0));
        // SAFETY: the shape is as long as said; nobody dereferences the address.
        let value = unsafe { tensor_over(data, len, shape.as_ptr(), shape.len(), element)? };
        memory::register(value, made);
        run.made.push(value);
        run.outputs.push(DeviceTensor {
            name: name.clone(),
            element,
            shape,
            address: made.address,
            len,
        });
    }
    Ok(Some(run))
}

impl EnqueuedRun {
    /// Leaves it on its stream. Returns a value for each output, in the order in which they were
    /// bound, all the caller's; their bytes are there when the stream has got to it.
    ///
    /// # Safety
    /// The session stays until then.
    pub unsafe fn enqueue(mut self, cuda: &Cuda) -> Result<Vec<Raw>, Failure> {
        let made = std::mem::take(&mut self.made);
        let stream = ptr::without_provenance_mut(self.stream);
        let data = Box::into_raw(Box::new(self));
        // SAFETY: the function takes the box over, once.
        let enqueued = unsafe { cuda.enqueue(stream, compute, data.cast()) };
        if let Err(message) = enqueued {
            // SAFETY: the driver has refused it, so it is ours; so are the values.
            unsafe {
                drop(Box::from_raw(data));
                made.into_iter()
                    .for_each(|value| memory::release_value(value));
            }
            return Err(message.into());
        }
        Ok(made)
    }

    fn compute(&self) -> Result<(), Failure> {
        let (real, cuda) = (real()?, Cuda::get()?);
        let mut bytes: Vec<_> = self.inputs.iter().map(|input| vec![0; input.len]).collect();
        let mut values = Vec::with_capacity(bytes.len());
        for (input, bytes) in self.inputs.iter().zip(&mut bytes) {
            cuda.read(bytes, input.address, self.device)?;
            let shape = &input.shape;
            // SAFETY: the bytes stay until the value is released.
            values.push(unsafe {
                let data = bytes.as_mut_ptr().cast();
                tensor_over(
                    data,
                    bytes.len(),
                    shape.as_ptr(),
                    shape.len(),
                    input.element,
                )?
            });
        }
        let name = |tensor: &DeviceTensor| tensor.name.as_ptr();
        let input_names: Vec<_> = self.inputs.iter().map(name).collect();
        let output_names: Vec<_> = self.outputs.iter().map(name).collect();
        let mut outputs: Vec<Raw> = vec![ptr::null_mut(); self.outputs.len()];
        // SAFETY: the session is live by the contract of `enqueue`, the values are; the arrays are
        // as long as said. No options are those that are not set.
        let ran = unsafe {
            check(real.run(
                ptr::with_exposed_provenance_mut(self.session),
                ptr::null_mut(),
                input_names.as_ptr(),
                values.as_ptr(),
                values.len(),
                output_names.as_ptr(),
                output_names.len(),
                outputs.as_mut_ptr(),
            ))
        };
        for value in values {
            // SAFETY: ours, and the run is over.
            unsafe { real.release_value(value) };
        }
        ran?;
        let mut stored = Ok(());
        for (tensor, output) in self.outputs.iter().zip(outputs) {
            // SAFETY: made by the run, ours, and without strings.
            unsafe {
                stored = stored.and(store(tensor, output, self.device, cuda));
                real.release_value(output);
            }
        }
        stored
    }
}

/// # Safety
/// The output is live and holds no strings.
unsafe fn store(
    tensor: &DeviceTensor,
    output: Raw,
    device: i32,
    cuda: &Cuda,
) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let TensorDescription {
        element,
        shape,
        data,
    } = unsafe { describe(output)? };
    if (element, &shape) != (tensor.element, &tensor.shape) {
        return Err(Failure::Double(format!(
            "an output of shape {shape:?} that was to have {:?}",
            tensor.shape
        )));
    }
    if tensor.len > 0 {
        // SAFETY: as many bytes as type and shape say.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), tensor.len) };
        cuda.write(tensor.address, bytes, device)?;
    }
    Ok(())
}

/// Computes the run, on the thread of its stream.
unsafe extern "C" fn compute(data: *mut c_void) {
    // SAFETY: the box of `enqueue`, which the stream hands over once.
    let run = unsafe { Box::from_raw(data.cast::<EnqueuedRun>()) };
    std::thread::sleep(Duration::from_micros(settings().run_us));
    let error = run.compute().err().map(|failure| match failure {
        Failure::Real(_) => "the real library failed".to_owned(),
        Failure::Double(message) => message,
    });
    // A test that expects none finds bytes that nobody computed.
    record(&json!({"event": "computed", "device": run.device, "error": error}));
}
