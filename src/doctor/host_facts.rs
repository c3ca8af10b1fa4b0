//! What the machine tells of itself, read once.

use std::path::{Path, PathBuf};

use conch_cuda::{DeviceProperties, Driver, DriverAbsent};
use conch_engine::threads::topology::Topology;
use conch_net::limits::{self, ProcessLimit};
use conch_net::machine::{Machine, SystemFiles};
use conch_net::ring::{Ring, Setup};
use conch_net::uring;

/// What a server asks of its process.
#[derive(Clone, Copy, Debug)]
pub struct Requirements {
    pub open_files: u64,
    /// None if its network threads lock no memory.
    pub locked_bytes: Option<u64>,
}

/// What an examination is made from.
pub struct HostFacts {
    root: PathBuf,
    /// The CPUs that this process may use, and what they are part of.
    pub(crate) topology: Topology,
    /// How the kernel runs rings; the refusal in words otherwise.
    pub(crate) ring: Result<Setup, String>,
    /// The most that this process may have; none if the system refuses to tell.
    pub(crate) open_files: Option<u64>,
    pub(crate) locked_bytes: Option<u64>,
    /// Of shared memory: of all and free; none without a file system for it.
    pub(crate) shared_bytes: Option<(u64, u64)>,
    pub(crate) gpus: Result<GpuDriver, DriverAbsent>,
}

/// What the driver of GPUs tells.
pub(crate) struct GpuDriver {
    /// Of CUDA.
    pub(crate) version: (i32, i32),
    /// The refusal in words if it does not tell.
    pub(crate) devices: Result<Vec<DeviceProperties>, String>,
}

const RING_ENTRIES: u32 = 4;

impl HostFacts {
    /// Those of this process. It raises this process' limits as a server does, makes a ring for a
    /// moment, and loads the driver of GPUs, which may block for seconds.
    pub fn here() -> HostFacts {
        let soft = |limit: ProcessLimit| limit.soft;
        let ring = Ring::new(RING_ENTRIES).map(|ring| ring.setup());
        HostFacts {
            root: PathBuf::from("/"),
            topology: Topology::detect(),
            ring: ring.map_err(|error| uring::explain(&error)),
            open_files: limits::raise_open_files(u64::MAX).ok().map(soft),
            locked_bytes: limits::raise_locked_memory(u64::MAX).ok().map(soft),
            shared_bytes: rustix::fs::statvfs("/dev/shm").ok().map(|system| {
                let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
                (bytes(system.f_blocks), bytes(system.f_bavail))
            }),
            gpus: Driver::load().map(|driver| GpuDriver {
                version: driver.version(),
                devices: driver.devices().map_err(|error| error.to_string()),
            }),
        }
    }

    /// Those of a machine whose files lie below `root`, with nothing to complain of in its process.
    #[cfg(test)]
    pub(crate) fn recorded(root: &Path, cpus: &[usize], quota_cpus: Option<f64>) -> HostFacts {
        let machine = Machine::read(root, cpus);
        HostFacts {
            root: root.to_owned(),
            topology: Topology::new(machine, cpus.to_vec(), quota_cpus),
            ring: Ok(Setup::Deferred),
            open_files: Some(1 << 20),
            locked_bytes: Some(u64::MAX),
            shared_bytes: Some((32 << 30, 31 << 30)),
            gpus: Err(DriverAbsent::NoLibrary),
        }
    }

    pub(crate) fn files(&self) -> SystemFiles<'_> {
        SystemFiles::new(Path::new(&self.root))
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.topology.machine
    }

    /// The folder of sysfs of this process' control group, without the root; none without control
    /// groups of version 2.
    pub(crate) fn control_group(&self) -> Option<String> {
        let own = self.files().text("proc/self/cgroup")?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        Some(
            format!("{CONTROL_GROUPS}/{path}")
                .trim_end_matches('/')
                .to_owned(),
        )
    }

    /// The value of file `name` of this process' control group and of all that it is part of.
    pub(crate) fn control_group_values(&self, name: &str) -> Vec<String> {
        let Some(mut folder) = self.control_group() else {
            return Vec::new();
        };
        let files = self.files();
        let mut values = Vec::new();
        loop {
            values.extend(files.text(&format!("{folder}/{name}")));
            match folder.rsplit_once('/') {
                Some((parent, _)) if folder.len() > CONTROL_GROUPS.len() => {
                    folder.truncate(parent.len());
                }
                _ => return values,
            }
        }
    }
}

const CONTROL_GROUPS: &str = "sys/fs/cgroup";
