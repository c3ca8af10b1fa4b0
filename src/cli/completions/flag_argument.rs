//! What a shell may offer behind a flag, and texts that all scripts have.

use super::shell::Shell;
use crate::command_table::COMMANDS;
use crate::flag::{Flag, FlagValueKind};
use crate::table::flags;

/// What may stand behind a flag.
pub(super) enum FlagArgument {
    Nothing,
    /// One of these.
    Words(Vec<&'static str>),
    Path,
    /// What no shell can know, shown under this name.
    Other(&'static str),
}

impl FlagArgument {
    pub(super) fn of(flag: &Flag) -> FlagArgument {
        match (flag.takes, flag.choices()) {
            (FlagValueKind::Nothing, _) => FlagArgument::Nothing,
            (FlagValueKind::Bool, _) => FlagArgument::Words(vec!["true", "false"]),
            (_, Some(words)) => FlagArgument::Words(words),
            (FlagValueKind::Int, None) => FlagArgument::Other("<integer>"),
            (FlagValueKind::Text("<path>"), None) => FlagArgument::Path,
            (FlagValueKind::Text(name), None) => FlagArgument::Other(name),
        }
    }
}

/// What a flag does, in as few words as a list has room for: the first sentence of its help.
pub(super) fn summary(flag: &Flag) -> &'static str {
    let help = flag.help;
    let ends = help.match_indices(". ").map(|(end, _)| end);
    // Not within a sentence, as behind `e.g`.
    let end = ends.into_iter().find(|end| {
        let next = help[end + 2..].chars().next();
        next.is_some_and(char::is_uppercase)
    });
    help[..end.unwrap_or(help.len())].trim_end_matches('.')
}

/// The words with blanks between them.
pub(super) fn joined(words: impl Iterator<Item = &'static str>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

/// The shells, with blanks between them.
pub(super) fn shells() -> String {
    joined(Shell::ALL.iter().map(|shell| shell.name()))
}

pub(super) fn command_names() -> String {
    joined(COMMANDS.iter().map(|command| command.name))
}

/// The flags of every kind of argument that is `wanted`.
pub(super) fn flags_with(wanted: fn(&FlagArgument) -> bool) -> impl Iterator<Item = &'static Flag> {
    flags().filter(move |flag| wanted(&FlagArgument::of(flag)))
}
