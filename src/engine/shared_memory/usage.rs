//! The regions that one request uses: for its inputs and outputs, and whether all memory was there
//! to the end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_memory::{ByteView, MemoryPlace};
use smallvec::SmallVec;

use crate::Error;
use crate::gpus::GpuHost;
use crate::shared_memory::RegionWindow;
use crate::shared_memory::region::{RegionUse, check};
use crate::tensor::Output;

/// The regions of one request, until its final response has left.
#[derive(Debug, Default)]
pub struct RequestRegions {
    held: Mutex<HeldRegion>,
}

#[derive(Debug, Default)]
struct HeldRegion {
    regions: SmallVec<[RegionUse; 2]>,
    outputs: SmallVec<[(Box<str>, ByteView); 2]>,
}

impl RequestRegions {
    /// Notes an input, and gives its bytes.
    pub fn add_input(&mut self, window: RegionWindow) -> ByteView {
        let RegionWindow { view, used } = window;
        self.add(used);
        view
    }

    /// Notes where the output called `name` is wanted. The first counts, as everywhere.
    pub fn add_output(&mut self, name: &str, window: RegionWindow) {
        let RegionWindow { view, used } = window;
        self.add(used);
        self.held_mut().outputs.push((name.into(), view));
    }

    fn add(&mut self, used: RegionUse) {
        let regions = &mut self.held_mut().regions;
        if !regions
            .iter()
            .any(|known| Arc::ptr_eq(known.region(), used.region()))
        {
            regions.push(used);
        }
    }

    fn held_mut(&mut self) -> &mut HeldRegion {
        self.held.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for `bytes` of the output called `name`. None if it is not wanted in a region, or if
    /// its place there is not aligned to its elements: it is then made elsewhere, and copied when
    /// it leaves.
    ///
    /// # Errors
    /// INTERNAL in upstream's words if there is not room enough.
    ///
    /// A place on a GPU is given only to a backend that `reaches` that device's memory.
    pub fn place(
        &self,
        name: &str,
        bytes: usize,
        alignment: usize,
        reaches: impl FnOnce(MemoryPlace) -> bool,
    ) -> Result<Option<ByteView>, Error> {
        let held = self.lock();
        let Some((_, target)) = held.outputs.iter().find(|(known, _)| **known == *name) else {
            return Ok(None);
        };
        let place = target
            .slice(0, bytes)
            .ok_or_else(|| too_small(name, target.len(), bytes))?;
        let is_usable = place.as_ptr().addr().is_multiple_of(alignment)
            && (place.place().is_host() || reaches(place.place()));
        Ok(Some(place).filter(|_| is_usable))
    }

    /// Ends the use of all regions. Called when nothing more is written.
    pub(crate) fn release(&self) {
        let held = std::mem::take(&mut *self.lock());
        // Outside of the lock.
        drop(held);
    }

    /// Leaves the bytes of outputs where they are wanted: what it says of outputs in regions has
    /// no data.
    ///
    /// # Errors
    /// INVALID_ARG if the memory of a region is gone, which its inputs came from or its outputs
    /// went to.
    pub(crate) fn copy_outputs(&self, outputs: &mut [Output]) -> Result<(), Error> {
        let held = self.lock();
        for output in outputs {
            if !output.data.is_shared() {
                let wanted = held.outputs.iter().find(|(name, _)| **name == *output.name);
                let Some((_, target)) = wanted else { continue };
                leave(&output.name, &output.data, target)?;
            }
            output.data = ByteView::empty();
        }
        held.regions
            .iter()
            .try_for_each(|used| check(used.region()))
    }

    // A lock on the data plane: nobody else has it, but for a backend that answers one request from
    // several threads.
    fn lock(&self) -> MutexGuard<'_, HeldRegion> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies an output's bytes to where they are wanted; for a GPU the copy is waited for.
fn leave(name: &str, data: &ByteView, target: &ByteView) -> Result<(), Error> {
    let Some(bytes) = data.as_slice() else {
        return Err(Error::internal(format!(
            "output '{name}' lies in memory that the CPU cannot read"
        )));
    };
    if bytes.len() > target.len() {
        return Err(too_small(name, target.len(), bytes.len()));
    }
    if !target.place().is_host() {
        return GpuHost::write(bytes, target);
    }
    match target.write(bytes) {
        true => Ok(()),
        false => Err(too_small(name, target.len(), bytes.len())),
    }
}

fn too_small(name: &str, have: usize, need: usize) -> Error {
    Error::internal(format!(
        "shared memory size specified with the request for output '{name}' ({have} bytes) should \
         be at least {need} bytes to hold the results"
    ))
}
