//! From path to operation, as upstream's patterns have it.

use conch_engine::shared_memory::RegionKind;

use crate::access::{Access, Category, GuardedRoute, ModelScope};
use crate::api::regions::RegionAction;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpRoute<'a> {
    ServerMetadata,
    Live,
    Ready,
    Model {
        name: &'a str,
        version: Option<&'a str>,
        operation: ModelOperation,
    },
    Statistics,
    /// Only with `metrics_on_http`.
    Metrics,
    Logging,
    TraceSetting,
    RepositoryIndex,
    RepositoryControl {
        name: &'a str,
        is_load: bool,
        /// The path names a repository, not only a model.
        names_repository: bool,
    },
    SharedMemory {
        kind: RegionKind,
        /// Empty for all.
        region: &'a str,
        action: RegionAction,
    },
    Unknown,
}

/// What is asked of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelOperation {
    Metadata,
    Ready,
    Config,
    Statistics,
    Infer,
    Generate,
    GenerateStream,
    TraceSetting,
}

impl GuardedRoute for HttpRoute<'_> {
    fn access(&self) -> Access {
        Access::Of(match self {
            HttpRoute::Live | HttpRoute::Ready => Category::Health,
            HttpRoute::ServerMetadata => Category::Metadata,
            HttpRoute::Model { operation, .. } => operation.category(),
            // The page has the statistics, and upstream no category for it.
            HttpRoute::Statistics | HttpRoute::Metrics => Category::Statistics,
            HttpRoute::Logging => Category::Logging,
            HttpRoute::TraceSetting => Category::Trace,
            HttpRoute::RepositoryIndex | HttpRoute::RepositoryControl { .. } => {
                Category::ModelRepository
            }
            HttpRoute::SharedMemory { .. } => Category::SharedMemory,
            HttpRoute::Unknown => return Access::Open,
        })
    }

    fn model_scope(&self) -> ModelScope<'_> {
        match self {
            HttpRoute::Model { name, .. } | HttpRoute::RepositoryControl { name, .. } => {
                ModelScope::One(name)
            }
            HttpRoute::Statistics
            | HttpRoute::Metrics
            | HttpRoute::TraceSetting
            | HttpRoute::RepositoryIndex => ModelScope::All,
            HttpRoute::ServerMetadata
            | HttpRoute::Live
            | HttpRoute::Ready
            | HttpRoute::Logging
            | HttpRoute::SharedMemory { .. }
            | HttpRoute::Unknown => ModelScope::None,
        }
    }
}

impl ModelOperation {
    pub(crate) fn is_inference(self) -> bool {
        self.category() == Category::Inference
    }

    fn category(self) -> Category {
        match self {
            ModelOperation::Metadata => Category::Metadata,
            ModelOperation::Ready => Category::Health,
            ModelOperation::Config => Category::ModelConfig,
            ModelOperation::Statistics => Category::Statistics,
            ModelOperation::Infer | ModelOperation::Generate | ModelOperation::GenerateStream => {
                Category::Inference
            }
            ModelOperation::TraceSetting => Category::Trace,
        }
    }
}

/// Segments of the longest path: `/v2/models/<name>/versions/<version>/trace/setting`.
const SEGMENTS_MAX: usize = 8;

pub(crate) fn route(path: &str) -> HttpRoute<'_> {
    match path.strip_prefix('/') {
        Some(path) => below_root(path),
        None => HttpRoute::Unknown,
    }
}

/// [`route`] for a path without its first slash.
pub(crate) fn below_root(path: &str) -> HttpRoute<'_> {
    let mut segments = [""; SEGMENTS_MAX];
    let (mut count, mut start) = (0, 0);
    for end in memchr::memchr_iter(b'/', path.as_bytes()).chain([path.len()]) {
        let segment = path.get(start..end).unwrap_or("");
        // Trailing and double slashes make other paths, as upstream's do.
        let Some(place) = segments.get_mut(count).filter(|_| !segment.is_empty()) else {
            return HttpRoute::Unknown;
        };
        *place = segment;
        count += 1;
        start = end + 1;
    }
    match segments.get(..count).unwrap_or(&[]) {
        ["v2"] => HttpRoute::ServerMetadata,
        ["v2", "health", "live"] => HttpRoute::Live,
        ["v2", "health", "ready"] => HttpRoute::Ready,
        ["v2", "models", "stats"] => HttpRoute::Statistics,
        ["v2", "logging"] => HttpRoute::Logging,
        ["v2", "trace", "setting"] => HttpRoute::TraceSetting,
        ["v2", "models", name, rest @ ..] => model(name, rest),
        ["v2", "repository", "index"] | ["v2", "repository", _, "index"] => {
            HttpRoute::RepositoryIndex
        }
        [
            "v2",
            "repository",
            "models",
            name,
            action @ ("load" | "unload"),
        ] => HttpRoute::RepositoryControl {
            name,
            is_load: *action == "load",
            names_repository: false,
        },
        [
            "v2",
            "repository",
            _,
            "models",
            name,
            action @ ("load" | "unload"),
        ] => HttpRoute::RepositoryControl {
            name,
            is_load: *action == "load",
            names_repository: true,
        },
        ["v2", memory, action] => shared_memory(memory, "", action),
        ["v2", memory, "region", region, action] => shared_memory(memory, region, action),
        _ => HttpRoute::Unknown,
    }
}

