//! What the program is to do: to serve, or, by its first word, something else.

use std::path::PathBuf;

use conch_client::options::{BenchOptions, InferOptions};

use crate::arguments::Arguments;
use crate::client::parse_infer;
use crate::client_bench::parse_bench;
use crate::client_top::{TopCommand, parse_top};
use crate::cloud::CloudVariables;
use crate::command_table::{BENCH, COMMANDS, COMPLETIONS, DOCTOR, INFER, MANUAL, TOP};
use crate::completions::Shell;
use crate::flag::EarlyExit;
use crate::parse::{parse, parse_beside};

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    Serve(Box<Arguments>),
    Check(Box<CheckCommand>),
    Doctor(DoctorCommand),
    /// Ask a running server.
    Infer(Box<InferOptions>),
    /// Measure a running server.
    Bench(Box<BenchOptions>),
    Top(TopCommand),
    /// Print completions for a shell.
    Completions(Shell),
    /// Print the man page.
    Manual,
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
    let is_command = |word: &String| COMMANDS.iter().any(|command| command.name == word);
    match words.next_if(is_command).as_deref() {
        Some(DOCTOR) => parse_doctor(words).map(Command::Doctor),
        Some(INFER) => parse_infer(words).map(|infer| Command::Infer(Box::new(infer))),
        Some(BENCH) => parse_bench(words).map(|bench| Command::Bench(Box::new(bench))),
        Some(TOP) => parse_top(words).map(Command::Top),
        Some(COMPLETIONS) => parse_completions(words).map(Command::Completions),
        Some(MANUAL) => parse_manual(words),
        Some(_) => parse_check(words, environment).map(|check| Command::Check(Box::new(check))),
        None => parse(words, environment).map(|arguments| Command::Serve(Box::new(arguments))),
    }
}

fn parse_completions(mut words: impl Iterator<Item = String>) -> Result<Shell, EarlyExit> {
    let word = words.next();
    if matches!(word.as_deref(), Some("-h" | "--help")) {
        return Err(EarlyExit::CompletionsHelp);
    }
    let shell = word.as_deref().and_then(Shell::of);
    match (shell, words.next()) {
        (Some(shell), None) => Ok(shell),
        (_, stray) => Err(unexpected(stray.or(word), COMPLETIONS_HINT)),
    }
}

fn parse_manual(mut words: impl Iterator<Item = String>) -> Result<Command, EarlyExit> {
    match words.next() {
        None => Ok(Command::Manual),
        Some(word) if ["-h", "--help"].contains(&word.as_str()) => Err(EarlyExit::ManualHelp),
        stray => Err(unexpected(stray, MANUAL_HINT)),
    }
}

/// The refusal of a word, or of too few.
fn unexpected(word: Option<String>, hint: &str) -> EarlyExit {
    EarlyExit::Bad {
        flag: String::new(),
        reason: match word {
            Some(word) => format!("Unexpected argument: {word}\n{hint}"),
            None => String::from(hint),
        },
    }
}

fn parse_doctor(words: impl Iterator<Item = String>) -> Result<DoctorCommand, EarlyExit> {
    let mut prints_json = false;
    for word in words {
        match word.as_str() {
            "-h" | "--help" => return Err(EarlyExit::DoctorHelp),
            "--json" => prints_json = true,
            _ => return Err(unexpected(Some(word), DOCTOR_HINT)),
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

const COMPLETIONS_HINT: &str = "Usage: conch completions bash|zsh|fish";
const MANUAL_HINT: &str = "Usage: conch man";
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
    fn texts_for_shells_and_man() {
        for (line, expected) in [
            ("completions bash", Ok(Some(Shell::Bash))),
            ("completions zsh", Ok(Some(Shell::Zsh))),
            ("completions fish", Ok(Some(Shell::Fish))),
            ("man", Ok(None)),
            ("completions --help", Err(EarlyExit::CompletionsHelp)),
            ("man -h", Err(EarlyExit::ManualHelp)),
        ] {
            let outcome = parsed(line).map(|command| match command {
                Command::Completions(shell) => Some(shell),
                Command::Manual => None,
                other => panic!("{line}: {other:?}"),
            });
            assert_eq!(outcome, expected, "{line}");
        }
        for (line, expected) in [
            ("completions", "Usage: conch completions bash|zsh|fish"),
            (
                "completions tcsh",
                "Unexpected argument: tcsh\nUsage: conch completions bash|zsh|fish",
            ),
            (
                "completions bash zsh",
                "Unexpected argument: zsh\nUsage: conch completions bash|zsh|fish",
            ),
            ("man ls", "Unexpected argument: ls\nUsage: conch man"),
        ] {
            let Err(EarlyExit::Bad { reason, .. }) = parsed(line) else {
                panic!("{line}");
            };
            assert_eq!(reason, expected, "{line}");
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
        for line in ["--load", "--json", "--model-repository=m -x"] {
            let Err(EarlyExit::Bad { reason, .. }) = parsed(line) else {
                panic!("{line}");
            };
            assert!(!reason.contains("conch check"), "{line}");
        }
        for line in ["--model-repository=m", "m", "--model-repository=m check"] {
            assert!(matches!(parsed(line), Ok(Command::Serve(_))), "{line}");
        }
    }
}
