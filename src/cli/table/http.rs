//! Flags of the HTTP listener.

use super::row::{SHARDS, inert, served};
use crate::access;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{self, Number, Other, Port, Switch};
use crate::listeners::ListenerKind;
use crate::values::parse_above_zero;

pub const FLAGS: &[Flag] = &[
    served(
        "allow-http",
        Bool,
        "Listen for HTTP. Default: {}.",
        Switch(|to| &mut to.listeners.http.is_enabled),
    ),
    served(
        "http-address",
        Text("<address>"),
        "Address to listen on, or unix:<path> for a Unix socket. Default: {}.",
        Setter::Text(|to| &mut to.listeners.http.endpoint.address),
    ),
    served(
        "http-port",
        Int,
        "Port; 0 takes a free one and logs it. Default: {}.",
        Port(ListenerKind::Http),
    ),
    served(
        "reuse-http-port",
        Bool,
        "Share the port with other servers that set this too (SO_REUSEPORT). Default: {}.",
        Switch(|to| &mut to.listeners.http.endpoint.reuse_port),
    ),
    served(
        "http-header-forward-pattern",
        Text("<regex>"),
        "Headers whose names match any part of this regular expression (RE2's syntax) become text \
         parameters of an inference. Empty: none. Default: empty.",
        Other(|to, text| {
            to.frontend.http_forward = access::header_pattern(text)?;
            Ok(())
        }),
    ),
    inert("http-thread-count", Int, "Number of HTTP threads.", SHARDS),
    served(
        "http-max-input-size",
        Int,
        "Largest JSON head, JSON tensor or raw body, bytes. Default: {}.",
        Number(
            |to| &mut to.frontend.http_input_bytes_max,
            |text| parse_above_zero("http-max-input-size", text),
        ),
    ),
    served(
        "http-restricted-api",
        Text("<apis>:<key>=<value>"),
        "Answer 403 to requests for these without the header <key>: <value>. Comma-separated: \
         health, metadata, inference, shared-memory, model-config, model-repository, statistics, \
         trace, logging. Holds for SageMaker and Vertex AI, too. Repeatable.",
        Other(|to, text| access::restrict(&mut to.frontend.http_restrictions, access::HTTP, text)),
    ),
];
