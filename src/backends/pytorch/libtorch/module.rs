//! TorchScript modules, run through the shim.

use std::ffi::CStr;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use conch_backend_sdk::Error;
use conch_backend_sdk::engine::c_path;

use super::shim::{RawInput, RawModule, RawOptions, RawOutputs, RunOptions};
use super::tensor::Tensor;
use super::torch::Torch;

/// A loaded TorchScript module. Torch runs forward of one on several threads at once.
pub struct Module {
    torch: Arc<Torch>,
    raw: NonNull<RawModule>,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: and by several at once, by torch's documentation; upstream's backend does so where
// instances share weights.
unsafe impl Sync for Module {}

/// The device that a module's weights are moved to, `map_location` of `torch.jit.load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapLocation {
    Cpu,
    Gpu(i32),
    /// Each weight stays on the device that it was saved from.
    AsSaved,
}

impl MapLocation {
    fn to_raw(self) -> i32 {
        match self {
            MapLocation::Gpu(number) => number,
            MapLocation::Cpu => -1,
            MapLocation::AsSaved => -2,
        }
    }
}

/// An argument of a run.
pub struct Input<'i> {
    /// Of an entry of a dictionary.
    pub key: &'i CStr,
    pub value: InputValue,
}

/// What an argument is.
pub enum InputValue {
    Tensor(Tensor),
    Strings(Strings),
    /// Python's `None`.
    Absent,
}

/// A list of strings.
#[derive(Debug, Default)]
pub struct Strings {
    /// All of them, one behind the other.
    pub text: Vec<u8>,
    /// Of each.
    pub lengths: Vec<usize>,
}

impl Module {
    /// Loads a module to its device.
    ///
    /// # Errors
    /// `Unavailable` if there is no shim; `Internal` with torch's own words.
    pub fn load(
        torch: &Arc<Torch>,
        path: &Path,
        inference_mode: bool,
        location: MapLocation,
    ) -> Result<Self, Error> {
        let shim = torch.shim()?;
        let path = c_path(path)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the path is NUL-terminated, the result writable.
        let failure = unsafe {
            (shim.load)(
                path.as_ptr(),
                i32::from(inference_mode),
                location.to_raw(),
                &raw mut raw,
            )
        };
        shim.check(failure).map_err(Error::internal)?;
        Ok(Module {
            torch: Arc::clone(torch),
            raw: NonNull::new(raw).ok_or_else(|| Error::internal("torch gave no module"))?,
        })
    }

    /// Names and types of what forward takes, in order.
    ///
    /// # Errors
    /// `Internal` with torch's own words, for example if it has no forward.
    pub fn arguments(&self) -> Result<Vec<(String, String)>, Error> {
        let shim = self.torch.shim()?;
        let mut text = ptr::null_mut();
        // SAFETY: the module is live, the result writable.
        let failure = unsafe { (shim.arguments)(self.raw.as_ptr(), &raw mut text) };
        shim.check(failure).map_err(Error::internal)?;
        // What has the form of a failure is one text here.
        let lines = shim.check(text).err().unwrap_or_default();
        Ok(lines
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
            .collect())
    }

