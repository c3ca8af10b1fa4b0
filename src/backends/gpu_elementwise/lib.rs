//! The gpu_elementwise backend: simple operations on every element, as the first or last steps of
//! an ensemble: sums, products, scaling, conversions of data types, the order of an image's
//! dimensions, and the normalization of images.
//!
//! Instances of KIND_GPU run kernels that the driver compiles when the model is loaded ([`ptx`]),
//! and leave inputs and outputs on the device; all others compute on the host ([`host`]), with the
//! same results, bit for bit.

mod element;
mod formula;
mod geometry;
mod host;
mod launch;
mod on_device;
mod on_host;
mod operation;
mod prepared;
mod ptx;
mod signature;
#[cfg(test)]
mod tests;

use conch_backend_sdk as sdk;
use sdk::{Batch, DetachedBatch, Error, InstanceContext, ModelContext};

use on_device::OnDevice;
use operation::Operation;
use signature::Signature;

sdk::export_backend!(Elementwise, stream);

/// Nothing is shared between models.
pub struct Elementwise;

impl sdk::Backend for Elementwise {
    type Model = Model;

    fn initialize(_context: &sdk::BackendContext) -> Result<Self, Error> {
        Ok(Elementwise)
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()
    }
}

pub struct Model {
    signature: Signature,
    /// Of the streams of instances on GPUs.
    stream_priority: i32,
}

impl sdk::Model for Model {
    type Backend = Elementwise;
    type Instance = Instance;

    fn initialize(_backend: &Elementwise, context: &mut ModelContext) -> Result<Self, Error> {
        let name = context.name().to_owned();
        let operation = Operation::read(context.config());
        let operation =
            operation.map_err(|error| error.context(format!("unable to load model '{name}'")))?;
        if context.may_complete()?
            && let Some(config) = signature::complete(&name, context.config(), &operation)?
        {
            context.complete(&config)?;
        }
        let config = context.config();
        Ok(Model {
            signature: Signature::read(&name, config, operation)?,
            stream_priority: config.stream_priority(),
        })
    }
}

pub struct Instance {
    /// None on CPUs.
    device: Option<OnDevice>,
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        let device = OnDevice::open(&model.signature, context, model.stream_priority)?;
        Ok(Instance { device })
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        on_host::answer_all(&model.signature, batch);
        Ok(())
    }
}

impl sdk::StreamInstance for Instance {
    fn depth_max(&self) -> usize {
        // On CPUs it is executed, and blocks while it computes.
        self.device.as_ref().map_or(0, OnDevice::depth_max)
    }

    fn enqueue(&mut self, model: &Model, batch: DetachedBatch) {
        match &mut self.device {
            Some(device) => device.enqueue(&model.signature, batch),
            None => batch.finish(|batch| sdk::Instance::execute(self, model, batch)),
        }
    }

    fn poll(&mut self, _model: &Model) -> usize {
        self.device.as_mut().map_or(0, OnDevice::poll)
    }
}
