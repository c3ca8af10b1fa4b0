//! Credentials of the machine, its container or its pod for Amazon's store.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider};

use crate::credentials::CloudEnvironment;
use crate::http::Connector;
use crate::retries::retries;

/// Without keys: what the environment of the process or the machine may ask for, else nobody.
pub(crate) fn with_own_identity(
    builder: AmazonS3Builder,
    environment: &CloudEnvironment,
) -> AmazonS3Builder {
    let sources = [&WEB_IDENTITY[..], &RELATIVE, &FULL];
    if let Some(builder) = with_source(&builder, &sources, environment) {
        return builder;
    }
    if let Some(endpoint) = set(environment, METADATA) {
        return builder.with_metadata_endpoint(endpoint);
    }
    let is_off = set(environment, "AWS_EC2_METADATA_DISABLED")
        .is_some_and(|value| value.eq_ignore_ascii_case("true"));
    builder.with_skip_signature(is_off || !is_in_a_cloud())
}

/// The role of an ECS task or an EKS pod.
///
/// # Errors
/// If this is none.
pub(crate) fn container(
    environment: &CloudEnvironment,
    connector: &Connector,
) -> Result<AwsCredentialProvider, String> {
    let sources = [&RELATIVE[..], &FULL];
    let found = with_source(&AmazonS3Builder::new(), &sources, environment);
    let builder = found.ok_or(
        "this is no container with a role: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is not set",
    )?;
    provider(builder, connector)
}

/// The role of an EC2 instance.
///
/// # Errors
/// If nobody can be asked for it.
pub(crate) fn instance(
    environment: &CloudEnvironment,
    connector: &Connector,
) -> Result<AwsCredentialProvider, String> {
    let mut builder = AmazonS3Builder::new();
    if let Some(endpoint) = set(environment, METADATA) {
        builder = builder.with_metadata_endpoint(endpoint);
    }
    provider(builder, connector)
}

/// The credentials that a store would have.
fn provider(
    builder: AmazonS3Builder,
    connector: &Connector,
) -> Result<AwsCredentialProvider, String> {
    let store = builder
        .with_bucket_name("none")
        .with_http_connector(connector.clone())
        .with_retry(retries())
        .build();
    let store = store.map_err(|error| error.to_string())?;
    Ok(store.credentials().clone())
}

/// With the first of the sources of which all variables are set.
fn with_source(
    builder: &AmazonS3Builder,
    sources: &[&IdentitySource],
    environment: &CloudEnvironment,
) -> Option<AmazonS3Builder> {
    let values = sources.iter().find_map(|source| {
        let values = source
            .iter()
            .map(|(name, key)| Some((*key, set(environment, name)?)));
        values.collect::<Option<Vec<_>>>()
    })?;
    let more = [
        ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
        ("AWS_ENDPOINT_URL_STS", AmazonS3ConfigKey::StsEndpoint),
    ];
    let more = more
        .into_iter()
        .filter_map(|(name, key)| Some((key, set(environment, name)?)));
    let all = values.into_iter().chain(more);
    Some(all.fold(builder.clone(), |builder, (key, value)| {
        builder.with_config(key, value)
    }))
}

fn set(environment: &CloudEnvironment, name: &str) -> Option<String> {
    environment(name).filter(|value| !value.is_empty())
}

/// Whether the address answers at which machines of all three clouds find who they are.
pub(crate) fn is_in_a_cloud() -> bool {
    let address = SocketAddr::from(([169, 254, 169, 254], 80));
    TcpStream::connect_timeout(&address, PROBE_TIMEOUT).is_ok()
}

/// Variables that are set together, and what they are called in a store's configuration.
type IdentitySource = [(&'static str, AmazonS3ConfigKey)];

const WEB_IDENTITY: [(&str, AmazonS3ConfigKey); 2] = [
    (
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        AmazonS3ConfigKey::WebIdentityTokenFile,
    ),
    ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
];
const RELATIVE: [(&str, AmazonS3ConfigKey); 1] = [(
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
)];
const FULL: [(&str, AmazonS3ConfigKey); 2] = [
    (
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
    ),
    (
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        AmazonS3ConfigKey::ContainerAuthorizationTokenFile,
    ),
];
const METADATA: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
/// It is one hop away.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
