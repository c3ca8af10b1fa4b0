//! From path to operation, as upstream's patterns have it.

use conch_engine::regions::Kind;

use crate::access::{Access, Category, Guarded};
use crate::api::regions::RegionAction;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    ServerMetadata,
    Live,
    Ready,
    Model {
        name: &'a str,
        version: Option<&'a str>,
        operation: Operation,
    },
    Statistics,
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
        kind: Kind,
        /// Empty for all.
        region: &'a str,
        action: RegionAction,
    },
    Unknown,
}

/// What is asked of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Metadata,
    Ready,
    Config,
    Statistics,
    Infer,
    Generate,
    GenerateStream,
    TraceSetting,
}

impl Guarded for Route<'_> {
    fn access(&self) -> Access {
        Access::Of(match self {
            Route::Live | Route::Ready => Category::Health,
            Route::ServerMetadata => Category::Metadata,
            Route::Model { operation, .. } => operation.category(),
            Route::Statistics => Category::Statistics,
            Route::Logging => Category::Logging,
            Route::TraceSetting => Category::Trace,
            Route::RepositoryIndex | Route::RepositoryControl { .. } => Category::ModelRepository,
            Route::SharedMemory { .. } => Category::SharedMemory,
            Route::Unknown => return Access::Open,
        })
    }
}

impl Operation {
    fn category(self) -> Category {
        match self {
            Operation::Metadata => Category::Metadata,
            Operation::Ready => Category::Health,
            Operation::Config => Category::ModelConfig,
            Operation::Statistics => Category::Statistics,
            Operation::Infer | Operation::Generate | Operation::GenerateStream => {
                Category::Inference
            }
            Operation::TraceSetting => Category::Trace,
        }
    }
}

/// Segments of the longest path: `/v2/models/<name>/versions/<version>/trace/setting`.
const SEGMENTS_MAX: usize = 8;

pub(crate) fn route(path: &str) -> Route<'_> {
    match path.strip_prefix('/') {
        Some(path) => below_root(path),
        None => Route::Unknown,
    }
}

/// [`route`] for a path without its first slash.
pub(crate) fn below_root(path: &str) -> Route<'_> {
    let mut segments = [""; SEGMENTS_MAX];
    let mut count = 0;
    for segment in path.split('/') {
        // Trailing and double slashes make other paths, as upstream's do.
        let Some(place) = segments.get_mut(count).filter(|_| !segment.is_empty()) else {
            return Route::Unknown;
        };
        *place = segment;
        count += 1;
    }
    match segments.get(..count).unwrap_or(&[]) {
        ["v2"] => Route::ServerMetadata,
        ["v2", "health", "live"] => Route::Live,
        ["v2", "health", "ready"] => Route::Ready,
        ["v2", "models", "stats"] => Route::Statistics,
        ["v2", "logging"] => Route::Logging,
        ["v2", "trace", "setting"] => Route::TraceSetting,
        ["v2", "models", name, rest @ ..] => model(name, rest),
        ["v2", "repository", "index"] | ["v2", "repository", _, "index"] => Route::RepositoryIndex,
        [
            "v2",
            "repository",
            "models",
            name,
            action @ ("load" | "unload"),
        ] => Route::RepositoryControl {
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
        ] => Route::RepositoryControl {
            name,
            is_load: *action == "load",
            names_repository: true,
        },
        ["v2", memory, action] => shared_memory(memory, "", action),
        ["v2", memory, "region", region, action] => shared_memory(memory, region, action),
        _ => Route::Unknown,
    }
}

fn shared_memory<'a>(memory: &str, region: &'a str, action: &str) -> Route<'a> {
    let kind = match memory {
        "systemsharedmemory" => Kind::System,
        "cudasharedmemory" => Kind::Cuda,
        _ => return Route::Unknown,
    };
    let action = match action {
        "status" => RegionAction::Status,
        "register" => RegionAction::Register,
        "unregister" => RegionAction::Unregister,
        _ => return Route::Unknown,
    };
    Route::SharedMemory {
        kind,
        region,
        action,
    }
}

