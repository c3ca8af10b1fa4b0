//! The regions that clients registered.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use arc_swap::ArcSwap;
use conch_cuda::{IpcHandle, IpcMapping};
use conch_log as log;
use conch_memory::{AllowedOwners, MapError, SharedMapping, fault};

use crate::gpus::GpuHost;
use crate::shared_memory::region::{Region, RegionFacts, RegionMemory, enter};
use crate::shared_memory::{RegionKind, RegionSource, RegionStatus, RegionWindow, region};
use crate::{Code, Error, truncated};

/// Clients may register so many regions; the watch over their memory has room for twice as many, as
/// those that leave take a while.
const REGIONS_MAX: usize = 8 << 10;

/// The longest name of a region. Upstream has no bound; with this one the names take up 32 MiB at
/// most.
pub(crate) const NAME_BYTES_MAX: usize = 4 << 10;

/// Keys that begin so (but for slashes) belong to the Python backend.
const RESERVED_PREFIX: &str = "triton_python_backend_shm_region_";

/// What is said to who wants to register or unregister where that is not allowed.
pub(crate) const DISABLED: &str =
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";

/// The names at one moment. A name may belong to a region that is gone already.
type RegionNames = HashMap<Arc<str>, Weak<Region>>;
type RegionTable = BTreeMap<Arc<str>, Arc<Region>>;

/// All regions of a server. The default can have none.
#[derive(Default)]
pub struct Regions {
    table: Mutex<RegionTable>,
    names: ArcSwap<RegionNames>,
    /// To the thread that unmaps; none where no region may be registered.
    gone: Option<Sender<Arc<Region>>>,
    /// Whose objects may be registered.
    owners: AllowedOwners,
}

impl Regions {
    /// No regions yet. Unless enabled none can be registered, and neither a thread nor a signal
    /// handler is there for them.
    ///
    /// # Errors
    /// INTERNAL if the system refuses one of these.
    pub fn start(is_enabled: bool, owners: AllowedOwners) -> Result<Arc<Regions>, Error> {
        if !is_enabled {
            return Ok(Arc::default());
        }
        fault::install().map_err(|error| {
            Error::internal(format!(
                "cannot install a handler for memory faults: {error}"
            ))
        })?;
        let (gone, receiver) = channel::<Arc<Region>>();
        let regions = Arc::new(Regions {
            gone: Some(gone),
            owners,
            ..Regions::default()
        });
        let own = Arc::downgrade(&regions);
        thread::Builder::new()
            .name("regions".to_owned())
            .spawn(move || {
                // Ends when the last region is gone after the server.
                for region in receiver {
                    if let Some(regions) = own.upgrade() {
                        regions.forget(&region);
                    }
                }
            })
            .map_err(|error| {
                Error::internal(format!("cannot start a thread for shared memory: {error}"))
            })?;
        Ok(regions)
    }

    /// Whether clients may register regions.
    pub fn is_enabled(&self) -> bool {
        self.gone.is_some()
    }

    fn sender(&self) -> Result<&Sender<Arc<Region>>, Error> {
        self.gone
            .as_ref()
            .ok_or_else(|| Error::unsupported(DISABLED))
    }

    /// # Errors
    /// UNSUPPORTED unless clients may register regions.
    pub fn check_enabled(&self) -> Result<(), Error> {
        self.sender().map(|_| ())
    }

    /// Maps `byte_size` bytes from `offset` on of the shared memory object `key`. Blocks.
    ///
    /// # Errors
    /// In upstream's words: UNSUPPORTED unless enabled, INVALID_ARG for keys and bounds that are no
    /// good, ALREADY_EXISTS for a name that is taken, INTERNAL for an object that cannot be opened.
    /// Objects of users that are not allowed are INVALID_ARG, whose text names the option; the log
    /// has the user, too.
    pub fn register(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), Error> {
        let gone = self.sender()?;
        check_key(name, key)?;
        let mut table = self.lock();
        check_room(&table, name)?;
        let unopened = || {
            Error::internal(format!(
                "Unable to open shared memory region: '{key}'",
                key = truncated(&key)
            ))
        };
        // A name with a NUL inside is none.
        let c_key = CString::new(key).map_err(|_| unopened())?;
        let name: Arc<str> = Arc::from(name);
        let source = RegionSource::System {
            key: key.into(),
            offset,
        };
        let facts = RegionFacts::new(&name, source, gone);
        let refused = |why: &str| {
            Error::invalid(format!(
                "failed to register shared memory region '{name}': {why}",
                name = truncated(&name)
            ))
        };
        let mapping = SharedMapping::open(&c_key, offset, byte_size, &self.owners);
        let mapping = mapping.map_err(|error| match error {
            MapError::Open(error) => {
                log::verbose!(1, "cannot open the shared memory object '{key}': {error}");
                unopened()
            }
            MapError::Unusable => Error::internal(format!(
                "Invalid shared memory region: '{key}'",
                key = truncated(&key)
            )),
            MapError::Foreign(owner) => {
                log::warning!(
                    "refused to register shared memory: '{key}' belongs to user {owner}, and \
                     --shm-allowed-uids does not have that one"
                );
                refused(&format!(
                    "'{key}' belongs to a user whose memory the server does not take (see \
                     --shm-allowed-uids)"
                ))
            }
            MapError::OutOfBounds => refused("invalid args"),
            MapError::Map(error) => {
                log::verbose!(1, "cannot map the shared memory object '{key}': {error}");
                refused(&format!(
                    "unable to process address space{}",
                    reason(&error)
                ))
            }
            MapError::TooMany => too_many(),
        })?;
        let memory = RegionMemory::System(Arc::new(mapping));
        table.insert(name, Arc::new(Region::new(memory, facts)));
        self.publish(&table);
        Ok(())
    }

