//! The Security Token Service: roles that one assumes, with credentials or with a token of an
//! identity provider.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use serde::Deserialize;
use url::form_urlencoded::Serializer;

use super::chain::Role;
use super::service::{ask, excerpt};
use super::temporary::{TemporaryCredential, parse_time};
use crate::failure::element;
use crate::http::Connector;

/// Where roles are assumed.
pub(super) struct Sts<'a> {
    pub(super) connector: &'a Connector,
    pub(super) endpoint: String,
    /// That signatures are for.
    pub(super) region: &'a str,
}

impl Sts<'_> {
    /// # Errors
    /// Why the role cannot be assumed.
    pub(super) async fn assume(
        &self,
        role: &Role,
        credential: &AwsCredential,
    ) -> Result<TemporaryCredential, String> {
        let mut request = self.request(form("AssumeRole", role, None))?;
        AwsAuthorizer::new(credential, "sts", self.region)
            .try_authorize(&mut request, None)
            .map_err(|error| error.to_string())?;
        self.exchange(role, request).await
    }

    /// # Errors
    /// As [`Sts::assume`].
    pub(super) async fn assume_with_token(
        &self,
        role: &Role,
        token: &str,
    ) -> Result<TemporaryCredential, String> {
        let request = self.request(form("AssumeRoleWithWebIdentity", role, Some(token)))?;
        self.exchange(role, request).await
    }

    fn request(&self, form: String) -> Result<HttpRequest, String> {
        let uri = format!("{}/", self.endpoint);
        let mut request = http::Request::new(HttpRequestBody::from(form));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri
            .parse()
            .map_err(|_| format!("'{}' is no URL", self.endpoint))?;
        let content = HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8");
        request.headers_mut().insert(CONTENT_TYPE, content);
        let xml = HeaderValue::from_static("text/xml");
        request.headers_mut().insert(ACCEPT, xml);
        Ok(request)
    }

    async fn exchange(
        &self,
        role: &Role,
        request: HttpRequest,
    ) -> Result<TemporaryCredential, String> {
        let told = |why: String| format!("the role '{}' cannot be assumed: {why}", role.arn);
        let (status, body) = ask(self.connector, &request).await.map_err(told)?;
        read_answer(status, &body).map_err(told)
    }
}

fn form(action: &str, role: &Role, token: Option<&str>) -> String {
    let mut form = Serializer::new(String::new());
    form.append_pair("Action", action)
        .append_pair("Version", "2011-06-15")
        .append_pair("RoleArn", &role.arn);
    match role.session_name.as_str() {
        "" => form.append_pair("RoleSessionName", &session_name(SystemTime::now())),
        name => form.append_pair("RoleSessionName", name),
    };
    if !role.duration_secs.is_empty() {
        form.append_pair("DurationSeconds", &role.duration_secs);
    }
    match token {
        Some(token) => form.append_pair("WebIdentityToken", token),
        None if role.external_id.is_empty() => &mut form,
        None => form.append_pair("ExternalId", &role.external_id),
    };
    form.finish()
}

/// A name by which the logs of the account tell this process from others.
fn session_name(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("conch-{}-{}", std::process::id(), since.as_secs())
}

#[derive(Deserialize)]
struct StsAnswer {
    #[serde(rename = "AssumeRoleResult", alias = "AssumeRoleWithWebIdentityResult")]
    result: AssumedRole,
}

#[derive(Deserialize)]
struct AssumedRole {
    #[serde(rename = "Credentials")]
    credentials: StsCredentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct StsCredentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: String,
}

