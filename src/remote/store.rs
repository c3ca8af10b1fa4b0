//! The stores behind places: opened with the credentials that are for them, kept, and opened again
//! when those change.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_engine::Error;
use conch_log as log;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::{ClientOptions, ObjectStore};

use crate::credentials::{
    AsCredential, CloudCredential, CloudEnvironment, Credentials, S3Credential, is_sendable,
};
use crate::http::Connector;
use crate::machine::{self, is_in_a_cloud};
use crate::profile::{self, ProfileProvider};
use crate::retries::retries;
use crate::uri::{UriKind, UriLocation};

/// One bucket or container.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) pages: Arc<dyn PaginatedListStore>,
}

impl Store {
    fn of(store: impl ObjectStore + PaginatedListStore) -> Store {
        let store = Arc::new(store);
        Store {
            objects: Arc::clone(&store) as Arc<dyn ObjectStore>,
            pages: store,
        }
    }
}

/// All stores of this process.
pub(crate) struct Stores {
    environment: Arc<CloudEnvironment>,
    connector: Connector,
    state: Mutex<StoreState>,
}

#[derive(Default)]
struct StoreState {
    /// None until the first place is opened.
    credentials: Option<Arc<Credentials>>,
    /// The credential file as it was read.
    text: Vec<u8>,
    open: HashMap<StoreKey, Store>,
}

/// Endpoint, account and bucket, and the name of the credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StoreKey(UriKind, Option<String>, String, String, String);

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stores")
    }
}

impl Stores {
    pub(crate) fn new(environment: Arc<CloudEnvironment>) -> Stores {
        Stores {
            environment,
            connector: Connector::default(),
            state: Mutex::default(),
        }
    }

    pub(crate) fn environment(&self) -> &CloudEnvironment {
        &*self.environment
    }

