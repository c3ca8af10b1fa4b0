//! Device memory of sequences' states that grows where it is.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use conch_cuda::{GrowableAddresses, GrowableMemory, RetiredQueue, TransferError};
use conch_log as log;
use conch_memory::ByteView;

use super::GpuHost;
use crate::Error;

/// How long a state that finds no memory waits for memory of states that are over.
const FREE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Makes the growable buffers of one model. What is left of them is unmapped and freed by a thread
/// of its own, which ends after the source and its last buffer: whoever drops the last view of one,
/// be it a core or a backend's thread, does not wait for a device.
#[derive(Clone, Debug)]
pub struct GrowableSource {
    /// Holds as many as there are sequences, each once.
    retired: RetiredQueue<GrowableAddresses>,
}

/// One state's memory: addresses reserved on one device, of which a part from the beginning has
/// memory. It never moves; the views of it keep it.
#[derive(Debug)]
pub struct GrowableBuffer {
    memory: Arc<GrowableMemory>,
}

impl GrowableSource {
    /// A source for one model; starts its thread.
    ///
    /// # Errors
    /// UNAVAILABLE if the system has no thread.
    pub fn new() -> Result<GrowableSource, Error> {
        let (retired, left) = RetiredQueue::new();
        let builder = thread::Builder::new().name("states".to_owned());
        let spawned = builder.spawn(|| left.run());
        spawned.map_err(|error| {
            Error::unavailable(format!("no thread for the memory of states: {error}"))
        })?;
        Ok(GrowableSource { retired })
    }

    /// A buffer on a device that begins with `start`. Blocks in the driver.
    ///
    /// # Errors
    /// INVALID_ARG if there is no such device; UNAVAILABLE if the addresses
    /// (`--cuda-virtual-address-size`) or the device's memory do not hold `start`; INTERNAL, what
    /// the driver refuses.
    pub fn buffer(&self, device_id: i32, start: &[u8]) -> Result<GrowableBuffer, Error> {
        let host = GpuHost::current().ok_or_else(|| Error::internal("there is no GPU"))?;
        let gpu = host.memory(i64::from(device_id))?;
        let bytes = host.options().virtual_bytes_of(device_id);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let memory = GrowableMemory::reserve(gpu.device(), bytes, Some(self.retired.clone()))
            .map_err(|error| Error::unavailable(format!("GPU {device_id}: {error}")))?;
        let buffer = GrowableBuffer {
            memory: Arc::new(memory),
        };
        let view = buffer.grow(start.len())?;
        if !start.is_empty() {
            GpuHost::write(start, &view)?;
        }
        log::verbose!(
            1,
            "GPU {device_id}: a growable state begins with {} bytes",
            start.len()
        );
        Ok(buffer)
    }
}

impl GrowableBuffer {
    /// The first `bytes` bytes, which get memory if they have none; new memory is zeros. Blocks in
    /// the driver if the buffer grows, and where the device has no memory left until that of states
    /// of this model which are over is freed, a second at most.
    ///
    /// # Errors
    /// UNAVAILABLE if the addresses (`--cuda-virtual-address-size`) or the device's memory do not
    /// suffice: what was there stays.
    pub fn grow(&self, bytes: usize) -> Result<ByteView, Error> {
        let device_id = self.memory.device().ordinal();
        let refused = |why: String| {
            Error::unavailable(format!(
                "a growable state cannot have {bytes} bytes on GPU {device_id}: {why}"
            ))
        };
        if bytes > self.memory.len() {
            let host = GpuHost::current().ok_or_else(|| Error::internal("there is no GPU"))?;
            let gpu = host.memory(i64::from(device_id))?;
            let mut grown = gpu.grow(&self.memory, bytes);
            if let Err(TransferError::Cuda(error)) = grown
                && error.is_out_of_memory()
                // Of states that ended before this request came, some may not be freed yet.
                && self.memory.wait_until_freed(FREE_WAIT_MAX)
            {
                grown = gpu.grow(&self.memory, bytes);
            }
            if !grown.map_err(|error| refused(error.to_string()))? {
                let limit = self.memory.reserved_bytes();
                let flag = "--cuda-virtual-address-size";
                return Err(refused(format!("the limit is {limit} bytes ({flag})")));
            }
        }
        let view = self.memory.view(bytes);
        view.ok_or_else(|| Error::internal("a growable state has less memory than it was given"))
    }
}

impl super::GpuMemory {
    /// Gives `memory`, of this device, at least `len` bytes; false beyond its addresses. Blocks for
    /// the driver and for the zeros that new memory has.
    ///
    /// # Errors
    /// What the driver refuses.
    fn grow(&self, memory: &GrowableMemory, len: usize) -> Result<bool, TransferError> {
        let mut is_grown = false;
        self.with_stream(|stream| {
            is_grown = memory.grow(len, stream)?;
            Ok(())
        })?;
        Ok(is_grown)
    }
}
