//! Flags of TLS that upstream does not have: for HTTP and metrics.

use super::row::served;
use crate::arguments::Arguments;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Text};
use crate::flag::Setter::{Other, Path, Shown, Switch};
use crate::tls::{TlsFlags, parse_host};
use crate::values::parse_bool;

/// The flags of one listener: the beginning of their names, their field, and what is served.
macro_rules! flags {
    ($prefix:literal, $field:ident, $serves:literal) => {
        &[
            served(
                concat!($prefix, "-use-ssl"),
                Bool,
                concat!($serves, " over TLS, and only so. Default: {}."),
                Switch(|to| &mut to.$field.is_enabled),
            ),
            served(
                concat!($prefix, "-use-ssl-mutual"),
                Bool,
                concat!(
                    "Require and verify client certificates; true switches --",
                    $prefix,
                    "-use-ssl on. Default: {}."
                ),
                Shown {
                    set: |to, text| set_mutual(&mut to.$field, text),
                    show: |of| of.$field.verifies_clients.to_string(),
                },
            ),
            served(
                concat!($prefix, "-server-cert"),
                Text("<path>"),
                concat!(
                    "Certificate of the server and those that vouch for it, PEM. Needed by --",
                    $prefix,
                    "-use-ssl."
                ),
                Path(|to| &mut to.$field.files.certificate),
            ),
            served(
                concat!($prefix, "-server-key"),
                Text("<path>"),
                concat!(
                    "Private key of the server, PEM. Needed by --",
                    $prefix,
                    "-use-ssl."
                ),
                Path(|to| &mut to.$field.files.key),
            ),
            served(
                concat!($prefix, "-root-cert"),
                Text("<path>"),
                concat!(
                    "Certificates that vouch for clients, PEM. Needed by --",
                    $prefix,
                    "-use-ssl-mutual."
                ),
                Path(|to| &mut to.$field.files.roots),
            ),
        ]
    };
}

pub const HTTP: &[Flag] = flags!(
    "http",
    http_tls,
    "Serve HTTP, but for SageMaker and Vertex AI,"
);

pub const METRICS: &[Flag] = flags!("metrics", metrics_tls, "Serve the port of the metrics");

pub const HOSTS: &[Flag] = &[served(
    "tls-host-cert",
    Text("<host>:<certificate>:<key>"),
    "Certificate and key, PEM, for clients that ask for <host> by SNI, on all listeners with TLS; \
     '*.' as its first label stands for any. Other clients get that of the listener. Repeatable.",
    Other(|to, text| {
        to.tls_hosts.push(parse_host(text)?);
        Ok(())
    }),
)];

fn set_mutual(to: &mut TlsFlags, text: &str) -> Result<(), String> {
    to.verifies_clients = parse_bool(text)?;
    to.is_enabled |= to.verifies_clients;
    Ok(())
}

/// What has no effect of the flags above.
pub fn warnings(arguments: &Arguments) -> Vec<String> {
    let listeners = [
        ("http", &arguments.http_tls),
        ("metrics", &arguments.metrics_tls),
    ];
    let unused = listeners
        .into_iter()
        .filter(|(_, flags)| flags.has_unused_files());
    let warnings = unused.map(|(prefix, _)| {
        format!(
            "the files of TLS for {prefix} have no effect without --{prefix}-use-ssl=true: it is \
             served in the clear"
        )
    });
    let mut warnings: Vec<String> = warnings.collect();
    let enabled = [
        &arguments.grpc_tls,
        &arguments.http_tls,
        &arguments.metrics_tls,
    ];
    if !arguments.tls_hosts.is_empty() && !enabled.iter().any(|flags| flags.is_enabled) {
        warnings.push(String::from(
            "--tls-host-cert has no effect: no listener has TLS",
        ));
    }
    warnings
}
