//! Outputs of responses: what `TRITONBACKEND_Output*` points to. Part of their response, and used
//! like it by one thread at a time.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use conch_abi as abi;
use conch_config::DataType;
use conch_engine::flow_control::credits::{SMALL_OUTPUT_BYTES, SMALL_OUTPUT_COUNT};
use conch_engine::gpus::{DeviceBlock, GpuHost};
use conch_engine::shared_memory::RequestRegions;
use conch_engine::{Code, Error, Output, RequestContext, Shape};
use conch_memory::{Block, Budget, ByteView, Charge, MemoryPlace, Pool};

use super::facts::ModelFacts;
use crate::boundary::{HandleTag, c_string, handles};
use crate::embed::{PlacedBuffer, RequestAllocator};
use crate::objects::{BufferAttributes, BufferPlace};

handles! {
    TRITONBACKEND_Output => BackendOutput, "output", tagged;
}

/// One output under construction.
#[repr(C)]
pub(crate) struct BackendOutput {
    tag: HandleTag<abi::TRITONBACKEND_Output>,
    facts: Arc<ModelFacts>,
    name: Arc<str>,
    c_name: OutputName,
    data_type: DataType,
    shape: Shape,
    buffer: Option<OutputBuffer>,
    attributes: BufferAttributes,
    /// Whose buffers to use: the embedder's, if one asked.
    allocator: Option<RequestAllocator>,
    /// Where the client may want it.
    usage: Option<Arc<RequestRegions>>,
    /// What its bytes are charged to; none: the process.
    budget: Option<Arc<Budget>>,
    /// The request's credits bound it while it is small.
    has_credits: bool,
    /// Its reader takes it where it is.
    may_stay_on_device: bool,
    /// Its reader takes it from memory of the plug-in.
    may_be_lent: bool,
}

/// An output's name in C's form.
enum OutputName {
    /// Of the model's output with this index.
    Configured(usize),
    Other(CString),
}

/// Where an output's bytes are written.
enum OutputBuffer {
    Pooled(Block),
    /// So many bytes on a GPU.
    Device(DeviceBlock, usize),
    Placed(Arc<PlacedBuffer>),
    /// In memory that the client shares.
    Shared(ByteView),
    /// In memory of the plug-in.
    Lent(ByteView),
}

/// Outputs below this size are not lent: copying them costs less than a lent block.
const LENT_BYTES_MIN: u64 = 64 << 10;

/// How a plug-in gets memory back that it lent; once.
pub(crate) struct LentRelease {
    pub(crate) release: unsafe extern "C" fn(userp: *mut c_void),
    pub(crate) userp: *mut c_void,
}

// SAFETY: the header lets it be called on any thread.
unsafe impl Send for LentRelease {}
// SAFETY: as above; it is only used when it is dropped.
unsafe impl Sync for LentRelease {}

/// Memory that a plug-in lent, as the owner of a view.
struct LentMemory(LentRelease);

impl Drop for LentMemory {
    fn drop(&mut self) {
        // SAFETY: by the header; this is the only call.
        unsafe { (self.0.release)(self.0.userp) }
    }
}

/// A buffer as the backend gets it.
pub(crate) struct GrantedBuffer {
    pub(crate) address: *mut c_void,
    pub(crate) memory_type: u32,
    pub(crate) memory_type_id: i64,
}

impl BackendOutput {
    /// An output without bytes: the one with this index of a response to the request of `origin`.
    pub(super) fn new(
        facts: &Arc<ModelFacts>,
        origin: &RequestContext,
        allocator: Option<RequestAllocator>,
        index: usize,
        (name, data_type, shape): (&str, DataType, &[i64]),
    ) -> BackendOutput {
        let (shared_name, c_name) = match facts.find_output(name) {
            Some((index, known)) => (Arc::clone(known), OutputName::Configured(index)),
            None => (Arc::from(name), OutputName::Other(c_string(name))),
        };
        BackendOutput {
            tag: HandleTag::new(),
            facts: Arc::clone(facts),
            name: shared_name,
            c_name,
            data_type,
            shape: facts.output_shape(name, shape),
            buffer: None,
            attributes: BufferAttributes::default(),
            allocator,
            usage: origin.features.regions.clone(),
            budget: origin.features.budget.clone(),
            has_credits: origin.features.credits.is_some() && index < SMALL_OUTPUT_COUNT,
            may_stay_on_device: origin.features.takes_on_device(name),
            may_be_lent: origin.features.takes_lent() && data_type != DataType::Bytes,
        }
    }

