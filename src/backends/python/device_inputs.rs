//! Inputs of one execution that the server has on GPUs, for a model that wants them there.
//!
//! They are copied from device to device into buffers of the stub's: memory of a client's was
//! opened by a handle, and cannot be exported once more.

use conch_backend_sdk as sdk;
use conch_python_ipc::DevicePlace;
use sdk::{Error, Input, MemoryKind, MemoryPlace, MemorySource};

use crate::device_buffers::LentBuffer;
use crate::devices::StubDevices;

/// Which inputs go to a stub on a GPU.
pub(crate) struct DeviceInputs<'p, 'b> {
    devices: &'p StubDevices,
    /// The GPU of the instance; none if the model gets all in main memory.
    device: Option<u32>,
    inputs: Vec<DeviceInput<'p, 'b>>,
}

struct DeviceInput<'p, 'b> {
    pieces: Vec<MemorySource<'b>>,
    bytes: usize,
    buffer: LentBuffer<'p>,
}

impl<'p, 'b> DeviceInputs<'p, 'b> {
    pub(crate) fn new(devices: &'p StubDevices, device: Option<u32>) -> DeviceInputs<'p, 'b> {
        DeviceInputs {
            devices,
            device,
            inputs: Vec::new(),
        }
    }

    /// Takes an input in if all of it lies on GPUs: where the stub finds it. Texts go to main
    /// memory, as do inputs without bytes.
    ///
    /// # Errors
    /// Without room on the GPU; whatever the server or the driver refuses.
    pub(crate) fn add(
        &mut self,
        input: &Input<'b>,
    ) -> Result<Option<[u8; DevicePlace::BYTES]>, Error> {
        let Some(device) = self.device else {
            return Ok(None);
        };
        if input.data_type().element_bytes().is_none() || input.byte_count() == 0 {
            return Ok(None);
        }
        let preferred = MemoryPlace {
            kind: MemoryKind::Gpu,
            id: i64::from(device),
        };
        let pieces: Vec<MemorySource<'b>> = (0..input.buffer_count())
            .map(|index| input.memory(index, preferred))
            .collect::<Result<_, _>>()?;
        let bytes = input.byte_count();
        let is_whole = pieces.iter().map(MemorySource::len).sum::<usize>() == bytes;
        if !is_whole || pieces.iter().any(|piece| piece.place().is_host()) {
            return Ok(None);
        }
        let ordinal = i32::try_from(device).map_err(|_| Error::internal("no such GPU"))?;
        let buffer = self.devices.with(ordinal, |opened| {
            let buffers = &self.devices.buffers;
            buffers.take(&opened.stream, device, bytes as u64)
        })?;
        let place = buffer.place().to_bytes();
        self.inputs.push(DeviceInput {
            pieces,
            bytes,
            buffer,
        });
        Ok(Some(place))
    }

    /// Copies all of them, waits for that, and leaves the buffers to the stub.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn copy(&self) -> Result<(), Error> {
        let Some(device) = self.device.filter(|_| !self.inputs.is_empty()) else {
            return Ok(());
        };
        let ordinal = i32::try_from(device).map_err(|_| Error::internal("no such GPU"))?;
        self.devices.with(ordinal, |opened| {
            let mut copies = opened.stream.copies();
            for input in &self.inputs {
                let mut target = input.buffer.memory.target(input.bytes)?;
                for piece in &input.pieces {
                    copies.add(0, *piece, &mut target)?;
                }
            }
            let failure = copies.run().into_iter().next();
            failure.map_or(Ok(()), |(_, error)| Err(error))
        })?;
        for input in &self.inputs {
            input.buffer.send();
        }
        Ok(())
    }
}
