//! Flags about who may use what, and about files of security that change.

use super::row::served;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Int, Text};
use crate::flag::Setter::{Path, Seconds};
use crate::values::parse_unsigned;

pub const FLAGS: &[Flag] = &[
    served(
        "auth-config",
        Text("<path>"),
        "Rules, in JSON, of which callers, known by bearer tokens or by names in client \
         certificates, may use which APIs and models, on every listener. Without it all may use \
         all.",
        Path(|to| &mut to.auth_config),
    ),
    served(
        "file-reload-secs",
        Int,
        "Seconds between looks whether certificates, keys and roots of gRPC, HTTP or metrics, or \
         the file of --auth-config, have changed; 0: they are read again on SIGHUP only. Default: \
         {}.",
        Seconds(|to| &mut to.file_reload, parse_unsigned),
    ),
];
