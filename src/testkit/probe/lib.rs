//! A backend that writes down when and on which thread a server calls it, for tests of the contract
//! between them. It asserts nothing itself; `tests/peers/test_contract.py` reads its record and
//! does.
//!
//! The record is a file named by the backend setting `record` or the environment variable
//! `CONCH_PROBE_RECORD`. Backend setting `parallel-instances`: whether instances of a model may
//! start at the same time. Backend setting `prefer`: instance groups that the backend prefers, as
//! `<kind>:<count>[:<device>]`, with `;` between them. Model parameters `initialize_ms` and
//! `execute_ms` stretch the calls, so that overlaps show. A request whose INPUT0 begins with a
//! negative number makes its execution fail as a whole; any other gets INPUT0 back as OUTPUT0.
//!
//! Parameters for sequences: `rows` writes down what each request of an execution says (see
//! [`rows`]), `gate` names a file that holds back executions: the number in it is how many of the
//! model may go on. An input STATE_IN is added to INPUT0, and the sum is STATE_OUT and OUTPUT0;
//! with `iterates`, STATE_IN counts rounds instead, and INPUT0 says how many there are to be.
//!
//! Two more parameters of a model: `readiness` names a file that orders what the readiness hook
//! does (see [`readiness`]); `await_cancel_ms` makes an execution wait that long for one of its
//! requests to be cancelled, which is written down and answered.

#![forbid(unsafe_code)]

mod gate;
mod readiness;
mod record;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use conch_backend_sdk as sdk;
use sdk::{Batch, Code, DataType, Error, InstanceContext, ModelConfig, ModelContext};

use record::{Call, Record};

sdk::export_backend!(Probe, ready);

/// Backends made in this process; more than one would be a server's fault, and shows in the record.
static BACKEND_COUNT: AtomicU64 = AtomicU64::new(0);

pub struct Probe {
    record: Arc<Record>,
    name: String,
    is_parallel: bool,
    preferred: Vec<(sdk::Kind, u64, Vec<u64>)>,
    model_count: AtomicU64,
}

impl sdk::Backend for Probe {
    type Model = Model;

    fn initialize(context: &sdk::BackendContext) -> Result<Self, Error> {
        let path = context
            .config()
            .setting("record")
            .map(str::to_owned)
            .or_else(|| std::env::var("CONCH_PROBE_RECORD").ok())
            .ok_or_else(|| Error::invalid("the probe backend needs the setting 'record'"))?;
        let record = Arc::new(Record::append(&path)?);
        let name = format!("backend{}", BACKEND_COUNT.fetch_add(1, Ordering::Relaxed));
        record.during(Call::Initialize, &name, "", || {
            Ok(Probe {
                record: Arc::clone(&record),
                is_parallel: context
                    .config()
                    .boolean("parallel-instances")?
                    .unwrap_or(false),
                preferred: preferred(context.config().setting("prefer").unwrap_or_default())?,
                name: name.clone(),
                model_count: AtomicU64::new(0),
            })
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        let detail = format!("parallel={}", self.is_parallel);
        self.record
            .during(Call::Attributes, &self.name, &detail, || {
                if self.is_parallel {
                    attributes.allow_parallel_instances()?;
                }
                for (kind, count, devices) in &self.preferred {
                    attributes.prefer(*kind, *count, devices)?;
                }
                Ok(())
            })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.record.around(Call::Finalize, &self.name, || {});
    }
}

pub struct Model {
    record: Arc<Record>,
    /// Name, version and a number that no other model of the process has.
    name: String,
    initialize_delay: Duration,
    execute_delay: Duration,
    await_cancel: Duration,
    readiness: Option<PathBuf>,
    shows_rows: bool,
    gate: Option<gate::Gate>,
    iterates: bool,
    instance_count: AtomicU64,
}

impl sdk::Model for Model {
    type Backend = Probe;
    type Instance = Instance;

    fn initialize(backend: &Probe, context: &mut ModelContext) -> Result<Self, Error> {
        let serial = backend.model_count.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}:{}#{serial}", context.name(), context.version());
        backend
            .record
            .during(Call::ModelInitialize, &name, &backend.name, || {
                let model = Model {
                    record: Arc::clone(&backend.record),
                    initialize_delay: delay(context.config(), "initialize_ms")?,
                    execute_delay: delay(context.config(), "execute_ms")?,
                    await_cancel: delay(context.config(), "await_cancel_ms")?,
                    shows_rows: context.config().parameter("rows").is_some(),
                    gate: context.config().parameter("gate").map(gate::Gate::new),
                    iterates: context.config().parameter("iterates").is_some(),
                    readiness: context.config().parameter("readiness").map(PathBuf::from),
                    instance_count: AtomicU64::new(0),
                    name: name.clone(),
                };
                thread::sleep(model.initialize_delay);
                Ok(model)
            })
    }
}

impl sdk::Ready for Model {
    fn check_ready(&self) -> Result<(), Error> {
        self.record
            .during(Call::Ready, &self.name, "", || match &self.readiness {
                Some(path) => readiness::obey(path),
                None => Ok(()),
            })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.record.around(Call::ModelFinalize, &self.name, || {
            thread::sleep(self.initialize_delay);
        });
    }
}

pub struct Instance {
    record: Arc<Record>,
    name: String,
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        let serial = model.instance_count.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}/{serial}", model.name);
        model
            .record
            .during(Call::InstanceInitialize, &name, &model.name, || {
                let record = &model.record;
                record.during(Call::InstanceFacts, &name, &facts(context), || Ok(()))?;
                thread::sleep(model.initialize_delay);
                Ok(Instance {
                    record: Arc::clone(&model.record),
                    name: name.clone(),
                })
            })
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        let detail = format!("requests={}", batch.len());
        let record = Arc::clone(&self.record);
        record.during(Call::Execute, &self.name, &detail, || {
            if model.shows_rows {
                let rows = rows::describe(batch)?;
                record.during(Call::Rows, &self.name, &rows, || Ok(()))?;
            }
            if let Some(gate) = &model.gate {
                gate.pass()?;
            }
            thread::sleep(model.execute_delay);
            for request in batch.requests() {
                let input = request.input(c"INPUT0")?;
                let first = input.contiguous()?.and_then(|bytes| bytes.read(0));
                // What only fills a row may hold anything.
                if request.wants(c"OUTPUT0")?
                    && input.data_type() == DataType::Int32
                    && first.is_some_and(|first| i32::from_le_bytes(first) < 0)
                {
                    return Err(Error::internal("probe: ordered to fail"));
                }
            }
            let is_cancelled = self.await_cancel(model, batch)?;
            for request in batch.requests() {
                if is_cancelled && request.is_cancelled()? {
                    request.fail(Error::new(Code::Cancelled, "probe: cancelled"));
                    continue;
                }
                if request.input(c"STATE_IN").is_ok() {
                    rows::advance(request, batch.is_decoupled(), model.iterates)?;
                    continue;
                }
                let input = request.input(c"INPUT0")?;
                let response = request.respond()?;
                if !request.wants(c"OUTPUT0")? {
                    response.send()?;
                    continue;
                }
                let mut buffer = response.output_like(c"OUTPUT0", &input)?;
                input.for_each_buffer(|piece| buffer.write(piece))?;
                response.send()?;
            }
            Ok(())
        })
    }
}

