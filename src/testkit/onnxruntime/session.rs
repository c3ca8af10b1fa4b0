//! Sessions, and the providers that their options asked for.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{c_char, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use serde_json::json;

use crate::cuda::Cuda;
use crate::log;
use crate::real::{Failure, Raw, Status, check, real, status, text};
use crate::record::record;
use crate::signature::Signature;

/// Options that a provider is given, kept by address.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub entries: BTreeMap<String, String>,
    pub stream: usize,
}

/// A session on a GPU.
#[derive(Clone, Debug)]
pub struct GpuSession {
    pub device: i32,
    pub stream: usize,
    /// Whether runs are captured as graphs.
    pub has_graphs: bool,
    pub signature: Arc<Signature>,
}

#[derive(Default)]
struct Registry {
    /// By the address of session options: names and options of providers, in order.
    appended: HashMap<usize, Vec<(&'static str, Options)>>,
    sessions: HashMap<usize, GpuSession>,
    /// Run options that leave the wait for the device to the caller.
    without_wait: HashSet<usize>,
    /// The graph that runs with these options are to replay.
    graphs: HashMap<usize, i32>,
    /// Addresses that a graph of a session was captured with.
    captured: HashMap<(usize, i32), Vec<u64>>,
}

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a provider of session options.
pub fn append(options: Raw, provider: &'static str, given: Options) {
    let appended = &mut registry().appended;
    appended
        .entry(options.addr())
        .or_default()
        .push((provider, given));
}

/// What is known of a session, if it is on a GPU.
pub fn gpu(session: Raw) -> Option<GpuSession> {
    registry().sessions.get(&session.addr()).cloned()
}

/// The number of the graph that a run captures or replays, and whether it replays.
///
/// # Errors
/// That the graph was captured with other addresses.
pub fn graph(
    session: Raw,
    run_options: Raw,
    addresses: &[u64],
) -> Result<Option<(i32, bool)>, Failure> {
    let mut registry = registry();
    let id = registry.graphs.get(&run_options.addr());
    let id = id.copied().unwrap_or(0);
    if id < 0 {
        return Ok(None);
    }
    let entry = registry.captured.entry((session.addr(), id));
    let is_replay = matches!(entry, Entry::Occupied(_));
    let captured = entry.or_insert_with(|| addresses.to_vec());
    match captured == addresses {
        true => Ok(Some((id, is_replay))),
        false => Err(Failure::Double(format!(
            "misuse: graph {id} was captured with other addresses"
        ))),
    }
}

/// Whether a run waits for the device before it returns.
pub fn waits(run_options: Raw) -> bool {
    !registry().without_wait.contains(&run_options.addr())
}

pub unsafe extern "C" fn create(
    env: Raw,
    path: *const c_char,
    options: Raw,
    session: *mut Raw,
) -> Status {
    status((|| {
        let appended = registry().appended.get(&options.addr()).cloned();
        let mut names = appended.iter().flatten().map(|(name, _)| *name);
        let has_tensorrt = names.any(|name| name == "Tensorrt");
        let gpu = appended.map(|list| gpu_of(&list)).transpose()?;
        // SAFETY: the contracts are the same; the real library knows nothing of our providers.
        unsafe { check(real()?.create_session(env, path, options, session))? };
        if let Some((mut gpu, line)) = gpu {
            // SAFETY: the result was written; the path is a C string.
            let (made, path) = unsafe { (*session, text(path)) };
            // SAFETY: the session was made, and the caller does not have it yet.
            gpu.signature = Arc::new(unsafe { Signature::of(made)? });
            log::tell_placement(has_tensorrt);
            registry().sessions.insert(made.addr(), gpu);
            record(&json!({"event": "session", "path": path, "providers": line}));
        }
        Ok(())
    })())
}

/// The GPU of a session with these providers, and what is recorded of them.
fn gpu_of(list: &[(&'static str, Options)]) -> Result<(GpuSession, serde_json::Value), Failure> {
    let mut found: Option<GpuSession> = None;
    let mut told = Vec::new();
    for (name, options) in list {
        let device = options
            .entries
            .get("device_id")
            .and_then(|id| id.parse().ok());
        let gpu = GpuSession {
            device: device.unwrap_or(0),
            stream: options.stream,
            has_graphs: options.entries.get("enable_cuda_graph").map(String::as_str) == Some("1"),
            signature: Arc::default(),
        };
        let says = options
            .entries
            .get("has_user_compute_stream")
            .map(String::as_str);
        if (says == Some("1")) != (gpu.stream != 0) {
            return Err(Failure::Double(
                "misuse: a stream that is not told of".to_owned(),
            ));
        }
        let cuda = Cuda::get()?;
        cuda.enter(gpu.device)?;
        if gpu.stream != 0 {
            cuda.check_stream(std::ptr::without_provenance_mut(gpu.stream))?;
        }
        if let Some(other) = found.replace(gpu.clone())
            && (other.device, other.stream) != (gpu.device, gpu.stream)
        {
            return Err(Failure::Double(
                "misuse: providers on different streams".to_owned(),
            ));
        }
        told.push(json!({"name": name, "options": options.entries, "has_stream": gpu.stream != 0}));
    }
    let found = found.ok_or_else(|| Failure::Double("no provider".to_owned()))?;
    Ok((found, serde_json::Value::Array(told)))
}

/// Forgets a session; whether it was on a GPU.
pub fn forget(session: Raw) -> bool {
    let mut registry = registry();
    let captured = &mut registry.captured;
    captured.retain(|(owner, _), _| *owner != session.addr());
    registry.sessions.remove(&session.addr()).is_some()
}

unsafe extern "C" fn release_options(options: Raw) {
    registry().appended.remove(&options.addr());
    if let Ok(real) = real() {
        // SAFETY: the contracts are the same.
        unsafe { real.release_session_options(options) };
    }
}

unsafe extern "C" fn add_run_config(
    options: Raw,
    key: *const c_char,
    value: *const c_char,
) -> Status {
    // SAFETY: both are C strings.
    let (name, set) = unsafe { (text(key), text(value)) };
    if name == "disable_synchronize_execution_providers" {
        let without_wait = &mut registry().without_wait;
        match set.as_str() {
            "1" => without_wait.insert(options.addr()),
            _ => without_wait.remove(&options.addr()),
        };
    }
    if name == "gpu_graph_id" {
        let id = set.parse().unwrap_or(0);
        registry().graphs.insert(options.addr(), id);
    }
    status((|| {
        // SAFETY: the contracts are the same.
        check(unsafe { real()?.add_run_config(options, key, value) })
    })())
}

unsafe extern "C" fn release_run_options(options: Raw) {
    let mut registry = registry();
    registry.without_wait.remove(&options.addr());
    registry.graphs.remove(&options.addr());
    drop(registry);
    if let Ok(real) = real() {
        // SAFETY: the contracts are the same.
        unsafe { real.release_run_options(options) };
    }
}

/// The functions of this module, by their index in the table.
pub fn functions() -> [(usize, *const c_void); 4] {
    [
        (7, create as *const c_void),
        (97, release_run_options as *const c_void),
        (100, release_options as *const c_void),
        (165, add_run_config as *const c_void),
    ]
}
