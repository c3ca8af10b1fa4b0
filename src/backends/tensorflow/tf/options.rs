//! Options of a session, in TensorFlow's memory.

use std::ptr::NonNull;

use conch_backend_sdk::Error;
use prost::Message;

use super::library::Library;
use super::table::TF_SessionOptions;
use crate::messages::ConfigProto;

/// A live `TF_SessionOptions`.
pub(super) struct RawOptions<'l> {
    library: &'l Library,
    raw: NonNull<TF_SessionOptions>,
}

impl<'l> RawOptions<'l> {
    pub fn new(library: &'l Library, config: &ConfigProto) -> Result<Self, Error> {
        let table = &library.table;
        // SAFETY: makes options, which the wrapper owns.
        let raw = NonNull::new(unsafe { (table.new_session_options)() })
            .ok_or_else(|| Error::internal("TensorFlow gave no session options"))?;
        let options = RawOptions { library, raw };
        let bytes = config.encode_to_vec();
        // SAFETY: the options are live; the bytes are read during the call.
        unsafe {
            table.check(|status| {
                (table.set_config)(raw.as_ptr(), bytes.as_ptr().cast(), bytes.len(), status);
            })?;
        }
        Ok(options)
    }

    pub fn as_ptr(&self) -> *const TF_SessionOptions {
        self.raw.as_ptr()
    }
}

impl Drop for RawOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; sessions made from them have copied them.
        unsafe { (self.library.table.delete_session_options)(self.raw.as_ptr()) };
    }
}
