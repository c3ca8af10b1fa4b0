//! Every flag: one row each, by group in the order of `--help`.
//!
//! A new flag is a row here and the field that the row sets; nothing else names it.

mod callers;
mod cloud;
mod conch;
mod deprecated;
mod grpc;
mod http;
mod logging;
mod memory;
mod metrics;
mod plugins;
mod repository;
mod row;
mod server;
pub mod tls;
mod trace;

#[cfg(test)]
mod tests;

use crate::flag::Flag;

/// Flags under one title of `--help`.
pub struct FlagGroup {
    /// Empty: those before the first title.
    pub title: &'static str,
    pub flags: &'static [Flag],
}

/// Every flag, by group in the order of `--help`.
pub static GROUPS: &[FlagGroup] = &[
    group("", server::GENERAL),
    group("Server", server::SERVER),
    group("Logging", logging::FLAGS),
    group("Model Repository", repository::FLAGS),
    group("HTTP", http::FLAGS),
    group("GRPC", grpc::FLAGS),
    group("Sagemaker", cloud::SAGEMAKER),
    group("Vertex", cloud::VERTEX_AI),
    group("Metrics", metrics::FLAGS),
    group("Tracing", trace::FLAGS),
    group("Backend", plugins::BACKEND),
    group("Repository Agent", plugins::REPOSITORY_AGENT),
    group("Response Cache", plugins::RESPONSE_CACHE),
    group("Rate Limiter", memory::RATE_LIMITER),
    group("Memory/Device Management", memory::MEMORY),
    group("Shared Memory", memory::SHARED_MEMORY),
    group("conch", conch::FLAGS),
    group("conch: HTTP over TLS", tls::HTTP),
    group("conch: metrics over TLS", tls::METRICS),
    group("conch: TLS of hosts", tls::HOSTS),
    group("conch: callers and reloads", callers::FLAGS),
    group("DEPRECATED", deprecated::FLAGS),
];

const fn group(title: &'static str, flags: &'static [Flag]) -> FlagGroup {
    FlagGroup { title, flags }
}

/// Every flag, in the order of `--help`.
pub fn flags() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags)
}