    /// Whether there are GPUs whose memory could be a region called `name`.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words where there are none.
    pub fn check_cuda(&self, name: &str) -> Result<(), Error> {
        gpus_for(name).map(|_| ())
    }

    /// Maps the allocation that `handle` names, another process' memory on a GPU, of which
    /// `byte_size` bytes are the region. Blocks.
    ///
    /// # Errors
    /// In upstream's words: UNSUPPORTED unless enabled, ALREADY_EXISTS for a name that is taken,
    /// INVALID_ARG on a host without GPUs, for a device that is not there, a handle that the driver
    /// refuses, and more bytes than the allocation has.
    pub fn register_cuda(
        &self,
        name: &str,
        handle: IpcHandle,
        device_id: i64,
        byte_size: u64,
    ) -> Result<(), Error> {
        let gone = self.sender()?;
        let refused = |why: &dyn fmt::Display| {
            Error::invalid(format!(
                "failed to register CUDA shared memory region '{name}': {why}",
                name = truncated(&name)
            ))
        };
        let gpus = gpus_for(name)?;
        let mut table = self.lock();
        check_room(&table, name)?;
        let memory = gpus.memory(device_id);
        let device = memory.map_err(|error| refused(&error.message))?.device();
        let mapping = IpcMapping::open(device, handle)
            .map_err(|error| refused(&format_args!("failed to open CUDA IPC handle: {error}")))?;
        if byte_size > mapping.len() {
            return Err(refused(&format_args!(
                "the allocation has {} bytes, not {byte_size}",
                mapping.len()
            )));
        }
        let name: Arc<str> = Arc::from(name);
        let facts = RegionFacts::new(&name, RegionSource::Cuda { device_id }, gone);
        let memory = RegionMemory::Cuda(Arc::new(mapping), byte_size);
        table.insert(name, Arc::new(Region::new(memory, facts)));
        self.publish(&table);
        Ok(())
    }

    /// Gives the region of this kind that is called `name` up, now or when the last request that
    /// uses it is done. Unknown names are no error, as upstream. Blocks.
    ///
    /// # Errors
    /// UNSUPPORTED unless enabled.
    pub fn unregister(&self, kind: RegionKind, name: &str) -> Result<(), Error> {
        self.sender()?;
        let mut table = self.lock();
        let Some(region) = table.get(name).filter(|region| region.kind() == kind) else {
            return Ok(());
        };
        if region.facts.retire() {
            let region = table.remove(name);
            self.publish(&table);
            drop(table);
            // Unmapped here.
            drop(region);
        } else {
            log::verbose!(
                1,
                "shared memory region '{name}' is in use; it goes with the last request"
            );
        }
        Ok(())
    }

    /// [`Regions::unregister`] for all of a kind. Blocks.
    ///
    /// # Errors
    /// UNSUPPORTED unless enabled.
    pub fn unregister_all(&self, kind: RegionKind) -> Result<(), Error> {
        self.sender()?;
        let mut table = self.lock();
        let gone: Vec<Arc<Region>> = table
            .extract_if(.., |_, region| {
                region.kind() == kind && region.facts.retire()
            })
            .map(|(_, region)| region)
            .collect();
        self.publish(&table);
        drop(table);
        // Unmapped here.
        drop(gone);
        Ok(())
    }

    /// The region of this kind that is called `name`, or all of the kind by name for an empty one.
    /// Takes time in proportion to their number.
    ///
    /// # Errors
    /// NOT_FOUND in upstream's words for a name that is not known, or is of the other kind.
    pub fn status(&self, kind: RegionKind, name: &str) -> Result<Vec<RegionStatus>, Error> {
        let table = self.lock();
        let present = |region: &&Arc<Region>| !region.facts.is_gone();
        if name.is_empty() {
            let of_kind = |region: &&Arc<Region>| region.kind() == kind;
            let found = table.values().filter(present).filter(of_kind);
            return Ok(found.map(|region| region::status(region)).collect());
        }
        match table.get(name).filter(present) {
            Some(region) if region.kind() == kind => Ok(vec![region::status(region)]),
            known => Err(Error::not_found(absent(kind, known.is_some(), name))),
        }
    }

