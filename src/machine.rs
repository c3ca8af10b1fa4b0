//! Checks the machine before anything is loaded: CPUs, limits, io_uring. A refusal comes at once
//! and says what to change.

use conch_cli::Arguments;
use conch_engine::threads::topology::Topology;
use conch_frontend::LOCKED_BYTES_MIN;
use conch_net::{limits, uring};

/// Descriptors beside client connections: rings, backends' files, the log.
pub const OWN_FILES: u64 = 512;
pub const CONNECTIONS_MAX: usize = 65_536;

pub struct MachineFacts {
    /// One shard per entry.
    pub shard_cpus: Vec<usize>,
    /// Whether at least two CPUs are left for cores alone.
    pub has_spare_cpus: bool,
    pub connections_max: usize,
}

/// Raises limits, probes io_uring, and divides the CPUs.
///
/// # Errors
/// One line that names what is missing and how to provide it.
pub fn prepare(arguments: &Arguments) -> Result<MachineFacts, String> {
    uring::probe().map_err(|error| error.to_string())?;
    let locked = limits::raise_locked_memory(u64::MAX)
        .map_err(|error| format!("cannot read RLIMIT_MEMLOCK: {error}"))?;
    if LOCKED_BYTES_MIN.is_some_and(|needed| locked.soft < needed) {
        return Err(format!(
            "RLIMIT_MEMLOCK is {} bytes, the network threads need {}; raise it \
             (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock=)",
            locked.soft,
            LOCKED_BYTES_MIN.unwrap_or_default()
        ));
    }
    let wanted = arguments.connections_max.unwrap_or(CONNECTIONS_MAX);
    let files = limits::raise_open_files((wanted as u64).saturating_add(OWN_FILES))
        .map_err(|error| format!("cannot read RLIMIT_NOFILE: {error}"))?;
    let allowed = usize::try_from(files.soft.saturating_sub(OWN_FILES).max(files.soft / 2))
        .unwrap_or(usize::MAX);
    if let Some(asked) = arguments.connections_max
        && asked > allowed
    {
        return Err(format!(
            "--connections-max={asked} needs more open files than RLIMIT_NOFILE allows ({}); \
             raise it (ulimit -n) or ask for {allowed}",
            files.soft
        ));
    }
    let topology = Topology::detect();
    let shard_cpus = topology.shard_cpus(arguments.shard_count);
    Ok(MachineFacts {
        has_spare_cpus: topology.cpu_count >= shard_cpus.len() + 2,
        shard_cpus,
        connections_max: wanted.min(allowed),
    })
}
