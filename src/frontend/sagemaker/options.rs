//! Options of the SageMaker listener.

use std::path::PathBuf;
use std::sync::Arc;

use super::catalog::ModelCatalog;
use crate::options::Endpoint;

/// The directory in which SageMaker puts models.
const MODELS_ROOT: &str = "/opt/ml/models";

/// What `POST /invocations` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InferenceType {
    #[default]
    Infer,
    Generate,
    GenerateStream,
}

/// What the listener is started with.
#[derive(Clone, Debug)]
pub struct SageMakerOptions {
    pub endpoint: Endpoint,
    /// `/ping` asks whether the server lives, not whether it is ready.
    pub ping_is_live: bool,
    /// The model of `/invocations`.
    pub default_model: String,
    pub inference_type: InferenceType,
    /// Models of a multi-model endpoint are below it.
    pub models_root: PathBuf,
    pub(super) catalog: Arc<ModelCatalog>,
}

impl SageMakerOptions {
    pub fn new(endpoint: Endpoint) -> SageMakerOptions {
        SageMakerOptions {
            endpoint,
            ping_is_live: false,
            // As upstream: the message about an unknown model says what is missing.
            default_model: "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME".to_owned(),
            inference_type: InferenceType::default(),
            models_root: PathBuf::from(MODELS_ROOT),
            catalog: Arc::default(),
        }
    }
}