    /// Gives everything up but the memory, which is no handle of anything any more.
    pub(super) fn clear(&mut self) {
        self.tag = HandleTag::none();
        self.buffer = None;
        self.usage = None;
        self.budget = None;
    }

    pub(crate) fn c_name(&self) -> &CStr {
        match &self.c_name {
            OutputName::Other(name) => name,
            OutputName::Configured(index) => self
                .facts
                .output_name(*index)
                .map_or(c"", CString::as_c_str),
        }
    }

    pub(crate) fn data_type(&self) -> DataType {
        self.data_type
    }

    pub(crate) fn shape(&self) -> &[i64] {
        &self.shape
    }

    pub(crate) fn attributes(&self) -> &BufferAttributes {
        &self.attributes
    }

    /// Gives memory for the output's bytes: the client's own if it shares some, of a pool, or by
    /// the embedder's allocator (to which `wanted` is a wish). The backend writes them before it
    /// sends.
    ///
    /// # Errors
    /// ALREADY_EXISTS the second time, UNAVAILABLE if the budget has no room, INTERNAL if the
    /// client's memory has none; the allocator's own.
    pub(crate) fn allocate(
        &mut self,
        bytes: u64,
        wanted: (u32, i64),
    ) -> Result<GrantedBuffer, Error> {
        if self.buffer.is_some() {
            let message = format!("allocated buffer for output '{}' already exists", self.name);
            return Err(Error::new(Code::AlreadyExists, message));
        }
        let size = usize::try_from(bytes).map_err(|_| self.over_limit(bytes))?;
        if let Some(allocator) = &self.allocator {
            let placed = allocator.place(self.c_name(), size, wanted)?;
            let (address, place) = (placed.buffer(), placed.place_of_buffer());
            return Ok(self.grant(OutputBuffer::Placed(placed), address, place));
        }
        if let Some(usage) = &self.usage {
            let alignment = self.data_type.element_bytes().unwrap_or(1);
            let reaches = |place: MemoryPlace| {
                wanted.0 == abi::TRITONSERVER_MEMORY_GPU && wanted.1 == place.id
            };
            if let Some(view) = usage.place(&self.name, size, alignment, reaches)? {
                let (address, place) = (view.as_ptr().cast_mut(), BufferPlace::of_view(&view));
                return Ok(self.grant(OutputBuffer::Shared(view), address.cast(), place));
            }
        }
        if wanted.0 != abi::TRITONSERVER_MEMORY_CPU
            && let Some(granted) = self.allocate_near_gpu(size, wanted)?
        {
            return Ok(granted);
        }
        self.allocate_block(None, size)
    }

    /// Has the output lie in memory of the plug-in, charged as if it were ours.
    ///
    /// # Errors
    /// UNSUPPORTED if it is not to lie there; otherwise as [`BackendOutput::allocate`]. Nothing is
    /// released then.
    ///
    /// # Safety
    /// `bytes` are readable from `base` on until `release` is called.
    pub(crate) unsafe fn lend(
        &mut self,
        base: *const c_void,
        bytes: u64,
        release: LentRelease,
    ) -> Result<(), Error> {
        if self.buffer.is_some() {
            let message = format!("allocated buffer for output '{}' already exists", self.name);
            return Err(Error::new(Code::AlreadyExists, message));
        }
        let may_be_lent = self.may_be_lent && self.allocator.is_none() && bytes >= LENT_BYTES_MIN;
        let base = NonNull::new(base.cast_mut().cast::<u8>()).filter(|_| may_be_lent);
        let base = base.ok_or_else(|| {
            let message = format!("output '{}' is to lie in a buffer of the server", self.name);
            Error::new(Code::Unsupported, message)
        })?;
        let size = usize::try_from(bytes).map_err(|_| self.over_limit(bytes))?;
        let mut charge = Charge::empty(self.budget.as_ref().unwrap_or(&self.facts.budget));
        charge.cover(bytes).map_err(|_| self.over_limit(bytes))?;
        // SAFETY: readable until the owner is dropped, by this function's contract; only views
        // know the address, and they show no slice.
        let view = unsafe { ByteView::lent(base, size, Arc::new(LentMemory(release))) };
        self.attributes = BufferAttributes::default();
        self.attributes
            .store(bytes, abi::TRITONSERVER_MEMORY_CPU, 0);
        self.buffer = Some(OutputBuffer::Lent(view.with_charge(charge)));
        Ok(())
    }

