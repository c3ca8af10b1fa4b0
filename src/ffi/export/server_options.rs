//! Options of a server made by an embedder.
//!
//! The log is the process's: its setters work at once, with or without options. Settings of GPUs
//! are taken and change nothing, as their flags do.

use std::ffi::{c_char, c_int, c_uint};
use std::path::PathBuf;
use std::time::Duration;

use conch_abi as abi;
use conch_control::ControlMode;
use conch_engine::{Error, ResourceCapacity};
use conch_log as log;

use super::export;
use super::log::flush_log_at_exit;
use crate::boundary::{borrow, borrow_mut, delete, lossy_text, text, write_handle};
use crate::embed::ServerOptions;

/// # Safety
/// `path` is null or ends with NUL.
unsafe fn path(path: *const c_char, name: &str) -> Result<PathBuf, Error> {
    // SAFETY: by this function's contract.
    Ok(PathBuf::from(unsafe { text(path, name) }?))
}

export! {
    fn TRITONSERVER_ServerOptionsNew(options: *mut *mut abi::TRITONSERVER_ServerOptions) {
        flush_log_at_exit();
        write_handle(options, Box::new(ServerOptions::new()))
    }

    fn TRITONSERVER_ServerOptionsDelete(options: *mut abi::TRITONSERVER_ServerOptions) {
        delete(options)
    }

    fn TRITONSERVER_ServerOptionsSetServerId(
        options: *mut abi::TRITONSERVER_ServerOptions,
        server_id: *const c_char,
    ) {
        borrow_mut(options)?.server.server_id = text(server_id, "server_id")?.to_owned();
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetModelRepositoryPath(
        options: *mut abi::TRITONSERVER_ServerOptions,
        model_repository_path: *const c_char,
    ) {
        let path = path(model_repository_path, "model_repository_path")?;
        borrow_mut(options)?.server.model_repositories.push(path);
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetModelControlMode(
        options: *mut abi::TRITONSERVER_ServerOptions,
        mode: abi::TRITONSERVER_ModelControlMode,
    ) {
        borrow_mut(options)?.server.model_control_mode = match mode {
            abi::TRITONSERVER_MODEL_CONTROL_NONE => ControlMode::None,
            abi::TRITONSERVER_MODEL_CONTROL_POLL => ControlMode::Poll,
            abi::TRITONSERVER_MODEL_CONTROL_EXPLICIT => ControlMode::Explicit,
            other => return Err(Error::invalid(format!("unknown control mode '{other}'"))),
        };
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetStartupModel(
        options: *mut abi::TRITONSERVER_ServerOptions,
        model_name: *const c_char,
    ) {
        let models = &mut borrow_mut(options)?.server.startup_models;
        let name = text(model_name, "model_name")?;
        // A set, as upstream's.
        if !models.iter().any(|known| known == name) {
            models.push(name.to_owned());
        }
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetStrictModelConfig(
        options: *mut abi::TRITONSERVER_ServerOptions,
        strict: bool,
    ) {
        borrow_mut(options)?.server.auto_complete = !strict;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetModelConfigName(
        options: *mut abi::TRITONSERVER_ServerOptions,
        model_config_name: *const c_char,
    ) {
        borrow_mut(options)?.server.model_config_name =
            text(model_config_name, "model_config_name")?.to_owned();
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetRateLimiterMode(
        options: *mut abi::TRITONSERVER_ServerOptions,
        mode: abi::TRITONSERVER_RateLimitMode,
    ) {
        borrow_mut(options)?.server.limits_rate = match mode {
            abi::TRITONSERVER_RATE_LIMIT_OFF => false,
            abi::TRITONSERVER_RATE_LIMIT_EXEC_COUNT => true,
            other => return Err(Error::invalid(format!("unknown rate limit mode '{other}'"))),
        };
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsAddRateLimiterResource(
        options: *mut abi::TRITONSERVER_ServerOptions,
        resource_name: *const c_char,
        resource_count: usize,
        device: c_int,
    ) {
        let capacity = ResourceCapacity {
            name: text(resource_name, "resource_name")?.to_owned(),
            count: resource_count as u64,
            // As on the command line: -1 is every device.
            device: (device >= 0).then_some(device),
        };
        borrow_mut(options)?.server.rate_capacities.push(capacity);
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(
        options: *mut abi::TRITONSERVER_ServerOptions,
        size: u64,
    ) {
        borrow_mut(options)?.server.gpu.pinned_pool_bytes = size;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(
        options: *mut abi::TRITONSERVER_ServerOptions,
        gpu_device: c_int,
        size: u64,
    ) {
        let gpu = &mut borrow_mut(options)?.server.gpu;
        gpu.device_pool_bytes.insert(gpu_device, size);
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(
        options: *mut abi::TRITONSERVER_ServerOptions,
        gpu_device: c_int,
        cuda_virtual_address_size: usize,
    ) {
        let gpu = &mut borrow_mut(options)?.server.gpu;
        // A size of memory always fits 64 bits.
        gpu.device_virtual_bytes.insert(gpu_device, cuda_virtual_address_size as u64);
        Ok(())
    }

    // Deprecated: a local cache of that size, none for 0.
    fn TRITONSERVER_ServerOptionsSetResponseCacheByteSize(
        options: *mut abi::TRITONSERVER_ServerOptions,
        size: u64,
    ) {
        let options = borrow_mut(options)?;
        if size > 0 {
            options.set_cache("local", &format!("{{\"size\": {size}}}"));
        }
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetCacheConfig(
        options: *mut abi::TRITONSERVER_ServerOptions,
        cache_name: *const c_char,
        config_json: *const c_char,
    ) {
        let options = borrow_mut(options)?;
        options.set_cache(
            text(cache_name, "cache_name")?,
            text(config_json, "config_json")?,
        );
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetCacheDirectory(
        options: *mut abi::TRITONSERVER_ServerOptions,
        cache_dir: *const c_char,
    ) {
        borrow_mut(options)?.plugins.cache_directory = path(cache_dir, "cache_dir")?;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(
        options: *mut abi::TRITONSERVER_ServerOptions,
        cc: f64,
    ) {
        borrow_mut(options)?.server.gpu.capability_min = cc;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetExitOnError(
        options: *mut abi::TRITONSERVER_ServerOptions,
        exit: bool,
    ) {
        borrow_mut(options)?.server.exit_on_error = exit;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetStrictReadiness(
        options: *mut abi::TRITONSERVER_ServerOptions,
        strict: bool,
    ) {
        borrow_mut(options)?.server.strict_readiness = strict;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetExitTimeout(
        options: *mut abi::TRITONSERVER_ServerOptions,
        timeout: c_uint,
    ) {
        borrow_mut(options)?.server.exit_timeout = Duration::from_secs(u64::from(timeout));
        Ok(())
    }

    // Cores copy their own batches: there are no threads to count.
    fn TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(
        options: *mut abi::TRITONSERVER_ServerOptions,
        thread_count: c_uint,
    ) {
        let _ = thread_count;
        borrow(options).map(drop)
    }

    fn TRITONSERVER_ServerOptionsSetModelLoadThreadCount(
        options: *mut abi::TRITONSERVER_ServerOptions,
        thread_count: c_uint,
    ) {
        let count =
            usize::try_from(thread_count).map_err(|_| Error::invalid("too many threads"))?;
        borrow_mut(options)?.server.model_load_thread_count = count;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetModelLoadRetryCount(
        options: *mut abi::TRITONSERVER_ServerOptions,
        retry_count: c_uint,
    ) {
        borrow_mut(options)?.server.model_load_retry_count = retry_count;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetModelNamespacing(
        options: *mut abi::TRITONSERVER_ServerOptions,
        enable_namespace: bool,
    ) {
        borrow_mut(options)?.server.namespacing = enable_namespace;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetEnablePeerAccess(
        options: *mut abi::TRITONSERVER_ServerOptions,
        enable_peer_access: bool,
    ) {
        borrow_mut(options)?.server.gpu.enables_peer_access = enable_peer_access;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetLogFile(
        options: *mut abi::TRITONSERVER_ServerOptions,
        file: *const c_char,
    ) {
        let _ = options;
        Ok(log::set_file(&lossy_text(file))?)
    }

    fn TRITONSERVER_ServerOptionsSetLogInfo(
        options: *mut abi::TRITONSERVER_ServerOptions,
        log: bool,
    ) {
        let _ = options;
        log::show_info(log);
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetLogWarn(
        options: *mut abi::TRITONSERVER_ServerOptions,
        log: bool,
    ) {
        let _ = options;
        log::show_warning(log);
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetLogError(
        options: *mut abi::TRITONSERVER_ServerOptions,
        log: bool,
    ) {
        let _ = options;
        log::show_error(log);
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetLogFormat(
        options: *mut abi::TRITONSERVER_ServerOptions,
        format: abi::TRITONSERVER_LogFormat,
    ) {
        let _ = options;
        log::set_format(match format {
            abi::TRITONSERVER_LOG_DEFAULT => log::LogFormat::Default,
            abi::TRITONSERVER_LOG_ISO8601 => log::LogFormat::Iso8601,
            other => return Err(Error::invalid(format!("unknown log format '{other}'"))),
        });
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetLogVerbose(
        options: *mut abi::TRITONSERVER_ServerOptions,
        level: c_int,
    ) {
        let _ = options;
        log::set_verbose_level(u32::try_from(level).unwrap_or(0));
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetMetrics(
        options: *mut abi::TRITONSERVER_ServerOptions,
        metrics: bool,
    ) {
        borrow_mut(options)?.server.allow_metrics = metrics;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetGpuMetrics(
        options: *mut abi::TRITONSERVER_ServerOptions,
        gpu_metrics: bool,
    ) {
        borrow_mut(options)?.server.allow_gpu_metrics = gpu_metrics;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetCpuMetrics(
        options: *mut abi::TRITONSERVER_ServerOptions,
        cpu_metrics: bool,
    ) {
        borrow_mut(options)?.server.allow_cpu_metrics = cpu_metrics;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetMetricsInterval(
        options: *mut abi::TRITONSERVER_ServerOptions,
        metrics_interval_ms: u64,
    ) {
        borrow_mut(options)?.server.metrics_interval = Duration::from_millis(metrics_interval_ms);
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetBackendDirectory(
        options: *mut abi::TRITONSERVER_ServerOptions,
        backend_dir: *const c_char,
    ) {
        borrow_mut(options)?.plugins.backend_directory = path(backend_dir, "backend_dir")?;
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetRepoAgentDirectory(
        options: *mut abi::TRITONSERVER_ServerOptions,
        repoagent_dir: *const c_char,
    ) {
        let directory = path(repoagent_dir, "repoagent_dir")?;
        borrow_mut(options)?.set_agent_directory(directory);
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
        options: *mut abi::TRITONSERVER_ServerOptions,
        kind: abi::TRITONSERVER_InstanceGroupKind,
        device_id: c_int,
        fraction: f64,
    ) {
        if device_id < 0 {
            return Err(Error::invalid(format!(
                "expects device ID >= 0, got {device_id}"
            )));
        }
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::invalid(format!(
                "expects limit fraction to be in range [0.0, 1.0], got {fraction:.6}"
            )));
        }
        if kind != abi::TRITONSERVER_INSTANCEGROUPKIND_GPU {
            let name = lossy_text(super::TRITONSERVER_InstanceGroupKindString(kind));
            return Err(Error::invalid(format!(
                "given device kind is not supported, got: {name}"
            )));
        }
        let setting = format!("model-load-gpu-limit-device-{device_id}");
        let options = borrow_mut(options)?;
        options.server.gpu.load_limits.insert(device_id, fraction);
        options.set_for_backends("", &setting, format!("{fraction:.6}"));
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetBackendConfig(
        options: *mut abi::TRITONSERVER_ServerOptions,
        backend_name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) {
        let options = borrow_mut(options)?;
        let value = text(value, "value")?.to_owned();
        options.set_for_backends(
            text(backend_name, "backend_name")?,
            text(setting, "setting")?,
            value,
        );
        Ok(())
    }

    fn TRITONSERVER_ServerOptionsSetHostPolicy(
        options: *mut abi::TRITONSERVER_ServerOptions,
        policy_name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) {
        let options = borrow_mut(options)?;
        options.set_host_policy(
            text(policy_name, "policy_name")?,
            text(setting, "setting")?,
            text(value, "value")?,
        )
    }

    fn TRITONSERVER_ServerOptionsSetMetricsConfig(
        options: *mut abi::TRITONSERVER_ServerOptions,
        name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) {
        let options = borrow_mut(options)?;
        options.set_metrics(
            text(name, "name")?,
            text(setting, "setting")?,
            text(value, "value")?,
        )
    }
}
