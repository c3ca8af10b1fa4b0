//! Shared by the tests of the plug-in: a loaded model of it, and loads that fail.

#![allow(clippy::unwrap_used, reason = "part of the tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_engine::{
    Backend, BackendHost, BackendSpec, Completion, Draft, DraftInput, Error, Instance,
    InstanceSpec, LoadContext, Model, ModelVersion, PendingResponses, RequestHandle, Timestamps,
};
use conch_ffi::host::{BackendLibraries, HostOptions};
use conch_memory::{Budget, ByteView, Pool};
use conch_sync::ClaimReason;

use crate::client::{Call, Client};
use crate::workshop::{Journal, compile, install, panics, workshop};

const MODEL: &str = r#"
    name: "NAME"
    backend: "test"
    max_batch_size: 4
    input { name: "IN" data_type: TYPE_UINT8 dims: -1 }
    output { name: "OUT" data_type: TYPE_UINT8 dims: -1 }
    output { name: "LARGE" data_type: TYPE_UINT8 dims: -1 }
    instance_group { kind: KIND_CPU count: 1 name: "NAME" }
"#;

pub const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";

fn host() -> Arc<BackendLibraries> {
    let setting = |backend: &str, name: &str, value: &str| {
        (backend.to_owned(), name.to_owned(), value.to_owned())
    };
    BackendLibraries::new(HostOptions {
        server_id: "here".to_owned(),
        backend_directory: workshop().join("backends"),
        backend_config: vec![
            setting("life", "shared", "own"),
            setting("", "shared", "for all"),
            setting("life", "own", "1"),
            setting("life", "default-max-batch-size", "16"),
            setting("other", "other", "1"),
            setting("unloads", "unload-when-unused", "true"),
        ],
        auto_complete: true,
        default_max_batch_size: 4,
        cache_directory: workshop().join("caches"),
        cache_config: Vec::new(),
        ..HostOptions::default()
    })
}

fn spec(backend: &str, model: &str) -> BackendSpec {
    BackendSpec {
        model_name: model.to_owned(),
        backend: backend.to_owned(),
        runtime: String::new(),
        model_path: workshop().join("models").join(model),
        version: 3,
    }
}

/// The error of opening a file of these bytes as a backend.
pub fn open_file(backend: &str, bytes: &[u8]) -> Error {
    let file = workshop().join(backend);
    std::fs::write(&file, bytes).unwrap();
    install(backend, &file);
    host().open(&spec(backend, "m")).err().unwrap()
}

/// The error of opening a library without entry points.
pub fn open_stub(backend: &str) -> Error {
    let source = workshop().join("empty.c");
    std::fs::write(&source, "int nothing;\n").unwrap();
    compile(workshop(), "cc", &["empty.c", "-o", "empty.so"]);
    install(backend, &workshop().join("empty.so"));
    host().open(&spec(backend, "m")).err().unwrap()
}

/// The error of a load that fails at some step; everything that was made on the way is finalised.
pub fn load_failure(backend: &str, model: &str, instance: &str) -> Error {
    let library = install(backend, &workshop().join("plugin.so"));
    let host = host();
    let backend = match host.open(&spec(backend, model)) {
        Ok(backend) => backend,
        Err(error) => return error,
    };
    let journal = Journal::of(&library);
    journal.take();
    let (error, expected) = match Bench::load(&host, backend, model, false, false) {
        Err(error) => (error, format!("ModelFinalize {model}")),
        Ok(bench) => {
            let error = bench
                .model
                .clone()
                .create_instance(Bench::instance_spec(instance))
                .err()
                .unwrap();
            (error, format!("InstanceFinalize {instance}"))
        }
    };
    // As upstream: a step that failed is finalised, so that the plug-in frees what it had made.
    assert!(journal.take().contains(&expected));
    error
}

/// In which order the host finalises backends that it opened in the order of `backends`.
pub fn finalize_order(backends: &[&str]) -> Vec<String> {
    let host = host();
    let journals: Vec<_> = backends
        .iter()
        .map(|backend| {
            let library = install(backend, &workshop().join("plugin.so"));
            drop(host.open(&spec(backend, "m")).unwrap());
            (backend, Journal::of(&library))
        })
        .collect();
    host.finalize_all();
    // Each library has a journal of its own, so the order is read off the clock.
    let mut finalized: Vec<_> = journals
        .iter()
        .map(|(backend, journal)| (journal.finalize_time(), (*backend).to_string()))
        .collect();
    finalized.sort();
    finalized.into_iter().map(|(_, backend)| backend).collect()
}

