//! The table of command-line flags: name, kind of value, what this version does with it, and one line of help.
//!
//! Names, defaults and kinds are Triton's, so that existing start scripts keep working; the flags of the `conch` group are ours.

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing: naming it switches it on.
    Nothing,
    Bool,
    /// A whole number.
    Int,
    /// Text, with the placeholder that `--help` shows.
    Text(&'static str),
}

/// What this version does with a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does what it says.
    Served,
    /// Accepted so that existing start scripts work; changes nothing here, and one warning says so.
    Inert(&'static str),
    /// Only the named value (case-insensitive) is accepted, which asks for nothing; anything else would need a feature that this
    /// version lacks, and refusing is better than serving without it.
    Only(&'static str),
    /// As `Only`, but no value of it can be honoured.
    Refused,
    /// Deprecated; a warning names what to use instead.
    Deprecated(&'static str),
}

pub struct Flag {
    pub group: &'static str,
    pub name: &'static str,
    pub takes: Takes,
    pub effect: Effect,
    pub help: &'static str,
}

const fn flag(
    group: &'static str,
    name: &'static str,
    takes: Takes,
    effect: Effect,
    help: &'static str,
) -> Flag {
    Flag {
        group,
        name,
        takes,
        effect,
        help,
    }
}

use Effect::{Deprecated, Inert, Only, Refused, Served};
use Takes::{Bool, Int, Nothing, Text};

const SHARDS: &str = "network threads are set by --shards";
const NO_GPU: &str = "this version drives no GPU";

/// Every flag, by group in the order of `--help`.
pub static FLAGS: &[Flag] = &[
    flag("", "help", Nothing, Served, "Print this help and exit."),
    flag(
        "Server",
        "id",
        Text("<name>"),
        Served,
        "Name of this server in its metadata. Default: triton.",
    ),
    flag(
        "Server",
        "exit-timeout-secs",
        Int,
        Served,
        "On SIGTERM or SIGINT, seconds to finish what is in flight. Default: 30.",
    ),
    flag(
        "Logging",
        "log-verbose",
        Text("<level>"),
        Served,
        "Verbosity: 0 (or false) is off, 1 (or true) logs each request. Default: 0.",
    ),
    flag(
        "Logging",
        "log-info",
        Bool,
        Served,
        "Log at level info. Default: true.",
    ),
    flag(
        "Logging",
        "log-warning",
        Bool,
        Served,
        "Log warnings. Default: true.",
    ),
    flag(
        "Logging",
        "log-error",
        Bool,
        Served,
        "Log errors. Default: true.",
    ),
    flag(
        "Logging",
        "log-format",
        Text("default|ISO8601"),
        Served,
        "Form of a log line's head. Default: default.",
    ),
    flag(
        "Logging",
        "log-file",
        Text("<path>"),
        Served,
        "Append all log lines to this file instead of the console.",
    ),
    flag(
        "Model Repository",
        "model-store",
        Text("<path>"),
        Served,
        "Same as --model-repository.",
    ),
    flag(
        "Model Repository",
        "model-repository",
        Text("<path>"),
        Served,
        "Directory with one sub-directory per model. Required; may be given several times.",
    ),
    flag(
        "Model Repository",
        "exit-on-error",
        Bool,
        Served,
        "Exit if any model fails to load at start; false serves the others. Default: true.",
    ),
    flag(
        "Model Repository",
        "disable-auto-complete-config",
        Nothing,
        Served,
        "Require complete model configurations; deduce nothing from files or backends.",
    ),
    flag(
        "Model Repository",
        "strict-readiness",
        Bool,
        Served,
        "Ready only when every model is; false: when the server answers. Default: true.",
    ),
    flag(
        "Model Repository",
        "model-control-mode",
        Text("none|poll|explicit"),
        Only("none"),
        "How models are loaded after start. This version serves none: all at start, no changes.",
    ),
    flag(
        "Model Repository",
        "repository-poll-secs",
        Int,
        Inert("it matters only with --model-control-mode=poll"),
        "Seconds between polls of the repositories.",
    ),
    flag(
        "Model Repository",
        "load-model",
        Text("<name>"),
        Refused,
        "Load this model at start; needs --model-control-mode=explicit.",
    ),
    flag(
        "Model Repository",
        "model-config-name",
        Text("<name>"),
        Served,
        "Use <model>/configs/<name>.pbtxt where it exists, else config.pbtxt.",
    ),
    flag(
        "Model Repository",
        "model-load-thread-count",
        Int,
        Served,
        "Models loaded at the same time. Default: 4.",
    ),
    flag(
        "Model Repository",
        "model-load-retry-count",
        Int,
        Inert("loads are not retried"),
        "Further attempts to load a model.",
    ),
    flag(
        "Model Repository",
        "model-namespacing",
        Bool,
        Only("false"),
        "Allow the same model name in several repositories.",
    ),
    flag(
        "Model Repository",
        "enable-peer-access",
        Bool,
        Inert(NO_GPU),
        "Enable peer access between GPUs.",
    ),
    flag(
        "HTTP",
        "allow-http",
        Bool,
        Served,
        "Listen for HTTP. Default: true.",
    ),
    flag(
        "HTTP",
        "http-address",
        Text("<address>"),
        Served,
        "Address to listen on. Default: 0.0.0.0.",
    ),
    flag(
        "HTTP",
        "http-port",
        Int,
        Served,
        "Port; 0 takes a free one and logs it. Default: 8000.",
    ),
    flag(
        "HTTP",
        "reuse-http-port",
        Bool,
        Served,
        "Share the port with other servers that set this too (SO_REUSEPORT). Default: false.",
    ),
    flag(
        "HTTP",
        "http-header-forward-pattern",
        Text("<regex>"),
        Only(""),
        "Headers to pass on as request parameters.",
    ),
    flag(
        "HTTP",
        "http-thread-count",
        Int,
        Inert(SHARDS),
        "Number of HTTP threads.",
    ),
    flag(
        "HTTP",
        "http-max-input-size",
        Int,
        Served,
        "Largest JSON head, JSON tensor or raw body, bytes. Default: 67108864.",
    ),
    flag(
        "HTTP",
        "http-restricted-api",
        Text("<apis>:<key>=<value>"),
        Refused,
        "Require a header for some endpoints.",
    ),
    flag(
        "GRPC",
        "allow-grpc",
        Bool,
        Served,
        "Listen for gRPC. Default: true.",
    ),
    flag(
        "GRPC",
        "grpc-address",
        Text("<address>"),
        Served,
        "Address to listen on. Default: 0.0.0.0.",
    ),
    flag(
        "GRPC",
        "grpc-port",
        Int,
        Served,
        "Port; 0 takes a free one and logs it. Default: 8001.",
    ),
    flag(
        "GRPC",
        "reuse-grpc-port",
        Bool,
        Served,
        "Share the port with other servers that set this too (SO_REUSEPORT). Default: false.",
    ),
    flag(
        "GRPC",
        "grpc-header-forward-pattern",
        Text("<regex>"),
        Only(""),
        "Metadata to pass on as request parameters.",
    ),
    flag(
        "GRPC",
        "grpc-infer-thread-count",
        Int,
        Inert(SHARDS),
        "Number of gRPC inference threads.",
    ),
    flag(
        "GRPC",
        "grpc-infer-allocation-pool-size",
        Int,
        Inert("buffers are pooled by size"),
        "Request objects kept for reuse.",
    ),
    flag(
        "GRPC",
        "grpc-max-response-pool-size",
        Int,
        Inert("responses are bounded by --memory-limit-bytes"),
        "Response objects alive at a time.",
    ),
    flag(
        "GRPC",
        "grpc-use-ssl",
        Bool,
        Only("false"),
        "Serve gRPC over TLS.",
    ),
    flag(
        "GRPC",
        "grpc-use-ssl-mutual",
        Bool,
        Only("false"),
        "Serve gRPC over TLS and ask for client certificates.",
    ),
    flag(
        "GRPC",
        "grpc-server-cert",
        Text("<path>"),
        Inert("it matters only with --grpc-use-ssl"),
        "Certificate of the server, PEM.",
    ),
    flag(
        "GRPC",
        "grpc-server-key",
        Text("<path>"),
        Inert("it matters only with --grpc-use-ssl"),
        "Key of the server, PEM.",
    ),
    flag(
        "GRPC",
        "grpc-root-cert",
        Text("<path>"),
        Inert("it matters only with --grpc-use-ssl"),
        "Root certificate, PEM.",
    ),
    flag(
        "GRPC",
        "grpc-infer-response-compression-level",
        Text("none|low|medium|high"),
        Only("none"),
        "Compression of inference responses.",
    ),
    flag(
        "GRPC",
        "grpc-keepalive-time",
        Int,
        Inert("the server sends no keepalive pings"),
        "Milliseconds between keepalive pings.",
    ),
    flag(
        "GRPC",
        "grpc-keepalive-timeout",
        Int,
        Inert("the server sends no keepalive pings"),
        "Milliseconds to wait for a ping's answer.",
    ),
    flag(
        "GRPC",
        "grpc-keepalive-permit-without-calls",
        Bool,
        Inert("the server sends no keepalive pings"),
        "Ping without calls in flight.",
    ),
    flag(
        "GRPC",
        "grpc-http2-max-pings-without-data",
        Int,
        Inert("the server sends no keepalive pings"),
        "Pings between data frames.",
    ),
    flag(
        "GRPC",
        "grpc-http2-min-recv-ping-interval-without-data",
        Int,
        Inert("pings are answered whenever they come"),
        "Least milliseconds between a client's pings.",
    ),
    flag(
        "GRPC",
        "grpc-http2-max-ping-strikes",
        Int,
        Inert("pings are answered whenever they come"),
        "Bad pings tolerated.",
    ),
    flag(
        "GRPC",
        "grpc-max-connection-age",
        Int,
        Only("0"),
        "Milliseconds that a connection may live.",
    ),
    flag(
        "GRPC",
        "grpc-max-connection-age-grace",
        Int,
        Inert("it matters only with --grpc-max-connection-age"),
        "Milliseconds of grace after that age.",
    ),
    flag(
        "GRPC",
        "grpc-restricted-protocol",
        Text("<protocols>:<key>=<value>"),
        Refused,
        "Require metadata for some methods.",
    ),
    flag(
        "Sagemaker",
        "allow-sagemaker",
        Bool,
        Only("false"),
        "Listen for SageMaker requests.",
    ),
    flag(
        "Sagemaker",
        "sagemaker-port",
        Int,
        Inert("it matters only with --allow-sagemaker"),
        "Port for SageMaker.",
    ),
    flag(
        "Sagemaker",
        "sagemaker-safe-port-range",
        Text("<low>-<high>"),
        Inert("it matters only with --allow-sagemaker"),
        "Ports that other endpoints may use.",
    ),
    flag(
        "Sagemaker",
        "sagemaker-thread-count",
        Int,
        Inert(SHARDS),
        "Number of SageMaker threads.",
    ),
    flag(
        "Vertex",
        "allow-vertex-ai",
        Bool,
        Only("false"),
        "Listen for Vertex AI requests.",
    ),
    flag(
        "Vertex",
        "vertex-ai-port",
        Int,
        Inert("it matters only with --allow-vertex-ai"),
        "Port for Vertex AI.",
    ),
    flag(
        "Vertex",
        "vertex-ai-thread-count",
        Int,
        Inert(SHARDS),
        "Number of Vertex AI threads.",
    ),
    flag(
        "Vertex",
        "vertex-ai-default-model",
        Text("<name>"),
        Inert("it matters only with --allow-vertex-ai"),
        "Model for single-model requests.",
    ),
    flag(
        "Metrics",
        "allow-metrics",
        Bool,
        Served,
        "Serve Prometheus metrics. Default: true.",
    ),
    flag(
        "Metrics",
        "allow-gpu-metrics",
        Bool,
        Inert(NO_GPU),
        "Include GPU metrics.",
    ),
    flag(
        "Metrics",
        "allow-cpu-metrics",
        Bool,
        Served,
        "Include CPU metrics. Default: true.",
    ),
    flag(
        "Metrics",
        "metrics-address",
        Text("<address>"),
        Served,
        "Address to listen on. Default: that of HTTP.",
    ),
    flag(
        "Metrics",
        "metrics-port",
        Int,
        Served,
        "Port; 0 takes a free one and logs it. Default: 8002.",
    ),
    flag(
        "Metrics",
        "metrics-interval-ms",
        Text("<ms>"),
        Inert("CPU metrics are read at each scrape"),
        "Milliseconds between readings of CPU and GPU metrics.",
    ),
    flag(
        "Metrics",
        "metrics-config",
        Text("<setting>=<value>"),
        Refused,
        "Choose counters, summaries and histograms.",
    ),
    flag(
        "Tracing",
        "trace-config",
        Text("[<mode>,]<setting>=<value>"),
        Inert("this version does not trace"),
        "Tracing of requests.",
    ),
    flag(
        "Backend",
        "backend-directory",
        Text("<path>"),
        Served,
        "Directory with one sub-directory per backend. Default: /opt/tritonserver/backends.",
    ),
    flag(
        "Backend",
        "backend-config",
        Text("[<backend>,]<setting>=<value>"),
        Served,
        "A setting for one backend or all; may be given several times.",
    ),
    flag(
        "Repository Agent",
        "repoagent-directory",
        Text("<path>"),
        Inert("this version runs no repository agents"),
        "Directory with repository agents.",
    ),
    flag(
        "Response Cache",
        "cache-config",
        Text("<cache>,<setting>=<value>"),
        Inert("this version caches no responses"),
        "Configure the response cache.",
    ),
    flag(
        "Response Cache",
        "cache-directory",
        Text("<path>"),
        Inert("this version caches no responses"),
        "Directory with cache libraries.",
    ),
    flag(
        "Rate Limiter",
        "rate-limit",
        Text("off|execution_count"),
        Only("off"),
        "Limit the rate of executions.",
    ),
    flag(
        "Rate Limiter",
        "rate-limit-resource",
        Text("<name>:<count>[:<device>]"),
        Inert("it matters only with --rate-limit"),
        "Capacity of a resource.",
    ),
    flag(
        "Memory/Device Management",
        "pinned-memory-pool-byte-size",
        Int,
        Inert(NO_GPU),
        "Bytes of pinned memory for transfers.",
    ),
    flag(
        "Memory/Device Management",
        "cuda-memory-pool-byte-size",
        Text("<gpu>:<bytes>"),
        Inert(NO_GPU),
        "Bytes of GPU memory kept for transfers.",
    ),
    flag(
        "Memory/Device Management",
        "cuda-virtual-address-size",
        Text("<gpu>:<bytes>"),
        Inert(NO_GPU),
        "Address space for growable state.",
    ),
    flag(
        "Memory/Device Management",
        "min-supported-compute-capability",
        Text("<version>"),
        Inert(NO_GPU),
        "Oldest GPU generation to use.",
    ),
    flag(
        "Memory/Device Management",
        "buffer-manager-thread-count",
        Int,
        Inert("cores copy their own batches"),
        "Threads that copy tensors.",
    ),
    flag(
        "Memory/Device Management",
        "host-policy",
        Text("<policy>,<setting>=<value>"),
        Refused,
        "Bind instances of a policy to CPUs or a NUMA node.",
    ),
    flag(
        "Memory/Device Management",
        "model-load-gpu-limit",
        Text("<gpu>:<fraction>"),
        Inert(NO_GPU),
        "Fraction of GPU memory that models may fill.",
    ),
    flag(
        "Shared Memory",
        "allow-client-shm",
        Bool,
        Only("false"),
        "Let clients register shared memory.",
    ),
    flag(
        "conch",
        "shards",
        Int,
        Served,
        "Network threads. Default: the CPUs this process may use, at most 8.",
    ),
    flag(
        "conch",
        "memory-limit-bytes",
        Int,
        Served,
        "Bytes that requests and responses may hold. Default: half of the memory this process may use.",
    ),
    flag(
        "conch",
        "drain-delay-secs",
        Int,
        Served,
        "On SIGTERM or SIGINT, seconds of normal service (not ready) before draining. Default: 0.",
    ),
    flag(
        "conch",
        "connections-max",
        Int,
        Served,
        "Open connections over all listeners. Default: 65536, or what the file limit allows.",
    ),
    flag(
        "conch",
        "queue-requests-max",
        Int,
        Served,
        "Live requests per model. Default: 65536.",
    ),
    flag(
        "conch",
        "lower-core-priority",
        Bool,
        Served,
        "Run backends at nice +5 when they share CPUs with the network. Default: true.",
    ),
    flag(
        "DEPRECATED",
        "strict-model-config",
        Bool,
        Deprecated("--disable-auto-complete-config"),
        "true is --disable-auto-complete-config.",
    ),
    flag(
        "DEPRECATED",
        "response-cache-byte-size",
        Int,
        Inert("this version caches no responses"),
        "Size of the response cache.",
    ),
    flag(
        "DEPRECATED",
        "trace-file",
        Text("<path>"),
        Inert("this version does not trace"),
        "File for traces.",
    ),
    flag(
        "DEPRECATED",
        "trace-level",
        Text("<level>"),
        Inert("this version does not trace"),
        "What to trace.",
    ),
    flag(
        "DEPRECATED",
        "trace-rate",
        Int,
        Inert("this version does not trace"),
        "One request in this many is traced.",
    ),
    flag(
        "DEPRECATED",
        "trace-count",
        Int,
        Inert("this version does not trace"),
        "Traces to take.",
    ),
    flag(
        "DEPRECATED",
        "trace-log-frequency",
        Int,
        Inert("this version does not trace"),
        "Traces per file.",
    ),
];

/// Why a name does not lead to one flag.
#[derive(Debug, PartialEq, Eq)]
pub enum NoFlag {
    Unknown,
    Ambiguous,
}

/// The flag of this name, or the only one that begins with it (as `getopt_long` does).
pub fn find(name: &str) -> Result<&'static Flag, NoFlag> {
    if let Some(exact) = FLAGS.iter().find(|flag| flag.name == name) {
        return Ok(exact);
    }
    let mut candidates = FLAGS
        .iter()
        .filter(|flag| !name.is_empty() && flag.name.starts_with(name));
    match (candidates.next(), candidates.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(NoFlag::Unknown),
        (Some(_), Some(_)) => Err(NoFlag::Ambiguous),
    }
}

/// The text of `--help`.
pub fn usage() -> String {
    let mut text = String::from(
        "Usage: conch [options]\n\n  Serves the models of a Triton model repository over HTTP and gRPC.\n  \
         Example: conch --model-repository=/models --backend-directory=/backends\n",
    );
    let mut group = None;
    for flag in FLAGS {
        if group != Some(flag.group) {
            group = Some(flag.group);
            if !flag.group.is_empty() {
                text.push_str(&format!("\n{}:\n", flag.group));
            } else {
                text.push('\n');
            }
        }
        let value = match flag.takes {
            Nothing => String::new(),
            Bool => String::from(" <boolean>"),
            Int => String::from(" <integer>"),
            Text(placeholder) => format!(" {placeholder}"),
        };
        text.push_str(&format!("  --{}{value}\n\t{}", flag.name, flag.help));
        match flag.effect {
            Served => {}
            Inert(why) => text.push_str(&format!(" (Accepted without effect: {why}.)")),
            Only("") | Refused => text.push_str(" (Not served by this version: refused.)"),
            Only(value) => text.push_str(&format!(" (This version serves only {value}.)")),
            Deprecated(instead) => text.push_str(&format!(" (Deprecated: use {instead}.)")),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_prefixes_resolve_as_getopt_does() {
        for (index, flag) in FLAGS.iter().enumerate() {
            assert!(
                !FLAGS[..index].iter().any(|other| other.name == flag.name),
                "{} twice",
                flag.name
            );
        }
        for (name, expected) in [
            ("http-port", Ok("http-port")),
            ("http-po", Ok("http-port")),
            ("model-repo", Ok("model-repository")),
            ("grpc-server-c", Ok("grpc-server-cert")),
            ("grpc", Err(NoFlag::Ambiguous)),
            ("", Err(NoFlag::Unknown)),
            ("no-such", Err(NoFlag::Unknown)),
        ] {
            assert_eq!(find(name).map(|flag| flag.name), expected, "{name}");
        }
    }
}
