//! GPUs on which a stub has tensors: its outputs are copied from memory that it exports, and
//! buffers for its inputs are exported to it, by CUDA's IPC handles.
//!
//! Nothing of the driver is used before the first such tensor. All of it goes with the process.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use conch_backend_sdk as sdk;
use conch_python_ipc::{DevicePlace, IPC_HANDLE_BYTES};
use sdk::{DataType, DeviceAccess, DeviceStream, Error, ImportedMemory, Outgoing};

use crate::device_buffers::DeviceBuffers;

/// Allocations of a stub that stay mapped between responses, on each GPU. Frameworks cut many
/// tensors out of few allocations.
const MAPPINGS_MAX: usize = 8;

/// A mapping that was not used for so long is closed: it keeps memory that the stub has freed.
const MAPPING_PAUSE: Duration = Duration::from_secs(5);

/// The GPUs of one process.
#[derive(Debug)]
pub(crate) struct StubDevices {
    access: DeviceAccess,
    opened: Mutex<HashMap<i32, OpenDevice>>,
    pub(crate) buffers: DeviceBuffers,
}

/// A GPU that is used.
pub(crate) struct OpenDevice {
    pub(crate) stream: DeviceStream,
    /// The one used last is the last.
    mappings: VecDeque<Mapping>,
}

struct Mapping {
    handle: [u8; IPC_HANDLE_BYTES],
    memory: Arc<ImportedMemory>,
    used: Instant,
}

/// An output that a stub has on a GPU.
pub(crate) struct DeviceOutput<'o> {
    pub(crate) name: &'o CStr,
    pub(crate) data_type: DataType,
    pub(crate) shape: &'o [i64],
    pub(crate) bytes: u64,
}

impl StubDevices {
    /// Buffers for inputs may have `buffer_bytes_max` in all.
    pub(crate) fn new(access: DeviceAccess, buffer_bytes_max: u64) -> StubDevices {
        StubDevices {
            access,
            opened: Mutex::default(),
            buffers: DeviceBuffers::new(buffer_bytes_max),
        }
    }

    /// Does `work` with a GPU, which is opened if it is not.
    ///
    /// # Errors
    /// What `work` returns; why there is no such GPU.
    pub(crate) fn with<T>(
        &self,
        device: i32,
        work: impl FnOnce(&mut OpenDevice) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut opened = self.lock();
        let device = match opened.entry(device) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(OpenDevice {
                stream: self.access.open(device)?,
                mappings: VecDeque::new(),
            }),
        };
        work(device)
    }

    /// Adds an output to a response, and copies it to wherever the server wants it. Nothing that
    /// the stub says of its place is trusted.
    ///
    /// # Errors
    /// `InvalidArgument` for a place that is none; whatever the driver or the server refuses.
    pub(crate) fn copy_output(
        &self,
        response: &Outgoing,
        output: &DeviceOutput<'_>,
        place: &[u8],
    ) -> Result<(), Error> {
        let wrong = |what: &dyn std::fmt::Display| {
            let name = output.name.to_string_lossy();
            Error::invalid(format!("output '{name}' on a GPU: {what}"))
        };
        let place = DevicePlace::from_bytes(place).ok_or_else(|| wrong(&"malformed place"))?;
        if output.data_type.element_bytes().is_none() {
            return Err(wrong(&"tensors of texts lie in main memory"));
        }
        let device = i32::try_from(place.device).map_err(|_| wrong(&"there is no such GPU"))?;
        self.with(device, |device| {
            let memory = device.import(&place).map_err(|error| wrong(&error))?;
            let source = memory.source(place.offset, output.bytes).ok_or_else(|| {
                wrong(&format!(
                    "{} bytes at {} do not lie in an allocation of {} bytes",
                    output.bytes,
                    place.offset,
                    memory.len()
                ))
            })?;
            let (name, shape) = (output.name, output.shape);
            let wanted = device.stream.place();
            let mut target =
                response.output_in(name, output.data_type, shape, source.len(), wanted)?;
            let mut copies = device.stream.copies();
            copies.add(0, source, &mut target)?;
            let failure = copies.run().into_iter().next();
            failure.map_or(Ok(()), |(_, error)| Err(error))
        })
    }

    /// Closes mappings that are not used. Does not wait for copies.
    pub(crate) fn trim(&self) {
        let Ok(mut opened) = self.opened.try_lock() else {
            return;
        };
        for device in opened.values_mut() {
            let is_used = |mapping: &Mapping| mapping.used.elapsed() < MAPPING_PAUSE;
            device.mappings.retain(is_used);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, OpenDevice>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenDevice {
    /// Maps the allocation of a place, unless it is mapped. What goes away with the message is not
    /// kept.
    fn import(&mut self, place: &DevicePlace) -> Result<Arc<ImportedMemory>, Error> {
        let is_it = |mapping: &Mapping| mapping.handle == place.handle;
        let known = self.mappings.iter().position(is_it);
        let memory = match known.and_then(|index| self.mappings.remove(index)) {
            Some(mapping) => mapping.memory,
            None => Arc::new(self.stream.import(&place.handle)?),
        };
        if place.number != DevicePlace::TEMPORARY {
            if self.mappings.len() == MAPPINGS_MAX {
                self.mappings.pop_front();
            }
            self.mappings.push_back(Mapping {
                handle: place.handle,
                memory: Arc::clone(&memory),
                used: Instant::now(),
            });
        }
        Ok(memory)
    }
}

impl std::fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenDevice")
            .field("place", &self.stream.place())
            .field("mappings", &self.mappings.len())
            .finish_non_exhaustive()
    }
}