    /// The bytes `offset..offset + byte_size` of the region called `name`, which is in use for as
    /// long as the window, or a view of it, lives. Does not block; allocates.
    ///
    /// # Errors
    /// NOT_FOUND for a name that is not known; INVALID_ARG for bytes outside of the region, and for
    /// a region whose memory is gone.
    pub fn window(&self, name: &str, offset: u64, byte_size: u64) -> Result<RegionWindow, Error> {
        let unknown = || {
            Error::not_found(format!(
                "Unable to find shared memory region: '{name}'",
                name = truncated(&name)
            ))
        };
        let region = self.names.load().get(name).and_then(Weak::upgrade);
        let used = enter(region.ok_or_else(unknown)?).ok_or_else(unknown)?;
        let size = used.region().byte_size();
        if offset >= size {
            return Err(Error::invalid(format!(
                "Invalid offset for shared memory region: '{name}'",
                name = truncated(&name)
            )));
        }
        let end = offset.checked_add(byte_size).ok_or_else(|| {
            Error::invalid(format!(
                "Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds \
                 maximum value ({}) for region '{name}'",
                u64::MAX,
                name = truncated(&name)
            ))
        })?;
        let outside = || {
            Error::invalid(format!(
                "Invalid offset + byte size for shared memory region: '{name}'",
                name = truncated(&name)
            ))
        };
        if end > size {
            return Err(outside());
        }
        region::check(used.region())?;
        let view = used.region().view(offset, byte_size, used.another());
        Ok(RegionWindow {
            view: view.ok_or_else(outside)?,
            used,
        })
    }

    /// Takes a region that is gone out of the table, unless another has got its name.
    fn forget(&self, region: &Arc<Region>) {
        let mut table = self.lock();
        let name = &region.facts.name;
        if table
            .get(name)
            .is_some_and(|known| Arc::ptr_eq(known, region))
        {
            table.remove(name);
            self.publish(&table);
        }
    }

    fn publish(&self, table: &RegionTable) {
        let names = table
            .iter()
            .map(|(name, region)| (Arc::clone(name), Arc::downgrade(region)));
        self.names.store(Arc::new(names.collect()));
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RegionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Regions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Regions")
            .field("is_enabled", &self.is_enabled())
            .finish_non_exhaustive()
    }
}

/// # Errors
/// INVALID_ARG for keys that are nothing but slashes, and for those of the Python backend.
fn check_key(name: &str, key: &str) -> Result<(), Error> {
    let bare = key.trim_start_matches('/');
    if bare.is_empty() {
        return Err(Error::invalid(format!(
            "cannot register shared memory region '{name}' - invalid shm key '{key}'",
            name = truncated(&name),
            key = truncated(&key)
        )));
    }
    if bare.starts_with(RESERVED_PREFIX) {
        return Err(Error::invalid(format!(
            "cannot register shared memory region '{name}' with key '{key}' as the key contains \
             the reserved prefix '{RESERVED_PREFIX}'",
            name = truncated(&name),
            key = truncated(&key)
        )));
    }
    Ok(())
}

fn gpus_for(name: &str) -> Result<&'static GpuHost, Error> {
    let gpus = GpuHost::current().filter(|gpus| !gpus.gpus().is_empty());
    let gpus = gpus.ok_or_else(|| {
        Error::invalid(format!(
            "failed to register CUDA shared memory region: '{name}', GPUs not supported",
            name = truncated(&name)
        ))
    })?;
    Ok(gpus)
}

/// Whether a region may be called `name`.
///
/// # Errors
/// INVALID_ARG for a name that is too long, ALREADY_EXISTS for one that is taken, UNAVAILABLE if
/// there are too many.
fn check_room(table: &RegionTable, name: &str) -> Result<(), Error> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the name of a shared memory region must not be longer than {NAME_BYTES_MAX} bytes"
        )));
    }
    if table
        .get(name)
        .is_some_and(|region| !region.facts.is_gone())
    {
        return Err(Error::new(
            Code::AlreadyExists,
            format!(
                "shared memory region '{name}' already in manager",
                name = truncated(&name)
            ),
        ));
    }
    if table.len() >= REGIONS_MAX {
        return Err(too_many());
    }
    Ok(())
}

/// Why there is no region of this kind called `name`; `is_other`: there is one of the other kind.
fn absent(kind: RegionKind, is_other: bool, name: &str) -> String {
    let name = truncated(&name);
    match (kind, is_other) {
        (RegionKind::System, false) => {
            format!("Unable to find system shared memory region: '{name}'")
        }
        (RegionKind::Cuda, false) => format!("Unable to find cuda shared memory region: '{name}'"),
        (RegionKind::System, true) => format!(
            "The region named '{name}' is registered as CUDA shared memory, not system shared \
             memory"
        ),
        (RegionKind::Cuda, true) => format!(
            "The region named '{name}' is registered as system shared memory, not CUDA shared \
             memory"
        ),
    }
}

fn too_many() -> Error {
    Error::unavailable(format!(
        "too many shared memory regions are registered: at most {REGIONS_MAX} may be"
    ))
}

/// The system's words alone, as C programs print them.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