fn model<'a>(name: &'a str, rest: &[&'a str]) -> Route<'a> {
    let (version, rest) = match rest {
        ["versions", version, rest @ ..] if version.bytes().all(|byte| byte.is_ascii_digit()) => {
            (Some(*version), rest)
        }
        _ => (None, rest),
    };
    let operation = match rest {
        [] => Operation::Metadata,
        ["ready"] => Operation::Ready,
        ["config"] => Operation::Config,
        ["stats"] => Operation::Statistics,
        ["infer"] => Operation::Infer,
        ["generate"] => Operation::Generate,
        ["generate_stream"] => Operation::GenerateStream,
        ["trace", "setting"] if version.is_none() => Operation::TraceSetting,
        _ => return Route::Unknown,
    };
    Route::Model {
        name,
        version,
        operation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let model = |name, version, operation| Route::Model {
            name,
            version,
            operation,
        };
        for (path, expected) in [
            ("/v2", Route::ServerMetadata),
            ("/v2/", Route::Unknown),
            ("/", Route::Unknown),
            ("", Route::Unknown),
            ("v2", Route::Unknown),
            ("//v2", Route::Unknown),
            ("/v2/health/live", Route::Live),
            ("/v2/health/ready", Route::Ready),
            ("/v2/health", Route::Unknown),
            ("/v2/health/ready/", Route::Unknown),
            ("/v2/models/stats", Route::Statistics),
            ("/v2/models", Route::Unknown),
            ("/v2/models/m", model("m", None, Operation::Metadata)),
            ("/v2/models/m/", Route::Unknown),
            ("/v2/models/m/versions", Route::Unknown),
            (
                "/v2/models/m/versions/1",
                model("m", Some("1"), Operation::Metadata),
            ),
            ("/v2/models/m/versions/x/infer", Route::Unknown),
            ("/v2/models/m/versions/-1/infer", Route::Unknown),
            (
                "/v2/models/m/versions/12/infer",
                model("m", Some("12"), Operation::Infer),
            ),
            ("/v2/models/m/infer", model("m", None, Operation::Infer)),
            (
                "/v2/models/m/stats",
                model("m", None, Operation::Statistics),
            ),
            ("/v2/models/m/ready", model("m", None, Operation::Ready)),
            ("/v2/models/m/config", model("m", None, Operation::Config)),
            (
                "/v2/models/m/generate",
                model("m", None, Operation::Generate),
            ),
            (
                "/v2/models/m/generate_stream",
                model("m", None, Operation::GenerateStream),
            ),
            (
                "/v2/models/m/trace/setting",
                model("m", None, Operation::TraceSetting),
            ),
            ("/v2/models/m/versions/1/trace/setting", Route::Unknown),
            ("/v2/repository/index", Route::RepositoryIndex),
            ("/v2/repository/r/index", Route::RepositoryIndex),
            (
                "/v2/repository/models/m/load",
                Route::RepositoryControl {
                    name: "m",
                    is_load: true,
                    names_repository: false,
                },
            ),
            (
                "/v2/repository/r/models/m/unload",
                Route::RepositoryControl {
                    name: "m",
                    is_load: false,
                    names_repository: true,
                },
            ),
            ("/v2/repository/models/m/reload", Route::Unknown),
            ("/v2/repository/models/m/reload", Route::Unknown),
            (
                "/v2/systemsharedmemory/status",
                Route::SharedMemory {
                    kind: Kind::System,
                    region: "",
                    action: RegionAction::Status,
                },
            ),
            (
                "/v2/cudasharedmemory/region/r/register",
                Route::SharedMemory {
                    kind: Kind::Cuda,
                    region: "r",
                    action: RegionAction::Register,
                },
            ),
            ("/v2/systemsharedmemory/list", Route::Unknown),
            ("/v2/sharedmemory/status", Route::Unknown),
            ("/v2/systemsharedmemory/region/r/s/status", Route::Unknown),
            ("/v2/systemsharedmemory/region/r", Route::Unknown),
            ("/v2/logging", Route::Logging),
            ("/v2/trace/setting", Route::TraceSetting),
            ("/a/b/c/d/e/f/g/h/i/j", Route::Unknown),
        ] {
            assert_eq!(route(path), expected, "{path}");
        }
    }
}