/// Errors of the parser are not shown: they may quote what they stumbled over.
fn read_answer(status: StatusCode, body: &Bytes) -> Result<TemporaryCredential, String> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    if !status.is_success() {
        // Their place in the document differs between services that speak this protocol.
        return Err(match element(text, "Code") {
            Some(code) => {
                let message = element(text, "Message").unwrap_or_default();
                excerpt(&format!("{code}: {message}"))
            }
            None => format!("HTTP status {}", status.as_u16()),
        });
    }
    let answer: StsAnswer = quick_xml::de::from_str(text)
        .map_err(|_| "the answer is not that of a token service".to_owned())?;
    let found = answer.result.credentials;
    let credential = AwsCredential {
        key_id: found.access_key_id,
        secret_key: found.secret_access_key,
        token: Some(found.session_token),
    };
    TemporaryCredential::new(credential, Some(parse_time(&found.expiration)?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn forms() {
        let role = Role {
            arn: "arn:aws:iam::1:role/a b".to_owned(),
            session_name: "me".to_owned(),
            external_id: "x&y".to_owned(),
            duration_secs: "900".to_owned(),
        };
        assert_eq!(
            form("AssumeRole", &role, None),
            "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fa+b\
             &RoleSessionName=me&DurationSeconds=900&ExternalId=x%26y"
        );
        let plain = Role {
            session_name: "me".to_owned(),
            arn: "r".to_owned(),
            ..Role::default()
        };
        assert_eq!(
            form("AssumeRoleWithWebIdentity", &plain, Some("t+t")),
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=r&RoleSessionName=me&\
             WebIdentityToken=t%2Bt"
        );
        let name = session_name(UNIX_EPOCH + Duration::from_secs(9));
        assert_eq!(name, format!("conch-{}-9", std::process::id()));
    }

    #[test]
    fn answers() {
        let keys = "<Credentials><AccessKeyId>K</AccessKeyId><SecretAccessKey>S/&\
                    amp;</SecretAccessKey>\
                    <SessionToken>T==</SessionToken><Expiration>1970-01-01T00:00:09Z</Expiration>\
                    </Credentials>";
        let whole = |action: &str, inside: &str| {
            format!(
                "<?xml version=\"1.0\"?>\n<{action}Response \
                 xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n  \
                 <{action}Result><AssumedRoleUser><Arn>a</Arn></AssumedRoleUser>\
                 {inside}<PackedPolicySize>6</PackedPolicySize></{action}Result><ResponseMetadata>\
                 <RequestId>1</RequestId></ResponseMetadata></{action}Response>"
            )
        };
        let refusal = "<ErrorResponse \
                       xmlns=\"x\"><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>\
                       not\nyou</Message></Error><RequestId>1</RequestId></ErrorResponse>";
        let no_service = Err("the answer is not that of a token service");
        let table: [(u16, String, Result<&str, &str>); 9] = [
            (200, whole("AssumeRole", keys), Ok("K")),
            (200, whole("AssumeRoleWithWebIdentity", keys), Ok("K")),
            (200, whole("AssumeRole", ""), no_service),
            (
                200,
                whole("AssumeRole", &keys.replace("1970", "now")),
                Err("a time of expiry is none"),
            ),
            (
                200,
                whole("AssumeRole", &keys.replace(">K<", "><")),
                Err("there is no access key in the answer"),
            ),
            (200, String::new(), no_service),
            (200, "<html>".to_owned(), no_service),
            (403, refusal.to_owned(), Err("AccessDenied: notyou")),
            (
                502,
                "<html>Bad gateway</html>".to_owned(),
                Err("HTTP status 502"),
            ),
        ];
        for (status, body, expected) in table {
            let status = StatusCode::from_u16(status).unwrap();
            let got = read_answer(status, &Bytes::from(body.clone()));
            let shown = got.as_ref().map(|found| &*found.credential.key_id);
            assert_eq!(shown.map_err(|error| &**error), expected, "{body}");
            if let Ok(found) = got {
                assert_eq!(found.credential.secret_key, "S/&");
                assert_eq!(found.credential.token.as_deref(), Some("T=="));
                assert_eq!(found.expires, Some(UNIX_EPOCH + Duration::from_secs(9)));
            }
        }
    }
}
