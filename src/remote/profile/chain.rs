//! Resolves the credentials of a profile: a base, and the roles that are assumed with them one
//! after the other.

use super::file::{ProfileFiles, ProfileSettings};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct RoleChain {
    pub(super) base: BaseCredentials,
    /// In the order in which they are assumed.
    pub(super) roles: Vec<Role>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BaseCredentials {
    /// Keys of the profile of this name.
    Keys(String),
    /// A role that the token in a file lets one have.
    WebIdentity {
        role: Role,
        token_file: String,
    },
    /// The output of a program.
    Program(String),
    SingleSignOn(SingleSignOn),
    /// `AWS_ACCESS_KEY_ID` and its companions.
    Environment,
    /// The role of an ECS task or an EKS pod.
    Container,
    /// The role of an EC2 instance.
    Instance,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) arn: String,
    /// Empty for one of ours.
    pub(super) session_name: String,
    /// Empty for none.
    pub(super) external_id: String,
    /// Empty for the service's default, an hour.
    pub(super) duration_secs: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct SingleSignOn {
    /// What the token's file is named after: the session, or the URL in profiles without one.
    pub(super) cache_key: String,
    /// Of a session: its token may be renewed.
    pub(super) is_session: bool,
    pub(super) region: String,
    pub(super) account: String,
    pub(super) role: String,
}

/// The chain of a profile without keys of its own. None if the profile leads nowhere else.
///
/// # Errors
/// The reason for which it cannot be followed.
pub(super) fn resolve(files: &ProfileFiles, profile: &str) -> Result<Option<RoleChain>, String> {
    let mut roles = Vec::new();
    let mut seen = vec![profile];
    loop {
        let name = *seen.last().expect("it began with one");
        let Some(settings) = files.profile(name) else {
            return Err(match seen.len() {
                1 => "it is in none of the profile files".to_owned(),
                _ => format!("its source_profile '{name}' is in none of the profile files"),
            });
        };
        let base = if has_keys(&settings) {
            BaseCredentials::Keys(name.to_owned())
        } else if let Some(arn) = settings.get("role_arn") {
            match follow(&settings, arn)? {
                ChainStep::End(base) => base,
                ChainStep::Role(role, base) => {
                    roles.push(role);
                    base
                }
                ChainStep::Profile(role, source) => {
                    if seen.contains(&source) {
                        return Err(format!("its source_profile leads back to '{source}'"));
                    }
                    if roles.len() == ROLES_MAX {
                        return Err(format!("it leads to more than {ROLES_MAX} roles"));
                    }
                    roles.push(role);
                    seen.push(source);
                    continue;
                }
            }
        } else if let Some(command) = settings.get("credential_process") {
            BaseCredentials::Program(command.to_owned())
        } else if let Some(sign_on) = single_sign_on(files, &settings)? {
            BaseCredentials::SingleSignOn(sign_on)
        } else if roles.is_empty() {
            return Ok(None);
        } else {
            return Err(format!("its source_profile '{name}' has no credentials"));
        };
        roles.reverse();
        return Ok(Some(RoleChain { base, roles }));
    }
}

/// What a `role_arn` leads to.
enum ChainStep<'t> {
    End(BaseCredentials),
    Role(Role, BaseCredentials),
    Profile(Role, &'t str),
}

fn follow<'t>(settings: &ProfileSettings<'t>, arn: &str) -> Result<ChainStep<'t>, String> {
    let text = |name: &str| settings.get(name).unwrap_or_default().to_owned();
    let role = Role {
        arn: arn.to_owned(),
        session_name: text("role_session_name"),
        external_id: text("external_id"),
        duration_secs: text("duration_seconds"),
    };
    if !role.duration_secs.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("its duration_seconds is no number".to_owned());
    }
    if settings.get("mfa_serial").is_some() {
        return Err(
            "its mfa_serial asks for a code that somebody types: use a role without one".to_owned(),
        );
    }
    let source = settings.get("source_profile");
    match (source, settings.get("credential_source")) {
        (Some(_), Some(_)) => {
            Err("it has a source_profile and a credential_source: remove one".to_owned())
        }
        (Some(profile), None) => Ok(ChainStep::Profile(role, profile)),
        (None, Some("Environment")) => Ok(ChainStep::Role(role, BaseCredentials::Environment)),
        (None, Some("EcsContainer")) => Ok(ChainStep::Role(role, BaseCredentials::Container)),
        (None, Some("Ec2InstanceMetadata")) => Ok(ChainStep::Role(role, BaseCredentials::Instance)),
        (None, Some(other)) => Err(format!(
            "its credential_source '{other}' is none of Environment, EcsContainer, \
             Ec2InstanceMetadata"
        )),
        (None, None) => match settings.get("web_identity_token_file") {
            Some(file) => Ok(ChainStep::End(BaseCredentials::WebIdentity {
                role,
                token_file: file.to_owned(),
            })),
            None => Err(
                "its role_arn needs a source_profile, credential_source or web_identity_token_file"
                    .to_owned(),
            ),
        },
    }
}

