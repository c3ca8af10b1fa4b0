//! Pinned host memory: a pool on each NUMA node that has a GPU in use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_cuda::{CudaError, Device, PinnedMemory, PinnedPool, PoolUsage};
use conch_log as log;
use conch_net::affinity;
use conch_net::machine::Machine;

/// The pools of pinned memory. Usable from every thread.
#[derive(Debug)]
pub(super) struct PinnedPools {
    machine: Machine,
    /// Bytes of each.
    pool_bytes: u64,
    /// By node, as far as nodes are known; none where the driver had no memory.
    pools: Mutex<BTreeMap<Option<usize>, Option<Arc<PinnedPool>>>>,
}

impl PinnedPools {
    pub(super) fn new(machine: Machine, pool_bytes: u64) -> PinnedPools {
        PinnedPools {
            machine,
            pool_bytes,
            pools: Mutex::default(),
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
        if self.lock().contains_key(&node) {
            return;
        }
        let pool = match allocate_on(node, device, len) {
            Ok(memory) => {
                let (address, bytes) = (memory.base(), self.pool_bytes);
                log::info!("Pinned memory pool is created at '{address:p}' with size {bytes}");
                Some(Arc::new(PinnedPool::new(memory)))
            }
            Err(error) => {
                let bytes = self.pool_bytes;
                log::warning!("there is no pool of {bytes} bytes of pinned memory: {error}");
                None
            }
        };
        self.lock().insert(node, pool);
    }

    /// Whether a device was opened.
    pub(super) fn is_open(&self) -> bool {
        !self.lock().is_empty()
    }

    /// The address of `len` bytes: from the pool of the calling thread's node if it is bound to one
    /// that has a pool, else from any with room. None if there is no room.
    pub(super) fn allocate(&self, len: u64) -> Option<u64> {
        let own = self.node_of_thread();
        let pools = self.lock().clone();
        let near = pools.get(&own).cloned().flatten();
        let rest = pools.into_iter().filter(|(node, _)| *node != own);
        let mut in_order = near.into_iter().chain(rest.filter_map(|(_, pool)| pool));
        in_order.find_map(|pool| pool.allocate(len))
    }

    /// Gives back what [`PinnedPools::allocate`] returned. Returns false for any other address.
    pub(super) fn free(&self, address: u64) -> bool {
        let pools = self.lock().clone();
        pools.values().flatten().any(|pool| pool.free(address))
    }

    /// Bytes of all pools; none while there is none.
    pub(super) fn usage(&self) -> Option<PoolUsage> {
        let pools = self.lock().clone();
        let usages = pools.values().flatten().map(|pool| pool.usage());
        usages.reduce(|sum, usage| PoolUsage {
            total_bytes: sum.total_bytes + usage.total_bytes,
            used_bytes: sum.used_bytes + usage.used_bytes,
        })
    }

    /// The node of the CPUs that the calling thread is bound to, if it is one.
    fn node_of_thread(&self) -> Option<usize> {
        let cpus = affinity::current_cpus().ok()?;
        match &self.machine.nodes_of(&cpus)[..] {
            [node] => Some(*node),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<usize>, Option<Arc<PinnedPool>>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
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
