//! The methods that this server knows, by their paths.

use conch_engine::shared_memory::RegionKind;

use crate::access::{Access, Category, GuardedRoute, ModelScope};
use crate::api::regions::RegionAction;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcMethod {
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
    SharedMemory(RegionKind, RegionAction),
    HealthCheck,
    HealthWatch,
    /// ServerReflectionInfo, of either version: their messages are the same.
    Reflection,
}

impl GuardedRoute for GrpcMethod {
    fn access(&self) -> Access {
        Access::Of(match self {
            GrpcMethod::ServerLive
            | GrpcMethod::ServerReady
            | GrpcMethod::ModelReady
            | GrpcMethod::HealthCheck
            | GrpcMethod::HealthWatch => Category::Health,
            GrpcMethod::ServerMetadata | GrpcMethod::ModelMetadata | GrpcMethod::Reflection => {
                Category::Metadata
            }
            GrpcMethod::ModelConfig => Category::ModelConfig,
            GrpcMethod::ModelStatistics => Category::Statistics,
            GrpcMethod::RepositoryIndex
            | GrpcMethod::RepositoryModelLoad
            | GrpcMethod::RepositoryModelUnload => Category::ModelRepository,
            GrpcMethod::ModelInfer | GrpcMethod::ModelStreamInfer => Category::Inference,
            GrpcMethod::TraceSetting => Category::Trace,
            GrpcMethod::LogSettings => Category::Logging,
            GrpcMethod::SharedMemory(..) => Category::SharedMemory,
        })
    }

    fn model_scope(&self) -> ModelScope<'_> {
        match self {
            GrpcMethod::ModelMetadata
            | GrpcMethod::ModelConfig
            | GrpcMethod::ModelStatistics
            | GrpcMethod::RepositoryModelLoad
            | GrpcMethod::RepositoryModelUnload
            | GrpcMethod::ModelInfer
            | GrpcMethod::ModelStreamInfer
            | GrpcMethod::TraceSetting => ModelScope::Later,
            GrpcMethod::RepositoryIndex => ModelScope::All,
            GrpcMethod::ServerLive
            | GrpcMethod::ServerReady
            | GrpcMethod::ModelReady
            | GrpcMethod::ServerMetadata
            | GrpcMethod::LogSettings
            | GrpcMethod::SharedMemory(..)
            | GrpcMethod::HealthCheck
            | GrpcMethod::HealthWatch
            | GrpcMethod::Reflection => ModelScope::None,
        }
    }
}

impl GrpcMethod {
    /// The method behind a request path; paths are case-sensitive.
    pub(super) fn of(path: &str) -> Option<GrpcMethod> {
        if let Some(name) = path.strip_prefix("/inference.GRPCInferenceService/") {
            return Some(match name {
                "ModelInfer" => GrpcMethod::ModelInfer,
                "ModelStreamInfer" => GrpcMethod::ModelStreamInfer,
                "ServerLive" => GrpcMethod::ServerLive,
                "ServerReady" => GrpcMethod::ServerReady,
                "ModelReady" => GrpcMethod::ModelReady,
                "ServerMetadata" => GrpcMethod::ServerMetadata,
                "ModelMetadata" => GrpcMethod::ModelMetadata,
                "ModelConfig" => GrpcMethod::ModelConfig,
                "ModelStatistics" => GrpcMethod::ModelStatistics,
                "RepositoryIndex" => GrpcMethod::RepositoryIndex,
                "RepositoryModelLoad" => GrpcMethod::RepositoryModelLoad,
                "RepositoryModelUnload" => GrpcMethod::RepositoryModelUnload,
                "TraceSetting" => GrpcMethod::TraceSetting,
                "LogSettings" => GrpcMethod::LogSettings,
                "SystemSharedMemoryStatus" => {
                    GrpcMethod::SharedMemory(RegionKind::System, RegionAction::Status)
                }
                "SystemSharedMemoryRegister" => {
                    GrpcMethod::SharedMemory(RegionKind::System, RegionAction::Register)
                }
                "SystemSharedMemoryUnregister" => {
                    GrpcMethod::SharedMemory(RegionKind::System, RegionAction::Unregister)
                }
                "CudaSharedMemoryStatus" => {
                    GrpcMethod::SharedMemory(RegionKind::Cuda, RegionAction::Status)
                }
                "CudaSharedMemoryRegister" => {
                    GrpcMethod::SharedMemory(RegionKind::Cuda, RegionAction::Register)
                }
                "CudaSharedMemoryUnregister" => {
                    GrpcMethod::SharedMemory(RegionKind::Cuda, RegionAction::Unregister)
                }
                _ => return None,
            });
        }
        match path {
            "/grpc.health.v1.Health/Check" => Some(GrpcMethod::HealthCheck),
            "/grpc.health.v1.Health/Watch" => Some(GrpcMethod::HealthWatch),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                Some(GrpcMethod::Reflection)
            }
            _ => None,
        }
    }

    pub(super) fn is_inference(self) -> bool {
        matches!(self, GrpcMethod::ModelInfer | GrpcMethod::ModelStreamInfer)
    }

    /// Health is answered to the end: that is how a balancer learns of it.
    pub(super) fn is_health(self) -> bool {
        matches!(
            self,
            GrpcMethod::HealthCheck
                | GrpcMethod::HealthWatch
                | GrpcMethod::ServerLive
                | GrpcMethod::ServerReady
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
                Some(GrpcMethod::ModelInfer),
            ),
            (
                "/inference.GRPCInferenceService/LogSettings",
                Some(GrpcMethod::LogSettings),
            ),
            (
                "/inference.GRPCInferenceService/CudaSharedMemoryRegister",
                Some(GrpcMethod::SharedMemory(
                    RegionKind::Cuda,
                    RegionAction::Register,
                )),
            ),
            (
                "/grpc.health.v1.Health/Check",
                Some(GrpcMethod::HealthCheck),
            ),
            ("/grpc.health.v1.Health/List", None),
            ("/inference.GRPCInferenceService/modelinfer", None),
            ("/inference.GRPCInferenceService/ModelInfer/", None),
            ("/inference.GRPCInferenceService/", None),
            ("/", None),
            ("", None),
        ];
        for (path, expected) in table {
            assert_eq!(GrpcMethod::of(path), expected, "{path}");
        }
    }
}
