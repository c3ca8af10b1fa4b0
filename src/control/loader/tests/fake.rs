//! A backend that fails where a model's parameters say, and notes what happens to it; a temporary
//! repository. For tests only.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use conch_config::PreferredGroup;
use conch_engine::model::stats::ExecutionSpan;
use conch_engine::{
    Backend, BackendHost, BackendSpec, Batch, Error, ExecutionPolicy, Instance, InstanceSpec,
    LoadContext, Model, ModelVersion, Output, PendingResponses, Response, ResponseParts, clock,
};

/// A line of configuration that makes the fake fail (or behave otherwise) at a step.
pub(crate) fn fault(step: &str) -> String {
    format!("parameters {{ key: 'fault' value {{ string_value: '{step}' }} }}")
}

/// Knows one backend, `fake`.
#[derive(Default)]
pub(crate) struct Host {
    pub events: Arc<Events>,
    pub backend: OnceLock<Arc<FakeBackend>>,
    pub gate: Arc<Gate>,
    /// Where the models lay that were loaded.
    pub paths: Arc<Mutex<Vec<PathBuf>>>,
}

#[derive(Default)]
pub(crate) struct Events(Mutex<Vec<String>>);

impl Events {
    pub(crate) fn push(&self, event: String) {
        self.0.lock().unwrap().push(event);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, prefix: &str) -> usize {
        self.all()
            .iter()
            .filter(|event| event.starts_with(prefix))
            .count()
    }
}

/// Holds executions and loads up until it is opened, and pairs loads.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.0).unwrap());
    }

    /// Waits until `count` threads came here; false if they do not come.
    fn meet(&self, count: usize) -> bool {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, Duration::from_secs(20), |state| state.1 < count)
            .unwrap();
        state.1 >= count
    }
}

impl BackendHost for Host {
    fn open(&self, spec: &BackendSpec) -> Result<Arc<dyn Backend>, Error> {
        self.find(spec)?;
        let backend = self.backend.get_or_init(|| {
            Arc::new(FakeBackend {
                events: Arc::clone(&self.events),
                gate: Arc::clone(&self.gate),
                paths: Arc::clone(&self.paths),
            })
        });
        Ok(Arc::clone(backend) as Arc<dyn Backend>)
    }

    fn find(&self, spec: &BackendSpec) -> Result<(), Error> {
        if spec.backend == "fake" {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "unable to find backend library for backend '{}', try specifying runtime on the model \
             configuration.",
            spec.backend
        )))
    }

    fn list(&self) -> Vec<(String, String, String)> {
        self.backend
            .get()
            .map(|_| ("fake".into(), "/libtriton_fake.so".into(), "{}".into()))
            .into_iter()
            .collect()
    }

    fn finalize_all(&self) {
        self.events.push("finalize".into());
    }
}

impl crate::PluginHost for Host {}

pub(crate) struct FakeBackend {
    events: Arc<Events>,
    gate: Arc<Gate>,
    paths: Arc<Mutex<Vec<PathBuf>>>,
}

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
        false
    }

    fn load_model(self: Arc<Self>, context: LoadContext) -> Result<Arc<dyn Model>, Error> {
        let id = format!("{}:{}", context.name, context.version);
        self.events.push(format!("load {id}"));
        self.paths.lock().unwrap().push(context.path.clone());
        let fault = context
            .config
            .parameters
            .get("fault")
            .cloned()
            .unwrap_or_default();
        match fault.as_str() {
            "load" => return Err(Error::internal("the weights are broken")),
            "load-2" if context.version == 2 => return Err(Error::unavailable("no such version")),
            "panic" => panic!("a fault on purpose"),
            "flaky" if self.events.count(&format!("load {id}")) < 3 => {
                return Err(Error::unavailable("not yet"));
            }
            "stuck" => self.gate.pass(),
            "meet" if !self.gate.meet(2) => return Err(Error::internal("nobody else was loading")),
            _ => {}
        }
        let mut config = Arc::clone(&context.config);
        if fault == "ensemble" {
            let mut message = (*config.message).clone();
            let text = "ensemble_scheduling { step { model_name: 'other' model_version: -1 } }";
            let proposed = conch_config::parse_text("proposal", text).unwrap();
            message.scheduling_choice = proposed.scheduling_choice;
            config = Arc::new(conch_config::ResolvedConfig::from_message(message)?);
        }
        if fault == "complete" {
            assert!(context.may_complete && config.inputs.is_empty());
            let mut message = (*config.message).clone();
            let text = "input [ { name: 'X' data_type: TYPE_FP32 dims: [ 4 ] } ] output [ \
                        { name: 'Y' data_type: TYPE_FP32 dims: [ 4 ] } ]";
            let tensors = conch_config::parse_text("proposal", text).unwrap();
            (message.input, message.output) = (tensors.input, tensors.output);
            config = Arc::new(conch_config::ResolvedConfig::from_message(message)?);
        }
        Ok(Arc::new(FakeModel {
            id,
            fault,
            config,
            events: Arc::clone(&self.events),
            gate: Arc::clone(&self.gate),
        }))
    }
}

