//! One input of a request that a backend holds: what `TRITONBACKEND_Input*` points to.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::OnceLock;

use conch_abi as abi;
use conch_engine::Input;

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
    /// The embedder who gave it more than its data; kept by the backend request.
    extra: Option<NonNull<InputExtra>>,
}

impl BackendInput {
    /// `input` lies in the request, `name` and `extra` with the backend request and whom it keeps:
    /// all outlive this value.
    pub(super) fn new(
        input: &Input,
        name: *const c_char,
        extra: Option<&InputExtra>,
    ) -> BackendInput {
        BackendInput {
            tag: HandleTag::default(),
            input,
            name,
            attributes: OnceLock::new(),
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