/// A loaded model of the plug-in.
pub struct Bench {
    pub model: Arc<dyn Model>,
    pub version: Arc<ModelVersion>,
    pub backend: Arc<dyn Backend>,
    pub model_path: PathBuf,
    host: Arc<BackendLibraries>,
    budget: Arc<Budget>,
    client: Arc<Client>,
    journal: Journal,
    spec: BackendSpec,
}

impl Bench {
    pub fn new(backend: &str, model: &str, is_decoupled: bool) -> Bench {
        install(backend, &workshop().join("plugin.so"));
        let host = host();
        let opened = host.open(&spec(backend, model)).unwrap();
        Bench::load(&host, opened, model, is_decoupled, false).unwrap()
    }

    /// A model of the backend in Rust whose panics get out.
    pub fn panicking(backend: &str, model: &str) -> Result<Bench, Error> {
        install(backend, panics());
        let host = host();
        let opened = host.open(&spec(backend, model)).unwrap();
        Bench::load(&host, opened, model, false, false)
    }

    pub fn completing(backend: &str, model: &str) -> Bench {
        install(backend, &workshop().join("plugin.so"));
        let host = host();
        let opened = host.open(&spec(backend, model)).unwrap();
        Bench::load(&host, opened, model, false, true).unwrap()
    }

    /// A model of another backend, which is in `library` already.
    pub fn of(library: &Path, backend: &str, model: &str, config: &str) -> Bench {
        install(backend, library);
        let host = host();
        let opened = host.open(&spec(backend, model)).unwrap();
        Bench::load_as(&host, opened, model, config, false).unwrap()
    }

    fn load(
        host: &Arc<BackendLibraries>,
        backend: Arc<dyn Backend>,
        model: &str,
        is_decoupled: bool,
        may_complete: bool,
    ) -> Result<Bench, Error> {
        let mut config = MODEL.replace("NAME", model);
        if is_decoupled {
            config.push_str(DECOUPLED);
        }
        Bench::load_as(host, backend, model, &config, may_complete)
    }

    fn load_as(
        host: &Arc<BackendLibraries>,
        backend: Arc<dyn Backend>,
        model: &str,
        config: &str,
        may_complete: bool,
    ) -> Result<Bench, Error> {
        let mut config = conch_config::parse_text("config.pbtxt", config).unwrap();
        conch_config::normalize(&mut config);
        let config = Arc::new(conch_config::ResolvedConfig::from_message(config).unwrap());
        let spec = spec(backend.name(), model);
        let budget = Budget::new(1 << 30);
        let context = LoadContext {
            name: model.into(),
            version: 3,
            path: spec.model_path.clone(),
            config: Arc::clone(&config),
            may_complete,
            pool: Pool::new(1 << 20),
            budget: Arc::clone(&budget),
        };
        let loaded = Arc::clone(&backend).load_model(context)?;
        let version = conch_engine::testing::version(model, 3, &loaded.config());
        loaded.bind(&version);
        let library = workshop()
            .join("backends")
            .join(backend.name())
            .join(format!("libtriton_{}.so", backend.name()));
        Ok(Bench {
            model: loaded,
            version,
            model_path: spec.model_path.clone(),
            host: Arc::clone(host),
            budget,
            client: Arc::default(),
            journal: Journal::of(&library),
            spec,
            backend,
        })
    }

    pub fn instance_spec(name: &str) -> InstanceSpec {
        InstanceSpec {
            name: name.to_owned(),
            kind: conch_config::InstanceKind::Cpu,
            device_id: 0,
            host_policy: "cpu".to_owned(),
            is_passive: false,
            profiles: vec!["fast".to_owned()],
            secondary_devices: vec![("KIND_NVDLA".to_owned(), 3)],
            rate_limit: Default::default(),
        }
    }

    pub fn instance(&self, name: &str) -> Box<dyn Instance> {
        Arc::clone(&self.model)
            .create_instance(Bench::instance_spec(name))
            .unwrap()
    }

    /// Executes the calls as one batch and returns what came back by the end of it.
    pub fn execute(&self, instance: &mut dyn Instance, calls: &[Call]) -> Vec<String> {
        self.begin(instance, calls);
        self.answers()
    }

