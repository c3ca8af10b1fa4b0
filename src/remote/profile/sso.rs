//! Single sign-on (IAM Identity Center): credentials for the token that `aws sso login` left in
//! `~/.aws/sso/cache`.
//!
//! A token of a session that carries what renewing it takes is renewed, and left in the file as the
//! command line tool would leave it.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conch_log as log;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use object_store::aws::AwsCredential;
use object_store::client::{HttpRequest, HttpRequestBody};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use url::form_urlencoded::Serializer;

use super::chain::SingleSignOn;
use super::file::{aws_folder, read_bounded};
use super::service::{SignedService, ask, excerpt};
use super::temporary::{TemporaryCredential, parse_time, show_time};
use crate::credentials::CloudEnvironment;
use crate::http::Connector;

/// A token as it lies in its file: fields that are unknown here stay as they are.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SsoToken(Map<String, Value>);

impl std::fmt::Debug for SsoToken {
    /// Says nothing of what is in it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl SsoToken {
    fn parse(contents: &[u8]) -> Option<SsoToken> {
        let token = SsoToken(serde_json::from_slice(contents).ok()?);
        token.text("accessToken")?;
        token.expires()?;
        Some(token)
    }

    fn text(&self, name: &str) -> Option<&str> {
        let text = self.0.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    }

    fn expires(&self) -> Option<SystemTime> {
        parse_time(self.text("expiresAt")?).ok()
    }

    /// Whether another may be asked for by its own means.
    fn is_renewable(&self, now: SystemTime) -> bool {
        let needed = ["refreshToken", "clientId", "clientSecret"];
        let registered = self.text("registrationExpiresAt").map(parse_time);
        needed.iter().all(|name| self.text(name).is_some())
            && matches!(registered, Some(Ok(time)) if now < time)
    }
}

/// What one request for credentials needs.
pub(super) struct SignOn<'a> {
    pub(super) connector: &'a Connector,
    pub(super) environment: &'a CloudEnvironment,
    pub(super) settings: &'a SingleSignOn,
    pub(super) profile: &'a str,
}

impl SignOn<'_> {
    /// Credentials of the role. `renewed` is the last token that was renewed, for the case that its
    /// file cannot be written.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) async fn credentials(
        &self,
        renewed: &mut Option<SsoToken>,
    ) -> Result<TemporaryCredential, String> {
        let token = self.token(renewed).await?;
        let text = token.text("accessToken").unwrap_or_default();
        let query = Serializer::new(String::new())
            .append_pair("role_name", &self.settings.role)
            .append_pair("account_id", &self.settings.account)
            .finish();
        let endpoint = SignedService::Sso.endpoint(&self.settings.region, self.environment)?;
        let uri = format!("{endpoint}/federation/credentials?{query}");
        let mut request = http::Request::new(HttpRequestBody::empty());
        *request.uri_mut() = uri.parse().map_err(|_| format!("'{endpoint}' is no URL"))?;
        let mut value = HeaderValue::from_str(text).map_err(|_| self.ended())?;
        value.set_sensitive(true);
        let headers = request.headers_mut();
        headers.insert("x-amz-sso_bearer_token", value);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let (status, body) = ask(self.connector, &request).await?;
        if status == StatusCode::UNAUTHORIZED {
            return Err(self.ended());
        }
        read_answer(status, &body).map_err(|why| {
            let SingleSignOn { role, account, .. } = self.settings;
            format!(
                "single sign-on gives no credentials of role '{role}' in account '{account}': {why}"
            )
        })
    }

    async fn token(&self, renewed: &mut Option<SsoToken>) -> Result<SsoToken, String> {
        let folder = aws_folder(self.environment).ok_or("HOME is not set")?;
        let folder = folder.join("sso").join("cache");
        let path = folder.join(file_name(&self.settings.cache_key));
        let found = match read_bounded(&path) {
            Ok(contents) => SsoToken::parse(&contents),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        // Whichever lasts longer: somebody may have signed on again.
        let known = renewed.take().into_iter().chain(found);
        let token = known
            .max_by_key(SsoToken::expires)
            .ok_or_else(|| self.ended())?;
        let now = SystemTime::now();
        let lasts =
            |token: &SsoToken, from: SystemTime| token.expires().is_some_and(|end| from < end);
        if lasts(&token, now + RENEWAL) {
            *renewed = Some(token.clone());
            return Ok(token);
        }
        if self.settings.is_session && token.is_renewable(now) {
            match self.renew(&token).await {
                Ok(new) => {
                    if let Err(error) = write(&path, &new) {
                        log::warning!(
                            "the renewed token of AWS profile '{}' cannot be left in '{}': {error}",
                            self.profile,
                            path.display()
                        );
                    }
                    *renewed = Some(new.clone());
                    return Ok(new);
                }
                Err(why) => log::warning!(
                    "the token of AWS profile '{}' cannot be renewed: {why}",
                    self.profile
                ),
            }
        }
        let is_valid = lasts(&token, now);
        *renewed = Some(token.clone());
        if is_valid {
            Ok(token)
        } else {
            Err(self.ended())
        }
    }

    async fn renew(&self, token: &SsoToken) -> Result<SsoToken, String> {
        let text = |name: &str| token.text(name).unwrap_or_default();
        let body = json!({
            "grantType": "refresh_token",
            "clientId": text("clientId"),
            "clientSecret": text("clientSecret"),
            "refreshToken": text("refreshToken"),
        });
        let endpoint = SignedService::SsoOidc.endpoint(&self.settings.region, self.environment)?;
        let mut request: HttpRequest = http::Request::new(body.to_string().into());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("{endpoint}/token")
            .parse()
            .map_err(|_| format!("'{endpoint}' is no URL"))?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        let (status, body) = ask(self.connector, &request).await?;
        read_renewal(token, status, &body, SystemTime::now())
    }

    fn ended(&self) -> String {
        let profile = self.profile;
        format!("nobody is signed on: run 'aws sso login --profile {profile}' as the server's user")
    }
}