fn shared_memory<'a>(memory: &str, region: &'a str, action: &str) -> HttpRoute<'a> {
    let kind = match memory {
        "systemsharedmemory" => RegionKind::System,
        "cudasharedmemory" => RegionKind::Cuda,
        _ => return HttpRoute::Unknown,
    };
    let action = match action {
        "status" => RegionAction::Status,
        "register" => RegionAction::Register,
        "unregister" => RegionAction::Unregister,
        _ => return HttpRoute::Unknown,
    };
    HttpRoute::SharedMemory {
        kind,
        region,
        action,
    }
}

fn model<'a>(name: &'a str, rest: &[&'a str]) -> HttpRoute<'a> {
    let (version, rest) = match rest {
        ["versions", version, rest @ ..] if version.bytes().all(|byte| byte.is_ascii_digit()) => {
            (Some(*version), rest)
        }
        _ => (None, rest),
    };
    let operation = match rest {
        [] => ModelOperation::Metadata,
        ["ready"] => ModelOperation::Ready,
        ["config"] => ModelOperation::Config,
        ["stats"] => ModelOperation::Statistics,
        ["infer"] => ModelOperation::Infer,
        ["generate"] => ModelOperation::Generate,
        ["generate_stream"] => ModelOperation::GenerateStream,
        ["trace", "setting"] if version.is_none() => ModelOperation::TraceSetting,
        _ => return HttpRoute::Unknown,
    };
    HttpRoute::Model {
        name,
        version,
        operation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cases: &[(&str, HttpRoute<'_>)]) {
        for (path, expected) in cases {
            assert_eq!(route(path), *expected, "{path}");
        }
    }

    fn model(
        name: &'static str,
        version: Option<&'static str>,
        operation: ModelOperation,
    ) -> HttpRoute<'static> {
        HttpRoute::Model {
            name,
            version,
            operation,
        }
    }

    #[test]
    fn server_paths() {
        check(&[
            ("/v2", HttpRoute::ServerMetadata),
            ("/v2/", HttpRoute::Unknown),
            ("/", HttpRoute::Unknown),
            ("", HttpRoute::Unknown),
            ("v2", HttpRoute::Unknown),
            ("//v2", HttpRoute::Unknown),
            ("/v2/health/live", HttpRoute::Live),
            ("/v2/health/ready", HttpRoute::Ready),
            ("/v2/health", HttpRoute::Unknown),
            ("/v2/health/ready/", HttpRoute::Unknown),
            ("/v2/models/stats", HttpRoute::Statistics),
            ("/v2/models", HttpRoute::Unknown),
            ("/v2/logging", HttpRoute::Logging),
            ("/v2/trace/setting", HttpRoute::TraceSetting),
            ("/a/b/c/d/e/f/g/h/i/j", HttpRoute::Unknown),
        ]);
    }

    #[test]
    fn model_paths() {
        check(&[
            ("/v2/models/m", model("m", None, ModelOperation::Metadata)),
            ("/v2/models/m/", HttpRoute::Unknown),
            ("/v2/models/m/versions", HttpRoute::Unknown),
            (
                "/v2/models/m/versions/1",
                model("m", Some("1"), ModelOperation::Metadata),
            ),
            ("/v2/models/m/versions/x/infer", HttpRoute::Unknown),
            ("/v2/models/m/versions/-1/infer", HttpRoute::Unknown),
            (
                "/v2/models/m/versions/12/infer",
                model("m", Some("12"), ModelOperation::Infer),
            ),
            (
                "/v2/models/m/infer",
                model("m", None, ModelOperation::Infer),
            ),
            (
                "/v2/models/m/stats",
                model("m", None, ModelOperation::Statistics),
            ),
            (
                "/v2/models/m/ready",
                model("m", None, ModelOperation::Ready),
            ),
            (
                "/v2/models/m/config",
                model("m", None, ModelOperation::Config),
            ),
            (
                "/v2/models/m/generate",
                model("m", None, ModelOperation::Generate),
            ),
            (
                "/v2/models/m/generate_stream",
                model("m", None, ModelOperation::GenerateStream),
            ),
            (
                "/v2/models/m/trace/setting",
                model("m", None, ModelOperation::TraceSetting),
            ),
            ("/v2/models/m/versions/1/trace/setting", HttpRoute::Unknown),
        ]);
    }

    #[test]
    fn repository_paths() {
        check(&[
            ("/v2/repository/index", HttpRoute::RepositoryIndex),
            ("/v2/repository/r/index", HttpRoute::RepositoryIndex),
            (
                "/v2/repository/models/m/load",
                HttpRoute::RepositoryControl {
                    name: "m",
                    is_load: true,
                    names_repository: false,
                },
            ),
            (
                "/v2/repository/r/models/m/unload",
                HttpRoute::RepositoryControl {
                    name: "m",
                    is_load: false,
                    names_repository: true,
                },
            ),
            ("/v2/repository/models/m/reload", HttpRoute::Unknown),
            ("/v2/repository/models/m/reload", HttpRoute::Unknown),
        ]);
    }

    #[test]
    fn shared_memory_paths() {
        check(&[
            (
                "/v2/systemsharedmemory/status",
                HttpRoute::SharedMemory {
                    kind: RegionKind::System,
                    region: "",
                    action: RegionAction::Status,
                },
            ),
            (
                "/v2/cudasharedmemory/region/r/register",
                HttpRoute::SharedMemory {
                    kind: RegionKind::Cuda,
                    region: "r",
                    action: RegionAction::Register,
                },
            ),
            ("/v2/systemsharedmemory/list", HttpRoute::Unknown),
            ("/v2/sharedmemory/status", HttpRoute::Unknown),
            (
                "/v2/systemsharedmemory/region/r/s/status",
                HttpRoute::Unknown,
            ),
            ("/v2/systemsharedmemory/region/r", HttpRoute::Unknown),
        ]);
    }
}
