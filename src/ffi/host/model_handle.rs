//! The engine's side of a loaded model.

use std::sync::Arc;

use conch_config::ResolvedConfig;
use conch_engine::{BatchStrategy, Error, Instance, InstanceSpec, Model, ModelVersion};

use super::instance::InstanceHandle;
use super::model::LoadedModel;
use super::queue_batcher::QueueBatcher;

/// A loaded model as the engine drives it.
pub(super) struct ModelHandle {
    model: Arc<LoadedModel>,
}

impl ModelHandle {
    pub(super) fn new(model: Arc<LoadedModel>) -> Self {
        ModelHandle { model }
    }
}

impl Model for ModelHandle {
    fn config(&self) -> Arc<ResolvedConfig> {
        self.model.current_config()
    }

    fn bind(&self, version: &Arc<ModelVersion>) {
        self.model.bind(version);
    }

    fn reconfigure(&self, config: &Arc<ResolvedConfig>) {
        self.model.reconfigure(config);
    }

    fn batch_strategy(&self) -> Option<Box<dyn BatchStrategy>> {
        self.model.strategy()?;
        Some(Box::new(QueueBatcher::new(&self.model)))
    }

    fn create_instance(self: Arc<Self>, spec: InstanceSpec) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(InstanceHandle::create(
            Arc::clone(&self.model),
            spec,
        )?))
    }
}
