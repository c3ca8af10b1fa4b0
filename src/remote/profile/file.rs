//! The profile files, `~/.aws/credentials` and `~/.aws/config`: their sections and settings.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use conch_config::files;

use crate::credentials::CloudEnvironment;

/// Both files as they are now; one that cannot be read counts as empty.
pub(super) struct ProfileFiles {
    /// Credentials first: what they say goes before the configuration.
    texts: [String; 2],
}

impl ProfileFiles {
    pub(super) fn read(environment: &CloudEnvironment) -> ProfileFiles {
        let read = |variable: &str, file: &str| {
            let path = environment(variable)
                .map(PathBuf::from)
                .or_else(|| Some(aws_folder(environment)?.join(file)))?;
            String::from_utf8(read_bounded(&path).ok()?).ok()
        };
        ProfileFiles {
            texts: [
                read("AWS_SHARED_CREDENTIALS_FILE", "credentials").unwrap_or_default(),
                read("AWS_CONFIG_FILE", "config").unwrap_or_default(),
            ],
        }
    }

    #[cfg(test)]
    pub(super) fn of(credentials: &str, config: &str) -> ProfileFiles {
        ProfileFiles {
            texts: [credentials.to_owned(), config.to_owned()],
        }
    }

    /// The settings of a profile; none if neither file has a section of it.
    pub(super) fn profile(&self, name: &str) -> Option<ProfileSettings<'_>> {
        self.settings(|header| header.strip_prefix("profile ").unwrap_or(header).trim() == name)
    }

    /// The settings that profiles share by `sso_session = name`.
    pub(super) fn sso_session(&self, name: &str) -> Option<ProfileSettings<'_>> {
        let is_it = |header: &str| {
            header
                .strip_prefix("sso-session ")
                .is_some_and(|found| found.trim() == name)
        };
        self.settings(is_it)
    }

    fn settings(&self, is_it: impl Fn(&str) -> bool) -> Option<ProfileSettings<'_>> {
        let mut found = Vec::new();
        let mut is_known = false;
        for text in &self.texts {
            is_known |= section(text, &is_it, &mut found);
        }
        is_known.then_some(ProfileSettings(found))
    }
}

/// Names and values in the order of their precedence.
#[derive(Debug)]
pub(super) struct ProfileSettings<'t>(Vec<(&'t str, &'t str)>);

impl<'t> ProfileSettings<'t> {
    /// The first value that is not empty.
    pub(super) fn get(&self, name: &str) -> Option<&'t str> {
        let values = self.0.iter().filter(|(key, _)| *key == name);
        values
            .map(|(_, value)| *value)
            .find(|value| !value.is_empty())
    }
}

/// Adds the settings of the sections that `is_it` accepts to `found`. Returns whether there is one.
fn section<'t>(
    text: &'t str,
    is_it: impl Fn(&str) -> bool,
    found: &mut Vec<(&'t str, &'t str)>,
) -> bool {
    let mut is_inside = false;
    let mut is_known = false;
    for line in text.lines() {
        let is_indented = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            is_inside = is_it(header.split(']').next().unwrap_or_default().trim());
            is_known |= is_inside;
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
    is_known
}

/// `~/.aws`.
pub(super) fn aws_folder(environment: &CloudEnvironment) -> Option<PathBuf> {
    Some(PathBuf::from(environment("HOME")?).join(".aws"))
}

/// All of a regular file of at most [`FILE_BYTES_MAX`].
///
/// # Errors
/// As [`files::open`]; a file that is larger is an error, too.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    files::open(path)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut contents)?;
    if contents.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "it has more than {FILE_BYTES_MAX} bytes"
        )));
    }
    Ok(contents)
}

/// Ten thousand profiles of 100 bytes; a token has some 2 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections() {
        let text = "aws_access_key_id = nobody's\n# \
                    [default]\n[default]\naws_access_key_id=A\n\naws_secret_access_key = b=c \
                    \n[profile other]\nregion = eu-west-1\ns3 =\n  region = nested\n[ spaced \
                    ]\nregion=x\n[sso-session \
                    other]\nsso_region=s\n[default]\nregion=late\n[empty]";
        let files = ProfileFiles::of(text, "[profile spaced]\nregion = y\noutput = json");
        type Pairs = &'static [(&'static str, &'static str)];
        let table: [(&str, Option<Pairs>); 5] = [
            (
                "default",
                Some(&[
                    ("aws_access_key_id", "A"),
                    ("aws_secret_access_key", "b=c"),
                    ("region", "late"),
                ]),
            ),
            ("other", Some(&[("region", "eu-west-1"), ("s3", "")])),
            (
                "spaced",
                Some(&[("region", "x"), ("region", "y"), ("output", "json")]),
            ),
            ("empty", Some(&[])),
            ("missing", None),
        ];
        for (name, expected) in table {
            let found = files.profile(name).map(|settings| settings.0);
            assert_eq!(found.as_deref(), expected, "{name}");
        }
        let session = files.sso_session("other").unwrap();
        assert_eq!(session.get("sso_region"), Some("s"));
        assert!(files.sso_session("default").is_none());
        let spaced = files.profile("spaced").unwrap();
        assert_eq!(spaced.get("region"), Some("x"));
        assert_eq!(files.profile("other").unwrap().get("s3"), None);
    }
}
