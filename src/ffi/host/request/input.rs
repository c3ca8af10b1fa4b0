//! One input of a request that a backend holds: what `TRITONBACKEND_Input*` points to.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use conch_abi as abi;
use conch_engine::gpus::GpuHost;
use conch_engine::{Error, Input};
use conch_memory::{Block, Budget, ByteView, Charge};

use crate::boundary::{HandleTag, handles};
use crate::embed::InputExtra;
use crate::objects::{BufferAttributes, BufferPlace};

handles! {
    TRITONBACKEND_Input => BackendInput, "input", tagged;
}

/// One input, as the backend sees it.
#[repr(C)]
pub(crate) struct BackendInput {
    tag: HandleTag<abi::TRITONBACKEND_Input>,
    input: *const Input,
    name: *const c_char,
    attributes: OnceLock<Box<[BufferAttributes]>>,
    /// What copies of its bytes are charged to; kept by the backend request.
    budget: NonNull<Arc<Budget>>,
    /// Copies in host memory of buffers on GPUs, for backends that want to read there.
    host_copies: OnceLock<Box<[OnceLock<ByteView>]>>,
    /// The embedder who gave it more than its data; kept by the backend request.
    extra: Option<NonNull<InputExtra>>,
}

impl BackendInput {
    /// `input` lies in the request, `name`, `budget` and `extra` with the backend request and whom
    /// it keeps: all outlive this value.
    pub(super) fn new(
        input: &Input,
        name: *const c_char,
        budget: &Arc<Budget>,
        extra: Option<&InputExtra>,
    ) -> BackendInput {
        BackendInput {
            tag: HandleTag::default(),
            input,
            name,
            attributes: OnceLock::new(),
            budget: NonNull::from(budget),
            host_copies: OnceLock::new(),
            extra: extra.map(NonNull::from),
        }
    }

    pub(crate) fn name(&self) -> *const c_char {
        self.name
    }

    /// The input's facts and bytes.
    ///
    /// # Safety
    /// The request is not released during `'a`.
    pub(crate) unsafe fn input<'a>(&self) -> &'a Input {
        // SAFETY: it lies in the request, which stays at its place until released.
        unsafe { &*self.input }
    }

    /// What an embedder gave for the input beside its data.
    pub(crate) fn extra(&self) -> Option<&InputExtra> {
        // SAFETY: it lies with the observer, whom the backend request keeps for as long as this
        // input exists.
        self.extra.map(|extra| unsafe { extra.as_ref() })
    }

    /// Buffer `index` in host memory: itself, or a copy that lives as long as the input. Blocks for
    /// the copy.
    ///
    /// # Errors
    /// UNAVAILABLE without memory; INTERNAL, what the driver refuses.
    ///
    /// # Safety
    /// As [`BackendInput::input`], for the duration of the call.
    pub(crate) unsafe fn host_copy(&self, index: usize) -> Result<Option<&ByteView>, Error> {
        // SAFETY: by this function's contract.
        let chunks = unsafe { &self.input().chunks };
        let copies = self
            .host_copies
            .get_or_init(|| chunks.iter().map(|_| OnceLock::new()).collect());
        let Some((chunk, copy)) = chunks.get(index).zip(copies.get(index)) else {
            return Ok(None);
        };
        if let Some(copy) = copy.get() {
            return Ok(Some(copy));
        }
        // SAFETY: it lies with what the backend request keeps for as long as this input exists.
        let mut charge = Charge::empty(unsafe { self.budget.as_ref() });
        charge.cover(chunk.len() as u64).map_err(|exhausted| {
            Error::unavailable(format!(
                "the server has no memory left for the request: the limit is {} bytes",
                exhausted.limit_bytes
            ))
        })?;
        let mut block = Block::try_with_capacity(chunk.len())?;
        block.set_charge(charge);
        GpuHost::read(chunk, &mut block)?;
        Ok(Some(copy.get_or_init(|| ByteView::from(block))))
    }

    /// Attributes of each buffer.
    ///
    /// # Safety
    /// As [`BackendInput::input`], for the duration of the call.
    pub(crate) unsafe fn attributes(&self) -> &[BufferAttributes] {
        // SAFETY: by this function's contract.
        let input = unsafe { self.input() };
        if let Some(given) = self.extra().and_then(|extra| extra.attributes.as_deref()) {
            return given;
        }
        self.attributes.get_or_init(|| {
            let places = input.chunks.iter().map(BufferPlace::of_view);
            places.map(BufferAttributes::from).collect()
        })
    }
}
