//! Outputs of models in a device's memory, for steps of ensembles that read them there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conch_cuda::{DeviceMemory, DevicePool, PoolBlock};
use conch_memory::{ByteView, Owner};

/// Free blocks kept for the models that used them.
const KEPT_COUNT_MAX: usize = 64;
/// Of the pool, one part in so many is kept in free blocks.
const KEPT_SHARE: u64 = 4;

/// Gives out blocks of a device's pool. As a backend may leave gaps, a block comes back to the
/// model that filled it, or is to be overwritten before another gets it.
#[derive(Debug)]
pub(super) struct DeviceBlocks {
    pool: Arc<DevicePool>,
    kept: Mutex<Vec<KeptBlock>>,
}

#[derive(Debug)]
struct KeptBlock {
    owner: Owner,
    part: PoolBlock<DeviceMemory>,
}

/// Device memory that a backend fills; it goes back when dropped.
#[derive(Debug)]
pub struct DeviceBlock {
    owner: Owner,
    /// None once it is dropped.
    part: Option<PoolBlock<DeviceMemory>>,
    blocks: Weak<DeviceBlocks>,
}

/// A block, and whether it may hold bytes of others.
pub(super) struct TakenBlock {
    pub(super) block: DeviceBlock,
    pub(super) is_foreign: bool,
}

impl DeviceBlocks {
    pub(super) fn new(pool: &Arc<DevicePool>) -> Arc<DeviceBlocks> {
        Arc::new(DeviceBlocks {
            pool: Arc::clone(pool),
            kept: Mutex::default(),
        })
    }

    /// At least `len` bytes for `owner`; none if the pool has no room.
    pub(super) fn take(self: &Arc<Self>, owner: Owner, len: u64) -> Option<TakenBlock> {
        let own = self.take_kept(owner, len);
        let is_foreign = own.is_none();
        let part = own.or_else(|| self.pool.block(len)).or_else(|| {
            self.release();
            self.pool.block(len)
        })?;
        let block = DeviceBlock {
            owner,
            part: Some(part),
            blocks: Arc::downgrade(self),
        };
        Some(TakenBlock { block, is_foreign })
    }

    fn take_kept(&self, owner: Owner, len: u64) -> Option<PoolBlock<DeviceMemory>> {
        let mut kept = self.lock();
        let fits = |block: &KeptBlock| {
            let bytes = block.part.len();
            block.owner == owner && bytes >= len && bytes - len <= (len / 4).max(256)
        };
        let index = kept.iter().position(fits)?;
        Some(kept.swap_remove(index).part)
    }

    fn keep(&self, owner: Owner, part: PoolBlock<DeviceMemory>) {
        let total_bytes = self.pool.usage().total_bytes;
        let mut kept = self.lock();
        kept.push(KeptBlock { owner, part });
        let mut kept_bytes = bytes_of(&kept);
        let mut count = kept.len();
        // The oldest go.
        let surplus = kept.iter().take_while(|block| {
            let is_over = count > KEPT_COUNT_MAX || kept_bytes > total_bytes / KEPT_SHARE;
            count -= 1;
            kept_bytes -= block.part.len();
            is_over
        });
        let surplus_count = surplus.count();
        kept.drain(..surplus_count);
    }

    /// Lets go of all that is kept; says whether there was any.
    pub(super) fn release(&self) -> bool {
        let kept = std::mem::take(&mut *self.lock());
        !kept.is_empty()
    }

    /// Bytes that nobody uses.
    pub(super) fn kept_bytes(&self) -> u64 {
        bytes_of(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<KeptBlock>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(blocks: &[KeptBlock]) -> u64 {
    blocks.iter().map(|block| block.part.len()).sum()
}

impl DeviceBlock {
    /// A device address, for the backend that fills the block.
    pub fn address(&self) -> u64 {
        self.part.as_ref().map_or(0, PoolBlock::address)
    }

    /// The first `len` bytes for readers; nobody writes them any more.
    pub fn freeze(self, len: usize) -> ByteView {
        PoolBlock::view(Arc::new(self), len)
    }
}

impl AsRef<PoolBlock<DeviceMemory>> for DeviceBlock {
    fn as_ref(&self) -> &PoolBlock<DeviceMemory> {
        self.part.as_ref().expect("only drop takes it")
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        if let (Some(part), Some(blocks)) = (self.part.take(), self.blocks.upgrade()) {
            blocks.keep(self.owner, part);
        }
    }
}