    /// As [`BackendOutput::allocate`] for a backend that would rather not have ordinary memory:
    /// on its device if the reader takes it there, else pinned memory, from which outputs leave
    /// through sockets. None on hosts without GPUs.
    fn allocate_near_gpu(
        &mut self,
        size: usize,
        (kind, id): (u32, i64),
    ) -> Result<Option<GrantedBuffer>, Error> {
        let wants_device = self.may_stay_on_device && kind == abi::TRITONSERVER_MEMORY_GPU;
        if wants_device
            && size > 0
            && let Some(block) = GpuHost::device_block(id, self.facts.owner, size)
        {
            let address = std::ptr::without_provenance_mut(block.address() as usize);
            let place = BufferPlace {
                memory_type: kind,
                memory_type_id: id,
                byte_size: size as u64,
                ..BufferPlace::default()
            };
            return Ok(Some(self.grant(
                OutputBuffer::Device(block, size),
                address,
                place,
            )));
        }
        let Some(pool) = GpuHost::output_pool() else {
            return Ok(None);
        };
        self.allocate_block(Some(&pool), size).map(Some)
    }

    /// A block of `pool`, or of the model's own, for the output's bytes, charged.
    #[inline]
    fn allocate_block(
        &mut self,
        pool: Option<&Arc<Pool>>,
        size: usize,
    ) -> Result<GrantedBuffer, Error> {
        let bytes = size as u64;
        let budget = self.budget.as_ref().unwrap_or(&self.facts.budget);
        let mut charge = Charge::empty(budget);
        if !self.has_credits || bytes > SMALL_OUTPUT_BYTES {
            charge.cover(bytes).map_err(|_| self.over_limit(bytes))?;
        }
        // The backend may leave gaps: no bytes of another model show through them.
        let pool = pool.unwrap_or(&self.facts.pool);
        let block = pool.try_take_for(self.facts.owner, size);
        let mut block = block.map_err(|_| self.over_limit(bytes))?;
        block.set_charge(charge);
        block.advance(size);
        let memory_type = block.place().kind as u32;
        self.attributes = BufferAttributes::default();
        self.attributes.store(bytes, memory_type, 0);
        let address = block.as_mut_ptr().cast();
        self.buffer = Some(OutputBuffer::Pooled(block));
        Ok(GrantedBuffer {
            address,
            memory_type,
            memory_type_id: 0,
        })
    }

    fn grant(
        &mut self,
        buffer: OutputBuffer,
        address: *mut c_void,
        place: BufferPlace,
    ) -> GrantedBuffer {
        self.attributes = place.into();
        self.buffer = Some(buffer);
        GrantedBuffer {
            address,
            memory_type: place.memory_type,
            memory_type_id: place.memory_type_id,
        }
    }

    #[cold]
    fn over_limit(&self, bytes: u64) -> Error {
        Error::unavailable(format!(
            "failed to allocate {bytes} bytes for output '{}': over the memory limit",
            self.name
        ))
    }

    /// The output as clients see it. What is left is only good for another output.
    pub(super) fn freeze(&mut self) -> Output {
        let data = match self.buffer.take() {
            None => ByteView::empty(),
            Some(OutputBuffer::Pooled(block)) => ByteView::from(block),
            Some(OutputBuffer::Device(block, size)) => block.freeze(size),
            Some(OutputBuffer::Placed(placed)) => PlacedBuffer::freeze(placed),
            Some(OutputBuffer::Shared(view) | OutputBuffer::Lent(view)) => view,
        };
        Output {
            name: Arc::clone(&self.name),
            data_type: self.data_type,
            shape: std::mem::take(&mut self.shape),
            data,
        }
    }
}