fn single_sign_on(
    files: &ProfileFiles,
    settings: &ProfileSettings<'_>,
) -> Result<Option<SingleSignOn>, String> {
    let session = settings.get("sso_session");
    let shared = match session {
        Some(name) => Some(files.sso_session(name).ok_or_else(|| {
            format!("there is no section [sso-session {name}] for its sso_session")
        })?),
        None if settings.get("sso_start_url").is_some() => None,
        None => return Ok(None),
    };
    let needed = |settings: &ProfileSettings<'_>, name: &str| {
        let value = settings.get(name).map(str::to_owned);
        value.ok_or_else(|| format!("single sign-on needs its {name}"))
    };
    let common = shared.as_ref().unwrap_or(settings);
    let cache_key = match session {
        Some(name) => name.to_owned(),
        None => needed(settings, "sso_start_url")?,
    };
    Ok(Some(SingleSignOn {
        cache_key,
        is_session: session.is_some(),
        region: needed(common, "sso_region")?,
        account: needed(settings, "sso_account_id")?,
        role: needed(settings, "sso_role_name")?,
    }))
}

fn has_keys(settings: &ProfileSettings<'_>) -> bool {
    let names = ["aws_access_key_id", "aws_secret_access_key"];
    names.iter().all(|name| settings.get(name).is_some())
}

