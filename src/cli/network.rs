//! The options of the network side: what the flags say, completed by files and the environment.

use conch_engine::Error;
use conch_frontend::{AuthConfig, FrontendOptions, TlsListener, TlsSource};

use crate::arguments::Arguments;
use crate::cloud::{self, CloudVariables};

/// What the network side is started with, as far as the command line says it. Reads the files of
/// TLS and of callers.
///
/// # Errors
/// A variable of SageMaker or Vertex AI, or a file of TLS or of callers, that is of no use.
pub fn frontend_options(
    arguments: &Arguments,
    environment: CloudVariables<'_>,
) -> Result<FrontendOptions, Error> {
    let (listeners, hosts) = (&arguments.listeners, &arguments.tls_hosts);
    Ok(FrontendOptions {
        http: listeners.http.enabled(),
        grpc: listeners.grpc.enabled(),
        metrics: listeners.metrics.enabled(),
        metrics_on_http: arguments.frontend.metrics_on_http && listeners.metrics.is_enabled,
        sagemaker: cloud::sagemaker(arguments, environment)?,
        vertex_ai: cloud::vertex_ai(arguments, environment)?,
        auth: match arguments.auth_config.as_os_str().is_empty() {
            true => None,
            false => Some(AuthConfig::load(&arguments.auth_config)?),
        },
        grpc_tls: arguments
            .grpc_tls
            .load(TlsListener::Grpc, hosts, listeners.grpc.is_enabled)?,
        http_tls: arguments
            .http_tls
            .load(TlsListener::Http, hosts, listeners.http.is_enabled)?,
        metrics_tls: arguments.metrics_tls.load(
            TlsListener::Metrics,
            hosts,
            listeners.metrics.is_enabled,
        )?,
        ..arguments.frontend.clone()
    })
}

/// Where the TLS of `options`, which are those of `arguments`, comes from.
pub fn tls_sources(arguments: &Arguments, options: &FrontendOptions) -> Vec<TlsSource> {
    let listeners = [
        (TlsListener::Grpc, &arguments.grpc_tls, &options.grpc_tls),
        (TlsListener::Http, &arguments.http_tls, &options.http_tls),
        (
            TlsListener::Metrics,
            &arguments.metrics_tls,
            &options.metrics_tls,
        ),
    ];
    let sources = listeners
        .into_iter()
        .filter_map(|(listener, flags, config)| {
            Some(TlsSource {
                listener,
                files: flags.files_with(&arguments.tls_hosts),
                verifies_clients: flags.verifies_clients,
                config: config.clone()?,
            })
        });
    sources.collect()
}
