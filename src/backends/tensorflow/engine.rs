//! TensorFlow and its threads, of which a process has one each.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use conch_backend_sdk as sdk;
use sdk::Error;

use crate::messages::{ConfigProto, ExperimentalConfig};
use crate::settings::ModelSettings;
use crate::tf::{Graph, Library};

/// The opened library, and its threads.
///
/// All sessions of a process share one pool of threads within operations, and one of operations at
/// a time, unless a session asks for operations' threads of its own. Their sizes and their CPUs are
/// those of the first session, whose thread they inherit from.
#[derive(Debug)]
pub struct Engine {
    pub library: Arc<Library>,
    pools: Mutex<Option<ThreadPools>>,
}

/// How many threads the pools of the process have.
#[derive(Clone, Copy, Debug)]
pub struct ThreadPools {
    pub intra_op_threads: i32,
    pub inter_op_threads: i32,
}

impl Engine {
    /// # Errors
    /// As [`Library::open`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let library = Arc::new(Library::open(path)?);
        sdk::info!("tensorflow backend runs models with {library:?}");
        Ok(Engine {
            library,
            pools: Mutex::default(),
        })
    }

    /// The pools, which the first caller makes: as many threads as its thread has CPUs, on those
    /// CPUs, unless the settings of its model say how many. To be called on the thread of an
    /// instance, which the server keeps off the CPUs of others.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's own words.
    pub fn pools(&self, settings: &ModelSettings) -> Result<ThreadPools, Error> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pools) = *pools {
            return Ok(pools);
        }
        let cpus = cpu_count();
        let or_cpus = |threads: i32| if threads == 0 { cpus } else { threads };
        let made = ThreadPools {
            intra_op_threads: or_cpus(settings.intra_op_threads),
            inter_op_threads: or_cpus(settings.inter_op_threads),
        };
        let config = ConfigProto {
            device_count: [("GPU".to_owned(), 0)].into(),
            intra_op_parallelism_threads: made.intra_op_threads,
            inter_op_parallelism_threads: made.inter_op_threads,
            experimental: Some(calm()),
            ..ConfigProto::default()
        };
        drop(Graph::import(&self.library, &[], &config)?);
        sdk::info!(
            "TensorFlow has {} threads within operations, on the CPUs of the first instance",
            made.intra_op_threads
        );
        Ok(*pools.insert(made))
    }
}

impl ThreadPools {
    /// Tells the log of thread counts that come too late.
    pub fn tell_of_threads(self, model_name: &str, settings: &ModelSettings) {
        let late = |name: &str, wanted: i32, are: i32| {
            if wanted > 0 && wanted != are {
                sdk::warning!(
                    "parameter '{name}' of model '{model_name}' has no effect: the models of a \
                     process share TensorFlow's threads, and the first one made {are} of them"
                );
            }
        };
        late(
            "TF_NUM_INTRA_THREADS",
            settings.intra_op_threads,
            self.intra_op_threads,
        );
        if !settings.has_own_threads {
            late(
                "TF_NUM_INTER_THREADS",
                settings.inter_op_threads,
                self.inter_op_threads,
            );
        }
    }
}

/// Threads without work sleep: one that looks for it takes the CPU from the server, which has
/// requests to receive meanwhile.
pub fn calm() -> ExperimentalConfig {
    ExperimentalConfig {
        disable_thread_spinning: true,
    }
}

/// CPUs of the calling thread.
fn cpu_count() -> i32 {
    let count = thread::available_parallelism().map_or(1, usize::from);
    i32::try_from(count).unwrap_or(i32::MAX)
}
