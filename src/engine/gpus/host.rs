//! The process' devices, and what is made for each when it is first used.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use conch_config::Gpus;
use conch_cuda::{
    CudaError, Device, DeviceMemory, DevicePool, DeviceProperties, Driver, PoolUsage,
};
use conch_log as log;
use conch_memory::{Block, ByteView, Owner, Pool};
use conch_net::machine::Machine;

use super::pinned::PinnedPools;
use super::{DeviceBlock, GpuMemory, GpuOptions};
use crate::Error;

/// The GPUs of this process; none on a host without.
#[derive(Debug)]
pub struct GpuHost {
    options: GpuOptions,
    /// Ascending by device id.
    gpus: Vec<Gpu>,
    pub(super) pinned: PinnedPools,
    /// Devices are opened one after the other.
    opening: Mutex<()>,
}

/// A device that models may use.
#[derive(Debug)]
pub struct Gpu {
    pub properties: DeviceProperties,
    driver: Driver,
    memory: OnceLock<GpuMemory>,
    /// Why it does not work any more.
    pub(super) fault: Mutex<Option<Error>>,
}

static OF_PROCESS: OnceLock<Arc<GpuHost>> = OnceLock::new();

impl GpuHost {
    /// The process' GPUs, found by the first call, which blocks while the driver starts. Later
    /// calls get the same, whatever their options.
    pub fn of_process(options: &GpuOptions) -> Arc<GpuHost> {
        Arc::clone(OF_PROCESS.get_or_init(|| {
            let machine = || Machine::read(Path::new("/"), &[]);
            Arc::new(GpuHost::find(options, machine))
        }))
    }

    /// No GPUs, whatever the host has: the driver is not looked for.
    pub fn without_driver(options: &GpuOptions) -> Arc<GpuHost> {
        Arc::new(GpuHost {
            options: options.clone(),
            gpus: Vec::new(),
            pinned: PinnedPools::new(Machine::uniform(&[]), options.pinned_pool_bytes),
            opening: Mutex::new(()),
        })
    }

