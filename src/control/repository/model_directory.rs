//! Contents of a model's directory: the configuration file and the directories of its versions.
//!
//! Reads directories and configuration files, on control threads only. Every sub-directory of a
//! repository is a model; symbolic links are followed, because repositories are often assembled
//! from them (mounted volumes, shared weights) by whoever owns the directory. One unreadable entry
//! spoils at most its own model.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use conch_config::{ModelConfig, Preparation, Scheduling, VersionPolicy};
use conch_engine::{Code, Error};
use conch_log as log;

/// A model that may be loaded: its configuration is sound as far as it goes.
#[derive(Clone, Debug)]
pub(crate) struct ModelCandidate {
    /// The model's directory.
    pub path: PathBuf,
    /// Completed by rule, normalised and checked, but for instance groups and what the backend may
    /// complete.
    pub config: ModelConfig,
    pub version_policy: VersionPolicy,
    pub scheduling: Scheduling,
}

/// Reads the configuration file of the model in directory `path`; none if there is none and it may
/// be missing. With `expands` it may name environment variables.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn read_config(
    path: &Path,
    config_name: &str,
    may_be_missing: bool,
    expands: bool,
) -> Result<Option<ModelConfig>, Error> {
    let file = config_file(path, config_name)?;
    match fs::metadata(&file) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound && may_be_missing => Ok(None),
        _ => Ok(Some(conch_config::load_file(&file, expands)?)),
    }
}

/// Completes and checks a configuration. Inputs and outputs may still be missing if the backend may
/// complete them.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn complete_candidate(
    mut config: ModelConfig,
    preparation: &Preparation<'_>,
) -> Result<ModelCandidate, Error> {
    conch_config::prepare(&mut config, preparation)?;
    // Instance groups become facts once the backend had its say.
    let without_groups = ModelConfig {
        instance_group: Vec::new(),
        ..config.clone()
    };
    let facts = conch_config::ResolvedConfig::from_partial(without_groups)?;
    Ok(ModelCandidate {
        path: preparation.path.to_owned(),
        config,
        version_policy: facts.version_policy,
        scheduling: facts.scheduling,
    })
}

/// The versions of a model that its policy wants, ascending.
///
/// # Errors
/// INVALID_ARG if there is none; INTERNAL if the directory cannot be read.
pub(crate) fn choose_versions(
    name: &str,
    path: &Path,
    policy: &VersionPolicy,
) -> Result<Vec<i64>, Error> {
    let existing = existing_versions(path)?;
    let chosen: Vec<i64> = match policy {
        VersionPolicy::All => existing.into_iter().collect(),
        VersionPolicy::Specific(wanted) => {
            let wanted: BTreeSet<i64> = wanted.iter().copied().collect();
            for version in wanted.difference(&existing) {
                log::error!(
                    "version {version} is specified for model '{name}', but the version directory \
                     is not present"
                );
            }
            wanted.intersection(&existing).copied().collect()
        }
        VersionPolicy::Latest(count) => {
            let surplus = existing
                .len()
                .saturating_sub(usize::try_from(*count).unwrap_or(usize::MAX));
            existing.into_iter().skip(surplus).collect()
        }
    };
    if chosen.is_empty() {
        return Err(Error::invalid(format!(
            "at least one version must be available under the version policy of model '{name}'"
        )));
    }
    Ok(chosen)
}

/// The configuration file of a model: the custom one where it exists, else `config.pbtxt`, else
/// `config.json`.
pub(crate) fn config_file(path: &Path, config_name: &str) -> Result<PathBuf, Error> {
    if !config_name.is_empty() {
        let custom = path
            .join(CONFIGS_DIRECTORY)
            .join(format!("{config_name}.pbtxt"));
        match fs::metadata(&custom) {
            Ok(_) => return Ok(custom),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => {
                return Err(Error::internal(format!(
                    "failed to read '{}': {cause}",
                    custom.display()
                )));
            }
        }
    }
    let file = path.join("config.pbtxt");
    let other = path.join("config.json");
    let is_absent = fs::metadata(&file).is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound);
    Ok(if is_absent && other.is_file() {
        other
    } else {
        file
    })
}

fn existing_versions(path: &Path) -> Result<BTreeSet<i64>, Error> {
    let names = sub_directories(path).map_err(|cause| Error::new(Code::Internal, cause))?;
    let mut versions = BTreeSet::new();
    let mut ignored_count = 0_usize;
    for name in names {
        let log_limiter = match parse_version(&name) {
            Ok(Some(version)) => {
                versions.insert(version);
                continue;
            }
            Ok(None) => continue,
            Err(log_limiter) => log_limiter,
        };
        ignored_count += 1;
        if ignored_count <= WARNINGS_MAX {
            log::warning!("ignore version directory '{name}' which {log_limiter}");
        }
    }
    if ignored_count > WARNINGS_MAX {
        let more = ignored_count - WARNINGS_MAX;
        log::warning!(
            "ignore {more} more directories of '{}' which are not versions",
            path.display()
        );
    }
    Ok(versions)
}

