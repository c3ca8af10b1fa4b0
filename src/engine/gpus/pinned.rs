//! Pinned host memory: a pool on each NUMA node that has a GPU in use.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_cuda::{CudaError, Device, PinnedMemory, PinnedPool, PoolUsage};
use conch_log as log;
use conch_memory::{AlignedMemory, PinnedSource, Pool};
use conch_net::affinity;
use conch_net::machine::Machine;

/// Of a pool, one part in so many is kept in free blocks of outputs, and as much in those of
/// bodies.
const KEPT_SHARE: u64 = 8;
/// Outputs have at most one part in so many of a pool; the rest is for backends that allocate, and
/// for bodies.
const OUTPUT_SHARE: u64 = 2;
/// The same of bodies. Clients that send slowly hold no more.
const BODY_SHARE: u64 = 4;

/// The pools of pinned memory. Usable from every thread.
#[derive(Debug)]
pub(super) struct PinnedPools {
    machine: Machine,
    /// Bytes of each.
    pool_bytes: u64,
    /// One for each node that a device in use is next to.
    nodes: Mutex<Vec<NodePool>>,
}

/// What a node has.
#[derive(Clone, Debug)]
struct NodePool {
    /// None where nodes are not known.
    node: Option<usize>,
    /// None where the driver had no memory.
    pool: Option<Arc<BlockPools>>,
}

/// A pool and what takes blocks of it.
#[derive(Debug)]
struct BlockPools {
    memory: Arc<PinnedPool>,
    /// Blocks that backends fill.
    outputs: Arc<Pool>,
    /// Blocks that bodies are received into.
    bodies: Arc<Pool>,
}

/// Lends blocks of a pool, `lent_bytes_max` at a time.
struct PinnedLender {
    memory: Arc<PinnedPool>,
    lent_bytes: Arc<AtomicU64>,
    lent_bytes_max: u64,
}

