//! Flags of TLS that upstream does not have: for HTTP and metrics, and for files that change.

use super::row::served;
use crate::arguments::Arguments;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{Path, Seconds, Shown, Switch};
use crate::tls::TlsFlags;
use crate::values::{parse_bool, parse_unsigned};

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

pub const RELOAD: &[Flag] = &[served(
    "tls-reload-secs",
    Int,
    "Seconds between looks whether certificates, keys and roots of gRPC, HTTP or metrics have \
     changed, for new connections; 0: they are read again on SIGHUP only. Default: {}.",
    Seconds(|to| &mut to.tls_reload, parse_unsigned),
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
    warnings.collect()
}
