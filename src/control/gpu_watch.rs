//! Looks after the devices: a thread asks from time to time whether they still work, as the driver
//! may take its time. Models whose device does not are not ready, and neither is the server.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use conch_engine::gpus::GpuHost;
use conch_log as log;

use crate::loader::Lifecycle;

/// Short beside the time that a load balancer takes to notice.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The thread of a server with devices; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct GpuWatch {
    /// None where there is no thread.
    _ending: Option<Sender<()>>,
}

impl GpuWatch {
    pub(crate) fn start(gpus: &Arc<GpuHost>, lifecycle: &Arc<Lifecycle>) -> GpuWatch {
        if gpus.gpus().is_empty() {
            return GpuWatch { _ending: None };
        }
        let (ending, ended) = channel::<()>();
        let (gpus, lifecycle) = (Arc::clone(gpus), Arc::downgrade(lifecycle));
        let spawned = std::thread::Builder::new()
            .name("gpu-watch".to_owned())
            .spawn(move || {
                let mut broken_ids = Vec::new();
                while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK_INTERVAL) {
                    let found = gpus.look_after_devices();
                    if std::mem::replace(&mut broken_ids, found) != broken_ids
                        && let Some(lifecycle) = lifecycle.upgrade()
                    {
                        lifecycle.note_device_faults();
                    }
                }
            });
        if let Err(error) = spawned {
            log::warning!("nobody looks after the GPUs: cannot start a thread: {error}");
        }
        GpuWatch {
            _ending: Some(ending),
        }
    }
}