    /// As [`GpuHost::of_process`], for who has no options: none are there before a server is.
    pub fn current() -> Option<&'static Arc<GpuHost>> {
        OF_PROCESS.get()
    }

    /// Whether this process has GPUs.
    pub fn is_in_use() -> bool {
        OF_PROCESS.get().is_some_and(|host| !host.gpus.is_empty())
    }

    /// Whether this process has the GPU `device_id`.
    pub fn has(device_id: i64) -> bool {
        let is_it = |gpu: &Gpu| i64::from(gpu.device_id()) == device_id;
        OF_PROCESS
            .get()
            .is_some_and(|host| host.gpus.iter().any(is_it))
    }

    /// `machine` tells which device is next to which NUMA node; asked only if there is a device.
    pub(super) fn find(options: &GpuOptions, machine: impl FnOnce() -> Machine) -> GpuHost {
        let gpus = match Driver::load() {
            Ok(driver) => found(driver, options),
            Err(absent) => {
                log::info!("no GPU is used: {absent}");
                Vec::new()
            }
        };
        let machine = match gpus.is_empty() {
            true => Machine::uniform(&[]),
            false => machine(),
        };
        GpuHost {
            options: options.clone(),
            gpus,
            pinned: PinnedPools::new(machine, options.pinned_pool_bytes),
            opening: Mutex::new(()),
        }
    }

    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    pub fn options(&self) -> &GpuOptions {
        &self.options
    }

    /// The devices as instance groups see them. Messages about a host without devices name no
    /// capability (0), as upstream's build without GPUs does.
    pub fn for_config(&self) -> Gpus {
        if self.gpus.is_empty() {
            return Gpus::default();
        }
        Gpus {
            ids: self.gpus.iter().map(Gpu::device_id).collect(),
            min_compute_capability: self.options.capability_min,
        }
    }

    /// The memory of a device, with its context. Makes both at the first call, which blocks for
    /// some 100 ms.
    ///
    /// # Errors
    /// INVALID_ARG if there is no such device; INTERNAL, what the driver refuses.
    pub fn memory(&self, device_id: i64) -> Result<&GpuMemory, Error> {
        let gpu = self
            .gpus
            .iter()
            .find(|gpu| i64::from(gpu.device_id()) == device_id);
        let gpu = gpu.ok_or_else(|| Error::invalid(format!("there is no GPU {device_id}")))?;
        if let Some(memory) = gpu.memory.get() {
            return Ok(memory);
        }
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = gpu.memory.get() {
            return Ok(memory);
        }
        let memory = self
            .open(gpu)
            .map_err(|error| failed(gpu.device_id(), error))?;
        Ok(gpu.memory.get_or_init(|| memory))
    }

    fn open(&self, gpu: &Gpu) -> Result<GpuMemory, CudaError> {
        let device = gpu.driver.open(gpu.properties.clone())?;
        self.connect(&device);
        self.pinned.open(&device);
        let bytes = self.options.pool_bytes_of(device.ordinal());
        let pool = (bytes > 0)
            .then(|| DeviceMemory::allocate(&device, bytes))
            .transpose();
        let ordinal = device.ordinal();
        let pool = match pool {
            Ok(pool) => pool.map(DevicePool::new),
            Err(error) => {
                log::warning!("GPU {ordinal} has no pool of {bytes} bytes: {error}");
                None
            }
        };
        if let Some(pool) = &pool {
            let size = pool.usage().total_bytes;
            log::info!("CUDA memory pool is created on device {ordinal} with size {size}");
        }
        Ok(GpuMemory::new(device, pool))
    }

    /// Lets a device and those that are open already reach each other.
    fn connect(&self, device: &Arc<Device>) {
        if !self.options.enables_peer_access {
            return;
        }
        for other in self.gpus.iter().filter_map(|gpu| gpu.memory.get()) {
            let other = other.device();
            for (from, to) in [(device, other), (other, device)] {
                if let Err(error) = from.enable_peer_access(to) {
                    let (from, to) = (from.ordinal(), to.ordinal());
                    log::warning!("GPU {from} cannot reach the memory of GPU {to}: {error}");
                }
            }
        }
    }

    /// The address of `len` bytes of pinned memory, from the pool of the calling thread's NUMA node
    /// if it has one with room, or none. They are the caller's until [`GpuHost::free_pinned`].
    /// Opens the first device if none is in use.
    ///
    /// # Errors
    /// INVALID_ARG on a host without GPUs; INTERNAL, what the driver refuses.
    pub fn allocate_pinned(&self, len: u64) -> Result<Option<u64>, Error> {
        if !self.pinned.is_open() {
            let first = self.gpus.first().map_or(0, Gpu::device_id);
            self.memory(i64::from(first))?;
        }
        Ok(self.pinned.allocate(len))
    }

    /// Gives back what [`GpuHost::allocate_pinned`] returned. Returns false for any other address.
    pub fn free_pinned(&self, address: u64) -> bool {
        self.pinned.free(address)
    }

    /// Blocks of pinned memory near the calling thread, for outputs that leave a GPU; none while no
    /// GPU is in use. A block is of ordinary memory if there is no room.
    pub fn output_pool() -> Option<Arc<Pool>> {
        GpuHost::current()?.pinned.outputs()
    }

    /// As [`GpuHost::output_pool`], for bodies that go to a GPU.
    pub fn body_pool() -> Option<Arc<Pool>> {
        GpuHost::current()?.pinned.bodies()
    }

    /// Room on a device for an output of the model `owner`, see [`GpuMemory::block_for`]; none if
    /// there is no such device.
    pub fn device_block(device_id: i64, owner: Owner, len: usize) -> Option<DeviceBlock> {
        let memory = GpuHost::current()?.memory(device_id).ok()?;
        memory.block_for(owner, len)
    }

    /// Bytes of the pools of pinned memory; none while there is none.
    pub fn pinned_usage(&self) -> Option<PoolUsage> {
        self.pinned.usage()
    }

    /// Appends the bytes of a view of device memory to `target`. Blocks for the copy.
    ///
    /// # Errors
    /// INTERNAL, what the driver refuses.
    pub fn read(view: &ByteView, target: &mut Block) -> Result<(), Error> {
        let device_id = view.place().id;
        let copied = memory_of(view)?.read(view, target);
        copied.map_err(|error| Error::internal(format!("GPU {device_id}: {error}")))
    }

    /// Copies `bytes` to the beginning of a region's view of device memory. Blocks for the copy.
    ///
    /// # Errors
    /// INTERNAL, what the driver refuses.
    pub fn write(bytes: &[u8], target: &ByteView) -> Result<(), Error> {
        let device_id = target.place().id;
        let copied = memory_of(target)?.write(bytes, target);
        copied.map_err(|error| Error::internal(format!("GPU {device_id}: {error}")))
    }

    /// Whether another instance may be made on a device (`--model-load-gpu-limit`).
    ///
    /// # Errors
    /// UNAVAILABLE, in upstream's words, if too much of its memory is in use; INTERNAL, what the
    /// driver refuses.
    pub fn check_load_limit(&self, instance: &str, device_id: i32) -> Result<(), Error> {
        let Some(limit) = self.options.load_limits.get(&device_id) else {
            return Ok(());
        };
        let device = self.memory(i64::from(device_id))?.device();
        let info = device.memory_info();
        let (free_bytes, total_bytes) = info.map_err(|error| failed(device_id, error))?;
        let used_bytes = total_bytes.saturating_sub(free_bytes);
        if used_bytes as f64 > total_bytes as f64 * limit {
            return Err(Error::unavailable(format!(
                "can not create model '{instance}': memory limit set for GPU {device_id} has \
                 exceeded, model loading is rejected."
            )));
        }
        Ok(())
    }
}

impl Gpu {
    pub fn device_id(&self) -> i32 {
        self.properties.ordinal
    }

    /// Its memory, if it is in use.
    pub fn memory(&self) -> Option<&GpuMemory> {
        self.memory.get()
    }
}

/// The devices that are new enough.
fn found(driver: Driver, options: &GpuOptions) -> Vec<Gpu> {
    let all = driver.devices().unwrap_or_else(|error| {
        log::error!("no GPU is used: {error}");
        Vec::new()
    });
    let (used, left): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|device| capability(device) >= options.capability_min);
    for device in left {
        log::warning!(
            "ignoring GPU {}, {}: compute capability {} is below {:.1} \
             (--min-supported-compute-capability)",
            device.ordinal,
            device.name,
            device.capability,
            options.capability_min
        );
    }
    let gpus = used.into_iter().map(|properties| Gpu {
        properties,
        driver,
        memory: OnceLock::new(),
        fault: Mutex::default(),
    });
    gpus.collect()
}

/// As a number, as the flag has it.
fn capability(device: &DeviceProperties) -> f64 {
    f64::from(device.capability.major) + f64::from(device.capability.minor) / 10.0
}

/// The memory that a view lies in.
fn memory_of(view: &ByteView) -> Result<&'static GpuMemory, Error> {
    let host = GpuHost::current().ok_or_else(|| Error::internal("there is no GPU"))?;
    host.memory(view.place().id)
}

fn failed(device_id: i32, error: CudaError) -> Error {
    Error::internal(format!("GPU {device_id}: {error}"))
}
