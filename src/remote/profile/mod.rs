//! Profiles in `~/.aws/credentials` and `~/.aws/config`: keys and region, or the source of the
//! keys.
//!
//! A profile without keys may lead to a role, to single sign-on or to a program. Those are followed
//! when the first request needs credentials, and again before what they gave ends; the files are
//! read anew each time.

mod chain;
mod file;
mod program;
mod service;
mod sso;
mod sts;
mod temporary;

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use conch_engine::Error;
use conch_log as log;
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::{CredentialProvider, Error as StoreError};
use tokio::sync::Mutex;

use crate::credentials::{CloudEnvironment, S3Credential};
use crate::http::Connector;
use crate::machine;
use crate::no_credentials::NoCredentials;
use chain::{BaseCredentials, RoleChain};
use file::ProfileFiles;
use service::SignedService;
use sso::SignOn;
use sts::Sts;
use temporary::{CredentialCache, TemporaryCredential};

/// Completes `credential` by its profile, or by the default one; what is there already stays.
/// Returns the name of the profile if it has no keys and leads to some elsewhere: a
/// [`ProfileProvider`] gets those.
///
/// # Errors
/// INVALID_ARG if a profile was asked for by name that is nowhere, or that leads nowhere.
pub(crate) fn complete(
    credential: &mut S3Credential,
    environment: &CloudEnvironment,
) -> Result<Option<String>, Error> {
    let (name, is_asked_for) = match credential.profile.as_str() {
        "" => (DEFAULT, false),
        name => (name, true),
    };
    let files = ProfileFiles::read(environment);
    if let Some(settings) = files.profile(name) {
        for (key, target) in [
            ("aws_access_key_id", &mut credential.key_id),
            ("aws_secret_access_key", &mut credential.secret_key),
            ("aws_session_token", &mut credential.session_token),
            ("region", &mut credential.region),
        ] {
            if target.is_empty() {
                settings.get(key).unwrap_or_default().clone_into(target);
            }
        }
        if !credential.key_id.is_empty() && !credential.secret_key.is_empty() {
            return Ok(None);
        }
    } else if !is_asked_for {
        return Ok(None);
    }
    match chain::resolve(&files, name) {
        Ok(chain) => Ok(chain.map(|_| name.to_owned())),
        Err(why) if is_asked_for => Err(Error::invalid(format!(
            "the AWS profile '{name}' cannot be used: {why}"
        ))),
        Err(why) => {
            log::warning!("the AWS profile '{name}' is ignored: {why}");
            Ok(None)
        }
    }
}

/// The credentials of a profile that leads elsewhere. Used by the operations of one store, on their
/// runtimes.
pub(crate) struct ProfileProvider {
    profile: String,
    /// Of the token service.
    region: String,
    environment: Arc<CloudEnvironment>,
    connector: Connector,
    /// Held while others are asked for: who needs them meanwhile waits.
    state: Mutex<ProviderState>,
}

#[derive(Default)]
struct ProviderState {
    cache: CredentialCache,
    token: Option<sso::SsoToken>,
}

impl fmt::Debug for ProfileProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProfileProvider({})", self.profile)
    }
}

// What the attribute of the `async-trait` crate makes of `async fn get_credential`.
impl CredentialProvider for ProfileProvider {
    type Credential = AwsCredential;

    fn get_credential<'s, 'a>(
        &'s self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<AwsCredential>>> + Send + 'a>>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async { self.credential().await.map_err(StoreError::from) })
    }
}

impl ProfileProvider {
    pub(crate) fn new(
        profile: String,
        region: String,
        environment: Arc<CloudEnvironment>,
        connector: Connector,
    ) -> ProfileProvider {
        ProfileProvider {
            profile,
            region,
            environment,
            connector,
            state: Mutex::default(),
        }
    }

    async fn credential(&self) -> Result<Arc<AwsCredential>, NoCredentials> {
        let ProviderState { cache, token } = &mut *self.state.lock().await;
        let now = SystemTime::now();
        if let Some(credential) = cache.current(now) {
            return Ok(credential);
        }
        let began = Instant::now();
        if let Some(failure) = cache.failure(began) {
            return Err(failure);
        }
        let outcome = self.follow(token).await;
        let now = SystemTime::now();
        outcome
            .and_then(|temporary| cache.store(temporary, now))
            .or_else(|why| {
                let failure = NoCredentials::new(&self.profile, &why);
                let used = cache.fall_back(failure.clone(), now, began.elapsed())?;
                log::warning!("{failure}; those in use are not over yet");
                Ok(used)
            })
    }

