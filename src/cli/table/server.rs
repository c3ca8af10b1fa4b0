//! Flags of the process: its texts, its name in the metadata, and its end.

use super::row::served;
use crate::flag::FlagEffect::Exits;
use crate::flag::FlagValueKind::{Int, Nothing, Text};
use crate::flag::Setter::{self, Seconds};
use crate::flag::{EarlyExit, Flag};
use crate::values::parse_clamped;

pub const GENERAL: &[Flag] = &[
    Flag {
        name: "help",
        takes: Nothing,
        effect: Exits(EarlyExit::Help),
        help: "Print this help and exit. Short: -h.",
    },
    Flag {
        name: "version",
        takes: Nothing,
        effect: Exits(EarlyExit::Version),
        help: "Print the version and exit.",
    },
];

pub const SERVER: &[Flag] = &[
    served(
        "id",
        Text("<name>"),
        "Name of this server in its metadata. Default: {}.",
        Setter::Text(|to| &mut to.engine.server_id),
    ),
    served(
        "exit-timeout-secs",
        Int,
        "On SIGTERM or SIGINT, seconds to finish what is in flight. Default: {}.",
        Seconds(|to| &mut to.engine.exit_timeout, parse_clamped),
    ),
];