/// `<SHA-1 of the session's name, or of the URL>.json`.
fn file_name(cache_key: &str) -> String {
    let algorithm = &ring::digest::SHA1_FOR_LEGACY_USE_ONLY;
    let digest = ring::digest::digest(algorithm, cache_key.as_bytes());
    let mut name = String::new();
    for byte in digest.as_ref() {
        let _ = write!(name, "{byte:02x}");
    }
    name + ".json"
}

/// Puts a token in the place of the one that is there, whole or not at all; only its owner may read
/// it.
fn write(path: &Path, token: &SsoToken) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(name);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| file.write_all(Value::Object(token.0.clone()).to_string().as_bytes()))
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SsoAnswer {
    role_credentials: RoleCredentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleCredentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    /// Milliseconds since 1970.
    expiration: u64,
}

/// Errors of the parser are not shown: they may quote what they stumbled over.
fn read_answer(status: StatusCode, body: &[u8]) -> Result<TemporaryCredential, String> {
    if !status.is_success() {
        return Err(refusal(status, body));
    }
    let answer: SsoAnswer =
        serde_json::from_slice(body).map_err(|_| "the answer has no credentials".to_owned())?;
    let found = answer.role_credentials;
    let credential = AwsCredential {
        key_id: found.access_key_id,
        secret_key: found.secret_access_key,
        token: Some(found.session_token),
    };
    let expires = UNIX_EPOCH.checked_add(Duration::from_millis(found.expiration));
    TemporaryCredential::new(credential, expires)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Renewal {
    access_token: String,
    expires_in: u32,
    refresh_token: Option<String>,
}

fn read_renewal(
    token: &SsoToken,
    status: StatusCode,
    body: &[u8],
    now: SystemTime,
) -> Result<SsoToken, String> {
    if !status.is_success() {
        return Err(refusal(status, body));
    }
    let renewal: Renewal =
        serde_json::from_slice(body).map_err(|_| "the answer has no token".to_owned())?;
    let mut new = token.clone();
    let expires = now + Duration::from_secs(renewal.expires_in.into());
    let mut set = |name: &str, value: String| new.0.insert(name.to_owned(), value.into());
    set("accessToken", renewal.access_token);
    set("expiresAt", show_time(expires));
    if let Some(refresh) = renewal.refresh_token {
        set("refreshToken", refresh);
    }
    Ok(new)
}

/// The words of a service that refuses, else its status.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let names = ["message", "error_description", "error"];
    let mut words = names.iter().filter_map(|name| answer.get(name)?.as_str());
    let status = status.as_u16();
    match words.next() {
        Some(words) => excerpt(&format!("HTTP status {status}, {words}")),
        None => format!("HTTP status {status}"),
    }
}

