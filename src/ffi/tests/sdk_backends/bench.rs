//! Shared by the tests: a model of a backend that cargo built, and a client that notes its answers
//! and the threads that brought them.

#![allow(clippy::unwrap_used, reason = "part of the tests")]
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use conch_engine::{
    Backend, BackendHost, BackendSpec, Completion, Delivery, Draft, DraftInput, Error, Instance,
    InstanceSpec, LoadContext, Model, ModelVersion, ParameterValue, PendingResponses,
    RequestHandle, Timestamps,
};
use conch_ffi::host::{BackendLibraries, HostOptions};
use conch_memory::{Budget, ByteView, Pool};
use conch_sync::ClaimReason;

/// Inputs by name, with shapes and 4-byte elements.
pub type Request = Vec<(&'static str, Vec<usize>, Vec<i32>)>;

/// The backend directory. The libraries are built here, since a test cannot depend on a plug-in
/// crate.
fn backends() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        // <target>/<profile>/deps/<this test>
        let profile_directory = std::env::current_exe().unwrap();
        let profile_directory = profile_directory.ancestors().nth(2).unwrap().to_owned();
        let profile = match profile_directory.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", profile])
            .args(["-p", "conch-backend-repeat", "-p", "conch-backend-square"])
            .args(["-p", "conch-testkit-forward", "-p", "conch-testkit-overlap"])
            .arg("--target-dir")
            .arg(profile_directory.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success());
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sdk_backends");
        for backend in ["repeat", "square", "forward", "overlap"] {
            let library = format!("libtriton_{backend}.so");
            let folder = directory.join(backend);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(profile_directory.join(&library), folder.join(&library)).unwrap();
        }
        directory
    })
}

/// Notes what a client gets.
#[derive(Default)]
struct Client {
    notes: Mutex<Notes>,
    changed: Condvar,
}

#[derive(Default)]
struct Notes {
    answers: Vec<String>,
    threads: HashSet<ThreadId>,
}

impl Completion for Client {
    fn deliver(&self, delivery: Delivery) {
        let mut line = delivery.slot().to_string();
        let is_final = delivery.is_final();
        match delivery.into_outcome() {
            None => line.push_str(" end"),
            Some(Err(error)) => line.push_str(&format!(" {error}")),
            Some(Ok(response)) => {
                for output in &response.outputs {
                    assert_eq!(output.shape.iter().product::<i64>(), 1);
                    let value = i32::from_le_bytes(output.data.as_ref().try_into().unwrap());
                    line.push_str(&format!(" {}={value}", output.name));
                }
                for parameter in &response.parameters {
                    let ParameterValue::Text(text) = &parameter.value else {
                        panic!("{parameter:?}");
                    };
                    line.push_str(&format!(" {}={text}", parameter.name));
                }
            }
        }
        if is_final {
            line.push_str(" final");
        }
        let mut notes = self.notes.lock().unwrap();
        notes.answers.push(line);
        notes.threads.insert(std::thread::current().id());
        self.changed.notify_all();
    }

    fn wake(&self) {}
}

/// A loaded model.
pub struct Bench {
    pub version: Arc<ModelVersion>,
    model: Arc<dyn Model>,
    client: Arc<Client>,
    budget: Arc<Budget>,
    _backend: Arc<dyn Backend>,
    _host: Arc<BackendLibraries>,
}

impl Bench {
    pub fn new(backend: &str, config: &str) -> Bench {
        Bench::at(backend, config, &backends().join("model"))
    }

    /// With the model's directory.
    pub fn at(backend: &str, config: &str, path: &Path) -> Bench {
        Bench::load(backend, config, path).unwrap()
    }

