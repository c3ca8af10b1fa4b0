//! The methods that this server knows, by their paths.

use conch_engine::regions::Kind;

use crate::access::{Access, Category, Guarded};
use crate::api::regions::RegionAction;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    ServerLive,
    ServerReady,
    ModelReady,
    ServerMetadata,
    ModelMetadata,
    ModelConfig,
    ModelStatistics,
    RepositoryIndex,
    RepositoryModelLoad,
    RepositoryModelUnload,
    ModelInfer,
    ModelStreamInfer,
    TraceSetting,
    LogSettings,
    SharedMemory(Kind, RegionAction),
    HealthCheck,
    HealthWatch,
    /// ServerReflectionInfo, of either version: their messages are the same.
    Reflection,
}

impl Guarded for Method {
    fn access(&self) -> Access {
        Access::Of(match self {
            Method::ServerLive
            | Method::ServerReady
            | Method::ModelReady
            | Method::HealthCheck
            | Method::HealthWatch => Category::Health,
            Method::ServerMetadata | Method::ModelMetadata | Method::Reflection => {
                Category::Metadata
            }
            Method::ModelConfig => Category::ModelConfig,
            Method::ModelStatistics => Category::Statistics,
            Method::RepositoryIndex
            | Method::RepositoryModelLoad
            | Method::RepositoryModelUnload => Category::ModelRepository,
            Method::ModelInfer | Method::ModelStreamInfer => Category::Inference,
            Method::TraceSetting => Category::Trace,
            Method::LogSettings => Category::Logging,
            Method::SharedMemory(..) => Category::SharedMemory,
        })
    }
}

impl Method {
    /// The method behind a request path; paths are case-sensitive.
    pub(super) fn of(path: &str) -> Option<Method> {
        if let Some(name) = path.strip_prefix("/inference.GRPCInferenceService/") {
            return Some(match name {
                "ModelInfer" => Method::ModelInfer,
                "ModelStreamInfer" => Method::ModelStreamInfer,
                "ServerLive" => Method::ServerLive,
                "ServerReady" => Method::ServerReady,
                "ModelReady" => Method::ModelReady,
                "ServerMetadata" => Method::ServerMetadata,
                "ModelMetadata" => Method::ModelMetadata,
                "ModelConfig" => Method::ModelConfig,
                "ModelStatistics" => Method::ModelStatistics,
                "RepositoryIndex" => Method::RepositoryIndex,
                "RepositoryModelLoad" => Method::RepositoryModelLoad,
                "RepositoryModelUnload" => Method::RepositoryModelUnload,
                "TraceSetting" => Method::TraceSetting,
                "LogSettings" => Method::LogSettings,
                "SystemSharedMemoryStatus" => {
                    Method::SharedMemory(Kind::System, RegionAction::Status)
                }
                "SystemSharedMemoryRegister" => {
                    Method::SharedMemory(Kind::System, RegionAction::Register)
                }
                "SystemSharedMemoryUnregister" => {
                    Method::SharedMemory(Kind::System, RegionAction::Unregister)
                }
                "CudaSharedMemoryStatus" => Method::SharedMemory(Kind::Cuda, RegionAction::Status),
                "CudaSharedMemoryRegister" => {
                    Method::SharedMemory(Kind::Cuda, RegionAction::Register)
                }
                "CudaSharedMemoryUnregister" => {
                    Method::SharedMemory(Kind::Cuda, RegionAction::Unregister)
                }
                _ => return None,
            });
        }
        match path {
            "/grpc.health.v1.Health/Check" => Some(Method::HealthCheck),
            "/grpc.health.v1.Health/Watch" => Some(Method::HealthWatch),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                Some(Method::Reflection)
            }
            _ => None,
        }
    }

    pub(super) fn is_inference(self) -> bool {
        matches!(self, Method::ModelInfer | Method::ModelStreamInfer)
    }

    /// Health is answered to the end: that is how a balancer learns of it.
    pub(super) fn is_health(self) -> bool {
        matches!(
            self,
            Method::HealthCheck | Method::HealthWatch | Method::ServerLive | Method::ServerReady
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let table = [
            (
                "/inference.GRPCInferenceService/ModelInfer",
                Some(Method::ModelInfer),
            ),
            (
                "/inference.GRPCInferenceService/LogSettings",
                Some(Method::LogSettings),
            ),
            (
                "/inference.GRPCInferenceService/CudaSharedMemoryRegister",
                Some(Method::SharedMemory(Kind::Cuda, RegionAction::Register)),
            ),
            ("/grpc.health.v1.Health/Check", Some(Method::HealthCheck)),
            ("/grpc.health.v1.Health/List", None),
            ("/inference.GRPCInferenceService/modelinfer", None),
            ("/inference.GRPCInferenceService/ModelInfer/", None),
            ("/inference.GRPCInferenceService/", None),
            ("/", None),
            ("", None),
        ];
        for (path, expected) in table {
            assert_eq!(Method::of(path), expected, "{path}");
        }
    }
}
