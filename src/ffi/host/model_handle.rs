//! The engine's side of a loaded model.

use std::sync::Arc;

use conch_config::ResolvedConfig;
use conch_engine::{BatchStrategy, Error, Instance, InstanceSpec, Model, ModelVersion};

use super::instance::InstanceHandle;
use super::model::LoadedModel;
use super::queue_batcher::QueueBatcher;

/// A loaded model as the engine drives it.
pub(crate) struct ModelHandle(pub(crate) Arc<LoadedModel>);

impl Model for ModelHandle {
    fn config(&self) -> Arc<ResolvedConfig> {
        self.0.current_config()
    }

    fn bind(&self, version: &Arc<ModelVersion>) {
        self.0.bind(version);
    }

    fn reconfigure(&self, config: &Arc<ResolvedConfig>) {
        self.0.reconfigure(config);
    }

    fn batch_strategy(&self) -> Option<Box<dyn BatchStrategy>> {
        self.0.strategy()?;
        Some(Box::new(QueueBatcher::new(&self.0)))
    }

    fn create_instance(self: Arc<Self>, spec: InstanceSpec) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(InstanceHandle::create(Arc::clone(&self.0), spec)?))
    }
}
