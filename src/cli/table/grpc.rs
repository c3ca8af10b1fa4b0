//! Flags of the gRPC listener: TLS, compression, pings and the ages of connections.

use std::time::Duration;

use super::row::{SHARDS, inert, inert_checked, served};
use crate::access;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{self, Milliseconds, Number, Other, Path, Port, Shown, Switch};
use crate::grpc::{level_name, parse_age, parse_keepalive, parse_level, parse_milliseconds};
use crate::listeners::ListenerKind;
use crate::values::{parse_above_zero, parse_bool, parse_int};

pub const FLAGS: &[Flag] = &[
    served(
        "allow-grpc",
        Bool,
        "Listen for gRPC. Default: {}.",
        Switch(|to| &mut to.listeners.grpc.is_enabled),
    ),
    served(
        "grpc-address",
        Text("<address>"),
        "Address to listen on, or unix:<path> for a Unix socket. Default: {}.",
        Setter::Text(|to| &mut to.listeners.grpc.endpoint.address),
    ),
    served(
        "grpc-port",
        Int,
        "Port; 0 takes a free one and logs it. Default: {}.",
        Port(ListenerKind::Grpc),
    ),
    served(
        "reuse-grpc-port",
        Bool,
        "Share the port with other servers that set this too (SO_REUSEPORT). Default: {}.",
        Switch(|to| &mut to.listeners.grpc.endpoint.reuse_port),
    ),
    served(
        "grpc-header-forward-pattern",
        Text("<regex>"),
        "As --http-header-forward-pattern, for the metadata of ModelInfer and ModelStreamInfer.",
        Other(|to, text| {
            to.frontend.grpc_forward = access::header_pattern(text)?;
            Ok(())
        }),
    ),
    inert_checked(
        "grpc-infer-thread-count",
        Int,
        "Number of gRPC inference threads.",
        SHARDS,
        check_infer_threads,
    ),
    inert(
        "grpc-infer-allocation-pool-size",
        Int,
        "Request objects kept for reuse.",
        "buffers are pooled by size",
    ),
    inert_checked(
        "grpc-max-response-pool-size",
        Int,
        "Response objects alive at a time.",
        "responses are bounded by --memory-limit-bytes",
        |text| parse_above_zero("grpc-max-response-pool-size", text).map(|_| ()),
    ),
    served(
        "grpc-use-ssl",
        Bool,
        "Serve gRPC over TLS, and only so. Default: {}.",
        Switch(|to| &mut to.grpc_tls.is_enabled),
    ),
    served(
        "grpc-use-ssl-mutual",
        Bool,
        "Require and verify client certificates. Giving it, even as false, switches --grpc-use-ssl \
         on. Default: {}.",
        Shown {
            set: |to, text| {
                to.grpc_tls.verifies_clients = parse_bool(text)?;
                // As upstream, whatever the value: calls that were encrypted there must not be sent
                // in the clear here.
                to.grpc_tls.is_enabled = true;
                Ok(())
            },
            show: |of| of.grpc_tls.verifies_clients.to_string(),
        },
    ),
    served(
        "grpc-server-cert",
        Text("<path>"),
        "Certificate of the server and those that vouch for it, PEM. Needed by --grpc-use-ssl.",
        Path(|to| &mut to.grpc_tls.files.certificate),
    ),
    served(
        "grpc-server-key",
        Text("<path>"),
        "Private key of the server, PEM. Needed by --grpc-use-ssl.",
        Path(|to| &mut to.grpc_tls.files.key),
    ),
    served(
        "grpc-root-cert",
        Text("<path>"),
        "Certificates that vouch for clients, PEM. Needed by --grpc-use-ssl-mutual.",
        Path(|to| &mut to.grpc_tls.files.roots),
    ),
    served(
        "grpc-infer-response-compression-level",
        Text("none|low|medium|high"),
        "Compression of inference responses, for clients that accept it. Default: {}.",
        Shown {
            set: |to, text| {
                to.frontend.grpc_compression = parse_level(text)?;
                Ok(())
            },
            show: |of| String::from(level_name(of.frontend.grpc_compression)),
        },
    ),
    served(
        "grpc-max-inflated-size",
        Int,
        "Bytes that a compressed message may inflate to; those of others are bounded by \
         2147483647. Default: {}.",
        Number(
            |to| &mut to.frontend.grpc_inflated_bytes_max,
            |text| parse_above_zero("grpc-max-inflated-size", text),
        ),
    ),
    served(
        "grpc-keepalive-time",
        Int,
        "Milliseconds without a byte from a client that has a call open after which it gets a \
         ping. Default: {}.",
        Shown {
            set: |to, text| {
                to.frontend.grpc_connections.keepalive_time = parse_keepalive(text)?;
                Ok(())
            },
            show: |of| match of.frontend.grpc_connections.keepalive_time {
                Some(time) => time.as_millis().to_string(),
                None => i32::MAX.to_string(),
            },
        },
    ),
    served(
        "grpc-keepalive-timeout",
        Int,
        "Milliseconds that the client has to answer it, or be left. Default: {}.",
        Milliseconds(
            |to| &mut to.frontend.grpc_connections.keepalive_timeout,
            |text| parse_milliseconds(text).map(u64::from),
        ),
    ),
    served(
        "grpc-keepalive-permit-without-calls",
        Bool,
        "Send pings, and accept them at the same pace, also while no call is open. Default: {}.",
        Switch(|to| &mut to.frontend.grpc_connections.pings_without_calls),
    ),
    inert(
        "grpc-http2-max-pings-without-data",
        Int,
        "Pings between data frames.",
        "it bounds the pings of clients; servers, upstream's too, send theirs whatever it says",
    ),
    served(
        "grpc-http2-min-recv-ping-interval-without-data",
        Int,
        "Least milliseconds between a client's pings while nothing is sent to it. Default: {}.",
        Milliseconds(
            |to| &mut to.frontend.grpc_connections.ping_interval_min,
            |text| parse_milliseconds(text).map(u64::from),
        ),
    ),
    served(
        "grpc-http2-max-ping-strikes",
        Int,
        "Pings sooner than that which are borne; 0: any number. Default: {}.",
        Shown {
            set: |to, text| {
                to.frontend.grpc_connections.ping_strikes_max = parse_milliseconds(text)?;
                Ok(())
            },
            show: |of| of.frontend.grpc_connections.ping_strikes_max.to_string(),
        },
    ),
    served(
        "grpc-max-connection-age",
        Int,
        "Milliseconds after which a connection is asked to end, give or take a tenth; 0: never. \
         Default: {}.",
        Shown {
            set: |to, text| {
                to.frontend.grpc_connections.age_max = parse_age(text)?;
                Ok(())
            },
            show: |of| age_text(of.frontend.grpc_connections.age_max),
        },
    ),
    served(
        "grpc-max-connection-age-grace",
        Int,
        "Milliseconds after that in which its calls may end; 0: any number. Default: {}.",
        Shown {
            set: |to, text| {
                to.frontend.grpc_connections.age_grace = parse_age(text)?;
                Ok(())
            },
            show: |of| age_text(of.frontend.grpc_connections.age_grace),
        },
    ),
    served(
        "grpc-restricted-protocol",
        Text("<protocols>:<key>=<value>"),
        "Refuse calls of these without the metadata triton-grpc-protocol-<key>: <value>. The same \
         names as of --http-restricted-api. Repeatable.",
        Other(|to, text| access::restrict(&mut to.frontend.grpc_restrictions, access::GRPC, text)),
    ),
];

fn age_text(age: Option<Duration>) -> String {
    age.unwrap_or_default().as_millis().to_string()
}

fn check_infer_threads(text: &str) -> Result<(), String> {
    match parse_int(text)? {
        2..=128 => Ok(()),
        _ => Err(String::from(
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        )),
    }
}
