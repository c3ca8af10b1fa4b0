//! Help tells the defaults that are in force.

use conch_frontend::AllowedOrigins;
use conch_memory::AllowedOwners;

use super::flags;
use crate::{Arguments, usage};

/// The defaults that help reads from the fields: setting them changes nothing.
#[test]
fn defaults_shown_are_those_in_force() {
    let usage = usage();
    let shown: Vec<_> = flags().filter(|flag| flag.help.contains("{}")).collect();
    assert!(shown.len() > 50, "{}", shown.len());
    for flag in shown {
        let name = flag.name;
        let mut arguments = Arguments::default();
        let default = flag.shown(&mut arguments);
        let default = default.unwrap_or_else(|| panic!("{name} shows nothing"));
        let help = flag.help.replace("{}", &default);
        assert!(usage.contains(&help), "{help}");
        flag.apply(&mut arguments, &default)
            .unwrap_or_else(|reason| panic!("{name}: {reason}"));
        assert_eq!(
            flag.shown(&mut arguments).as_ref(),
            Some(&default),
            "{name}"
        );
        let mut expected = Arguments::default();
        // Any value switches TLS on.
        expected.grpc_tls.is_enabled = name == "grpc-use-ssl-mutual";
        // Notes that a flag was given.
        arguments.combined = expected.combined.clone();
        assert_eq!(format!("{arguments:?}"), format!("{expected:?}"), "{name}");
    }
}

type InForce = fn(&Arguments) -> bool;

/// The defaults that help says in words.
#[test]
fn defaults_in_words_are_those_in_force() {
    let table: &[(&str, InForce)] = &[
        ("http-header-forward-pattern", |of| {
            of.frontend.http_forward.is_none()
        }),
        ("allow-vertex-ai", |of| !of.listeners.vertex_ai.is_enabled),
        ("vertex-ai-default-model", |of| {
            of.vertex_ai_default_model.is_empty()
        }),
        ("metrics-address", |of| {
            of.listeners.metrics.endpoint.address.is_empty()
        }),
        ("shm-allowed-uids", |of| {
            of.engine.shm_owners == AllowedOwners::Own
        }),
        ("shards", |of| of.shard_count.is_none()),
        ("memory-limit-bytes", |of| {
            of.combined.memory_limit_bytes.is_none()
        }),
        ("memory-reserve-bytes", |of| {
            of.engine.memory_reserve_bytes.is_none()
        }),
        ("http-cors-origins", |of| {
            of.frontend.http_cors_origins == AllowedOrigins::default()
        }),
        ("http-timeout-header", |of| {
            of.frontend.http_timeout_header.is_none()
        }),
        ("unix-socket-mode", |of| {
            of.frontend.unix_socket_mode.is_none()
        }),
        ("access-log-rate", |of| {
            of.frontend.access_log_rate.is_none()
        }),
        ("slow-request-us", |of| of.frontend.slow_request.is_none()),
        ("connections-max", |of| {
            of.connections_max.is_none() && of.frontend.connections_max == 65_536
        }),
        ("executions-max", |of| of.engine.executions_max.is_none()),
        ("model-memory-budget-bytes", |of| of.engine.demand.is_none()),
        ("server-requests-max", |of| {
            of.engine.admission.server_max.is_none()
        }),
        ("model-requests-max", |of| {
            of.engine.admission.model_max.is_none()
        }),
        ("tenant-requests-max", |of| {
            of.engine.admission.tenant_max.is_none()
        }),
        ("tenant-header", |of| of.frontend.tenant_header.is_none()),
    ];
    let says_one = |help: &str| help.contains("efault") && !help.contains("{}");
    let mut names: Vec<_> = flags()
        .filter(|flag| says_one(flag.help))
        .map(|flag| flag.name)
        .collect();
    names.sort_unstable();
    let mut expected: Vec<_> = table.iter().map(|(name, _)| *name).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    for (name, is_in_force) in table {
        assert!(is_in_force(&Arguments::default()), "{name}");
    }
}
