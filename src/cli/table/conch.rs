//! Flags that upstream does not have.

use conch_engine::limits::TENANT_MAX_MAX;
use conch_frontend::{AllowedOrigins, ShardAffinity};

use super::row::served;
use crate::access;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{self, Bound, Milliseconds, Number, Other, Seconds, Shown, Size, Switch};
use crate::values::{
    out_of_bound, parse_clamped, parse_count, parse_int, parse_some, parse_unsigned,
};

pub const FLAGS: &[Flag] = &[
    served(
        "shards",
        Int,
        "Network threads. Default: the CPUs this process may use, at most 8.",
        Other(|to, text| {
            to.shard_count = Some(parse_count(text, 1)?);
            Ok(())
        }),
    ),
    served(
        "shard-affinity",
        Text("auto|pinned|set"),
        "Where a network thread runs. auto: on a CPU of its own, and on all of this process's \
         while others keep that busy; pinned: on its own; set: on all. Default: {}.",
        Shown {
            set: |to, text| {
                to.frontend.shard_affinity = parse_affinity(text)?;
                Ok(())
            },
            show: |of| affinity_name(of.frontend.shard_affinity),
        },
    ),
    served(
        "grpc-handshakes-max",
        Int,
        "TLS handshakes under way, on all listeners; beyond that one of the client address with \
         the most of them is closed. Default: {}.",
        Size(
            |to| &mut to.frontend.grpc_connections.handshakes_max,
            |text| parse_count(text, 1),
        ),
    ),
    served(
        "load-config-once",
        Bool,
        "A configuration that comes with a load lasts until the next load without one; false: \
         until the model's files change. Default: {}.",
        Switch(|to| &mut to.engine.loads_config_once),
    ),
    served(
        "memory-limit-bytes",
        Int,
        "Bytes that requests and responses may hold. Default: half of the memory this process may \
         use.",
        Other(|to, text| {
            let bytes = u64::try_from(parse_int(text)?).ok();
            let bytes = bytes.filter(|bytes| *bytes >= 1 << 20);
            to.combined.memory_limit_bytes = Some(bytes.ok_or("at least 1048576 (1 MiB)")?);
            Ok(())
        }),
    ),
    served(
        "memory-reserve-bytes",
        Int,
        "Of these, what only connections may use that hold little. Default: a sixteenth of the \
         limit.",
        Other(|to, text| {
            to.engine.memory_reserve_bytes = Some(parse_unsigned(text)?);
            Ok(())
        }),
    ),
    served(
        "memory-stall-timeout-ms",
        Int,
        "When memory runs short: milliseconds without progress after which a connection that holds \
         much may be dropped; 0 drops none. Default: {}.",
        Milliseconds(|to| &mut to.frontend.memory_stall_timeout, parse_unsigned),
    ),
    served(
        "drain-delay-secs",
        Int,
        "On SIGTERM or SIGINT, seconds of normal service (not ready) before draining. Default: {}.",
        Seconds(|to| &mut to.drain_delay, parse_clamped),
    ),
    served(
        "http-cors-origins",
        Text("<origin>,..."),
        "Origins (<scheme>://<host>[:<port>]) whose scripts may use the HTTP listeners from a \
         browser; * for any. Default: none.",
        Other(|to, text| {
            to.frontend.http_cors_origins = AllowedOrigins::parse(text)?;
            Ok(())
        }),
    ),
    served(
        "strict-integers",
        Bool,
        "Refuse integers that their tensor's type cannot hold, in JSON and in typed gRPC contents, \
         instead of wrapping them round. Default: {}.",
        Switch(|to| &mut to.frontend.strict_integers),
    ),
    served(
        "metrics-on-http",
        Bool,
        "Serve /metrics on the HTTP port as well, where metrics are served. Default: {}.",
        Switch(|to| &mut to.frontend.metrics_on_http),
    ),
    served(
        "http-timeout-header",
        Text("<name>"),
        "The header by which HTTP clients say how many milliseconds they wait for an inference; it \
         is cancelled then, and answered with 504. Default: none.",
        Other(|to, text| {
            to.frontend.http_timeout_header = access::header_name(text)?;
            Ok(())
        }),
    ),
    served(
        "unix-socket-mode",
        Text("<octal>"),
        "Permissions of the Unix sockets that it listens on. Default: those that the umask leaves.",
        Other(|to, text| {
            let mode = u32::from_str_radix(text, 8).ok();
            let mode = mode.filter(|mode| *mode <= 0o777);
            to.frontend.unix_socket_mode = Some(mode.ok_or("octal, 777 at most")?);
            Ok(())
        }),
    ),
    served(
        "sagemaker-address",
        Text("<address>"),
        "Address to listen on for SageMaker. Default: {}.",
        Setter::Text(|to| &mut to.listeners.sagemaker.endpoint.address),
    ),
    served(
        "vertex-ai-address",
        Text("<address>"),
        "Address to listen on for Vertex AI. Default: {}.",
        Setter::Text(|to| &mut to.listeners.vertex_ai.endpoint.address),
    ),
    served(
        "connections-max",
        Int,
        "Open connections over all listeners. Default: 65536, or what the file limit allows.",
        Other(|to, text| {
            to.connections_max = Some(parse_count(text, 1)?);
            Ok(())
        }),
    ),
    served(
        "model-config-env",
        Bool,
        "Put values of environment variables into configuration files, where ${NAME} or \
         ${NAME:-default} stands. Default: {}.",
        Switch(|to| &mut to.engine.expands_config),
    ),
    served(
        "stream-patience-ms",
        Int,
        "How long the client of a stream may read nothing while more than 256 responses or 16 MiB \
         of a request wait for it; the request is cancelled then. Default: {}.",
        Milliseconds(|to| &mut to.engine.stream_patience, parse_unsigned),
    ),
    served(
        "queue-requests-max",
        Int,
        "Live requests per model. Default: {}.",
        Number(|to| &mut to.engine.queue_requests_max, parse_some),
    ),
    served(
        "executions-max",
        Int,
        "Executions at a time over all models, which share their time by weight (parameter \
         CONCH_SHARE_WEIGHT, 1 to 10000, else 100). Excludes --rate-limit=execution_count. \
         Default: no bound.",
        Bound(|to| &mut to.engine.executions_max),
    ),
    served(
        "model-memory-budget-bytes",
        Int,
        "Bytes that models may take: they are loaded when they are first asked for, and those used \
         least lately unloaded for them. Needs --model-control-mode=explicit. Default: none.",
        Bound(|to| &mut to.combined.on_demand.budget_bytes),
    ),
    served(
        "model-wait-secs",
        Int,
        "Seconds that a request waits for its model under --model-memory-budget-bytes. Default: \
         {}.",
        Shown {
            set: |to, text| {
                to.combined.on_demand.wait_secs = Some(parse_some(text)?);
                Ok(())
            },
            show: |of| of.combined.on_demand.wait_secs().to_string(),
        },
    ),
    served(
        "model-waiting-requests-max",
        Int,
        "Requests that wait for models under --model-memory-budget-bytes; one more gets HTTP 429 \
         or gRPC RESOURCE_EXHAUSTED. Default: {}.",
        Shown {
            set: |to, text| {
                to.combined.on_demand.waiting_max = Some(parse_count(text, 1)?);
                Ok(())
            },
            show: |of| of.combined.on_demand.waiting_max().to_string(),
        },
    ),
    served(
        "server-requests-max",
        Int,
        "Live requests in the server; one more waits for --limit-wait-ms, then gets HTTP 429 or \
         gRPC RESOURCE_EXHAUSTED. Default: no bound.",
        Bound(|to| &mut to.engine.admission.server_max),
    ),
    served(
        "model-requests-max",
        Int,
        "The same for each model; its parameter CONCH_REQUESTS_MAX has the last word. Default: no \
         bound.",
        Bound(|to| &mut to.engine.admission.model_max),
    ),
    served(
        "tenant-requests-max",
        Int,
        "The same for each tenant, as named by --tenant-header. Default: no bound.",
        Other(|to, text| {
            let max = Some(parse_some(text)?).filter(|max| *max <= TENANT_MAX_MAX);
            to.engine.admission.tenant_max = Some(max.ok_or_else(|| out_of_bound(text))?);
            Ok(())
        }),
    ),
    served(
        "tenant-header",
        Text("<name>"),
        "The HTTP header, and the key of gRPC metadata, whose value is the tenant; requests \
         without it are one tenant. Default: none.",
        Other(|to, text| {
            to.frontend.tenant_header = access::header_name(text)?;
            Ok(())
        }),
    ),
    served(
        "limit-wait-ms",
        Int,
        "Milliseconds that a request waits for room under the three limits above before it is \
         refused; 0: it is refused at once. Default: {}.",
        Milliseconds(|to| &mut to.frontend.limit_wait, parse_unsigned),
    ),
    served(
        "lower-core-priority",
        Bool,
        "Run backends at nice +5 when they share CPUs with the network. Default: {}.",
        Switch(|to| &mut to.engine.lowers_core_priority),
    ),
];

fn parse_affinity(text: &str) -> Result<ShardAffinity, String> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(ShardAffinity::Auto),
        "pinned" => Ok(ShardAffinity::Pinned),
        "set" => Ok(ShardAffinity::Set),
        _ => Err(format!("Invalid option value. Got {text}")),
    }
}

fn affinity_name(affinity: ShardAffinity) -> String {
    String::from(match affinity {
        ShardAffinity::Auto => "auto",
        ShardAffinity::Pinned => "pinned",
        ShardAffinity::Set => "set",
    })
}