    /// Runs forward, on the GPU of this number if there is one: arguments are brought there, and
    /// results that are there stay there.
    ///
    /// # Errors
    /// `Internal` with the words of what it threw.
    pub fn forward(
        &self,
        options: RunOptions,
        gpu: Option<i32>,
        inputs: &[Input<'_>],
        is_dictionary: bool,
    ) -> Result<Outputs, Error> {
        let shim = self.torch.shim()?;
        let raw_inputs: Vec<_> = inputs.iter().map(RawInput::from).collect();
        let options = RawOptions::new(options, gpu);
        let mut raw = ptr::null_mut();
        // SAFETY: module and inputs are live during the call, which borrows them; the result is
        // writable.
        let failure = unsafe {
            (shim.forward)(
                self.raw.as_ptr(),
                &raw const options,
                raw_inputs.as_ptr(),
                raw_inputs.len(),
                i32::from(is_dictionary),
                &raw mut raw,
            )
        };
        shim.check(failure)
            .map_err(|text| Error::internal(format!("PyTorch execute failure: {text}")))?;
        Ok(Outputs {
            torch: Arc::clone(&self.torch),
            raw: NonNull::new(raw).ok_or_else(|| Error::internal("torch gave no outputs"))?,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(shim) = self.torch.shim() {
            // SAFETY: ours, and nobody runs it.
            unsafe { (shim.free_module)(self.raw.as_ptr()) };
        }
    }
}

impl From<&Input<'_>> for RawInput {
    fn from(input: &Input<'_>) -> Self {
        let absent = RawInput {
            tensor: ptr::null_mut(),
            key: input.key.as_ptr(),
            text: ptr::null(),
            lengths: ptr::null(),
            count: 0,
        };
        match &input.value {
            InputValue::Absent => absent,
            InputValue::Tensor(tensor) => RawInput {
                tensor: tensor.as_ptr(),
                ..absent
            },
            // Of an empty vector the pointer is not null either.
            InputValue::Strings(strings) => RawInput {
                text: strings.text.as_ptr().cast(),
                lengths: strings.lengths.as_ptr(),
                count: strings.lengths.len(),
                ..absent
            },
        }
    }
}

/// What forward returned.
pub struct Outputs {
    torch: Arc<Torch>,
    raw: NonNull<RawOutputs>,
}

impl Outputs {
    /// How many there are: 1 of a tensor or a list of strings, else as many as the tuple, list or
    /// dictionary has.
    pub fn count(&self) -> usize {
        self.torch.shim().map_or(0, |shim| {
            // SAFETY: live.
            unsafe { (shim.output_count)(self.raw.as_ptr()) }
        })
    }

    /// Where a dictionary has this key.
    pub fn position_of(&self, key: &str) -> Option<usize> {
        let shim = self.torch.shim().ok()?;
        (0..self.count()).find(|&index| {
            // SAFETY: the index is below the count; the text lives as long as the outputs.
            let found = unsafe { CStr::from_ptr((shim.output_key)(self.raw.as_ptr(), index)) };
            found.to_bytes() == key.as_bytes()
        })
    }

    /// An output that is a tensor. It can be taken once.
    ///
    /// # Errors
    /// `Internal` if there is none so far.
    pub fn take_tensor(&mut self, index: usize) -> Result<Option<Tensor>, Error> {
        let shim = self.torch.shim()?;
        if index >= self.count() {
            return Err(Error::internal("an output that torch did not make"));
        }
        // SAFETY: the index is below the count.
        let raw = unsafe { (shim.take_tensor)(self.raw.as_ptr(), index) };
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: given away by the shim.
        unsafe { Tensor::own(&self.torch, raw) }.map(Some)
    }

    /// An output that is a list of strings, as on Triton's wire, and how many there are.
    ///
    /// # Errors
    /// Out of memory.
    pub fn strings(&self, index: usize) -> Result<(Vec<u8>, usize), Error> {
        let shim = self.torch.shim()?;
        if index >= self.count() {
            return Err(Error::internal("an output that torch did not make"));
        }
        let (mut byte_count, mut count) = (0, 0);
        // SAFETY: the index is below the count, the results are writable.
        let start = unsafe {
            (shim.output_strings)(
                self.raw.as_ptr(),
                index,
                &raw mut byte_count,
                &raw mut count,
            )
        };
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(byte_count)
            .map_err(|_| Error::out_of_memory(byte_count))?;
        if byte_count > 0 {
            // SAFETY: that many bytes are there, as long as the outputs live.
            bytes.extend_from_slice(unsafe { slice::from_raw_parts(start.cast(), byte_count) });
        }
        Ok((bytes, count))
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        if let Ok(shim) = self.torch.shim() {
            // SAFETY: ours.
            unsafe { (shim.free_outputs)(self.raw.as_ptr()) };
        }
    }
}

impl Torch {
    /// Threads of the pool that runs `torch.jit.fork`. There is one per process, and its size can
    /// be set once, before it is used.
    ///
    /// # Errors
    /// `Internal` with torch's own words.
    pub fn set_interop_threads(&self, count: i32) -> Result<(), Error> {
        let shim = self.shim()?;
        // SAFETY: it takes any number.
        let failure = unsafe { (shim.set_interop_threads)(count) };
        shim.check(failure).map_err(Error::internal)
    }
}