/// The version that a directory's name stands for; none for the names with another meaning.
fn parse_version(name: &str) -> Result<Option<i64>, &'static str> {
    if SPECIAL_DIRECTORIES.contains(&name) {
        return Ok(None);
    }
    if name.len() > 1 && name.starts_with('0') {
        return Err("contains leading zeros in its directory name");
    }
    // As C's `stoll`, which upstream reads it by: the number at the start, behind blanks and a
    // sign. Backends look for a version's files under its number, so a directory `4x` offers
    // version 4 and none of its own files.
    let number = name.trim_start_matches([' ', '\t', '\n', '\r', '\u{b}', '\u{c}']);
    let number = number.strip_prefix('+').unwrap_or(number);
    let end = number.bytes().position(|byte| !byte.is_ascii_digit());
    let digits = number.get(..end.unwrap_or(number.len()));
    digits
        .and_then(|digits| digits.parse().ok())
        .map(Some)
        .ok_or("fails to convert to integral number")
}

/// Names of the sub-directories of `path`, sorted. A name that is not UTF-8 cannot be asked for by
/// any client and is left out.
pub(crate) fn sub_directories(path: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(path)
        .map_err(|cause| format!("failed to open directory {}: {cause}", path.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry
            .map_err(|cause| format!("failed to read directory {}: {cause}", path.display()))?;
        // Most entries say themselves what they are; only links have to be followed. One that leads
        // nowhere is not a directory.
        let is_directory = match entry.file_type() {
            Ok(kind) if !kind.is_symlink() => kind.is_dir(),
            _ => fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir()),
        };
        if is_directory {
            match entry.file_name().into_string() {
                Ok(name) => names.push(name),
                Err(name) => log::warning!(
                    "ignore directory '{}' whose name is not UTF-8",
                    name.display()
                ),
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

const CONFIGS_DIRECTORY: &str = "configs";
/// Sub-directories of a model that are never versions.
const SPECIAL_DIRECTORIES: [&str; 3] = ["warmup", "initial_state", CONFIGS_DIRECTORY];
/// Warnings about one model's odd directories; a directory with thousands of them must not flood
/// the log.
const WARNINGS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use conch_engine::testing::Directory;

    #[test]
    fn version_names() {
        const NO_NUMBER: &str = "fails to convert to integral number";
        let table: [(&str, Result<Option<i64>, &str>); 18] = [
            ("1", Ok(Some(1))),
            ("0", Ok(Some(0))),
            ("9223372036854775807", Ok(Some(i64::MAX))),
            ("9223372036854775808", Err(NO_NUMBER)),
            ("01", Err("contains leading zeros in its directory name")),
            ("00", Err("contains leading zeros in its directory name")),
            ("-1", Err(NO_NUMBER)),
            ("+1", Ok(Some(1))),
            ("+-1", Err(NO_NUMBER)),
            ("4x", Ok(Some(4))),
            ("4.5", Ok(Some(4))),
            ("9\u{e9}", Ok(Some(9))),
            (" 1", Ok(Some(1))),
            ("04x", Err("contains leading zeros in its directory name")),
            ("٣", Err(NO_NUMBER)),
            ("abc", Err(NO_NUMBER)),
            ("warmup", Ok(None)),
            ("configs", Ok(None)),
        ];
        for (name, expected) in table {
            assert_eq!(parse_version(name), expected, "{name}");
        }
    }

    #[test]
    fn policies_choose_versions() {
        let directory = Directory::new();
        for version in ["1", "3", "12", "03", "x", "warmup"] {
            directory.folder(&format!("m/{version}"));
        }
        directory.file("m/7", "a file is no version");
        let table: [(VersionPolicy, &[i64]); 6] = [
            (VersionPolicy::Latest(1), &[12]),
            (VersionPolicy::Latest(2), &[3, 12]),
            (VersionPolicy::Latest(9), &[1, 3, 12]),
            (VersionPolicy::All, &[1, 3, 12]),
            (VersionPolicy::Specific(vec![9, 3, 3]), &[3]),
            (VersionPolicy::Specific(vec![9, 7]), &[]),
        ];
        for (policy, expected) in table {
            match choose_versions("m", &directory.path("m"), &policy) {
                Ok(chosen) => assert_eq!(chosen, expected, "{policy:?}"),
                Err(error) => {
                    assert!(expected.is_empty(), "{policy:?}: {error}");
                    assert_eq!(
                        error.message,
                        "at least one version must be available under the version policy of model \
                         'm'"
                    );
                }
            }
        }
    }

    #[test]
    fn the_custom_configuration_is_preferred_where_it_exists() {
        let directory = Directory::new();
        directory.file("m/configs/fast.pbtxt", "");
        directory.file("m/config.pbtxt", "");
        let model = directory.path("m");
        for (config_name, expected) in [
            ("", "config.pbtxt"),
            ("fast", "configs/fast.pbtxt"),
            ("slow", "config.pbtxt"),
        ] {
            assert_eq!(
                config_file(&model, config_name).unwrap(),
                model.join(expected),
                "{config_name}"
            );
        }
    }
}
