//! Flags beside each other: refusals of flags that do not go together, and the options that several
//! flags decide.

use conch_control::ControlMode;
use conch_ffi::host;

use crate::arguments::Arguments;
use crate::deprecated;
use crate::flag::EarlyExit;
use crate::table::tls;
use crate::values::out_of_bound;

/// Completes `arguments` once all flags have set their fields.
///
/// # Errors
/// The first flag that does not go with the others.
pub fn complete(mut arguments: Arguments) -> Result<Arguments, EarlyExit> {
    check_pairs(&arguments)?;
    complete_engine(&mut arguments);
    let combined = &mut arguments.combined;
    let overridden = combined.trace.overridden();
    arguments.console_warnings.extend(overridden);
    arguments.warnings.extend(combined.trace.unused());
    let trace = combined.trace.resolve(|name| std::env::var(name).ok());
    arguments.frontend.trace = trace.map_err(|reason| bad("trace-config", reason))?;
    if let Some(bytes) = combined.cache.local_bytes {
        combined.cache.settings = vec![("local".into(), "size".into(), bytes.to_string())];
    }
    arguments.plugins.cache_config = host::cache_config(&combined.cache.settings);
    let warning = arguments.listeners.resolve_metrics();
    arguments.warnings.extend(warning);
    arguments.engine.allow_metrics = arguments.listeners.metrics.is_enabled;
    if arguments.frontend.dashboard && !arguments.listeners.metrics.is_enabled {
        let warning = "--dashboard has no effect: it is on the port of the metrics, which is off";
        arguments.warnings.push(String::from(warning));
    }
    arguments.listeners.check().map_err(EarlyExit::Clash)?;
    let has_mode = arguments.frontend.unix_socket_mode.is_some();
    let warnings = arguments.listeners.unix_warnings(has_mode);
    arguments.warnings.extend(warnings);
    let unused = tls::warnings(&arguments);
    arguments.warnings.extend(unused);
    Ok(arguments)
}

fn check_pairs(arguments: &Arguments) -> Result<(), EarlyExit> {
    let (engine, combined) = (&arguments.engine, &arguments.combined);
    if combined.cache.local_bytes.is_some() && !combined.cache.settings.is_empty() {
        return Err(bad(
            "response-cache-byte-size",
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both \
             provided. Please provide one or the other.",
        ));
    }
    if let Some(port) = arguments.listeners.invalid_port() {
        return Err(bad(port.flag, out_of_bound(&port.value)));
    }
    if engine.model_repositories.is_empty() && arguments.model_files.is_empty() {
        return Err(bad(
            "model-repository",
            "Error: --model-repository must be specified",
        ));
    }
    let is_explicit = engine.model_control_mode == ControlMode::Explicit;
    if !engine.startup_models.is_empty() && !is_explicit {
        return Err(bad(
            "load-model",
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as \
             well.",
        ));
    }
    if let (Some(limit), Some(reserve)) = (combined.memory_limit_bytes, engine.memory_reserve_bytes)
        && reserve > limit / 2
    {
        return Err(bad(
            "memory-reserve-bytes",
            "--memory-reserve-bytes is more than half of --memory-limit-bytes.",
        ));
    }
    if engine.limits_rate && engine.executions_max.is_some() {
        return Err(bad(
            "executions-max",
            "--executions-max excludes --rate-limit=execution_count.",
        ));
    }
    let on_demand = combined.on_demand.check(is_explicit);
    on_demand.map_err(|(flag, reason)| bad(flag, reason))?;
    // Without a bound the header tells apart whose shares of the byte budget are whose.
    if engine.admission.tenant_max.is_some() && arguments.frontend.tenant_header.is_none() {
        return Err(bad(
            "tenant-requests-max",
            "--tenant-requests-max needs --tenant-header, which tells tenants apart.",
        ));
    }
    Ok(())
}

fn complete_engine(arguments: &mut Arguments) {
    let (engine, combined) = (&mut arguments.engine, &arguments.combined);
    if combined.is_strict && combined.strict_model_config == Some(false) {
        arguments
            .console_warnings
            .push(deprecated::STRICT_OVERRIDDEN.to_owned());
    }
    engine.auto_complete = !combined.is_strict && combined.strict_model_config != Some(true);
    engine.startup_models.sort();
    engine.startup_models.dedup();
    engine.model_repositories.sort();
    engine.model_repositories.dedup();
    if let Some(bytes) = combined.memory_limit_bytes {
        engine.memory_limit_bytes = bytes;
    }
    engine.demand = combined.on_demand.settings();
}

fn bad(flag: &str, reason: impl Into<String>) -> EarlyExit {
    EarlyExit::Bad {
        flag: String::from(flag),
        reason: reason.into(),
    }
}