impl Instance {
    /// Waits for a cancelled request as long as the model says; true if one was.
    fn await_cancel(&self, model: &Model, batch: &Batch<'_>) -> Result<bool, Error> {
        let deadline = Instant::now() + model.await_cancel;
        while Instant::now() < deadline {
            for request in batch.requests() {
                if request.is_cancelled()? {
                    self.record.around(Call::SeeCancel, &self.name, || {});
                    return Ok(true);
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(false)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.record
            .around(Call::InstanceFinalize, &self.name, || {});
    }
}

/// All that the server tells an instance of itself, as JSON.
fn facts(context: &InstanceContext) -> String {
    let facts = sdk::serde_json::json!({
        "name": context.name,
        "kind": format!("{:?}", context.kind),
        "device": context.device_id,
        "passive": context.is_passive,
        "profiles": context.profiles,
        "secondary": context.secondary_devices,
        "policy": context.host_policy,
    });
    facts.to_string()
}

/// The groups that `text` lists.
fn preferred(text: &str) -> Result<Vec<(sdk::Kind, u64, Vec<u64>)>, Error> {
    let group = |group: &str| {
        let mut parts = group.split(':');
        let kind = match parts.next()? {
            "auto" => sdk::Kind::Auto,
            "cpu" => sdk::Kind::Cpu,
            "gpu" => sdk::Kind::Gpu,
            "model" => sdk::Kind::Model,
            _ => return None,
        };
        let count = parts.next()?.parse().ok()?;
        let devices: Result<Vec<u64>, _> = parts.map(str::parse).collect();
        Some((kind, count, devices.ok()?))
    };
    let groups = text.split(';').filter(|text| !text.is_empty());
    groups
        .map(|text| {
            group(text).ok_or_else(|| Error::invalid(format!("no instance group: '{text}'")))
        })
        .collect()
}

fn delay(config: &ModelConfig, name: &str) -> Result<Duration, Error> {
    let milliseconds = config.integer_parameter(name)?.unwrap_or(0);
    u64::try_from(milliseconds)
        .map(Duration::from_millis)
        .map_err(|_| Error::invalid(format!("parameter '{name}' must not be negative")))
}
