//! A run on a device: inputs fetched, computed by the real library, outputs put back.

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use serde_json::json;

use crate::cuda::Cuda;
use crate::enqueued;
use crate::io_binding::{IoBinding, OutputBinding};
use crate::memory::{self, TensorDescription, describe, tensor_over};
use crate::output_memory::{byte_count, target};
use crate::real::{Failure, Raw, check, real};
use crate::record::record;
use crate::session::{self, GpuSession};
use crate::settings::settings;

/// An input in main memory, and what keeps it there.
struct HostInput {
    value: Raw,
    _bytes: Vec<u8>,
    is_ours: bool,
}

/// Runs the session on what is bound. Returns a value for each output, in the order in which they
/// were bound, all the caller's.
///
/// # Safety
/// The session is live, and so are the values that are bound.
pub unsafe fn run(session: Raw, options: Raw, binding: &IoBinding) -> Result<Vec<Raw>, Failure> {
    let gpu = session::gpu(session);
    let gpu = gpu.ok_or_else(|| Failure::Double("misuse: bindings of a CPU session".to_owned()))?;
    let stream: *mut c_void = ptr::without_provenance_mut(gpu.stream);
    let cuda = Cuda::get()?;
    cuda.enter(gpu.device)?;
    if gpu.stream == 0 {
        return Err(Failure::Double("misuse: a run without a stream".to_owned()));
    }
    cuda.check_stream(stream)?;
    let graph = match gpu.has_graphs {
        true => session::graph(session, options, &addresses(binding))?,
        false => None,
    };
    let enqueued = match session::waits(options) || gpu.has_graphs {
        // SAFETY: by this function's contract.
        false => unsafe { enqueued::prepare(session, binding, &gpu, cuda)? },
        true => None,
    };
    record_run(binding, &gpu, graph, enqueued.is_some());
    match enqueued {
        // SAFETY: the session outlives what is on its stream, by the C API's contract.
        Some(run) => unsafe { run.enqueue(cuda) },
        // SAFETY: by this function's contract.
        None => unsafe { run_and_wait((session, options), binding, &gpu, cuda) },
    }
}

/// Runs it on the thread of the caller, with the wait that its options ask for.
///
/// # Safety
/// As [`run`].
unsafe fn run_and_wait(
    (session, options): (Raw, Raw),
    binding: &IoBinding,
    gpu: &GpuSession,
    cuda: &Cuda,
) -> Result<Vec<Raw>, Failure> {
    let real = real()?;
    let stream: *mut c_void = ptr::without_provenance_mut(gpu.stream);
    let mut inputs = Vec::with_capacity(binding.inputs.len());
    for (_, value) in &binding.inputs {
        // SAFETY: the value is live.
        inputs.push(unsafe { fetch(*value, gpu, cuda)? });
    }
    // The kernels of the real thing would be enqueued behind the copies.
    cuda.synchronize(stream)?;
    std::thread::sleep(Duration::from_micros(settings().run_us));
    let input_names: Vec<_> = binding
        .inputs
        .iter()
        .map(|(name, _)| name.as_ptr())
        .collect();
    let input_values: Vec<_> = inputs.iter().map(|input| input.value).collect();
    let output_names: Vec<_> = binding
        .outputs
        .iter()
        .map(|(name, _)| name.as_ptr())
        .collect();
    let mut outputs: Vec<Raw> = binding
        .outputs
        .iter()
        .map(|(_, bound_to)| match bound_to {
            OutputBinding::Value(value) if memory::value(*value).is_none() => *value,
            _ => ptr::null_mut(),
        })
        .collect();
    // SAFETY: session, options and values are live, the arrays as long as said.
    let ran = unsafe {
        check(real.run(
            session,
            options,
            input_names.as_ptr(),
            input_values.as_ptr(),
            input_values.len(),
            output_names.as_ptr(),
            output_names.len(),
            outputs.as_mut_ptr(),
        ))
    };
    for input in &inputs {
        if input.is_ours {
            // SAFETY: ours; the run is over. Its bytes are ours too.
            unsafe { real.release_value(input.value) };
        }
    }
    ran?;
    let mut made = Vec::with_capacity(outputs.len());
    for ((_, bound_to), output) in binding.outputs.iter().zip(outputs) {
        // SAFETY: the run made the value, or the caller did.
        made.push(unsafe { place(*bound_to, output, gpu, cuda)? });
    }
    if session::waits(options) {
        cuda.synchronize(stream)?;
    }
    Ok(made)
}