    /// The store of a place. May read files, and wait for a second to learn whether this machine
    /// has credentials of its own.
    ///
    /// # Errors
    /// NOT_FOUND if no credential is for it; INVALID_ARG or INTERNAL if the credentials are no
    /// good.
    pub(crate) fn open(&self, place: &UriLocation, uri: &str) -> Result<Store, Error> {
        let credentials = self.credentials()?;
        let found = credentials.find(place.kind, uri);
        let (name, credential) = match found {
            Ok(found) => found,
            Err(error) => {
                return match self.reread()? {
                    true => self.open(place, uri),
                    false => Err(error),
                };
            }
        };
        let key = StoreKey(
            place.kind,
            place.endpoint.clone(),
            place.account.clone(),
            place.bucket.clone(),
            name.to_owned(),
        );
        if let Some(store) = self.lock().open.get(&key) {
            return Ok(store.clone());
        }
        log::verbose!(1, "Using credential  {name}  for path  {uri}");
        let store = match credential {
            CloudCredential::S3(credential) => self.open_s3(place, credential.clone())?,
            CloudCredential::Gs(path) => self.open_gs(place, path.as_deref())?,
            CloudCredential::As(credential) => self.open_as(place, credential)?,
        };
        let mut state = self.lock();
        // Unless they were read anew meanwhile.
        if state
            .credentials
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, &credentials))
        {
            state.open.insert(key, store.clone());
        }
        Ok(store)
    }

    /// After a failure: reads the credential file again. Returns whether it says something else
    /// now; all stores are opened anew then.
    ///
    /// # Errors
    /// As [`Stores::open`].
    pub(crate) fn reread(&self) -> Result<bool, Error> {
        let Some(path) = self.file() else {
            return Ok(false);
        };
        let text = read(&path)?;
        if text == self.lock().text {
            return Ok(false);
        }
        let credentials = Arc::new(Credentials::from_json(&text)?);
        log::info!("cloud credentials have changed, using those that are in '{path}' now");
        *self.lock() = StoreState {
            credentials: Some(credentials),
            text,
            open: HashMap::new(),
        };
        Ok(true)
    }

    fn credentials(&self) -> Result<Arc<Credentials>, Error> {
        let mut state = self.lock();
        if let Some(credentials) = &state.credentials {
            return Ok(Arc::clone(credentials));
        }
        let credentials = match self.file() {
            Some(path) => {
                log::verbose!(1, "Reading cloud credential from {path}");
                state.text = read(&path)?;
                Credentials::from_json(&state.text)?
            }
            None => Credentials::from_environment(self.environment()),
        };
        let credentials = Arc::new(credentials);
        state.credentials = Some(Arc::clone(&credentials));
        Ok(credentials)
    }

    fn file(&self) -> Option<String> {
        (self.environment)("TRITON_CLOUD_CREDENTIAL_PATH")
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        // Replaced whole, or one entry added.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|value| !value.is_empty())
    }

    fn options(&self, endpoint: Option<&str>) -> ClientOptions {
        let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        ClientOptions::new().with_allow_http(is_plain)
    }

    fn open_s3(&self, place: &UriLocation, mut credential: S3Credential) -> Result<Store, Error> {
        let has_keys = |credential: &S3Credential| {
            !credential.key_id.is_empty() && !credential.secret_key.is_empty()
        };
        let mut profile = None;
        if !has_keys(&credential) {
            profile = profile::complete(&mut credential, self.environment())?;
        }
        if !is_sendable(&credential.key_id) || !is_sendable(&credential.session_token) {
            return Err(Error::invalid(
                "the AWS access key or session token has characters that cannot be sent",
            ));
        }
        let region = Some(credential.region.clone())
            .filter(|region| !region.is_empty())
            .or_else(|| self.set("AWS_REGION"))
            .or_else(|| self.set("AWS_DEFAULT_REGION"))
            .unwrap_or_else(|| REGION.to_owned());
        let endpoint = place.endpoint.clone();
        let endpoint = endpoint
            .or_else(|| self.set("AWS_ENDPOINT_URL_S3"))
            .or_else(|| self.set("AWS_ENDPOINT_URL"));
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&place.bucket)
            .with_region(&region)
            .with_http_connector(self.connector.clone())
            .with_retry(retries())
            .with_client_options(self.options(endpoint.as_deref()));
        if let Some(endpoint) = &endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        if has_keys(&credential) {
            builder = builder
                .with_access_key_id(credential.key_id)
                .with_secret_access_key(credential.secret_key);
            if !credential.session_token.is_empty() {
                builder = builder.with_token(credential.session_token);
            }
        } else if let Some(profile) = profile {
            let provider = ProfileProvider::new(
                profile,
                region,
                Arc::clone(&self.environment),
                self.connector.clone(),
            );
            builder = builder.with_credentials(Arc::new(provider));
        } else {
            builder = machine::with_own_identity(builder, self.environment());
        }
        let store = builder.build().map_err(|error| {
            Error::internal(format!(
                "Unable to create S3 filesystem client. Check account credentials. {error}"
            ))
        })?;
        Ok(Store::of(store))
    }

    fn open_gs(&self, place: &UriLocation, path: Option<&std::path::Path>) -> Result<Store, Error> {
        let endpoint = place.endpoint.clone();
        let endpoint = endpoint.or_else(|| {
            let host = self
                .set("CLOUD_STORAGE_EMULATOR_ENDPOINT")
                .or_else(|| self.set("STORAGE_EMULATOR_HOST"))?;
            let has_protocol = host.starts_with("http://") || host.starts_with("https://");
            Some(if has_protocol {
                host
            } else {
                format!("http://{host}")
            })
        });
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(&place.bucket)
            .with_http_connector(self.connector.clone())
            .with_retry(retries())
            .with_client_options(self.options(endpoint.as_deref()));
        if let Some(path) = path {
            builder = builder.with_application_credentials(path.to_string_lossy());
        } else if endpoint.is_some() || self.set("GCE_METADATA_HOST").is_none() && !is_in_a_cloud()
        {
            builder = builder.with_skip_signature(true);
        }
        if let Some(endpoint) = &endpoint {
            builder = builder.with_base_url(endpoint.trim_end_matches('/'));
        }
        let store = builder.build().map_err(|error| {
            Error::internal(format!(
                "Unable to create GCS client. Check account credentials. {error}"
            ))
        })?;
        Ok(Store::of(store))
    }

    fn open_as(&self, place: &UriLocation, credential: &AsCredential) -> Result<Store, Error> {
        let account = match credential.account.as_str() {
            "" => &place.account,
            account => account,
        };
        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(account)
            .with_container_name(&place.bucket)
            .with_http_connector(self.connector.clone())
            .with_retry(retries())
            .with_client_options(self.options(place.endpoint.as_deref()));
        if let Some(endpoint) = &place.endpoint {
            // As emulators have it: the account is the first part of the path.
            builder = builder.with_endpoint(format!("{endpoint}/{account}"));
        }
        match credential.auth_type.as_str() {
            "managed_identity" => {
                builder = builder.with_credential_type("managed_identity");
                if !credential.client_id.is_empty() {
                    builder = builder.with_client_id(&credential.client_id);
                }
            }
            "default" => {
                if let Some(tenant) = self.set("AZURE_TENANT_ID") {
                    builder = builder.with_tenant_id(tenant);
                }
                if let Some(client) = self.set("AZURE_CLIENT_ID") {
                    builder = builder.with_client_id(client);
                }
                if let Some(secret) = self.set("AZURE_CLIENT_SECRET") {
                    builder = builder.with_client_secret(secret);
                }
                if let Some(token) = self.set("AZURE_FEDERATED_TOKEN_FILE") {
                    builder = builder.with_federated_token_file(token);
                }
                if let Some(authority) = self.set("AZURE_AUTHORITY_HOST") {
                    builder = builder.with_authority_host(authority);
                }
            }
            other => {
                if !matches!(other, "" | "key") {
                    log::warning!(
                        "'{other}' is no authentication type of Azure storage (key, \
                         managed_identity, default); using 'key'"
                    );
                }
                builder = match credential.key.as_str() {
                    "" => builder.with_skip_signature(true),
                    key => builder.with_access_key(key),
                };
            }
        }
        let store = builder.build().map_err(|error| {
            Error::internal(format!(
                "Unable to create Azure filesystem client. Check account credentials. {error}"
            ))
        })?;
        Ok(Store::of(store))
    }
}

fn read(path: &str) -> Result<Vec<u8>, Error> {
    conch_config::files::read(path).map_err(|cause| {
        Error::internal(format!("failed to open text file for read {path}: {cause}"))
    })
}

/// Of the SDK, where nobody says another.
const REGION: &str = "us-east-1";
