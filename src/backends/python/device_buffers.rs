//! Buffers on GPUs for the inputs of one stub, which maps them.
//!
//! ```text
//! take: Lent --dropped before its message is sent--> Free
//!        | send: the stub has it
//!        v
//!      AtStub --the stub is done with it--> Free --taken--> Lent
//!                                            | the stub has unmapped it
//!                                            v
//!                                          (freed)
//! ```
//!
//! The stub decides which of the buffers that it does not use stay mapped, since memory must not be
//! freed while it is mapped. A buffer that it unmaps while another message with it is on its way is
//! mapped anew.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_backend_sdk as sdk;
use conch_python_ipc::DevicePlace;
use sdk::{DeviceStream, Error, ExportedMemory};

/// Buffers are multiples of it: the driver's pieces of memory. Smaller allocations share a piece,
/// all of which a process gets that opens one of them.
const PIECE_BYTES: u64 = 2 << 20;

/// The buffers of one process.
#[derive(Debug)]
pub(crate) struct DeviceBuffers {
    bytes_max: u64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    bytes: u64,
    buffers: HashMap<u64, Buffer>,
}

#[derive(Debug)]
struct Buffer {
    device: u32,
    memory: Arc<ExportedMemory>,
    is_used: bool,
}

/// A buffer for one input. Dropped before it is sent, it is free again.
pub(crate) struct LentBuffer<'p> {
    buffers: &'p DeviceBuffers,
    number: u64,
    device: u32,
    pub(crate) memory: Arc<ExportedMemory>,
    is_sent: Cell<bool>,
}

impl DeviceBuffers {
    pub(crate) fn new(bytes_max: u64) -> DeviceBuffers {
        DeviceBuffers {
            bytes_max,
            table: Mutex::default(),
        }
    }

    /// A buffer of at least `len` bytes on the GPU of a stream, whose ordinal is `device`.
    ///
    /// # Errors
    /// `Unavailable` without room; whatever the driver refuses.
    pub(crate) fn take(
        &self,
        stream: &DeviceStream,
        device: u32,
        len: u64,
    ) -> Result<LentBuffer<'_>, Error> {
        let rounded = rounded(len);
        let mut table = self.lock();
        let fits = |buffer: &Buffer| {
            let bytes = buffer.memory.len();
            !buffer.is_used
                && buffer.device == device
                && bytes >= len
                && bytes <= rounded.saturating_mul(2)
        };
        let free = table.buffers.iter_mut().filter(|(_, buffer)| fits(buffer));
        if let Some((number, buffer)) = free.min_by_key(|(_, buffer)| buffer.memory.len()) {
            buffer.is_used = true;
            return Ok(self.lent(*number, device, &buffer.memory));
        }
        let bytes = table.bytes.saturating_add(rounded);
        if bytes > self.bytes_max {
            return Err(Error::unavailable(format!(
                "the buffers of the model on GPU {device} have no room for {len} bytes of inputs: \
                 the model keeps others, or they are too large (shm-max-byte-size)"
            )));
        }
        let memory = Arc::new(stream.export(rounded)?);
        table.bytes = bytes;
        table.last += 1;
        let number = table.last;
        let lent = self.lent(number, device, &memory);
        table.buffers.insert(
            number,
            Buffer {
                device,
                memory,
                is_used: true,
            },
        );
        Ok(lent)
    }

    /// The stub does not use the buffer any more, and has it mapped.
    pub(crate) fn is_done(&self, number: u64) {
        if let Some(buffer) = self.lock().buffers.get_mut(&number) {
            buffer.is_used = false;
        }
    }

    /// The stub has unmapped a buffer that it does not use.
    pub(crate) fn is_unmapped(&self, number: u64) {
        let mut table = self.lock();
        if table
            .buffers
            .get(&number)
            .is_none_or(|buffer| buffer.is_used)
        {
            return;
        }
        let removed = table.buffers.remove(&number);
        table.bytes -= removed.as_ref().map_or(0, |buffer| buffer.memory.len());
        // Freeing may take long.
        drop(table);
        drop(removed);
    }

    fn lent(&self, number: u64, device: u32, memory: &Arc<ExportedMemory>) -> LentBuffer<'_> {
        LentBuffer {
            buffers: self,
            number,
            device,
            memory: Arc::clone(memory),
            is_sent: Cell::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LentBuffer<'_> {
    /// As the stub reads it.
    pub(crate) fn place(&self) -> DevicePlace {
        DevicePlace {
            device: self.device,
            number: self.number,
            offset: 0,
            handle: *self.memory.handle(),
        }
    }

    /// The stub is told of it, and says when it is done.
    pub(crate) fn send(&self) {
        self.is_sent.set(true);
    }
}

impl Drop for LentBuffer<'_> {
    fn drop(&mut self) {
        if !self.is_sent.get() {
            self.buffers.is_done(self.number);
        }
    }
}

fn rounded(len: u64) -> u64 {
    let pieces = len.max(1).checked_next_multiple_of(PIECE_BYTES);
    pieces.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded() {
        for (len, expected) in [
            (0, 2 << 20),
            (1, 2 << 20),
            (2 << 20, 2 << 20),
            ((2 << 20) + 1, 4 << 20),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(rounded(len), expected, "{len}");
        }
    }
}
