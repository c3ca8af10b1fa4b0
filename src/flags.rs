//! Command-line flags: name, kind of value, what this version does with each, and one line of help.
//!
//! Names, defaults and kinds are Triton's, so that existing start scripts keep working; the flags
//! of the `conch` group are ours.

use FlagEffect::{Deprecated, Inert, Served};
use FlagValueKind::{Bool, Int, Nothing, Text};

pub use crate::flag_table::FLAGS;
use crate::suggest;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagValueKind {
    /// Nothing: naming it switches it on.
    Nothing,
    Bool,
    /// A whole number.
    Int,
    /// Text; `--help` shows it under this name.
    Text(&'static str),
}

/// What this version does with a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagEffect {
    /// It does what it says.
    Served,
    /// Accepted so that existing start scripts work; changes nothing here, and one warning says so.
    Inert(&'static str),
    /// Deprecated; a warning names what to use instead.
    Deprecated(&'static str),
}

pub struct Flag {
    pub group: &'static str,
    pub name: &'static str,
    pub takes: FlagValueKind,
    pub effect: FlagEffect,
    pub help: &'static str,
}

pub const fn flag(
    group: &'static str,
    name: &'static str,
    takes: FlagValueKind,
    effect: FlagEffect,
    help: &'static str,
) -> Flag {
    Flag {
        group,
        name,
        takes,
        effect,
        help,
    }
}

impl Flag {
    /// The values that it takes, if they are few and have names.
    fn choices(&self) -> Option<Vec<&'static str>> {
        match self.takes {
            Text(words) if words.contains('|') && !words.contains('<') => {
                Some(words.split('|').collect())
            }
            _ => None,
        }
    }

    /// A refusal of a value, with the values that there are if there are only a few.
    pub fn refuse(&self, reason: String) -> String {
        match self.choices() {
            Some(choices) => format!("{reason}. It takes one of: {}", choices.join(", ")),
            None => reason,
        }
    }
}

/// What is said of a name that no flag has or begins with.
pub fn unknown(name: &str) -> String {
    let similar = suggest::similar(name, FLAGS.iter().map(|flag| flag.name));
    if similar.is_empty() {
        return String::from("There is no such option.");
    }
    format!(
        "There is no such option. Did you mean {}?",
        listed(&similar)
    )
}

/// What is said of a name that begins the names of several flags.
pub fn ambiguous(name: &str) -> String {
    let mut names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    names.retain(|known| known.starts_with(name));
    let more = if names.len() > SHOWN_MAX { ", ..." } else { "" };
    names.truncate(SHOWN_MAX);
    format!("Several options begin so: {}{more}", listed(&names))
}

fn listed(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
    names.join(", ")
}

/// Flags that begin alike which are listed.
const SHOWN_MAX: usize = 8;

/// Why a name does not lead to one flag.
#[derive(Debug, PartialEq, Eq)]
pub enum UnknownFlag {
    Unknown,
    Ambiguous,
}

/// The flag of this name, or the only one that begins with it (as `getopt_long` does).
pub fn find(name: &str) -> Result<&'static Flag, UnknownFlag> {
    if let Some(exact) = FLAGS.iter().find(|flag| flag.name == name) {
        return Ok(exact);
    }
    let mut candidates = FLAGS
        .iter()
        .filter(|flag| !name.is_empty() && flag.name.starts_with(name));
    match (candidates.next(), candidates.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(UnknownFlag::Unknown),
        (Some(_), Some(_)) => Err(UnknownFlag::Ambiguous),
    }
}

/// The text of `--help`.
pub fn usage() -> String {
    let mut text = format!(
        "{}\nUsage: conch [options]\n\n  Serves the models of a Triton model repository over HTTP and gRPC.\n  \
         Example: conch --model-repository=/models --backend-directory=/backends\n",
        crate::version()
    );
    let mut group = None;
    for flag in FLAGS {
        if group != Some(flag.group) {
            group = Some(flag.group);
            if !flag.group.is_empty() {
                text.push_str(&format!("\n{}:\n", flag.group));
            } else {
                text.push('\n');
            }
        }
        let value = match flag.takes {
            Nothing => String::new(),
            Bool => String::from(" <boolean>"),
            Int => String::from(" <integer>"),
            Text(name) => format!(" {name}"),
        };
        text.push_str(&format!("  --{}{value}\n\t{}", flag.name, flag.help));
        match flag.effect {
            Served => {}
            Inert(why) => text.push_str(&format!(" (Accepted without effect: {why}.)")),
            Deprecated(instead) => text.push_str(&format!(" (Deprecated: use {instead}.)")),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_prefixes_resolve_as_getopt_does() {
        for (index, flag) in FLAGS.iter().enumerate() {
            assert!(
                !FLAGS[..index].iter().any(|other| other.name == flag.name),
                "{} twice",
                flag.name
            );
        }
        for (name, expected) in [
            ("http-port", Ok("http-port")),
            ("http-po", Ok("http-port")),
            ("model-repo", Ok("model-repository")),
            ("grpc-server-c", Ok("grpc-server-cert")),
            ("grpc", Err(UnknownFlag::Ambiguous)),
            ("", Err(UnknownFlag::Unknown)),
            ("no-such", Err(UnknownFlag::Unknown)),
        ] {
            assert_eq!(find(name).map(|flag| flag.name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_refused_is_told_with_what_is_meant() {
        for (name, expected) in [
            (
                "htttp-port",
                "There is no such option. Did you mean --http-port?",
            ),
            (
                "model_repository",
                "There is no such option. Did you mean --model-repository?",
            ),
            ("zzzzzzzzzz", "There is no such option."),
        ] {
            assert_eq!(unknown(name), expected);
        }
        assert_eq!(
            ambiguous("grpc-use"),
            "Several options begin so: --grpc-use-ssl, --grpc-use-ssl-mutual"
        );
        assert!(ambiguous("grpc").ends_with(", ..."));
        let mode = find("model-control-mode").unwrap_or_else(|_| panic!("it is there"));
        assert_eq!(
            mode.refuse(String::from("no")),
            "no. It takes one of: none, poll, explicit"
        );
    }
}
