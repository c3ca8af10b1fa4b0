//! What the instances of a model share: the model, compiled for the CPUs that they run on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, thread};

use conch_backend_sdk as sdk;
use sdk::Error;

use crate::batching::{Batching, ConfiguredModel};
use crate::ov::{CompiledModel, Core};
use crate::session::{ModelInterface, Session};
use crate::settings::{REQUESTS_MAX, Settings};
use crate::shapes::{self, Shapes};

/// A model compiled, and what is to be known of it.
struct SharedModel {
    model: CompiledModel,
    interface: Arc<ModelInterface>,
    requests_per_instance: usize,
}

/// The compiled models, by the CPUs that their threads may use. Threads of OpenVINO inherit those
/// of the thread that compiles, so instances under different host policies do not share.
#[derive(Default)]
pub struct SharedModels(Mutex<HashMap<String, SharedModel>>);

impl SharedModels {
    /// Sessions for the calling thread, which is an instance's: one for each run that it may have
    /// at a time. `prepare` prepares the model where it is the first with its CPUs; `share` is how
    /// many CPUs the instance would have for itself.
    ///
    /// # Errors
    /// Those of `prepare`, or what OpenVINO says.
    pub fn sessions(
        &self,
        model_name: &str,
        settings: &Settings,
        share: usize,
        prepare: impl FnOnce() -> Result<(Core, ConfiguredModel), Error>,
    ) -> Result<Vec<Session>, Error> {
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = match models.entry(cpus_of_thread()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(compile(model_name, settings, share, prepare()?)?),
        };
        let shared = &*shared;
        let session = |_| {
            let request = shared.model.create_request()?;
            Ok(Session::new(request, &shared.interface, model_name))
        };
        (0..shared.requests_per_instance).map(session).collect()
    }
}

fn compile(
    model_name: &str,
    settings: &Settings,
    share: usize,
    (core, configured): (Core, ConfiguredModel),
) -> Result<SharedModel, Error> {
    let cpu_count = thread::available_parallelism().map_or(1, usize::from);
    let defaults = settings.defaults(cpu_count, share);
    for (key, value) in defaults.iter().chain(&settings.properties) {
        if !core.supports(&settings.device, key) {
            sdk::info!(
                "{key} has no effect on model '{model_name}': OpenVINO's device {} has it not",
                settings.device
            );
            continue;
        }
        sdk::verbose!("OpenVINO property of {}: {key} {value}", settings.device);
        core.set_property(&settings.device, key, value)?;
    }
    // Devices that gather requests into batches of their own (GPUs) may do so where the model
    // batches.
    let gathers = configured.batching != Batching::None && !settings.has_fixed_batches;
    let gathers = if gathers { "YES" } else { "NO" };
    let model = core.compile(
        &configured.model,
        &settings.device,
        ("ALLOW_AUTO_BATCHING", gathers),
    )?;
    // The instances that run on these CPUs have together what OpenVINO says is best.
    let instances = (cpu_count / share.max(1)).max(1);
    let requests_per_instance = match settings.infer_requests {
        Some(count) => count,
        None => (model.optimal_requests() / instances).clamp(1, REQUESTS_MAX),
    };
    let ConfiguredModel {
        model: read,
        batching,
        signature,
    } = configured;
    let is_interruptible = !read.is_dynamic();
    let shapes = shapes::are_open(&signature, batching).then(|| Shapes::new(read, &signature));
    Ok(SharedModel {
        model,
        interface: Arc::new(ModelInterface {
            batching,
            signature,
            shapes,
            is_interruptible,
        }),
        requests_per_instance,
    })
}

/// The CPUs that the calling thread may use, as the kernel writes them: `0-3,8`.
fn cpus_of_thread() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mut lines = status.lines();
    let cpus = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    cpus.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_cpus_of_a_thread() {
        let cpus = cpus_of_thread();
        assert!(
            cpus.starts_with(|first: char| first.is_ascii_digit()),
            "{cpus}"
        );
    }
}
