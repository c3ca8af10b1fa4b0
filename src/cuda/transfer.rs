//! Copies between the host and views of device memory that are done when they return.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use conch_memory::{Block, ByteView, MemoryKind, MemoryPlace};

use crate::{CudaError, DeviceAddress, IpcMapping, Stream};

/// Why bytes were not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// The target is shorter than the source.
    NoRoom,
    Cuda(CudaError),
}

impl fmt::Display for TransferError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransferError::NoRoom => formatter.write_str("the target is too short"),
            TransferError::Cuda(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for TransferError {}

impl From<CudaError> for TransferError {
    fn from(error: CudaError) -> TransferError {
        TransferError::Cuda(error)
    }
}

impl Stream {
    /// Appends the bytes of `view`, of any memory, to `target`. Blocks until they are there; waits
    /// for this stream alone.
    ///
    /// # Errors
    /// [`TransferError`]; nothing was appended then.
    pub fn read(&self, view: &ByteView, target: &mut Block) -> Result<(), TransferError> {
        let spare = target.spare_mut();
        if spare.len() < view.len() {
            return Err(TransferError::NoRoom);
        }
        let to = DeviceAddress(spare.as_mut_ptr().addr() as u64);
        let from = DeviceAddress(view.as_ptr().addr() as u64);
        // SAFETY: the view keeps its bytes, the target is exclusively borrowed, and both outlive
        // the wait below.
        unsafe { self.copy(to, from, view.len()) }?;
        self.synchronize()?;
        target.advance(view.len());
        Ok(())
    }

    /// Copies `bytes` to the beginning of `target`, which is device memory that others may write.
    /// Blocks until they are there; waits for this stream alone.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn write(&self, bytes: &[u8], target: &ByteView) -> Result<(), TransferError> {
        if target.len() < bytes.len() || !target.is_shared() {
            return Err(TransferError::NoRoom);
        }
        let to = DeviceAddress(target.as_ptr().addr() as u64);
        let from = DeviceAddress(bytes.as_ptr().addr() as u64);
        // SAFETY: shared memory is writable, the view keeps it, and both outlive the wait below.
        unsafe { self.copy(to, from, bytes.len()) }?;
        self.synchronize()?;
        Ok(())
    }
}

impl IpcMapping {
    /// The mapping that a view of [`IpcMapping::view`] with a keeper `K`, or a part of it, lies in.
    pub fn behind<K: Any + Send + Sync>(view: &ByteView) -> Option<&IpcMapping> {
        let (mapping, _) = view.owner()?.downcast_ref::<(Arc<IpcMapping>, K)>()?;
        Some(mapping)
    }

    /// The bytes `start..start + len`, which the view keeps mapped; `keeper` is dropped with the
    /// view, after it has let go of the mapping. None if they do not lie inside.
    pub fn view<K: Any + Send + Sync>(
        self: &Arc<Self>,
        start: u64,
        len: usize,
        keeper: K,
    ) -> Option<ByteView> {
        start
            .checked_add(len as u64)
            .filter(|end| *end <= self.len())?;
        let address = usize::try_from(self.base().at(start).0).ok()?;
        let base = NonNull::new(std::ptr::without_provenance_mut(address))?;
        let place = MemoryPlace {
            kind: MemoryKind::Gpu,
            id: i64::from(self.device().ordinal()),
        };
        let owner = Arc::new((Arc::clone(self), keeper));
        // SAFETY: the mapping stays at its place while the owner lives; the CPU never goes there.
        Some(unsafe { ByteView::shared(base, len, place, owner) })
    }
}