    /// As [`Bench::execute`], for what comes back later. Each call's pieces are the model's first
    /// input: a row of bytes if it batches, one string if not.
    pub fn begin(&self, instance: &mut dyn Instance, calls: &[Call]) -> Vec<RequestHandle> {
        let completion: Arc<dyn Completion> = self.client.clone();
        let config = &self.version.config;
        let (mut handles, mut batch) = (Vec::new(), Vec::new());
        for (slot, call) in (0..).zip(calls) {
            let length: usize = call.content.iter().map(Vec::len).sum();
            let shape: &[i64] = match config.is_batching() {
                true => &[1, i64::try_from(length).unwrap()],
                false => &[1],
            };
            let input = DraftInput {
                name: &config.inputs[0].name,
                data_type: config.inputs[0].data_type,
                shape: shape.into(),
                chunks: call
                    .content
                    .iter()
                    .map(|piece| ByteView::copy_of(piece))
                    .collect(),
            };
            let draft = Draft {
                id: call.id,
                correlation_id: call.correlation_id.clone(),
                parameters: call.parameters.clone(),
                timeout_us: call.timeout_us,
                inputs: [input].into_iter().collect(),
                requested_outputs: call.requested_outputs.iter().copied().collect(),
                ..Draft::default()
            };
            let handle = conch_engine::testing::admit(
                &self.version,
                draft,
                &completion,
                slot,
                Timestamps::default(),
            )
            .unwrap();
            batch.push(handle.claim(ClaimReason::Execute, None).unwrap());
            handles.push(handle);
        }
        let mut pending = PendingResponses::default();
        instance.execute(&mut batch, &mut pending);
        assert!(batch.is_empty());
        pending.flush();
        handles
    }

    /// What came back since the last look, as soon as something final is among it.
    pub fn wait_for_final(&self) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut answers = Vec::new();
        while !answers.iter().any(|line: &String| line.ends_with(" final")) {
            assert!(Instant::now() < deadline, "no final answer: {answers:?}");
            std::thread::sleep(Duration::from_millis(1));
            answers.append(&mut self.answers());
        }
        answers
    }

    /// What came back since the last look.
    pub fn answers(&self) -> Vec<String> {
        std::mem::take(&mut self.client.answers.lock().unwrap())
    }

    pub fn wake_count(&self) -> usize {
        *self.client.wakes.lock().unwrap()
    }

    /// The plug-in's notes since the last look, after its threads ended.
    pub fn journal(&self) -> String {
        self.journal.take()
    }

    pub fn live_count(&self) -> u64 {
        self.version.live_count()
    }

    pub fn failures(&self) -> u64 {
        self.version.model_statistics().inference.fail.count
    }

    pub fn host_list(&self) -> Vec<String> {
        self.host
            .list()
            .into_iter()
            .map(|(name, _, _)| name)
            .collect()
    }

    pub fn open_again(&self) -> Arc<dyn Backend> {
        self.host.open(&self.spec).unwrap()
    }

    /// No answer and no request is held: all bytes are given back, and the model is referred to by
    /// nobody else.
    pub fn assert_nothing_held(&self) {
        assert_eq!(self.budget.used_bytes(), 0);
        assert_eq!(Arc::strong_count(&self.version), 1);
        assert_eq!(Arc::strong_count(&self.client), 1);
        assert_eq!(Arc::strong_count(&self.model), 1);
    }

    /// Unloads the model; the rest stays, with a way to read the journal.
    pub fn unload_all(self) -> (Arc<BackendLibraries>, impl Fn() -> String) {
        let Bench {
            model,
            backend,
            host,
            journal,
            ..
        } = self;
        journal.take();
        drop(model);
        drop(backend);
        (host, move || journal.take())
    }

    /// Unloads the model and ends the host; returns what the plug-in noted meanwhile.
    pub fn end(self) -> String {
        let Bench {
            model,
            backend,
            host,
            journal,
            ..
        } = self;
        drop(model);
        drop(backend);
        host.finalize_all();
        journal.take()
    }

    /// Unloads the model, without keeping the library open for its journal.
    pub fn unload_without_journal(self) {
        let Bench {
            model,
            backend,
            host,
            journal,
            ..
        } = self;
        drop(journal);
        drop(model);
        drop(backend);
        assert!(host.list().is_empty());
    }
}
