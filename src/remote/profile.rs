//! What `~/.aws/credentials` and `~/.aws/config` say of a profile: keys and region.

use std::fs;
use std::path::PathBuf;

use conch_engine::Error;

use crate::credentials::{Environment, S3Credential};

/// Completes `credential` by its profile, or by the default one; what is there already stays.
///
/// # Errors
/// INVALID_ARG if a profile was asked for by name that is nowhere, or that needs more than keys.
pub(crate) fn complete(
    credential: &mut S3Credential,
    environment: &Environment,
) -> Result<(), Error> {
    let (name, is_asked_for) = match credential.profile.as_str() {
        "" => (DEFAULT, false),
        name => (name, true),
    };
    let read = |variable: &str, file: &str| {
        let path = environment(variable)
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(environment("HOME")?).join(".aws").join(file)))?;
        fs::read_to_string(path).ok()
    };
    let texts = [
        read("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        read("AWS_CONFIG_FILE", "config"),
    ];
    let mut is_known = false;
    let mut needs_more = None;
    for (key, value) in texts.iter().flatten().flat_map(|text| section(text, name)) {
        is_known = true;
        let target = match key {
            "aws_access_key_id" => &mut credential.key_id,
            "aws_secret_access_key" => &mut credential.secret_key,
            "aws_session_token" => &mut credential.session_token,
            "region" => &mut credential.region,
            "role_arn" | "sso_session" | "sso_start_url" | "credential_process"
            | "source_profile" => {
                needs_more = Some(key.to_owned());
                continue;
            }
            _ => continue,
        };
        if target.is_empty() {
            value.clone_into(target);
        }
    }
    if !is_asked_for {
        return Ok(());
    }
    if !is_known {
        return Err(Error::invalid(format!(
            "the AWS profile '{name}' is in none of the profile files"
        )));
    }
    match needs_more {
        Some(key) if credential.key_id.is_empty() => Err(Error::invalid(format!(
            "the AWS profile '{name}' has no keys, and this server does not follow its '{key}'"
        ))),
        _ => Ok(()),
    }
}

/// The settings of one section: `[name]`, or `[profile name]` as configuration files have it.
fn section<'t>(text: &'t str, name: &str) -> Vec<(&'t str, &'t str)> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let is_indented = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default().trim();
            let header = header.strip_prefix("profile ").unwrap_or(header).trim();
            is_inside = header == name;
            continue;
        }
        // What is indented belongs to the setting above it (`s3 =`).
        if is_inside
            && !is_indented
            && let Some((key, value)) = line.split_once('=')
        {
            found.push((key.trim(), value.trim()));
        }
    }
    found
}

const DEFAULT: &str = "default";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections() {
        let text = "aws_access_key_id = nobody's\n# [default]\n[default]\naws_access_key_id=A\n\n\
                    aws_secret_access_key = b=c \n[profile other]\nregion = eu-west-1\ns3 =\n  region = nested\n\
                    [ spaced ]\nregion=x\n[default]\nregion=late";
        let table: [(&str, &[(&str, &str)]); 4] = [
            (
                "default",
                &[
                    ("aws_access_key_id", "A"),
                    ("aws_secret_access_key", "b=c"),
                    ("region", "late"),
                ],
            ),
            ("other", &[("region", "eu-west-1"), ("s3", "")]),
            ("spaced", &[("region", "x")]),
            ("missing", &[]),
        ];
        for (name, expected) in table {
            assert_eq!(section(text, name), expected, "{name}");
        }
    }

    #[test]
    fn profiles_complete_what_is_missing() {
        let folder = std::env::temp_dir().join(format!("conch-profile-{}", std::process::id()));
        fs::create_dir_all(folder.join(".aws")).unwrap();
        fs::write(
            folder.join(".aws/credentials"),
            "[default]\naws_access_key_id=D\naws_secret_access_key=d\n[work]\naws_access_key_id=W\naws_secret_access_key=w\naws_session_token=t\n",
        )
        .unwrap();
        fs::write(
            folder.join(".aws/config"),
            "[default]\nregion=r1\n[profile work]\nregion=r2\n[profile role]\nrole_arn=arn\n",
        )
        .unwrap();
        let home = folder.display().to_string();
        let environment = move |name: &str| (name == "HOME").then(|| home.clone());
        // Profile and region that are asked for; key, token and region that come out.
        type Row<'t> = (&'t str, &'t str, Result<[&'t str; 3], &'t str>);
        let table: [Row<'_>; 5] = [
            ("", "", Ok(["D", "", "r1"])),
            ("", "mine", Ok(["D", "", "mine"])),
            ("work", "", Ok(["W", "t", "r2"])),
            ("play", "", Err("'play' is in none of the profile files")),
            ("role", "", Err("does not follow its 'role_arn'")),
        ];
        for (profile, region, expected) in table {
            let mut credential = S3Credential {
                profile: profile.to_owned(),
                region: region.to_owned(),
                ..S3Credential::default()
            };
            let outcome = complete(&mut credential, &environment);
            match (outcome, expected) {
                (Ok(()), Ok(parts)) => {
                    let got = [
                        &credential.key_id,
                        &credential.session_token,
                        &credential.region,
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
