//! Arguments of one call of a cache plug-in: an entry, which is a list of buffers, and an
//! allocator, which copies into or out of them.
//!
//! They live on the stack of the call and are used by its thread. Insertion: the entry says how
//! many bytes are to be kept, the plug-in sets a buffer of its own, and the allocator writes the
//! response there. Lookup: the plug-in adds the buffers that it has, and the allocator copies them
//! out while the plug-in keeps them from changing.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_abi as abi;
use conch_engine::Error;
use conch_memory::{Block, Budget, ByteView, Charge};

use super::form::EncodedEntry;
use crate::boundary::{HandleTag, handles};

handles! {
    TRITONCACHE_CacheEntry => CacheEntry, "entry", tagged;
    TRITONCACHE_Allocator => EntryCopier, "allocator", tagged;
}

/// The target of `TRITONCACHE_CacheEntry*`.
#[repr(C)]
pub(crate) struct CacheEntry {
    tag: HandleTag<abi::TRITONCACHE_CacheEntry>,
    buffers: Mutex<Vec<CacheBuffer>>,
}

/// `byte_size` bytes of the plug-in's at `base`; null until it sets them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBuffer {
    pub(crate) base: *mut c_void,
    pub(crate) byte_size: usize,
}

impl CacheEntry {
    /// An entry without buffers, to be found.
    pub(super) fn empty() -> CacheEntry {
        CacheEntry {
            tag: HandleTag::new(),
            buffers: Mutex::default(),
        }
    }

    /// An entry of `byte_size` bytes in one buffer, to be kept.
    pub(super) fn of_size(byte_size: usize) -> CacheEntry {
        let entry = CacheEntry::empty();
        entry.add(CacheBuffer {
            base: std::ptr::null_mut(),
            byte_size,
        });
        entry
    }

    pub(crate) fn len(&self) -> usize {
        self.buffers().len()
    }

    pub(crate) fn add(&self, buffer: CacheBuffer) {
        self.buffers().push(buffer);
    }

    pub(crate) fn get(&self, index: usize) -> Result<CacheBuffer, Error> {
        self.buffers().get(index).copied().ok_or_else(beyond)
    }

    /// Gives a buffer another address and, if it is to have one, another size.
    pub(crate) fn set(
        &self,
        index: usize,
        base: *mut c_void,
        byte_size: Option<usize>,
    ) -> Result<(), Error> {
        let mut buffers = self.buffers();
        let buffer = buffers.get_mut(index).ok_or_else(beyond)?;
        buffer.base = base;
        if let Some(byte_size) = byte_size {
            buffer.byte_size = byte_size;
        }
        Ok(())
    }

    /// The one buffer that a response has.
    fn only(&self) -> Result<CacheBuffer, Error> {
        let buffers = self.buffers();
        let [buffer] = buffers.as_slice() else {
            return Err(Error::internal(format!(
                "Expected number of responses in cache does not match. Expected: 1, received: {}",
                buffers.len()
            )));
        };
        if buffer.base.is_null() {
            return Err(Error::internal("buffer was nullptr"));
        }
        Ok(*buffer)
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<CacheBuffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn beyond() -> Error {
    Error::invalid("index was greater than count")
}

/// The target of `TRITONCACHE_Allocator*`.
#[repr(C)]
pub(crate) struct EntryCopier {
    tag: HandleTag<abi::TRITONCACHE_Allocator>,
    direction: CopyDirection,
}

enum CopyDirection {
    /// Out of the response, into the plug-in's buffer.
    In(EncodedEntry),
    /// Out of the plug-in's buffer, charged to the budget.
    Out {
        budget: Arc<Budget>,
        found: Mutex<Option<ByteView>>,
    },
}

impl EntryCopier {
    pub(super) fn into_cache(form: EncodedEntry) -> EntryCopier {
        EntryCopier {
            tag: HandleTag::new(),
            direction: CopyDirection::In(form),
        }
    }

    pub(super) fn out_of_cache(budget: &Arc<Budget>) -> EntryCopier {
        EntryCopier {
            tag: HandleTag::new(),
            direction: CopyDirection::Out {
                budget: Arc::clone(budget),
                found: Mutex::default(),
            },
        }
    }

    /// `TRITONCACHE_Copy`.
    ///
    /// # Errors
    /// INTERNAL if the entry does not have the one buffer that it should, UNAVAILABLE if the budget
    /// has no room.
    ///
    /// # Safety
    /// The entry's buffer is as long as the plug-in says, and nobody else writes it meanwhile.
    pub(crate) unsafe fn copy(&self, entry: &CacheEntry) -> Result<(), Error> {
        let CacheBuffer { base, byte_size } = entry.only()?;
        match &self.direction {
            CopyDirection::In(form) => {
                if byte_size != form.byte_size() {
                    return Err(Error::internal(format!(
                        "Serialized buffer size does not match. Expected: {}, received: \
                         {byte_size}",
                        form.byte_size()
                    )));
                }
                // SAFETY: non-null by `only`, long enough and ours for the moment by this
                // function's contract. The plug-in's memory may never have been written: bytes are
                // only stored there.
                let target =
                    unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), byte_size) };
                form.write_to(target);
            }
            CopyDirection::Out { budget, found } => {
                let mut charge = Charge::empty(budget);
                charge.cover(byte_size as u64).map_err(|_| {
                    Error::unavailable(format!(
                        "failed to allocate {byte_size} bytes for a cached response: over the \
                         memory limit"
                    ))
                })?;
                // SAFETY: non-null by `only`, long enough and unchanged by this function's
                // contract.
                let bytes = unsafe { std::slice::from_raw_parts(base.cast::<u8>(), byte_size) };
                // The one copy of a hit: the plug-in may free the entry as soon as it returns.
                let mut block = Block::try_copy_of(bytes)?;
                block.set_charge(charge);
                *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(ByteView::from(block));
            }
        }
        Ok(())
    }

    /// What was copied out of the cache.
    pub(super) fn found(&self) -> Option<ByteView> {
        match &self.direction {
            CopyDirection::In(_) => None,
            CopyDirection::Out { found, .. } => {
                found.lock().unwrap_or_else(PoisonError::into_inner).take()
            }
        }
    }
}
