//! The backend behind the shard under trial.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conch_config::{DataType, PreferredGroup, ResolvedConfig as ModelConfig};
use conch_engine::{
    Backend, BackendHost, BackendSpec, Batch, Error, ExecutionPolicy, Instance, InstanceSpec,
    LoadContext, Model, ModelVersion, Output, PendingResponses, Response, ResponseParts,
};
use conch_memory::ByteView;

/// Opens one backend, whose models answer each output with the input of the same place, or with
/// counted FP32 values.
pub(super) struct FakeHost;
struct FakeBackend;
struct FakeModel(Arc<ModelConfig>);
struct FakeInstance;

impl BackendHost for FakeHost {
    fn open(&self, _spec: &BackendSpec) -> Result<Arc<dyn Backend>, Error> {
        Ok(Arc::new(FakeBackend))
    }

    fn list(&self) -> Vec<(String, String, String)> {
        Vec::new()
    }

    fn finalize_all(&self) {}
}

impl conch_control::PluginHost for FakeHost {}

impl Backend for FakeBackend {
    fn name(&self) -> &str {
        "fake"
    }

    fn execution_policy(&self) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn preferred_groups(&self) -> &[PreferredGroup] {
        &[]
    }

    fn allows_parallel_instances(&self) -> bool {
        true
    }

    fn load_model(self: Arc<Self>, context: LoadContext) -> Result<Arc<dyn Model>, Error> {
        Ok(Arc::new(FakeModel(context.config)))
    }
}

impl Model for FakeModel {
    fn config(&self) -> Arc<ModelConfig> {
        Arc::clone(&self.0)
    }

    fn bind(&self, _version: &Arc<ModelVersion>) {}

    fn create_instance(self: Arc<Self>, _spec: InstanceSpec) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(FakeInstance))
    }
}

/// How many requests of the model `slow` were executed.
pub(super) static SLOW_COUNT: AtomicU32 = AtomicU32::new(0);

impl Instance for FakeInstance {
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        for live in batch.drain(..) {
            let model = Arc::clone(&live.shared().model);
            if matches!(&*model.name, "slow" | "leisurely") {
                std::thread::sleep(Duration::from_millis(200));
            }
            if &*model.name == "slow" {
                SLOW_COUNT.fetch_add(1, Ordering::SeqCst);
            }
            let mut outputs = smallvec::SmallVec::new();
            for (index, spec) in model.config.outputs.iter().enumerate() {
                let input = live
                    .inputs
                    .get(index)
                    .filter(|input| input.data_type == spec.data_type);
                let output = match input {
                    Some(input) => {
                        let bytes: Vec<u8> = input
                            .chunks
                            .iter()
                            .flat_map(|chunk| chunk.as_ref().to_vec())
                            .collect();
                        if let (Some(element_bytes), Some(chunk)) =
                            (spec.data_type.element_bytes(), input.chunks.first())
                        {
                            assert!(
                                chunk.as_ptr().addr().is_multiple_of(element_bytes),
                                "tensors are aligned"
                            );
                        }
                        Output {
                            name: Arc::clone(&spec.name),
                            data_type: spec.data_type,
                            shape: input.shape.clone(),
                            data: ByteView::copy_of(&bytes),
                        }
                    }
                    None => {
                        let count: i64 = spec.dims.iter().product();
                        let bytes: Vec<u8> = (0..count)
                            .flat_map(|value| (value as f32).to_le_bytes())
                            .collect();
                        Output {
                            name: Arc::clone(&spec.name),
                            data_type: DataType::Fp32,
                            shape: spec.dims.iter().copied().collect(),
                            data: ByteView::copy_of(&bytes),
                        }
                    }
                };
                outputs.push(output);
            }
            let response = Response::from(ResponseParts {
                model,
                outputs,
                parameters: Vec::new(),
            });
            pending.push(live.shared(), Some(Ok(response)), true);
        }
    }
}