struct FakeModel {
    id: String,
    fault: String,
    config: Arc<conch_config::ResolvedConfig>,
    events: Arc<Events>,
    gate: Arc<Gate>,
}

impl Model for FakeModel {
    fn config(&self) -> Arc<conch_config::ResolvedConfig> {
        Arc::clone(&self.config)
    }

    fn bind(&self, version: &Arc<ModelVersion>) {
        self.events
            .push(format!("bind {}:{}", version.name, version.version));
    }

    fn create_instance(self: Arc<Self>, spec: InstanceSpec) -> Result<Box<dyn Instance>, Error> {
        self.events
            .push(format!("instance {} {}", self.id, spec.name));
        if self.fault == spec.name {
            return Err(Error::internal(format!("no room for {}", spec.name)));
        }
        Ok(Box::new(FakeInstance {
            name: spec.name,
            model: self,
        }))
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        self.events.push(format!("drop model {}", self.id));
    }
}

struct FakeInstance {
    name: String,
    model: Arc<FakeModel>,
}

impl Instance for FakeInstance {
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        let start_ns = clock::monotonic_ns();
        if self.model.fault == "hold" {
            self.model.gate.pass();
        }
        let end_ns = clock::monotonic_ns();
        let span = ExecutionSpan {
            exec_start_ns: start_ns,
            compute_start_ns: start_ns,
            compute_end_ns: end_ns,
            exec_end_ns: end_ns,
        };
        let mut total = 0;
        for live in batch.drain(..) {
            let origin = live.shared();
            let count = u64::from(live.batch_count());
            total += count;
            live.report_execution(&origin.model, None, true, &span);
            if total == count {
                // Counted with the first request, before any answer is seen; the batch's size is
                // that of this test's only request.
                origin.model.statistics.report_batch(None, count, &span);
            }
            if self.model.fault == "tell" {
                self.model.events.push(format!(
                    "asked {} id={} {:?} flags={} priority={} timeout={} {:?} outputs={:?}",
                    self.model.id,
                    origin.id,
                    live.correlation_id,
                    live.sequence_flags,
                    live.priority,
                    live.timeout_us,
                    live.parameters,
                    live.requested_outputs,
                ));
            }
            let made = live.inputs.iter().find(|input| *input.name == *"IN");
            let made = made.map(|input| Output {
                name: "OUT".into(),
                data_type: input.data_type,
                shape: input.shape.clone(),
                data: input.chunks[0].clone(),
            });
            let response = Response::from(ResponseParts {
                model: Arc::clone(&origin.model),
                outputs: made.into_iter().collect(),
                parameters: Vec::new(),
            });
            let handle = Arc::clone(live.handle());
            drop(live);
            let outcome = (self.model.fault != "silent").then_some(Ok(response));
            pending.push(handle.shared(), outcome, true);
        }
    }
}

impl Drop for FakeInstance {
    fn drop(&mut self) {
        self.model
            .events
            .push(format!("drop instance {} {}", self.model.id, self.name));
    }
}
