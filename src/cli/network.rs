//! The options of the network side: what the flags say, completed by files and the environment.

use conch_engine::Error;
use conch_frontend::FrontendOptions;

use crate::arguments::Arguments;
use crate::cloud::{self, CloudVariables};

/// What the network side is started with, as far as the command line says it. Reads the files of
/// TLS.
///
/// # Errors
/// A variable of SageMaker or Vertex AI, or a file of TLS, that is of no use.
pub fn frontend_options(
    arguments: &Arguments,
    environment: CloudVariables<'_>,
) -> Result<FrontendOptions, Error> {
    let listeners = &arguments.listeners;
    Ok(FrontendOptions {
        http: listeners.http.enabled(),
        grpc: listeners.grpc.enabled(),
        metrics: listeners.metrics.enabled(),
        metrics_on_http: arguments.frontend.metrics_on_http && listeners.metrics.is_enabled,
        sagemaker: cloud::sagemaker(arguments, environment)?,
        vertex_ai: cloud::vertex_ai(arguments, environment)?,
        grpc_tls: arguments.grpc_tls.load(listeners.grpc.is_enabled)?,
        ..arguments.frontend.clone()
    })
}
