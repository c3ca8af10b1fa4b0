//! Every flag is in every script, with what may stand behind it.

use super::flag_argument::summary;
use super::*;
use crate::command_table::COMMANDS;
use crate::flag::FlagValueKind;
use crate::table::flags;

#[test]
fn every_flag_is_in_every_script() {
    let (bash, zsh, fish) = (
        completions(Shell::Bash),
        completions(Shell::Zsh),
        completions(Shell::Fish),
    );
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(String::from).collect() };
    let in_bash = words(&bash.replace(['\'', '|', ')'], " "));
    let in_fish = words(&fish);
    for flag in flags() {
        let name = flag.name;
        assert!(in_bash.contains(&format!("--{name}")), "{name}");
        assert!(in_fish.contains(&String::from(name)), "{name}");
        let with_value = match flag.takes {
            FlagValueKind::Nothing => format!("'*--{name}["),
            _ => format!("'*--{name}=["),
        };
        assert!(zsh.contains(&with_value), "{name}");
    }
    for command in COMMANDS {
        for script in [&bash, &zsh, &fish] {
            assert!(script.contains(command.name), "{}", command.name);
        }
        for own in command.flags {
            assert!(in_bash.contains(&format!("--{own}")), "{own}");
            assert!(in_fish.contains(&String::from(*own)), "{own}");
            assert!(zsh.contains(&format!("'--{own}'")), "{own}");
        }
    }
}

#[test]
fn values_are_offered() {
    for (shell, expected) in [
        (Shell::Bash, "_conch_words 'none poll explicit'"),
        (Shell::Zsh, "]:value:(none poll explicit)'"),
        (
            Shell::Fish,
            "-l model-control-mode -x -a 'none poll explicit'",
        ),
        (Shell::Zsh, "'*--model-repository=["),
        (Shell::Fish, "-l model-repository -r -F"),
        (Shell::Fish, "-l http-port -x -d"),
    ] {
        assert!(completions(shell).contains(expected), "{expected}");
    }
}

#[test]
fn summaries_are_one_sentence() {
    for flag in flags() {
        let summary = summary(flag);
        assert!(!summary.is_empty(), "{}", flag.name);
        assert!(!summary.contains("Default: {}"), "{summary}");
        assert!(!summary.contains('\n'), "{summary}");
    }
}
