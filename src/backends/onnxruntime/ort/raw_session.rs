//! A session of ONNX Runtime itself: how it is made, and its end.

use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use conch_backend_sdk as sdk;
use sdk::{Error, StreamHandle};

use super::device_run::DeviceRun;
use super::options::{RawOptions, SessionOptions};
use super::placement::{self, Placement};
use super::providers::Gpu;
use super::runtime::Runtime;
use super::table::OrtSession;

/// Held while a session with execution providers of CPUs is made.
static WITH_PROVIDERS: Mutex<()> = Mutex::new(());

/// A session of ONNX Runtime.
pub(super) struct RawSession {
    pub(super) runtime: Arc<Runtime>,
    pub(super) raw: NonNull<OrtSession>,
    /// How it is run on a GPU. Goes before the session does.
    pub(super) device: Option<Box<DeviceRun>>,
    pub(super) placement: Placement,
    is_profiled: bool,
    /// What its providers enqueue on, which goes after it.
    _stream: Option<StreamHandle>,
}

// SAFETY: a session may be used from any thread. What it holds for runs on a GPU is used by the
// thread that runs it, by one at a time.
unsafe impl Send for RawSession {}

impl RawSession {
    /// Has ONNX Runtime read a model.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words; `Unavailable` if a provider of a GPU cannot be
    /// used.
    pub(super) fn create(
        runtime: &Arc<Runtime>,
        path: &CStr,
        options: &SessionOptions,
        gpu: Option<&Gpu>,
    ) -> Result<Self, Error> {
        let table = &runtime.table;
        let raw_options = RawOptions::new(runtime, options, gpu)?;
        let mut session = ptr::null_mut();
        // OpenVINO's provider does not stand two sessions being made at once, says upstream's
        // backend.
        let one_at_a_time = (!options.providers.is_empty()).then(|| {
            WITH_PROVIDERS
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        });
        // SAFETY: environment and options are live, the path is NUL-terminated, the result
        // writable.
        let mut create = || unsafe {
            table.check((table.create_session)(
                runtime.env.as_ptr(),
                path.as_ptr(),
                raw_options.raw,
                &raw mut session,
            ))
        };
        let (created, placement) = placement::watched(|| match gpu {
            Some(Gpu {
                tensorrt: Some(_), ..
            }) => runtime.while_talkative(create),
            _ => create(),
        });
        created?;
        drop(one_at_a_time);
        let raw = NonNull::new(session);
        let mut made = RawSession {
            runtime: Arc::clone(runtime),
            raw: raw.ok_or_else(|| Error::internal("ONNX Runtime gave no session"))?,
            device: None,
            placement,
            is_profiled: options.profile_prefix.is_some(),
            _stream: gpu.and_then(|gpu| gpu.stream.clone()),
        };
        if let Some(gpu) = gpu {
            // SAFETY: the session is live, and goes after what is made here.
            let device = unsafe { DeviceRun::new(runtime, made.raw, gpu)? };
            made.device = Some(Box::new(device));
        }
        Ok(made)
    }

    /// Has the profile written, and tells where.
    fn end_profiling(&self) {
        let table = &self.runtime.table;
        let allocator = self.runtime.allocator.as_ptr();
        let mut name: *mut c_char = ptr::null_mut();
        // SAFETY: session and allocator are live, the result is writable.
        let ended = unsafe {
            table.check((table.end_profiling)(
                self.raw.as_ptr(),
                allocator,
                &raw mut name,
            ))
        };
        if let Err(error) = ended {
            sdk::error!("failed to end a profile: {error}");
            return;
        }
        if name.is_null() {
            return;
        }
        // SAFETY: allocated for us, NUL-terminated, and freed after it was read.
        unsafe {
            sdk::info!(
                "onnxruntime wrote a profile to {}",
                CStr::from_ptr(name).to_string_lossy()
            );
            let _ = table.check((table.allocator_free)(allocator, name.cast()));
        }
    }
}

impl Drop for RawSession {
    fn drop(&mut self) {
        self.device = None;
        if self.is_profiled {
            self.end_profiling();
        }
        // SAFETY: ours, and no run is going on.
        unsafe { (self.runtime.table.release_session)(self.raw.as_ptr()) };
    }
}