/// Each costs a request; people use two or three.
const ROLES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str =
        "[keys]\naws_access_key_id=K\naws_secret_access_key=S\n[half]\naws_access_key_id=K\n";
    const CONFIG: &str = "\
[profile one]\nrole_arn=R1\nsource_profile=keys\nexternal_id=E\nrole_session_name=N\n\
duration_seconds=900
[profile two]\nrole_arn=R2\nsource_profile=one
[profile pod]\nrole_arn=R\ncredential_source=EcsContainer
[profile variables]\nrole_arn=R\ncredential_source=Environment
[profile machine]\nrole_arn=R\ncredential_source=Ec2InstanceMetadata
[profile elsewhere]\nrole_arn=R\ncredential_source=Mars
[profile token]\nrole_arn=R\nweb_identity_token_file=/t
[profile ontoken]\nrole_arn=Q\nsource_profile=token
[profile program]\ncredential_process=/bin/p --x \"a b\"
[profile session]\nsso_session=corp\nsso_account_id=1\nsso_role_name=r
[sso-session corp]\nsso_region=eu-west-1\nsso_start_url=https://s
[profile url]\nsso_start_url=https://s\nsso_region=eu-west-2\nsso_account_id=1\nsso_role_name=r
[profile noaccount]\nsso_session=corp\nsso_role_name=r
[profile nosession]\nsso_session=other
[profile self]\nrole_arn=R\nsource_profile=self
[profile ping]\nrole_arn=R\nsource_profile=pong
[profile pong]\nrole_arn=R\nsource_profile=ping
[profile lost]\nrole_arn=R\nsource_profile=nowhere
[profile onhalf]\nrole_arn=R\nsource_profile=half
[profile bare]\nrole_arn=R
[profile both]\nrole_arn=R\nsource_profile=keys\ncredential_source=Environment
[profile mfa]\nrole_arn=R\nsource_profile=keys\nmfa_serial=m
[profile long]\nrole_arn=R\nsource_profile=keys\nduration_seconds=1h
[profile region]\nregion=r
";

    fn role(arn: &str) -> Role {
        Role {
            arn: arn.to_owned(),
            ..Role::default()
        }
    }

    fn sign_on(cache_key: &str, is_session: bool, region: &str) -> BaseCredentials {
        BaseCredentials::SingleSignOn(SingleSignOn {
            cache_key: cache_key.to_owned(),
            is_session,
            region: region.to_owned(),
            account: "1".to_owned(),
            role: "r".to_owned(),
        })
    }

    #[test]
    fn profiles_lead_to_a_base_and_roles() {
        let first = || Role {
            arn: "R1".to_owned(),
            session_name: "N".to_owned(),
            external_id: "E".to_owned(),
            duration_secs: "900".to_owned(),
        };
        let keys = || BaseCredentials::Keys("keys".to_owned());
        let token = || BaseCredentials::WebIdentity {
            role: role("R"),
            token_file: "/t".to_owned(),
        };
        let program = BaseCredentials::Program("/bin/p --x \"a b\"".to_owned());
        let chain = |base, roles| Ok(Some(RoleChain { base, roles }));
        let table: Vec<(&str, Result<Option<RoleChain>, &str>)> = vec![
            ("keys", chain(keys(), vec![])),
            ("one", chain(keys(), vec![first()])),
            ("two", chain(keys(), vec![first(), role("R2")])),
            ("pod", chain(BaseCredentials::Container, vec![role("R")])),
            (
                "variables",
                chain(BaseCredentials::Environment, vec![role("R")]),
            ),
            ("machine", chain(BaseCredentials::Instance, vec![role("R")])),
            ("token", chain(token(), vec![])),
            ("ontoken", chain(token(), vec![role("Q")])),
            ("program", chain(program, vec![])),
            ("session", chain(sign_on("corp", true, "eu-west-1"), vec![])),
            (
                "url",
                chain(sign_on("https://s", false, "eu-west-2"), vec![]),
            ),
            ("region", Ok(None)),
            ("half", Ok(None)),
            ("missing", Err("it is in none of the profile files")),
            ("elsewhere", Err("'Mars' is none of Environment")),
            ("noaccount", Err("single sign-on needs its sso_account_id")),
            ("nosession", Err("no section [sso-session other]")),
            ("self", Err("leads back to 'self'")),
            ("ping", Err("leads back to 'ping'")),
            ("lost", Err("source_profile 'nowhere' is in none")),
            ("onhalf", Err("source_profile 'half' has no credentials")),
            ("bare", Err("its role_arn needs a source_profile")),
            ("both", Err("remove one")),
            ("mfa", Err("use a role without one")),
            ("long", Err("its duration_seconds is no number")),
        ];
        let files = ProfileFiles::of(CREDENTIALS, CONFIG);
        for (profile, expected) in table {
            match (resolve(&files, profile), expected) {
                (Err(got), Err(part)) => assert!(got.contains(part), "{profile}: {got}"),
                (got, expected) => assert_eq!(got, expected.map_err(str::to_owned), "{profile}"),
            }
        }
    }

    #[test]
    fn chains_have_an_end() {
        let link = |index: usize| {
            let next = index + 1;
            format!("[profile {index}]\nrole_arn=R\nsource_profile={next}\n")
        };
        let config: String = (0..=ROLES_MAX).map(link).collect();
        let last =
            |index: usize| format!("[{index}]\naws_access_key_id=K\naws_secret_access_key=S\n");
        let files = ProfileFiles::of(&last(ROLES_MAX + 1), &config);
        let error = resolve(&files, "0").unwrap_err();
        assert!(error.contains("more than 8 roles"), "{error}");
        let chain = resolve(&files, "1").unwrap().unwrap();
        assert_eq!(chain.roles.len(), ROLES_MAX);
    }
}
