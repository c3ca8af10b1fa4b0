//! One region, and those who use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use conch_cuda::{IpcHandle, IpcMapping};
use conch_log as log;
use conch_memory::{ByteView, SharedMapping};

use crate::shared_memory::RegionKind;
use crate::{Error, truncated};

/// Mapped memory with its name and its users' count.
#[derive(Debug)]
pub(crate) struct Region {
    memory: RegionMemory,
    pub(super) facts: RegionFacts,
}

/// What is mapped.
#[derive(Debug)]
pub(super) enum RegionMemory {
    System(Arc<SharedMapping>),
    /// A client's allocation on a device, of which so many bytes are the region.
    Cuda(Arc<IpcMapping>, u64),
}

impl Region {
    pub(super) fn new(memory: RegionMemory, facts: RegionFacts) -> Region {
        Region { memory, facts }
    }

    pub(super) fn kind(&self) -> RegionKind {
        match &self.memory {
            RegionMemory::System(_) => RegionKind::System,
            RegionMemory::Cuda(..) => RegionKind::Cuda,
        }
    }

    pub(super) fn byte_size(&self) -> u64 {
        match &self.memory {
            RegionMemory::System(mapping) => mapping.len() as u64,
            RegionMemory::Cuda(_, byte_size) => *byte_size,
        }
    }

    /// The bytes `start..start + len` for a user; none if they do not lie inside.
    pub(super) fn view(&self, start: u64, len: u64, user: RegionUse) -> Option<ByteView> {
        start
            .checked_add(len)
            .filter(|end| *end <= self.byte_size())?;
        let len = usize::try_from(len).ok()?;
        match &self.memory {
            RegionMemory::System(mapping) => mapping.view(usize::try_from(start).ok()?, len, user),
            RegionMemory::Cuda(mapping, _) => mapping.view(start, len, user),
        }
    }

    /// Whether somebody stumbled over memory that is not there any more.
    fn is_lost(&self) -> bool {
        match &self.memory {
            RegionMemory::System(mapping) => mapping.is_lost(),
            // It lives while it is mapped, whatever its owner does.
            RegionMemory::Cuda(..) => false,
        }
    }
}

/// Bit of the state: unregistered. Counts stay far below. With no user left the region is gone, and
/// stays so.
const LEAVING: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct RegionFacts {
    pub(super) name: Arc<str>,
    source: RegionSource,
    /// How many use it, and [`LEAVING`].
    state: AtomicU64,
    /// Where to send it when it is gone.
    gone: Sender<Arc<Region>>,
    is_loss_told: AtomicBool,
}

impl RegionFacts {
    pub(super) fn new(
        name: &Arc<str>,
        source: RegionSource,
        gone: &Sender<Arc<Region>>,
    ) -> RegionFacts {
        RegionFacts {
            name: Arc::clone(name),
            source,
            state: AtomicU64::new(0),
            gone: gone.clone(),
            is_loss_told: AtomicBool::new(false),
        }
    }

    /// Unregisters; whether it is gone with that.
    pub(super) fn retire(&self) -> bool {
        // Relaxed, here and below: the count guards no memory. The mapping goes with the last
        // reference, which orders it.
        self.state.fetch_or(LEAVING, Ordering::Relaxed) & !LEAVING == 0
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LEAVING
    }
}

/// A registered region, for who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionStatus {
    pub name: Arc<str>,
    pub source: RegionSource,
    pub byte_size: u64,
}

/// Whose memory a region is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionSource {
    /// A part of a shared memory object of the system.
    System { key: Box<str>, offset: u64 },
    /// An allocation on a device.
    Cuda { device_id: i64 },
}

pub(super) fn status(region: &Region) -> RegionStatus {
    RegionStatus {
        name: Arc::clone(&region.facts.name),
        source: region.facts.source.clone(),
        byte_size: region.byte_size(),
    }
}

/// # Errors
/// INVALID_ARG if the memory is gone. The log hears of it once.
pub(super) fn check(region: &Region) -> Result<(), Error> {
    if !region.is_lost() {
        return Ok(());
    }
    let name = &region.facts.name;
    if !region.facts.is_loss_told.swap(true, Ordering::Relaxed) {
        log::warning!(
            "shared memory region '{name}' has lost its memory: the object was made shorter after \
             it was registered, or the system has no room for it; requests that use it fail until \
             it is registered anew"
        );
    }
    Err(Error::invalid(format!(
        "the memory of shared memory region '{name}' is gone: it was made shorter after it was \
         registered, or has no room; unregister the region and register it anew",
        name = truncated(&name)
    )))
}

/// One user of a region. Whoever else refers to the region from outside of the table lets go of it
/// before, so that it is unmapped by the thread for that.
#[derive(Debug)]
pub(crate) struct RegionUse {
    /// None only while it is dropped.
    region: Option<Arc<Region>>,
}

/// The handle that the client registered a region with, if these bytes lie in one on a GPU.
pub fn cuda_handle(view: &ByteView) -> Option<IpcHandle> {
    IpcMapping::behind::<RegionUse>(view).map(IpcMapping::handle)
}

/// Counts a user in; none if the region is gone.
pub(super) fn enter(region: Arc<Region>) -> Option<RegionUse> {
    region
        .facts
        .state
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
            (state != LEAVING).then_some(state + 1)
        })
        .ok()?;
    Some(RegionUse {
        region: Some(region),
    })
}

impl RegionUse {
    pub(super) fn region(&self) -> &Arc<Region> {
        self.region.as_ref().expect("only drop takes it")
    }

    /// Another user, which a region in use never refuses.
    pub(super) fn another(&self) -> RegionUse {
        let region = Arc::clone(self.region());
        region.facts.state.fetch_add(1, Ordering::Relaxed);
        RegionUse {
            region: Some(region),
        }
    }
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else {
            return;
        };
        let before = region.facts.state.fetch_sub(1, Ordering::Relaxed);
        if before == LEAVING + 1 {
            let gone = region.facts.gone.clone();
            // Should the thread that unmaps be gone, it happens here after all.
            let _ = gone.send(region);
        }
    }
}
