//! Memory of a device that engines work in.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use conch_cuda::{DeviceAddress, DeviceMemory};

use super::engine_stream::EngineStream;
use crate::Error;

/// Memory of an instance's device. Copies are the same memory. What it held is kept until the batch
/// that used it is done.
#[derive(Clone)]
pub struct EngineBlock {
    compute: EngineStream,
    memory: Arc<Mutex<Memory>>,
}

struct Memory {
    current: DeviceMemory,
    /// Outgrown, perhaps under copies.
    old: Vec<DeviceMemory>,
}

impl EngineBlock {
    /// Memory of `len` bytes, all zero.
    ///
    /// # Errors
    /// `Unavailable` if the device has no room; `Internal` for what else the driver refuses.
    pub fn new(compute: &EngineStream, len: usize) -> Result<Self, Error> {
        let current = allocate(compute, len)?;
        let stream = compute.stream();
        // SAFETY: fresh memory, which lives until the stream was waited for.
        unsafe { stream.fill(current.base(), 0, len) }
            .and_then(|()| stream.synchronize())
            .map_err(|error| compute.refusal(&error))?;
        let memory = Memory {
            current,
            old: Vec::new(),
        };
        Ok(EngineBlock {
            compute: compute.clone(),
            memory: Arc::new(Mutex::new(memory)),
        })
    }

    /// Bytes it has room for.
    pub fn len(&self) -> usize {
        self.with(|memory| usize::try_from(memory.current.len()).unwrap_or(usize::MAX))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it begins; changes when it [grows](Self::reserve).
    pub fn address(&self) -> u64 {
        self.with(|memory| memory.current.base().0)
    }

    /// Makes room for `len` bytes; returns where they begin. A larger block is another one, without
    /// what the old one held.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn reserve(&self, len: usize) -> Result<u64, Error> {
        self.with(|memory| {
            if len as u64 > memory.current.len() {
                let new = allocate(&self.compute, len)?;
                let old = std::mem::replace(&mut memory.current, new);
                memory.old.push(old);
            }
            Ok(memory.current.base().0)
        })
    }

    /// Frees what was outgrown; nothing uses it any more.
    pub(super) fn forget_old(&self) {
        self.with(|memory| memory.old.clear());
    }

    /// The address of a range; none if it does not lie inside.
    pub(super) fn range(&self, start: usize, len: usize) -> Option<DeviceAddress> {
        let end = start.checked_add(len)?;
        self.with(|memory| {
            let base = memory.current.base().0;
            (end as u64 <= memory.current.len()).then(|| DeviceAddress(base + start as u64))
        })
    }

    fn with<R>(&self, look: impl FnOnce(&mut Memory) -> R) -> R {
        look(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for EngineBlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "EngineBlock({} bytes)", self.len())
    }
}

fn allocate(compute: &EngineStream, len: usize) -> Result<DeviceMemory, Error> {
    DeviceMemory::allocate(compute.stream().device(), len as u64)
        .map_err(|error| compute.refusal(&error))
}
