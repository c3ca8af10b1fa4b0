//! The texts of `--help` and `--version`.

use crate::arguments::Arguments;
use crate::flag::{Flag, FlagEffect, FlagValueKind};
use crate::table::GROUPS;

/// The name and version of this program, and whose interfaces it has.
pub fn version() -> String {
    format!(
        "conch {} (interfaces of Triton {})",
        env!("CARGO_PKG_VERSION"),
        conch_control::server_metadata::VERSION
    )
}

/// The text of `--help`.
pub fn usage() -> String {
    let mut text = format!(
        "{}\nUsage: conch [options]\n\n  Serves the models of a Triton model repository over HTTP \
         and gRPC.\n  Example: conch --model-repository=/models --backend-directory=/backends\n",
        version()
    );
    let mut defaults = Arguments::default();
    for group in GROUPS {
        if group.title.is_empty() {
            text.push('\n');
        } else {
            text.push_str(&format!("\n{}:\n", group.title));
        }
        for flag in group.flags {
            let value = match flag.takes {
                FlagValueKind::Nothing => String::new(),
                FlagValueKind::Bool => String::from(" <boolean>"),
                FlagValueKind::Int => String::from(" <integer>"),
                FlagValueKind::Text(name) => format!(" {name}"),
            };
            let help = described(flag, &mut defaults);
            text.push_str(&format!("  --{}{value}\n\t{help}\n", flag.name));
        }
    }
    text
}

/// The help of `flag` with its default, and what becomes of it in this version.
fn described(flag: &Flag, defaults: &mut Arguments) -> String {
    let help = match flag.shown(defaults) {
        Some(default) => flag.help.replace(DEFAULT, &default),
        None => String::from(flag.help),
    };
    match flag.effect {
        FlagEffect::Exits(_) | FlagEffect::Served(_) => help,
        FlagEffect::Inert { why, .. } => format!("{help} (Accepted without effect: {why}.)"),
        FlagEffect::Deprecated { instead, .. } => format!("{help} (Deprecated: use {instead}.)"),
    }
}

/// The place of the default in a flag's help.
const DEFAULT: &str = "{}";
