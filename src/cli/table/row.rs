//! The rows that most flags have.

use crate::flag::{Flag, FlagEffect, FlagValueKind, Setter};

/// A flag that does what it says.
pub const fn served(
    name: &'static str,
    takes: FlagValueKind,
    help: &'static str,
    setter: Setter,
) -> Flag {
    Flag {
        name,
        takes,
        effect: FlagEffect::Served(setter),
        help,
    }
}

/// A flag that changes nothing here, and why.
pub const fn inert(
    name: &'static str,
    takes: FlagValueKind,
    help: &'static str,
    why: &'static str,
) -> Flag {
    inert_checked(name, takes, help, why, |_| Ok(()))
}

/// The same, where upstream refuses values: `check` does, too.
pub const fn inert_checked(
    name: &'static str,
    takes: FlagValueKind,
    help: &'static str,
    why: &'static str,
    check: fn(&str) -> Result<(), String>,
) -> Flag {
    Flag {
        name,
        takes,
        effect: FlagEffect::Inert { why, check },
        help,
    }
}

pub const SHARDS: &str = "network threads are set by --shards";