    /// Where the profile leads now.
    async fn follow(
        &self,
        token: &mut Option<sso::SsoToken>,
    ) -> Result<TemporaryCredential, String> {
        let files = ProfileFiles::read(&*self.environment);
        let Some(RoleChain { base, roles }) = chain::resolve(&files, &self.profile)? else {
            return Err("it leads to none any more".to_owned());
        };
        let sts = || {
            Ok::<_, String>(Sts {
                connector: &self.connector,
                endpoint: SignedService::Sts.endpoint(&self.region, &*self.environment)?,
                region: &self.region,
            })
        };
        let mut found = match base {
            BaseCredentials::Keys(name) => keys(&files, &name)?,
            BaseCredentials::Environment => self.environment_keys()?,
            BaseCredentials::Container => {
                given(machine::container(&*self.environment, &self.connector)?).await?
            }
            BaseCredentials::Instance => {
                given(machine::instance(&*self.environment, &self.connector)?).await?
            }
            BaseCredentials::Program(command) => {
                let running = tokio::task::spawn_blocking(move || program::run(&command));
                let ended = running.await;
                ended.map_err(|_| "its credential_process cannot be run".to_owned())??
            }
            BaseCredentials::SingleSignOn(settings) => {
                let sign_on = SignOn {
                    connector: &self.connector,
                    environment: &*self.environment,
                    settings: &settings,
                    profile: &self.profile,
                };
                sign_on.credentials(token).await?
            }
            BaseCredentials::WebIdentity { role, token_file } => {
                let contents = file::read_bounded(Path::new(&token_file));
                let contents = contents
                    .map_err(|error| format!("web_identity_token_file '{token_file}': {error}"))?;
                let token = String::from_utf8_lossy(&contents);
                sts()?.assume_with_token(&role, token.trim()).await?
            }
        };
        for role in &roles {
            found = sts()?.assume(role, &found.credential).await?;
        }
        let until = found.expires.map(temporary::show_time);
        let until = until.as_deref().unwrap_or("the end of the server");
        log::verbose!(
            1,
            "AWS profile '{}': credentials until {until}",
            self.profile
        );
        Ok(found)
    }

    fn environment_keys(&self) -> Result<TemporaryCredential, String> {
        let text = |name: &str| (self.environment)(name).unwrap_or_default();
        let credential = AwsCredential {
            key_id: text("AWS_ACCESS_KEY_ID"),
            secret_key: text("AWS_SECRET_ACCESS_KEY"),
            token: Some(text("AWS_SESSION_TOKEN")).filter(|token| !token.is_empty()),
        };
        let told = |_| "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY hold no keys".to_owned();
        TemporaryCredential::new(credential, None).map_err(told)
    }
}

/// The keys that a profile has of its own.
fn keys(files: &ProfileFiles, name: &str) -> Result<TemporaryCredential, String> {
    let settings = files.profile(name).expect("the chain ends with it");
    let text = |name: &str| settings.get(name).map(str::to_owned);
    let credential = AwsCredential {
        key_id: text("aws_access_key_id").unwrap_or_default(),
        secret_key: text("aws_secret_access_key").unwrap_or_default(),
        token: text("aws_session_token"),
    };
    TemporaryCredential::new(credential, None)
}

/// Credentials of a provider that keeps them itself, and says nothing of their end.
async fn given(provider: AwsCredentialProvider) -> Result<TemporaryCredential, String> {
    let credential = provider.get_credential().await;
    let credential = credential.map_err(|error| service::excerpt(&error.to_string()))?;
    let copy = AwsCredential {
        key_id: credential.key_id.clone(),
        secret_key: credential.secret_key.clone(),
        token: credential.token.clone(),
    };
    TemporaryCredential::new(copy, None)
}

const DEFAULT: &str = "default";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn profiles_complete_what_is_missing() {
        let folder = std::env::temp_dir().join(format!("conch-profile-{}", std::process::id()));
        fs::create_dir_all(folder.join(".aws")).unwrap();
        fs::write(
            folder.join(".aws/credentials"),
            "[default]\naws_access_key_id=D\naws_secret_access_key=d\n[work]\n\
             aws_access_key_id=W\naws_secret_access_key=w\naws_session_token=t\n",
        )
        .unwrap();
        fs::write(
            folder.join(".aws/config"),
            "[default]\nregion=r1\n[profile work]\nregion=r2\n[profile \
             role]\nrole_arn=arn\nsource_profile=work\n[profile bare]\nrole_arn=arn\n[profile \
             keyed]\nrole_arn=arn\nsource_profile=default\naws_access_key_id=X\n\
             aws_secret_access_key=x\n",
        )
        .unwrap();
        let home = folder.display().to_string();
        let environment = move |name: &str| (name == "HOME").then(|| home.clone());
        // Profile and region that are asked for; key, token and region that come out, and the
        // profile that is to be followed.
        type Row<'t> = (&'t str, &'t str, Result<[&'t str; 4], &'t str>);
        let table: [Row<'_>; 7] = [
            ("", "", Ok(["D", "", "r1", ""])),
            ("", "mine", Ok(["D", "", "mine", ""])),
            ("work", "", Ok(["W", "t", "r2", ""])),
            (
                "play",
                "",
                Err("'play' cannot be used: it is in none of the profile files"),
            ),
            ("role", "", Ok(["", "", "", "role"])),
            (
                "bare",
                "",
                Err("'bare' cannot be used: its role_arn needs a source_profile"),
            ),
            // Keys of its own go first, as upstream has it.
            ("keyed", "", Ok(["X", "", "", ""])),
        ];
        for (profile, region, expected) in table {
            let mut credential = S3Credential {
                profile: profile.to_owned(),
                region: region.to_owned(),
                ..S3Credential::default()
            };
            let outcome = complete(&mut credential, &environment);
            match (outcome, expected) {
                (Ok(followed), Ok(parts)) => {
                    let got = [
                        &credential.key_id,
                        &credential.session_token,
                        &credential.region,
                        &followed.unwrap_or_default(),
                    ];
                    assert_eq!(got, parts, "{profile}");
                }
                (Err(error), Err(part)) => assert!(error.message.contains(part), "{error}"),
                (got, expected) => panic!("{profile}: {got:?}, {expected:?}"),
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
