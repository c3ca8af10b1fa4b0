//! The cost of one request at the C boundary: Execute of the identity backend with all its calls
//! into the server.
//!
//! No network, no queue, no other thread: this one admits a request, executes it on an instance,
//! and drops the answer, so many times as asked. `--until=admit` stops before Execute, so that the
//! difference of two runs is the boundary alone. The mean time is printed; instructions and
//! allocations are counted from outside, by running it under valgrind
//! (tests/e2e/operations/test_costs.py).
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use conch_bench::arguments::Arguments;
use conch_config::{DataType, InstanceKind};
use conch_engine::{
    BackendHost, BackendSpec, Completion, Delivery, Draft, DraftInput, Error, Instance,
    InstanceSpec, LoadContext, ModelVersion, OwnedRequest, PendingResponses, Timestamps,
};
use conch_ffi::host::{BackendLibraries, HostOptions};
use conch_memory::{Budget, ByteView, Pool};
use conch_sync::ClaimReason;

const USAGE: &str = "ffi-round-trip --backends=DIR [--requests=N] [--until=execute|admit]";

const MODEL: &str = r#"
    name: "identity"
    backend: "identity"
    max_batch_size: 8
    input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
    instance_group { kind: KIND_CPU count: 1 name: "identity" }
    parameters { key: "example_response_parameters" value { string_value: "false" } }
"#;

/// Counts good answers and drops them.
#[derive(Default)]
struct Client {
    good: AtomicU64,
}

impl Completion for Client {
    fn deliver(&self, delivery: Delivery) {
        if matches!(delivery.outcome(), Some(Ok(response)) if response.outputs.len() == 1) {
            self.good.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn wake(&self) {}
}

fn main() {
    let mut arguments = Arguments::from_process(USAGE);
    let backends = PathBuf::from(arguments.require("backends"));
    let requests: u64 = arguments.take("requests", 1_000_000);
    let until = arguments.take("until", "execute".to_owned());
    arguments.finish();
    if let Err(error) = run(backends, requests, until == "execute") {
        eprintln!("{error}");
        exit(1);
    }
}

fn run(backends: PathBuf, requests: u64, executes: bool) -> Result<(), Error> {
    let Loaded {
        mut instance,
        version,
        host,
    } = load(backends)?;
    let client = Arc::new(Client::default());
    let completion: Arc<dyn Completion> = client.clone();
    let content = ByteView::copy_of(&[0; 64]);
    let mut batch: Vec<OwnedRequest> = Vec::new();
    let mut pending = PendingResponses::default();
    let started = Instant::now();
    for slot in 0..requests {
        let input = DraftInput {
            name: "INPUT0",
            data_type: DataType::Fp32,
            shape: [1, 16].as_slice().into(),
            chunks: [content.clone()].into_iter().collect(),
        };
        let draft = Draft {
            inputs: [input].into_iter().collect(),
            ..Draft::default()
        };
        let handle = conch_engine::testing::admit(
            &version,
            draft,
            &completion,
            slot,
            Timestamps::default(),
        )?;
        let live = handle
            .claim(ClaimReason::Execute, None)
            .ok_or_else(|| Error::internal("the request was claimed by nobody else"))?;
        if executes {
            batch.push(live);
            instance.execute(&mut batch, &mut pending);
            pending.flush();
        }
    }
    let elapsed_ns = started.elapsed().as_nanos();
    let good = client.good.load(Ordering::Relaxed);
    if executes && good != requests {
        return Err(Error::internal(format!(
            "{good} of {requests} requests were answered well"
        )));
    }
    drop(instance);
    host.finalize_all();
    println!(
        "requests {requests}, {} ns each",
        elapsed_ns / u128::from(requests.max(1))
    );
    Ok(())
}

/// The identity model with one instance, which this thread executes.
struct Loaded {
    instance: Box<dyn Instance>,
    version: Arc<ModelVersion>,
    host: Arc<BackendLibraries>,
}

fn load(backends: PathBuf) -> Result<Loaded, Error> {
    let host = BackendLibraries::new(HostOptions {
        server_id: "bench".to_owned(),
        cache_directory: backends.clone(),
        backend_directory: backends,
        auto_complete: false,
        ..HostOptions::default()
    });
    let mut message = conch_config::parse_text("config.pbtxt", MODEL)?;
    conch_config::normalize(&mut message);
    let config = Arc::new(conch_config::ResolvedConfig::from_message(message)?);
    let backend = host.open(&BackendSpec {
        model_name: "identity".to_owned(),
        backend: "identity".to_owned(),
        runtime: String::new(),
        model_path: PathBuf::from("identity"),
        version: 1,
    })?;
    let model = backend.load_model(LoadContext {
        name: "identity".into(),
        version: 1,
        path: PathBuf::from("identity"),
        config: Arc::clone(&config),
        may_complete: false,
        pool: Pool::new(1 << 20),
        budget: Budget::new(1 << 30),
    })?;
    let version = conch_engine::testing::version("identity", 1, &config);
    model.bind(&version);
    let instance = model.create_instance(InstanceSpec {
        name: "identity_0".to_owned(),
        kind: InstanceKind::Cpu,
        device_id: 0,
        host_policy: "cpu".to_owned(),
        is_passive: false,
        profiles: Vec::new(),
        secondary_devices: Vec::new(),
        rate_limit: Default::default(),
    })?;
    Ok(Loaded {
        instance,
        version,
        host,
    })
}
