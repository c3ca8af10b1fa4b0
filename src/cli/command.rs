//! What the program is to do: to serve, or, by its first word, something else.

use std::path::PathBuf;

use crate::arguments::Arguments;
use crate::cloud::CloudVariables;
use crate::flag::EarlyExit;
use crate::parse::{parse, parse_beside};

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    Serve(Box<Arguments>),
    Check(Box<CheckCommand>),
    Doctor(DoctorCommand),
}

/// `conch check`: looks at model repositories and serves nothing.
#[derive(Debug)]
pub struct CheckCommand {
    /// Those of a server that would serve these repositories.
    pub arguments: Arguments,
    /// Load the models, too.
    pub loads: bool,
    pub prints_json: bool,
}

/// `conch doctor`: looks at the machine and serves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoctorCommand {
    pub prints_json: bool,
}

/// Reads the words after the program's name.
///
/// # Errors
/// As [`parse`].
pub fn parse_command(
    words: impl IntoIterator<Item = String>,
    environment: CloudVariables<'_>,
) -> Result<Command, EarlyExit> {
    let mut words = words.into_iter().peekable();
    match words.next_if(|word| [CHECK, DOCTOR].contains(&word.as_str())) {
        Some(word) if word == DOCTOR => parse_doctor(words).map(Command::Doctor),
        Some(_) => parse_check(words, environment).map(|check| Command::Check(Box::new(check))),
        None => parse(words, environment).map(|arguments| Command::Serve(Box::new(arguments))),
    }
}

fn parse_doctor(words: impl Iterator<Item = String>) -> Result<DoctorCommand, EarlyExit> {
    let mut prints_json = false;
    for word in words {
        match word.as_str() {
            "-h" | "--help" => return Err(EarlyExit::DoctorHelp),
            "--json" => prints_json = true,
            _ => {
                return Err(EarlyExit::Bad {
                    flag: String::new(),
                    reason: format!("Unexpected argument: {word}\n{DOCTOR_HINT}"),
                });
            }
        }
    }
    Ok(DoctorCommand { prints_json })
}

fn parse_check(
    words: impl Iterator<Item = String>,
    environment: CloudVariables<'_>,
) -> Result<CheckCommand, EarlyExit> {
    let (mut loads, mut prints_json) = (false, false);
    let take = |arguments: &mut Arguments, word: &str| {
        match word {
            "-h" | "--help" => return Err(EarlyExit::CheckHelp),
            "--load" => loads = true,
            "--json" => prints_json = true,
            repository if !repository.starts_with('-') => {
                let repositories = &mut arguments.engine.model_repositories;
                repositories.push(PathBuf::from(repository));
            }
            _ => return Ok(false),
        }
        Ok(true)
    };
    let arguments = parse_beside(words, environment, take).map_err(|exit| match exit {
        EarlyExit::Bad { flag, reason } => EarlyExit::Bad {
            flag,
            reason: format!("{reason}\n{HINT}"),
        },
        other => other,
    })?;
    Ok(CheckCommand {
        arguments,
        loads,
        prints_json,
    })
}

const CHECK: &str = "check";
const DOCTOR: &str = "doctor";
const DOCTOR_HINT: &str = "Usage: conch doctor [--json]; 'conch doctor --help' tells more.";
const HINT: &str = "Usage: conch check REPOSITORY... [--load] [--json] [options]; 'conch check \
                    --help' tells more.";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, EarlyExit> {
        parse_command(line.split_whitespace().map(String::from), &|_| None)
    }

    #[test]
    fn a_check_has_words_of_its_own() {
        // Line, repositories, loads, prints JSON.
        let table: [(&str, &[&str], bool, bool); 5] = [
            ("check m", &["m"], false, false),
            ("check check --load", &["check"], true, false),
            ("check --json b a b", &["a", "b"], false, true),
            (
                "check --model-repository=c a --load --json",
                &["a", "c"],
                true,
                true,
            ),
            ("check --log-verbose 1 m", &["m"], false, false),
        ];
        for (line, repositories, loads, prints_json) in table {
            let Ok(Command::Check(check)) = parsed(line) else {
                panic!("{line}");
            };
            let expected: Vec<PathBuf> = repositories.iter().map(PathBuf::from).collect();
            assert_eq!(
                check.arguments.engine.model_repositories, expected,
                "{line}"
            );
            assert_eq!(
                (check.loads, check.prints_json),
                (loads, prints_json),
                "{line}"
            );
        }
    }

    #[test]
    fn the_doctor_has_one_option() {
        for (line, prints_json) in [("doctor", false), ("doctor --json", true)] {
            match parsed(line) {
                Ok(Command::Doctor(doctor)) => {
                    assert_eq!(doctor.prints_json, prints_json, "{line}")
                }
                other => panic!("{line}: {other:?}"),
            }
        }
        assert_eq!(parsed("doctor -h").unwrap_err(), EarlyExit::DoctorHelp);
        for line in ["doctor m", "doctor --model-repository=m", "doctor --json=1"] {
            let Err(EarlyExit::Bad { reason, .. }) = parsed(line) else {
                panic!("{line}");
            };
            assert!(reason.contains("Usage: conch doctor"), "{line}: {reason}");
        }
    }

    #[test]
    fn wrong_usage_is_told_with_the_usage() {
        let table = [
            ("check", "--model-repository must be specified"),
            ("check m --no-such", "There is no such option"),
            ("check m --load=yes", "Several options begin so"),
            ("check m -x", "Unexpected argument: -x"),
            ("check m --backend-directory", "the option needs a value"),
        ];
        for (line, expected) in table {
            let Err(EarlyExit::Bad { reason, .. }) = parsed(line) else {
                panic!("{line}");
            };
            assert!(reason.contains(expected), "{line}: {reason}");
            assert!(reason.contains("Usage: conch check REPOSITORY"), "{line}");
        }
        for line in ["check --help", "check m -h"] {
            assert_eq!(parsed(line).unwrap_err(), EarlyExit::CheckHelp, "{line}");
        }
        for line in ["m", "--load", "--model-repository=m check", "--json"] {
            let Err(EarlyExit::Bad { reason, .. }) = parsed(line) else {
                panic!("{line}");
            };
            assert!(!reason.contains("conch check"), "{line}");
        }
        let served = parsed("--model-repository=m");
        assert!(matches!(served, Ok(Command::Serve(_))));
    }
}