/// As of credentials: longer than their last request may take.
const RENEWAL: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        // As the command line tool has them.
        assert_eq!(
            file_name("https://d-abc123.awsapps.com/start"),
            "40a89917e3175433e361b710a9d43528d7f1890a.json"
        );
        assert_eq!(
            file_name("my-session"),
            "9e28173066ce536e277c5fb355efd9c64f398167.json"
        );
    }

    const FILE: &str = r#"{"accessToken": "A", "expiresAt": "1970-01-01T01:00:00Z", "clientId": "I",
        "clientSecret": "S", "refreshToken": "R",
        "registrationExpiresAt": "1970-01-02T00:00:00Z", "startUrl": "u"}"#;

    #[test]
    fn tokens() {
        let at = |secs| UNIX_EPOCH + Duration::from_secs(secs);
        let token = SsoToken::parse(FILE.as_bytes()).unwrap();
        assert_eq!(token.expires(), Some(at(3600)));
        assert!(token.is_renewable(at(86_399)) && !token.is_renewable(at(86_400)));
        assert_eq!(format!("{token:?}"), "Token");
        for field in [
            "refreshToken",
            "clientId",
            "clientSecret",
            "registrationExpiresAt",
        ] {
            let less = SsoToken::parse(FILE.replace(field, "other").as_bytes()).unwrap();
            assert!(!less.is_renewable(at(0)), "{field}");
        }
        for (text, other) in [
            ("accessToken", "x"),
            ("expiresAt", "x"),
            ("1970", "19"),
            ("{", "["),
        ] {
            assert_eq!(
                SsoToken::parse(FILE.replace(text, other).as_bytes()),
                None,
                "{text}"
            );
        }
        let ok = StatusCode::OK;
        let reply = br#"{"accessToken": "B", "expiresIn": 60, "tokenType": "Bearer"}"#;
        let new = read_renewal(&token, ok, reply, at(0)).unwrap();
        let text = |name| new.text(name);
        assert_eq!(text("accessToken"), Some("B"));
        assert_eq!(text("expiresAt"), Some("1970-01-01T00:01:00Z"));
        assert_eq!(
            (text("refreshToken"), text("startUrl")),
            (Some("R"), Some("u"))
        );
        let reply = br#"{"accessToken": "B", "expiresIn": 60, "refreshToken": "Q"}"#;
        let new = read_renewal(&token, ok, reply, at(0)).unwrap();
        assert_eq!(new.text("refreshToken"), Some("Q"));
        let refused = br#"{"error": "invalid_grant", "error_description": "too\nlate"}"#;
        let error = read_renewal(&token, StatusCode::BAD_REQUEST, refused, at(0)).unwrap_err();
        assert_eq!(error, "HTTP status 400, toolate");
        assert!(read_renewal(&token, ok, b"{}", at(0)).is_err());
    }

    #[test]
    fn tokens_are_replaced_whole() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("conch-sso-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("token.json");
        fs::write(&path, "{}").unwrap();
        let token = SsoToken::parse(FILE.as_bytes()).unwrap();
        write(&path, &token).unwrap();
        assert_eq!(
            SsoToken::parse(&fs::read(&path).unwrap()),
            Some(token.clone())
        );
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert!(write(&folder.join("absent/token.json"), &token).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn answers() {
        let body = r#"{"roleCredentials": {
            "accessKeyId": "K", "secretAccessKey": "S", "sessionToken": "T", "expiration": 9000
        }}"#;
        let found = read_answer(StatusCode::OK, body.as_bytes()).unwrap();
        assert_eq!(found.credential.key_id, "K");
        assert_eq!(found.credential.token.as_deref(), Some("T"));
        assert_eq!(found.expires, Some(UNIX_EPOCH + Duration::from_secs(9)));
        for (status, body, expected) in [
            (200, "{}", "the answer has no credentials"),
            (
                200,
                &*body.replace("9000", "-1"),
                "the answer has no credentials",
            ),
            (
                200,
                &*body.replace(r#""K""#, r#""""#),
                "there is no access key in the answer",
            ),
            (
                403,
                r#"{"message": "No access"}"#,
                "HTTP status 403, No access",
            ),
            (500, "<html>", "HTTP status 500"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                read_answer(status, body.as_bytes()).unwrap_err(),
                expected,
                "{body}"
            );
        }
    }
}
