//! Runtimes, which read plans.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::Error;

use super::library::Library;
use super::log::{Log, take_message};
use super::shim::RawRuntime;

/// A runtime of TensorRT, of one model.
pub struct Runtime {
    pub(super) library: Arc<Library>,
    pub(super) raw: NonNull<RawRuntime>,
    /// Outlives the runtime, which writes to it.
    pub(super) log: Arc<Log>,
}

// SAFETY: TensorRT lets any thread use a runtime, one at a time; who has it decides.
unsafe impl Send for Runtime {}
// SAFETY: nothing of it is used through a shared reference but the deletion of engines, which
// TensorRT lets any thread do, and which does not touch the runtime.
unsafe impl Sync for Runtime {}

impl Runtime {
    /// A runtime on the device that is current.
    ///
    /// # Errors
    /// `Internal`, in upstream's words, if TensorRT makes none.
    pub fn new(library: &Arc<Library>) -> Result<Self, Error> {
        let log = Arc::<Log>::default();
        let mut raw = ptr::null_mut();
        let shim = &library.shim;
        // SAFETY: the library is open, the log outlives the runtime, the result is writable.
        let failure = unsafe {
            (shim.runtime_new)(
                library.raw.as_ptr(),
                take_message,
                log.owner(),
                &raw mut raw,
            )
        };
        // SAFETY: a failure of the shim's.
        let made = unsafe { shim.check(failure) };
        let refused = |what: String| Error::internal(format!("{what}: {}", log.errors()));
        made.map_err(refused)?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| refused("unable to create TensorRT runtime".to_owned()))?;
        Ok(Runtime {
            library: Arc::clone(library),
            raw,
            log,
        })
    }

    /// Lets plans bring code of their own, as version-compatible ones do. Returns whether this
    /// TensorRT can.
    pub fn allow_host_code(&mut self) -> bool {
        // SAFETY: the runtime lives and is ours.
        unsafe { (self.library.shim.allow_host_code)(self.raw.as_ptr()) != 0 }
    }

    /// Has engines run on a core of the deep-learning accelerator.
    ///
    /// # Errors
    /// `InvalidArgument`, in upstream's words, if there is no such core.
    pub fn use_dla_core(&mut self, core: i64) -> Result<(), Error> {
        // SAFETY: as above.
        let count = unsafe { (self.library.shim.dla_cores)(self.raw.as_ptr()) };
        match i32::try_from(core) {
            Ok(number) if number < count && number >= 0 => {
                // SAFETY: as above.
                unsafe { (self.library.shim.set_dla_core)(self.raw.as_ptr(), number) };
                Ok(())
            }
            _ => Err(Error::invalid(format!(
                "unable to create TensorRT runtime with DLA Core ID: {core}, available number of \
                 DLA cores: {count}"
            ))),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and freed once, after its engine, which keeps it.
        unsafe { (self.library.shim.runtime_delete)(self.raw.as_ptr()) };
    }
}
