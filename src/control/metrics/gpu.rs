//! Metrics of GPUs. A thread reads the devices, as their library may take its time; who asks for
//! the metrics gets the last reading.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conch_cuda::{GpuMonitor, GpuReading, PoolUsage};
use conch_engine::gpus::GpuHost;
use conch_log as log;

use super::text::{push_head, push_sample};

/// The figures of all devices of a server, kept fresh until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct GpuMeter {
    readings: Arc<Mutex<Vec<MeteredGpu>>>,
    /// Ends the thread when dropped; none where there is none.
    _ending: Option<Sender<()>>,
}

#[derive(Clone, Debug)]
struct MeteredGpu {
    uuid: String,
    /// Energy that counts as none: what it had used when the server started.
    start_joules: Option<f64>,
    reading: GpuReading,
}

impl GpuMeter {
    /// Reads the devices of `gpus` once now and then every `interval`. Without a device there is no
    /// thread, and nothing is loaded.
    pub(crate) fn start(gpus: &GpuHost, interval: Duration) -> GpuMeter {
        if gpus.gpus().is_empty() {
            return GpuMeter::default();
        }
        let monitor = match GpuMonitor::start() {
            Ok(monitor) => monitor,
            Err(absent) => {
                log::warning!("there are no metrics of GPUs: {absent}");
                return GpuMeter::default();
            }
        };
        let metered = gpus.gpus().iter().map(|gpu| {
            let uuid = gpu.properties.uuid.clone();
            let reading = monitor.read(&uuid);
            MeteredGpu {
                uuid,
                start_joules: reading.energy_joules,
                reading,
            }
        });
        let readings = Arc::new(Mutex::new(metered.collect()));
        let (ending, ended) = channel::<()>();
        let own = Arc::clone(&readings);
        let spawned = std::thread::Builder::new()
            .name("gpu-metrics".to_owned())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(interval) {
                    refresh(&own, &monitor);
                }
            });
        if let Err(error) = spawned {
            log::warning!("metrics of GPUs stay as they are: cannot start a thread: {error}");
        }
        GpuMeter {
            readings,
            _ending: Some(ending),
        }
    }

    pub(crate) fn render(&self, text: &mut String) {
        let metered = lock(&self.readings).clone();
        for (name, kind, help, value) in FAMILIES {
            let samples: Vec<(&str, f64)> = metered
                .iter()
                .filter_map(|gpu| Some((gpu.uuid.as_str(), value(gpu)?)))
                .collect();
            if samples.is_empty() {
                continue;
            }
            push_head(text, name, help, kind);
            for (uuid, value) in samples {
                push_sample(text, name, &[("gpu_uuid", uuid)], value);
            }
        }
    }
}

/// The pools of device memory, of the devices that are in use.
pub(crate) fn render_pools(text: &mut String, gpus: &GpuHost) {
    let pools: Vec<(&str, PoolUsage)> = gpus
        .gpus()
        .iter()
        .filter_map(|gpu| Some((&*gpu.properties.uuid, gpu.memory()?.pool_usage()?)))
        .collect();
    let families: [(&str, &str, PoolFigure); 2] = [
        (
            "conch_gpu_memory_pool_total_bytes",
            "GPU memory pool total memory size, in bytes",
            |usage| usage.total_bytes,
        ),
        (
            "conch_gpu_memory_pool_used_bytes",
            "GPU memory pool used memory size, in bytes",
            |usage| usage.used_bytes,
        ),
    ];
    for (name, help, figure) in families.iter().filter(|_| !pools.is_empty()) {
        push_head(text, name, help, "gauge");
        for (uuid, usage) in &pools {
            push_sample(text, name, &[("gpu_uuid", uuid)], figure(usage) as f64);
        }
    }
}

/// Without the lock while the library is asked.
fn refresh(readings: &Mutex<Vec<MeteredGpu>>, monitor: &GpuMonitor) {
    let mut metered = lock(readings).clone();
    for gpu in &mut metered {
        gpu.reading = monitor.read(&gpu.uuid);
        gpu.start_joules = gpu.start_joules.or(gpu.reading.energy_joules);
    }
    *lock(readings) = metered;
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type PoolFigure = fn(&PoolUsage) -> u64;
type FigureOf = fn(&MeteredGpu) -> Option<f64>;

/// Name, kind, help in upstream's words, and the figure.
const FAMILIES: [(&str, &str, &str, FigureOf); 6] = [
    (
        "nv_gpu_utilization",
        "gauge",
        "GPU utilization rate [0.0 - 1.0)",
        |gpu| gpu.reading.utilization,
    ),
    (
        "nv_gpu_memory_total_bytes",
        "gauge",
        "GPU total memory, in bytes",
        |gpu| gpu.reading.memory_total_bytes.map(|bytes| bytes as f64),
    ),
    (
        "nv_gpu_memory_used_bytes",
        "gauge",
        "GPU used memory, in bytes",
        |gpu| gpu.reading.memory_used_bytes.map(|bytes| bytes as f64),
    ),
    (
        "nv_gpu_power_usage",
        "gauge",
        "GPU power usage in watts",
        |gpu| gpu.reading.power_usage_watts,
    ),
    (
        "nv_gpu_power_limit",
        "gauge",
        "GPU power management limit in watts",
        |gpu| gpu.reading.power_limit_watts,
    ),
    (
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the Triton Server started",
        |gpu| Some(gpu.reading.energy_joules? - gpu.start_joules?),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_does_not_tell_is_left_out() {
        let gpu = |uuid: &str, reading| MeteredGpu {
            uuid: uuid.to_owned(),
            start_joules: Some(100.0),
            reading,
        };
        let known = GpuReading {
            utilization: Some(0.5),
            memory_used_bytes: Some(7),
            energy_joules: Some(102.5),
            ..GpuReading::default()
        };
        let silent = GpuReading {
            utilization: Some(0.0),
            ..GpuReading::default()
        };
        let meter = GpuMeter {
            readings: Arc::new(Mutex::new(vec![gpu("GPU-a", known), gpu("GPU-b", silent)])),
            _ending: None,
        };
        let mut text = String::new();
        meter.render(&mut text);
        let expected = "\
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid=\"GPU-a\"} 0.5
nv_gpu_utilization{gpu_uuid=\"GPU-b\"} 0
# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-a\"} 7
# HELP nv_energy_consumption GPU energy consumption in joules since the Triton Server started
# TYPE nv_energy_consumption counter
nv_energy_consumption{gpu_uuid=\"GPU-a\"} 2.5
";
        assert_eq!(text, expected);
    }
}