    pub fn load(backend: &str, config: &str, path: &Path) -> Result<Bench, Error> {
        let host = BackendLibraries::new(HostOptions {
            server_id: "here".to_owned(),
            backend_directory: backends().to_owned(),
            backend_config: Vec::new(),
            auto_complete: false,
            default_max_batch_size: 4,
            cache_directory: PathBuf::new(),
            cache_config: Vec::new(),
            ..HostOptions::default()
        });
        let opened = host
            .open(&BackendSpec {
                model_name: "model".to_owned(),
                backend: backend.to_owned(),
                runtime: String::new(),
                model_path: path.to_owned(),
                version: 1,
            })
            .unwrap();
        let text = format!(
            "name: 'model' backend: '{backend}' {config} instance_group {{ kind: KIND_CPU count: 1 \
             name: 'model' }} model_transaction_policy {{ decoupled: {} }}",
            // These two are for it.
            ["repeat", "square"].contains(&backend)
        );
        let mut config = conch_config::parse_text("config.pbtxt", &text).unwrap();
        conch_config::normalize(&mut config);
        let config = Arc::new(conch_config::ResolvedConfig::from_message(config).unwrap());
        let budget = Budget::new(1 << 30);
        let model = Arc::clone(&opened).load_model(LoadContext {
            name: "model".into(),
            version: 1,
            path: path.to_owned(),
            config: Arc::clone(&config),
            may_complete: false,
            pool: Pool::new(1 << 20),
            budget: Arc::clone(&budget),
        })?;
        let version = conch_engine::testing::version("model", 1, &config);
        model.bind(&version);
        Ok(Bench {
            version,
            model,
            client: Arc::default(),
            budget,
            _backend: opened,
            _host: host,
        })
    }

    pub fn model(&self) -> &Arc<dyn Model> {
        &self.model
    }

    pub fn instance(&self) -> Box<dyn Instance> {
        let spec = InstanceSpec {
            name: "one".to_owned(),
            kind: conch_config::InstanceKind::Cpu,
            device_id: 0,
            host_policy: "cpu".to_owned(),
            is_passive: false,
            profiles: Vec::new(),
            secondary_devices: Vec::new(),
            rate_limit: Default::default(),
        };
        Arc::clone(&self.model).create_instance(spec).unwrap()
    }

    /// Executes the requests, each by itself unless the model batches.
    pub fn execute(&self, instance: &mut dyn Instance, requests: &[Request]) -> Vec<RequestHandle> {
        let mut handles = Vec::new();
        let mut batch = Vec::new();
        for (slot, request) in (0..).zip(requests) {
            let handle = self.admit(slot, "", request);
            batch.push(handle.claim(ClaimReason::Execute, None).unwrap());
            handles.push(handle);
            if !self.version.config.is_batching() {
                self.run(instance, &mut batch);
            }
        }
        self.run(instance, &mut batch);
        handles
    }

    pub fn admit(&self, slot: u64, id: &str, request: &Request) -> RequestHandle {
        let completion: Arc<dyn Completion> = self.client.clone();
        let inputs = request.iter().map(|(name, shape, values)| {
            let (_, spec) = self.version.config.input(name).unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            // In two pieces, as they may come from the network.
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            DraftInput {
                name,
                data_type: spec.data_type,
                shape: shape
                    .iter()
                    .map(|dim| i64::try_from(*dim).unwrap())
                    .collect(),
                chunks: [head, tail].map(ByteView::copy_of).into_iter().collect(),
            }
        });
        let draft = Draft {
            id,
            inputs: inputs.collect(),
            ..Draft::default()
        };
        conch_engine::testing::admit(
            &self.version,
            draft,
            &completion,
            slot,
            Timestamps::default(),
        )
        .unwrap()
    }

    pub fn run(&self, instance: &mut dyn Instance, batch: &mut conch_engine::Batch) {
        if batch.is_empty() {
            return;
        }
        let mut pending = PendingResponses::default();
        instance.execute(batch, &mut pending);
        assert!(batch.is_empty());
        pending.flush();
    }

    /// What came so far, since the last look.
    pub fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.client.notes.lock().unwrap().answers)
    }

    /// The next `count` answers.
    pub fn wait(&self, count: usize) -> Vec<String> {
        let notes = self.client.notes.lock().unwrap();
        let (mut notes, timeout) = self
            .client
            .changed
            .wait_timeout_while(notes, Duration::from_secs(30), |notes| {
                notes.answers.len() < count
            })
            .unwrap();
        assert!(!timeout.timed_out(), "only {:?}", notes.answers);
        notes.answers.drain(..count).collect()
    }

    /// Which threads brought answers.
    pub fn threads(&self) -> HashSet<ThreadId> {
        self.client.notes.lock().unwrap().threads.clone()
    }

    /// All bytes are given back, and the model is referred to by nobody else.
    pub fn assert_nothing_held(&self) {
        assert_eq!(self.budget.used_bytes(), 0);
        assert_eq!(Arc::strong_count(&self.client), 1);
        assert_eq!(Arc::strong_count(&self.model), 1);
    }
}
