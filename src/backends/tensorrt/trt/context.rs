//! Execution contexts.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use conch_backend_sdk as sdk;
use sdk::{
    CudaGraph, DeviceBlock, DeviceBlocks, DeviceWork, Error, MemorySource, MemoryTarget,
    StreamHandle,
};

use super::engine::Engine;
use super::shim::{RawContext, RawOutputs, RawShape};

/// When a context takes memory for what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationStrategy {
    /// At once, for the largest profile.
    Static,
    /// For the profile that is chosen.
    OnProfileChange,
}

/// Where a tensor lies for one run.
pub enum Binding<'b> {
    Block(&'b DeviceBlock),
    /// An input, in place.
    Source(MemorySource<'b>),
    /// An output, in place.
    Target(&'b MemoryTarget<'b>),
    /// Values of a shape tensor, in host memory of the slot.
    Host(&'b HostTensor),
    /// An output whose size is known when it is made.
    DataDependent(&'b DataDependentOutput),
}

/// Host memory of a shape tensor. It stays where it is until a run that uses it is over.
#[derive(Debug)]
pub struct HostTensor(Mutex<Box<[u64]>>);

/// An output that TensorRT asks memory for while it runs, at most once for a batch.
pub struct DataDependentOutput(Arc<DataDependentMemory>);

struct DataDependentMemory {
    blocks: DeviceBlocks,
    state: Mutex<DataDependentState>,
}

struct DataDependentState {
    block: DeviceBlock,
    /// Blocks that became too short for the batch, which TensorRT may still use.
    outgrown: Vec<DeviceBlock>,
    /// As the last run told it.
    shape: Option<Vec<i64>>,
}

/// A context of one instance and profile. One thread at a time uses it.
pub struct Context {
    raw: NonNull<RawContext>,
    engine: Arc<Engine>,
    /// Of the profile, chosen once.
    profile: usize,
    /// The outputs that TensorRT has been told of, which it keeps: it asks by name.
    late: HashMap<CString, Arc<OutputAllocator>>,
}

/// What stands behind an output allocator of TensorRT's: the output of the slot that runs.
#[derive(Default)]
struct OutputAllocator(Mutex<Option<Arc<DataDependentMemory>>>);

// SAFETY: TensorRT lets any thread use a context, one at a time.
unsafe impl Send for Context {}

impl HostTensor {
    pub fn new(value_count: usize) -> Self {
        // 64-bit words, so that values of both widths are aligned.
        HostTensor(Mutex::new(vec![0; value_count.max(1)].into_boxed_slice()))
    }

    /// Sets values of 32 or 64 bits; more than there is room for are left out.
    pub fn set(&self, values: &[i64], is_wide: bool) {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::with_capacity(8 * words.len());
        for value in values {
            match is_wide {
                true => bytes.extend_from_slice(&value.to_ne_bytes()),
                // The profile's bounds have this width too.
                false => bytes.extend_from_slice(&(*value as i32).to_ne_bytes()),
            }
        }
        bytes.resize(8 * words.len(), 0);
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
        }
    }

    /// The first `count` values of 64 bits, or of 32.
    pub fn get(&self, count: usize, is_wide: bool) -> Vec<i64> {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        match is_wide {
            true => words.iter().take(count).map(|word| *word as i64).collect(),
            false => bytes
                .chunks_exact(4)
                .take(count)
                .map(|chunk| i64::from(i32::from_ne_bytes(chunk.try_into().unwrap_or_default())))
                .collect(),
        }
    }

    fn address(&self) -> *mut c_void {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words.as_mut_ptr().cast()
    }
}

impl DataDependentOutput {
    /// `block` is one of `blocks`, which has another where it is too short.
    pub fn new(blocks: &DeviceBlocks, block: DeviceBlock) -> Self {
        DataDependentOutput(Arc::new(DataDependentMemory {
            blocks: blocks.clone(),
            state: Mutex::new(DataDependentState {
                block,
                outgrown: Vec::new(),
                shape: None,
            }),
        }))
    }

    /// What the last run fills.
    pub fn source(&self) -> MemorySource<'_> {
        let state = lock(&self.0.state);
        let device = i32::try_from(state.block.source().place().id).unwrap_or(i32::MAX);
        let (address, len) = (state.block.address(), state.block.len());
        // SAFETY: the block is that long. It is replaced by the next run of its slot, which is
        // another batch: what borrows this is over then.
        unsafe { MemorySource::on_device(address, len, device) }
    }

    /// The shape that the last run told.
    pub fn shape(&self) -> Option<Vec<i64>> {
        lock(&self.0.state).shape.clone()
    }
}

impl DataDependentMemory {
    /// Room for `len` bytes; returns where they begin.
    fn reserve(&self, len: usize) -> Result<u64, Error> {
        let mut state = lock(&self.state);
        if len > state.block.len() {
            let larger = self.blocks.allocate(len)?;
            let outgrown = std::mem::replace(&mut state.block, larger);
            state.outgrown.push(outgrown);
        }
        Ok(state.block.address())
    }
}

impl Context {
    /// A context for a profile, on the device of `stream`, which is current.
    ///
    /// # Errors
    /// `Internal` or `InvalidArgument`, in upstream's words, if TensorRT makes none.
    pub fn new(
        engine: &Arc<Engine>,
        strategy: AllocationStrategy,
        (profile, profile_name, model_name): (usize, &str, &str),
        stream: &StreamHandle,
    ) -> Result<Self, Error> {
        let strategy = match strategy {
            AllocationStrategy::Static => 0,
            AllocationStrategy::OnProfileChange => 1,
        };
        let log = &engine.runtime.log;
        log.clear();
        // SAFETY: the engine lives.
        let raw = unsafe { (engine.shim().context_new)(engine.raw.as_ptr(), strategy) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::internal(format!(
                "unable to create TensorRT context: {}",
                log.errors()
            ))
        })?;
        let context = Context {
            raw,
            engine: Arc::clone(engine),
            profile,
            late: HashMap::new(),
        };
        if profile != 0 {
            let number = i32::try_from(profile).unwrap_or(i32::MAX);
            // SAFETY: the context and the stream live; it is waited for at once.
            let chosen =
                unsafe { (engine.shim().set_profile)(context.raw.as_ptr(), number, stream.raw()) };
            if chosen == 0 {
                return Err(Error::invalid(format!(
                    "Can not set the specified optimization profile {profile_name}[{profile}] for \
                     {model_name}. Expected optimization profile index range 0-{}",
                    engine.facts().profiles.len() - 1
                )));
            }
            stream.synchronize()?;
        }
        Ok(context)
    }

    /// The number of its profile.
    pub fn profile(&self) -> usize {
        self.profile
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Says what an input will be.
    ///
    /// # Errors
    /// What TensorRT says.
    pub fn set_shape(&mut self, name: &CStr, dims: &[i64]) -> Result<(), String> {
        let log = &self.engine.runtime.log;
        log.clear();
        let Some(shape) = RawShape::new(dims) else {
            return Err("too many dimensions".to_owned());
        };
        // SAFETY: the context lives and is ours, the name is NUL-terminated.
        let taken = unsafe {
            (self.engine.shim().set_shape)(self.raw.as_ptr(), name.as_ptr(), &raw const shape)
        };
        match taken {
            0 => Err(log.errors()),
            _ => Ok(()),
        }
    }

    /// Says where the values of a shape tensor are, before shapes are asked for.
    pub fn set_values(&mut self, name: &CStr, values: &HostTensor) -> bool {
        // SAFETY: as above; TensorRT reads the values until the slot's next run, and the slot keeps
        // them as long as its contexts.
        unsafe {
            (self.engine.shim().set_address)(self.raw.as_ptr(), name.as_ptr(), values.address())
                != 0
        }
    }

    /// Whether TensorRT knows enough to run.
    pub fn infers_shapes(&mut self) -> bool {
        // SAFETY: as above.
        unsafe { (self.engine.shim().infer_shapes)(self.raw.as_ptr()) != 0 }
    }

    /// The shape of a tensor, with -1 for what is not known yet.
    ///
    /// # Errors
    /// `Internal` if TensorRT knows none.
    pub fn shape(&self, name: &CStr) -> Result<Vec<i64>, Error> {
        let mut shape = RawShape {
            count: -1,
            ..RawShape::default()
        };
        // SAFETY: as above; the result is writable.
        unsafe {
            (self.engine.shim().tensor_shape)(self.raw.as_ptr(), name.as_ptr(), &raw mut shape);
        }
        shape.dims().ok_or_else(|| {
            Error::internal(format!(
                "TensorRT knows no shape of '{}'",
                name.to_string_lossy()
            ))
        })
    }

    /// Enqueues a run of a batch behind the copies of its inputs.
    ///
    /// # Errors
    /// `Internal`, in upstream's words, if TensorRT refuses.
    pub fn run<'w>(
        &mut self,
        work: &mut DeviceWork<'w>,
        model_name: &str,
        bindings: &[(&CStr, Binding<'_>)],
    ) -> Result<(), Error> {
        work.compute(|stream| self.enqueue(model_name, bindings, stream))
    }

    /// As [`run`](Self::run), with a run that was captured on the buffers of the batch's slot.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn launch<'w>(
        &mut self,
        work: &mut DeviceWork<'w>,
        graph: &'w CudaGraph,
    ) -> Result<(), Error> {
        // SAFETY: graphs are captured by contexts of the instance, on buffers of the slot that
        // has the graph, and both outlive the slot's batches; a slot has one batch at a time.
        unsafe { work.launch_graph(graph) }
    }

    /// Runs once on blocks, outside of any batch, and waits for it.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_alone(
        &mut self,
        stream: &StreamHandle,
        model_name: &str,
        bindings: &[(&CStr, Binding<'_>)],
    ) -> Result<(), Error> {
        self.enqueue(model_name, bindings, stream.raw())?;
        stream.synchronize()
    }

    /// Captures a run on blocks.
    ///
    /// # Errors
    /// As [`run`](Self::run), and what the driver refuses.
    pub fn capture(
        &mut self,
        stream: &StreamHandle,
        model_name: &str,
        bindings: &[(&CStr, Binding<'_>)],
    ) -> Result<CudaGraph, Error> {
        stream.capture(|| self.enqueue(model_name, bindings, stream.raw()))
    }

    fn enqueue(
        &mut self,
        model_name: &str,
        bindings: &[(&CStr, Binding<'_>)],
        stream: *mut c_void,
    ) -> Result<(), Error> {
        self.engine.runtime.log.clear();
        let refused = |log: String| {
            Error::internal(format!(
                "unable to enqueue for inference {model_name}: {log}"
            ))
        };
        for (name, binding) in bindings {
            let address = match binding {
                Binding::Block(block) => device(block.address()),
                Binding::Source(source) => device(source.address()),
                Binding::Target(target) => device(target.address()),
                Binding::Host(values) => values.address(),
                Binding::DataDependent(output) => {
                    self.offer(name, output)?;
                    continue;
                }
            };
            // SAFETY: the context lives and is ours. Device memory is that of the batch, or of the
            // slot's blocks, both of which the batch's work keeps until the device is done; host
            // memory is the slot's.
            let taken = unsafe {
                (self.engine.shim().set_address)(self.raw.as_ptr(), name.as_ptr(), address)
            };
            if taken == 0 {
                return Err(refused(self.engine.runtime.log.errors()));
            }
        }
        // SAFETY: as above; the stream lives, and the device is current, as the callers say.
        let enqueued = unsafe { (self.engine.shim().enqueue)(self.raw.as_ptr(), stream) };
        if enqueued == 0 {
            return Err(refused(self.engine.runtime.log.errors()));
        }
        Ok(())
    }

    /// Has TensorRT ask for the memory of an output while it runs.
    fn offer(&mut self, name: &CStr, output: &DataDependentOutput) -> Result<(), Error> {
        if !self.late.contains_key(name) {
            let late = Arc::<OutputAllocator>::default();
            let outputs = RawOutputs {
                owner: Arc::as_ptr(&late).cast_mut().cast(),
                allocate,
                set_shape,
            };
            // SAFETY: the context lives and is ours; what is offered lives as long, in `late`; the
            // struct is copied.
            let taken = unsafe {
                (self.engine.shim().set_outputs)(
                    self.raw.as_ptr(),
                    name.as_ptr(),
                    &raw const outputs,
                )
            };
            if taken == 0 {
                let name = name.to_string_lossy();
                return Err(Error::invalid(format!(
                    "'{name}' does not map to an input or output tensor"
                )));
            }
            self.late.insert(name.to_owned(), late);
        }
        let mut state = lock(&output.0.state);
        state.outgrown.clear();
        state.shape = None;
        if let Some(late) = self.late.get(name) {
            *lock(&late.0) = Some(Arc::clone(&output.0));
        }
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made in `new`, freed once, before its engine; nothing of it runs, as batches
        // are finished first.
        unsafe { (self.engine.shim().context_delete)(self.raw.as_ptr()) };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// Memory for an output of `size` bytes; null if there is none.
extern "C" fn allocate(owner: *mut c_void, _name: *const c_char, size: u64) -> *mut c_void {
    // SAFETY: the owner is kept by the context, as long as TensorRT may call; only shared
    // references to it are made.
    let late = unsafe { &*owner.cast::<OutputAllocator>() };
    let output = lock(&late.0).clone();
    let reserved = output.map(|output| output.reserve(usize::try_from(size).unwrap_or(usize::MAX)));
    match reserved {
        Some(Ok(address)) => device(address),
        Some(Err(error)) => {
            sdk::error!("no memory for an output of {size} bytes: {error}");
            std::ptr::null_mut()
        }
        None => std::ptr::null_mut(),
    }
}

extern "C" fn set_shape(owner: *mut c_void, _name: *const c_char, shape: *const RawShape) {
    // SAFETY: as above; the shim gives a shape for the time of the call.
    let (late, shape) = unsafe { (&*owner.cast::<OutputAllocator>(), &*shape) };
    if let Some(output) = &*lock(&late.0) {
        lock(&output.state).shape = shape.dims();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_both_widths() {
        let tensor = HostTensor::new(3);
        tensor.set(&[1, -2, 3], true);
        assert_eq!(tensor.get(3, true), [1, -2, 3]);
        tensor.set(&[4, -5, 6], false);
        assert_eq!(tensor.get(3, false), [4, -5, 6]);
        tensor.set(&[7, 8, 9, 10], true);
        assert_eq!(tensor.get(4, true), [7, 8, 9]);
    }
}