/// Counts a block for as long as it is lent.
struct LentBytes {
    lent_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl LentBytes {
    /// None if it would be too much. Relaxed: only the sum counts.
    fn new(lender: &PinnedLender, bytes: u64) -> Option<LentBytes> {
        let lent_bytes = &lender.lent_bytes;
        let add =
            |lent: u64| Some(lent.checked_add(bytes)?).filter(|sum| *sum <= lender.lent_bytes_max);
        lent_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(LentBytes {
            lent_bytes: Arc::clone(lent_bytes),
            bytes,
        })
    }
}

impl Drop for LentBytes {
    fn drop(&mut self) {
        self.lent_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl PinnedSource for PinnedLender {
    fn memory(&self, capacity: usize) -> Option<AlignedMemory> {
        let lent = LentBytes::new(self, capacity as u64)?;
        self.memory
            .block(capacity as u64)?
            .into_memory(capacity, lent)
    }
}

impl BlockPools {
    fn new(memory: PinnedMemory) -> BlockPools {
        let memory = Arc::new(PinnedPool::new(memory));
        let total_bytes = memory.usage().total_bytes;
        let kept_bytes = usize::try_from(total_bytes / KEPT_SHARE).unwrap_or(usize::MAX);
        let pool = |share| {
            let source = PinnedLender {
                memory: Arc::clone(&memory),
                lent_bytes: Arc::default(),
                lent_bytes_max: total_bytes / share,
            };
            Pool::of_pinned(kept_bytes, Box::new(source))
        };
        BlockPools {
            outputs: pool(OUTPUT_SHARE),
            bodies: pool(BODY_SHARE),
            memory,
        }
    }

    /// Lets go of what is only kept if there is no room else.
    fn allocate(&self, len: u64) -> Option<u64> {
        self.memory.allocate(len).or_else(|| {
            let has_released = self.outputs.release() | self.bodies.release();
            has_released.then(|| self.memory.allocate(len))?
        })
    }

    fn usage(&self) -> PoolUsage {
        let usage = self.memory.usage();
        let kept_bytes = self.outputs.retained_bytes() + self.bodies.retained_bytes();
        PoolUsage {
            used_bytes: usage.used_bytes.saturating_sub(kept_bytes as u64),
            ..usage
        }
    }
}

impl PinnedPools {
    pub(super) fn new(machine: Machine, pool_bytes: u64) -> PinnedPools {
        PinnedPools {
            machine,
            pool_bytes,
            nodes: Mutex::default(),
        }
    }

    /// Makes the pool of the node that `device` is next to, unless it is there. Blocks while pages
    /// are locked.
    pub(super) fn open(&self, device: &Arc<Device>) {
        let address = &device.properties().pci_address;
        let node = self.machine.pci_locality(address).node;
        let Some(len) = usize::try_from(self.pool_bytes).ok().filter(|len| *len > 0) else {
            return;
        };
        // Devices are opened one after the other: nobody else makes it meanwhile.
        if self.lock().iter().any(|known| known.node == node) {
            return;
        }
        let pool = match allocate_on(node, device, len) {
            Ok(memory) => {
                let (address, bytes) = (memory.base(), self.pool_bytes);
                log::info!("Pinned memory pool is created at '{address:p}' with size {bytes}");
                Some(Arc::new(BlockPools::new(memory)))
            }
            Err(error) => {
                let bytes = self.pool_bytes;
                log::warning!("there is no pool of {bytes} bytes of pinned memory: {error}");
                None
            }
        };
        self.lock().push(NodePool { node, pool });
    }

    /// Whether a device was opened.
    pub(super) fn is_open(&self) -> bool {
        !self.lock().is_empty()
    }

    /// The address of `len` bytes: from the pool of the calling thread's node if it is bound to one
    /// that has a pool, else from any with room. None if there is no room.
    pub(super) fn allocate(&self, len: u64) -> Option<u64> {
        let near = self.near()?;
        near.allocate(len).or_else(|| {
            let pools = self.pools();
            let mut others = pools.iter().filter(|pool| !Arc::ptr_eq(pool, &near));
            others.find_map(|pool| pool.allocate(len))
        })
    }

    /// Gives back what [`PinnedPools::allocate`] returned. Returns false for any other address.
    pub(super) fn free(&self, address: u64) -> bool {
        self.pools().iter().any(|pool| pool.memory.free(address))
    }

    /// Blocks for what backends fill; none while there is no pool.
    pub(super) fn outputs(&self) -> Option<Arc<Pool>> {
        Some(Arc::clone(&self.near()?.outputs))
    }

    /// Blocks for bodies; none while there is no pool.
    pub(super) fn bodies(&self) -> Option<Arc<Pool>> {
        Some(Arc::clone(&self.near()?.bodies))
    }

    /// Bytes of all pools; none while there is none.
    pub(super) fn usage(&self) -> Option<PoolUsage> {
        let pools = self.pools();
        let usages = pools.iter().map(|pool| pool.usage());
        usages.reduce(|sum, usage| PoolUsage {
            total_bytes: sum.total_bytes + usage.total_bytes,
            used_bytes: sum.used_bytes + usage.used_bytes,
        })
    }

    /// The pool of the calling thread's node, or else any.
    fn near(&self) -> Option<Arc<BlockPools>> {
        let node = self.node_of_thread();
        let nodes = self.lock();
        let own = nodes.iter().find(|known| known.node == node);
        let own = own.and_then(|known| known.pool.as_ref());
        own.or_else(|| nodes.iter().find_map(|known| known.pool.as_ref()))
            .cloned()
    }

    fn pools(&self) -> Vec<Arc<BlockPools>> {
        let nodes = self.lock();
        nodes
            .iter()
            .filter_map(|known| known.pool.clone())
            .collect()
    }

    /// The node of the CPUs that the calling thread is bound to, if it is one. Asked once for each
    /// thread, as bound threads stay on their node.
    fn node_of_thread(&self) -> Option<usize> {
        thread_local! {
            static NODE: Cell<Option<Option<usize>>> = const { Cell::new(None) };
        }
        if let Some(node) = NODE.get() {
            return node;
        }
        let node = affinity::current_cpus().ok().and_then(|cpus| {
            let nodes = self.machine.nodes_of(&cpus);
            nodes.first().copied().filter(|_| nodes.len() == 1)
        });
        NODE.set(Some(node));
        node
    }

    fn lock(&self) -> MutexGuard<'_, Vec<NodePool>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// On a thread of its own, whose memory policy nobody else inherits. A node that the system does
/// not give memory of is passed over.
fn allocate_on(
    node: Option<usize>,
    device: &Arc<Device>,
    len: usize,
) -> Result<PinnedMemory, CudaError> {
    let Some(node) = node else {
        return PinnedMemory::allocate(device, len);
    };
    std::thread::scope(|scope| {
        let allocation = scope.spawn(|| {
            if let Err(error) = affinity::prefer_memory_of_current_thread(node) {
                log::verbose!(1, "cannot prefer memory of node {node}: {error}");
            }
            PinnedMemory::allocate(device, len)
        });
        match allocation.join() {
            Ok(memory) => memory,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