/// Where the tensors of a run lie; 0 stands for main memory, and for what the run makes.
fn addresses(binding: &IoBinding) -> Vec<u64> {
    let address = |value: Raw| memory::value(value).map_or(0, |value| value.address);
    let inputs = binding.inputs.iter().map(|(_, value)| address(*value));
    let outputs = binding.outputs.iter().map(|(_, bound_to)| match bound_to {
        OutputBinding::Value(value) => address(*value),
        _ => 0,
    });
    inputs.chain(outputs).collect()
}

fn record_run(
    binding: &IoBinding,
    gpu: &GpuSession,
    graph: Option<(i32, bool)>,
    is_enqueued: bool,
) {
    let input = |value: &Raw| match memory::value(*value) {
        Some(_) => "device",
        None => "host",
    };
    let output = |bound_to: &OutputBinding| match bound_to {
        OutputBinding::Value(value) if memory::value(*value).is_some() => "device given",
        OutputBinding::Value(_) => "host given",
        OutputBinding::Device(_) => "device",
        OutputBinding::Host => "host",
    };
    let inputs = binding.inputs.iter().map(|(name, value)| {
        let address = memory::value(*value).map_or(0, |value| value.address);
        json!([name.to_string_lossy(), input(value), address])
    });
    let outputs = binding
        .outputs
        .iter()
        .map(|(name, bound_to)| json!([name.to_string_lossy(), output(bound_to)]));
    record(&json!({
        "event": "run",
        "device": gpu.device,
        "graph": graph,
        "enqueued": is_enqueued,
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
    }));
}

/// # Safety
/// The value is live.
unsafe fn fetch(value: Raw, gpu: &GpuSession, cuda: &Cuda) -> Result<HostInput, Failure> {
    let Some(device) = memory::value(value) else {
        return Ok(HostInput {
            value,
            _bytes: Vec::new(),
            is_ours: false,
        });
    };
    if device.device != gpu.device {
        return Err(Failure::Double(
            "misuse: an input on another GPU".to_owned(),
        ));
    }
    let mut bytes = vec![0; device.len];
    cuda.fetch(
        &mut bytes,
        device.address,
        ptr::without_provenance_mut(gpu.stream),
    )?;
    // SAFETY: the value is live; what is made over the bytes goes before them.
    unsafe {
        let TensorDescription { element, shape, .. } = describe(value)?;
        let data = bytes.as_mut_ptr().cast();
        let copy = tensor_over(data, bytes.len(), shape.as_ptr(), shape.len(), element)?;
        Ok(HostInput {
            value: copy,
            _bytes: bytes,
            is_ours: true,
        })
    }
}

/// Brings an output to where it is bound to.
///
/// # Safety
/// The output is live; it is ours unless it is bound to itself.
unsafe fn place(
    bound_to: OutputBinding,
    output: Raw,
    gpu: &GpuSession,
    cuda: &Cuda,
) -> Result<Raw, Failure> {
    let real = real()?;
    match bound_to {
        OutputBinding::Device(device) if device != gpu.device => Err(Failure::Double(
            "misuse: an output on another GPU".to_owned(),
        )),
        OutputBinding::Host => Ok(output),
        // SAFETY: the value is live, and its memory the caller's.
        OutputBinding::Value(value) if value == output => unsafe {
            let TensorDescription {
                element,
                shape,
                data,
            } = describe(value)?;
            let len = byte_count(element, &shape)?;
            tensor_over(data, len, shape.as_ptr(), shape.len(), element)
        },
        OutputBinding::Value(_) | OutputBinding::Device(_) => {
            // SAFETY: the output is live, holds no strings, and is ours; it has as many bytes as
            // type and shape say.
            unsafe {
                let TensorDescription {
                    element,
                    shape,
                    data,
                } = describe(output)?;
                let len = byte_count(element, &shape)?;
                let bytes = match len {
                    0 => &[][..],
                    len => std::slice::from_raw_parts(data.cast::<u8>(), len),
                };
                let given = match bound_to {
                    OutputBinding::Value(value) => memory::value(value),
                    _ => None,
                };
                let target = target(given, gpu, cuda, len)?;
                cuda.store(
                    target.address,
                    bytes,
                    ptr::without_provenance_mut(gpu.stream),
                )?;
                real.release_value(output);
                let data =
                    ptr::without_provenance_mut(usize::try_from(target.address).unwrap_or(0));
                let value = tensor_over(data, len, shape.as_ptr(), shape.len(), element)?;
                memory::register(value, target);
                Ok(value)
            }
        }
    }
}
