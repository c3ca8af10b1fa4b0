//! Options of a server made by an embedder: for the in-process API, which is not there yet.

use std::ffi::{c_char, c_int, c_uint};

use conch_abi as abi;

use super::unsupported;

unsupported! {
    fn TRITONSERVER_ServerOptionsNew(options: *mut *mut abi::TRITONSERVER_ServerOptions);
    fn TRITONSERVER_ServerOptionsDelete(options: *mut abi::TRITONSERVER_ServerOptions);
    fn TRITONSERVER_ServerOptionsSetServerId(options: *mut abi::TRITONSERVER_ServerOptions, server_id: *const c_char);
    fn TRITONSERVER_ServerOptionsSetModelRepositoryPath(options: *mut abi::TRITONSERVER_ServerOptions, model_repository_path: *const c_char);
    fn TRITONSERVER_ServerOptionsSetModelControlMode(options: *mut abi::TRITONSERVER_ServerOptions, mode: abi::TRITONSERVER_ModelControlMode);
    fn TRITONSERVER_ServerOptionsSetStartupModel(options: *mut abi::TRITONSERVER_ServerOptions, model_name: *const c_char);
    fn TRITONSERVER_ServerOptionsSetStrictModelConfig(options: *mut abi::TRITONSERVER_ServerOptions, strict: bool);
    fn TRITONSERVER_ServerOptionsSetModelConfigName(options: *mut abi::TRITONSERVER_ServerOptions, model_config_name: *const c_char);
    fn TRITONSERVER_ServerOptionsSetRateLimiterMode(options: *mut abi::TRITONSERVER_ServerOptions, mode: abi::TRITONSERVER_RateLimitMode);
    fn TRITONSERVER_ServerOptionsAddRateLimiterResource(options: *mut abi::TRITONSERVER_ServerOptions, resource_name: *const c_char, resource_count: usize, device: c_int);
    fn TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(options: *mut abi::TRITONSERVER_ServerOptions, size: u64);
    fn TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(options: *mut abi::TRITONSERVER_ServerOptions, gpu_device: c_int, size: u64);
    fn TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(options: *mut abi::TRITONSERVER_ServerOptions, gpu_device: c_int, cuda_virtual_address_size: usize);
    fn TRITONSERVER_ServerOptionsSetResponseCacheByteSize(options: *mut abi::TRITONSERVER_ServerOptions, size: u64);
    fn TRITONSERVER_ServerOptionsSetCacheConfig(options: *mut abi::TRITONSERVER_ServerOptions, cache_name: *const c_char, config_json: *const c_char);
    fn TRITONSERVER_ServerOptionsSetCacheDirectory(options: *mut abi::TRITONSERVER_ServerOptions, cache_dir: *const c_char);
    fn TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(options: *mut abi::TRITONSERVER_ServerOptions, cc: f64);
    fn TRITONSERVER_ServerOptionsSetExitOnError(options: *mut abi::TRITONSERVER_ServerOptions, exit: bool);
    fn TRITONSERVER_ServerOptionsSetStrictReadiness(options: *mut abi::TRITONSERVER_ServerOptions, strict: bool);
    fn TRITONSERVER_ServerOptionsSetExitTimeout(options: *mut abi::TRITONSERVER_ServerOptions, timeout: c_uint);
    fn TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(options: *mut abi::TRITONSERVER_ServerOptions, thread_count: c_uint);
    fn TRITONSERVER_ServerOptionsSetModelLoadThreadCount(options: *mut abi::TRITONSERVER_ServerOptions, thread_count: c_uint);
    fn TRITONSERVER_ServerOptionsSetModelLoadRetryCount(options: *mut abi::TRITONSERVER_ServerOptions, retry_count: c_uint);
    fn TRITONSERVER_ServerOptionsSetModelNamespacing(options: *mut abi::TRITONSERVER_ServerOptions, enable_namespace: bool);
    fn TRITONSERVER_ServerOptionsSetEnablePeerAccess(options: *mut abi::TRITONSERVER_ServerOptions, enable_peer_access: bool);
    fn TRITONSERVER_ServerOptionsSetLogFile(options: *mut abi::TRITONSERVER_ServerOptions, file: *const c_char);
    fn TRITONSERVER_ServerOptionsSetLogInfo(options: *mut abi::TRITONSERVER_ServerOptions, log: bool);
    fn TRITONSERVER_ServerOptionsSetLogWarn(options: *mut abi::TRITONSERVER_ServerOptions, log: bool);
    fn TRITONSERVER_ServerOptionsSetLogError(options: *mut abi::TRITONSERVER_ServerOptions, log: bool);
    fn TRITONSERVER_ServerOptionsSetLogFormat(options: *mut abi::TRITONSERVER_ServerOptions, format: abi::TRITONSERVER_LogFormat);
    fn TRITONSERVER_ServerOptionsSetLogVerbose(options: *mut abi::TRITONSERVER_ServerOptions, level: c_int);
    fn TRITONSERVER_ServerOptionsSetMetrics(options: *mut abi::TRITONSERVER_ServerOptions, metrics: bool);
    fn TRITONSERVER_ServerOptionsSetGpuMetrics(options: *mut abi::TRITONSERVER_ServerOptions, gpu_metrics: bool);
    fn TRITONSERVER_ServerOptionsSetCpuMetrics(options: *mut abi::TRITONSERVER_ServerOptions, cpu_metrics: bool);
    fn TRITONSERVER_ServerOptionsSetMetricsInterval(options: *mut abi::TRITONSERVER_ServerOptions, metrics_interval_ms: u64);
    fn TRITONSERVER_ServerOptionsSetBackendDirectory(options: *mut abi::TRITONSERVER_ServerOptions, backend_dir: *const c_char);
    fn TRITONSERVER_ServerOptionsSetRepoAgentDirectory(options: *mut abi::TRITONSERVER_ServerOptions, repoagent_dir: *const c_char);
    fn TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(options: *mut abi::TRITONSERVER_ServerOptions, kind: abi::TRITONSERVER_InstanceGroupKind, device_id: c_int, fraction: f64);
    fn TRITONSERVER_ServerOptionsSetBackendConfig(options: *mut abi::TRITONSERVER_ServerOptions, backend_name: *const c_char, setting: *const c_char, value: *const c_char);
    fn TRITONSERVER_ServerOptionsSetHostPolicy(options: *mut abi::TRITONSERVER_ServerOptions, policy_name: *const c_char, setting: *const c_char, value: *const c_char);
    fn TRITONSERVER_ServerOptionsSetMetricsConfig(options: *mut abi::TRITONSERVER_ServerOptions, name: *const c_char, setting: *const c_char, value: *const c_char);
}
