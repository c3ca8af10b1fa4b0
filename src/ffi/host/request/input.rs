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
    /// What copies of its bytes are charged to; kept by the backend request.
    budget: NonNull<Arc<Budget>>,
    /// The embedder who gave it more than its data; kept by the backend request.
    extra: Option<NonNull<InputExtra>>,
    buffers: OnceLock<Box<[BackendBuffer]>>,
}

/// What few backends ask of a buffer.
struct BackendBuffer {
    attributes: BufferAttributes,
    /// Its bytes in host memory, if they lie on a GPU and the backend wants to read them there.
    host_copy: OnceLock<ByteView>,
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
            budget: NonNull::from(budget),
            extra: extra.map(NonNull::from),
            buffers: OnceLock::new(),
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
        let (chunks, buffers) = unsafe { (&self.input().chunks, self.buffers()) };
        let Some((chunk, buffer)) = chunks.get(index).zip(buffers.get(index)) else {
            return Ok(None);
        };
        let copy = &buffer.host_copy;
        if let Some(copy) = copy.get() {
            return Ok(Some(copy));
        }
        // SAFETY: it lies with what the backend request keeps for as long as this input exists.
        let mut charge = Charge::empty(unsafe { self.budget.as_ref() });
        charge.cover(chunk.len() as u64)?;
        let mut block = Block::try_with_capacity(chunk.len())?;
        block.set_charge(charge);
        GpuHost::read(chunk, &mut block)?;
        Ok(Some(copy.get_or_init(|| ByteView::from(block))))
    }

    /// Attributes of a buffer; none past the last.
    ///
    /// # Safety
    /// As [`BackendInput::input`], for the duration of the call.
    pub(crate) unsafe fn attributes(&self, index: usize) -> Option<&BufferAttributes> {
        if let Some(given) = self.extra().and_then(|extra| extra.attributes.as_deref()) {
            return given.get(index);
        }
        // SAFETY: by this function's contract.
        let buffer = unsafe { self.buffers() }.get(index)?;
        Some(&buffer.attributes)
    }

    /// # Safety
    /// As [`BackendInput::input`], for the duration of the call.
    unsafe fn buffers(&self) -> &[BackendBuffer] {
        // SAFETY: by this function's contract.
        let input = unsafe { self.input() };
        self.buffers.get_or_init(|| {
            let places = input.chunks.iter().map(BufferPlace::of_view);
            let buffers = places.map(|place| BackendBuffer {
                attributes: BufferAttributes::from(place),
                host_copy: OnceLock::new(),
            });
            buffers.collect()
        })
    }
}
