//! For fish.

use super::flag_argument::{FlagArgument, command_names, joined, shells, summary};
use crate::command_table::COMMANDS;
use crate::table::flags;

pub(super) fn script() -> String {
    let mut lines = vec![String::from(HEAD)];
    for command in COMMANDS {
        lines.push(format!(
            "complete -c conch -n __fish_use_subcommand -a {} -d {}",
            command.name,
            quoted(command.summary)
        ));
        for own in command.flags {
            lines.push(format!(
                "complete -c conch -n '__fish_seen_subcommand_from {}' -l {own}",
                command.name
            ));
        }
    }
    lines.push(format!(
        "complete -c conch -n '__fish_seen_subcommand_from completions' -f -a '{}'",
        shells()
    ));
    // A check takes those of a server.
    let without = command_names().replace("check ", "");
    for flag in flags() {
        let argument = match FlagArgument::of(flag) {
            FlagArgument::Nothing => String::new(),
            FlagArgument::Words(words) => {
                format!(" -x -a '{}'", joined(words.into_iter()))
            }
            FlagArgument::Path => String::from(" -r -F"),
            FlagArgument::Other(_) => String::from(" -x"),
        };
        lines.push(format!(
            "complete -c conch -n 'not __fish_seen_subcommand_from {without}' -l \
             {}{argument} -d {}",
            flag.name,
            quoted(summary(flag))
        ));
    }
    lines.join("\n") + "\n"
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"))
}

const HEAD: &str = "# Completion of conch for fish, printed by `conch completions fish`.";
