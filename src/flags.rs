//! Command-line flags: name, kind of value, what this version does with each, and one line of help.
//!
//! Names, defaults and kinds are Triton's, so that existing start scripts keep working; the flags of the `conch` group are ours.

use Effect::{Deprecated, Inert, Served};
use Takes::{Bool, Int, Nothing, Text};

pub use crate::flag_table::FLAGS;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
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
pub enum Effect {
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
    pub takes: Takes,
    pub effect: Effect,
    pub help: &'static str,
}

pub const fn flag(
    group: &'static str,
    name: &'static str,
    takes: Takes,
    effect: Effect,
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

/// Why a name does not lead to one flag.
#[derive(Debug, PartialEq, Eq)]
pub enum NoFlag {
    Unknown,
    Ambiguous,
}

/// The flag of this name, or the only one that begins with it (as `getopt_long` does).
pub fn find(name: &str) -> Result<&'static Flag, NoFlag> {
    if let Some(exact) = FLAGS.iter().find(|flag| flag.name == name) {
        return Ok(exact);
    }
    let mut candidates = FLAGS
        .iter()
        .filter(|flag| !name.is_empty() && flag.name.starts_with(name));
    match (candidates.next(), candidates.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(NoFlag::Unknown),
        (Some(_), Some(_)) => Err(NoFlag::Ambiguous),
    }
}

/// The text of `--help`.
pub fn usage() -> String {
    let mut text = String::from(
        "Usage: conch [options]\n\n  Serves the models of a Triton model repository over HTTP and gRPC.\n  \
         Example: conch --model-repository=/models --backend-directory=/backends\n",
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
            ("grpc", Err(NoFlag::Ambiguous)),
            ("", Err(NoFlag::Unknown)),
            ("no-such", Err(NoFlag::Unknown)),
        ] {
            assert_eq!(find(name).map(|flag| flag.name), expected, "{name}");
        }
    }
}
