//! Flags of TLS that upstream does not have: for HTTP and metrics, and for files that change.

use super::row::served;
use crate::arguments::Arguments;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{Path, Seconds, Shown, Switch};
use crate::tls::TlsFlags;
use crate::values::{parse_bool, parse_unsigned};

pub const FLAGS: &[Flag] = &[
    served(
        "http-use-ssl",
        Bool,
        "Serve HTTP over TLS, and only so; not SageMaker and Vertex AI. Default: {}.",
        Switch(|to| &mut to.http_tls.is_enabled),
    ),
    served(
        "http-use-ssl-mutual",
        Bool,
        "Require and verify client certificates; true switches --http-use-ssl on. Default: {}.",
        Shown {
            set: |to, text| set_mutual(&mut to.http_tls, text),
            show: |of| of.http_tls.verifies_clients.to_string(),
        },
    ),
    served(
        "http-server-cert",
        Text("<path>"),
        "Certificate of the server and those that vouch for it, PEM. Needed by --http-use-ssl.",
        Path(|to| &mut to.http_tls.files.certificate),
    ),
    served(
        "http-server-key",
        Text("<path>"),
        "Private key of the server, PEM. Needed by --http-use-ssl.",
        Path(|to| &mut to.http_tls.files.key),
    ),
    served(
        "http-root-cert",
        Text("<path>"),
        "Certificates that vouch for clients, PEM. Needed by --http-use-ssl-mutual.",
        Path(|to| &mut to.http_tls.files.roots),
    ),
    served(
        "metrics-use-ssl",
        Bool,
        "Serve the port of the metrics over TLS, and only so. Default: {}.",
        Switch(|to| &mut to.metrics_tls.is_enabled),
    ),
    served(
        "metrics-use-ssl-mutual",
        Bool,
        "Require and verify client certificates; true switches --metrics-use-ssl on. Default: {}.",
        Shown {
            set: |to, text| set_mutual(&mut to.metrics_tls, text),
            show: |of| of.metrics_tls.verifies_clients.to_string(),
        },
    ),
    served(
        "metrics-server-cert",
        Text("<path>"),
        "Certificate of the server and those that vouch for it, PEM. Needed by --metrics-use-ssl.",
        Path(|to| &mut to.metrics_tls.files.certificate),
    ),
    served(
        "metrics-server-key",
        Text("<path>"),
        "Private key of the server, PEM. Needed by --metrics-use-ssl.",
        Path(|to| &mut to.metrics_tls.files.key),
    ),
    served(
        "metrics-root-cert",
        Text("<path>"),
        "Certificates that vouch for clients, PEM. Needed by --metrics-use-ssl-mutual.",
        Path(|to| &mut to.metrics_tls.files.roots),
    ),
    served(
        "tls-reload-secs",
        Int,
        "Seconds between looks whether certificates, keys and roots of gRPC, HTTP or metrics have \
         changed, for new connections; 0: they are read again on SIGHUP only. Default: {}.",
        Seconds(|to| &mut to.tls_reload, parse_unsigned),
    ),
];

fn set_mutual(to: &mut TlsFlags, text: &str) -> Result<(), String> {
    to.verifies_clients = parse_bool(text)?;
    to.is_enabled |= to.verifies_clients;
    Ok(())
}

/// What has no effect, of the flags above.
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
