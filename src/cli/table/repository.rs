//! Flags of the model repositories: where they are, and which models are loaded how.

use std::path::PathBuf;
use std::time::Duration;

use conch_control::ControlMode;

use super::row::served;
use crate::arguments::Arguments;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Nothing, Text};
use crate::flag::Setter::{Other, Seconds, Shown, Size, Switch};
use crate::values::{out_of_bound, parse_clamped, parse_int, parse_unsigned};

pub const FLAGS: &[Flag] = &[
    served(
        "model-store",
        Text("<path>"),
        "Same as --model-repository.",
        Other(add_repository),
    ),
    served(
        "model-repository",
        Text("<path>"),
        "Directory with one sub-directory per model. Required; may be given several times.",
        Other(add_repository),
    ),
    served(
        "exit-on-error",
        Bool,
        "Exit if any model fails to load at start; false serves the others. Default: {}.",
        Switch(|to| &mut to.engine.exit_on_error),
    ),
    served(
        "disable-auto-complete-config",
        Nothing,
        "Require complete model configurations; deduce nothing from files or backends.",
        Other(|to, _| {
            to.combined.is_strict = true;
            Ok(())
        }),
    ),
    served(
        "strict-readiness",
        Bool,
        "Ready only when every model is; false: when the server answers. Default: {}.",
        Switch(|to| &mut to.engine.strict_readiness),
    ),
    served(
        "model-control-mode",
        Text("none|poll|explicit"),
        "none: all models at start, no changes; poll: follow the repositories; explicit: by \
         request. Default: {}.",
        Shown {
            set: |to, text| {
                to.engine.model_control_mode = parse_control_mode(text)?;
                Ok(())
            },
            show: |of| control_mode_name(of.engine.model_control_mode),
        },
    ),
    served(
        "repository-poll-secs",
        Int,
        "Seconds between polls of the repositories, with --model-control-mode=poll. Default: {}.",
        Seconds(|to| &mut to.repository_poll, parse_clamped),
    ),
    served(
        "load-model",
        Text("<name>"),
        "Load this model at start; needs --model-control-mode=explicit. May be given several \
         times; * alone is all.",
        Other(|to, text| {
            to.engine.startup_models.push(String::from(text));
            Ok(())
        }),
    ),
    served(
        "model-config-name",
        Text("<name>"),
        "Use <model>/configs/<name>.pbtxt where it exists, else config.pbtxt.",
        Other(|to, text| {
            if text.is_empty() {
                let reason = "Error: empty argument for --model-config-name";
                return Err(String::from(reason));
            }
            to.engine.model_config_name = String::from(text);
            Ok(())
        }),
    ),
    served(
        "model-load-thread-count",
        Int,
        "Models loaded at the same time. Default: {}.",
        Size(
            |to| &mut to.engine.model_load_thread_count,
            |text| {
                // As upstream: at least one, whatever is asked for.
                usize::try_from(parse_int(text)?.max(1)).map_err(|_| out_of_bound(text))
            },
        ),
    ),
    served(
        "model-load-retry-count",
        Int,
        "Further attempts after a version failed to load. Default: {}.",
        Shown {
            set: |to, text| {
                let count = u32::try_from(parse_clamped(text)?);
                to.engine.model_load_retry_count = count.map_err(|_| out_of_bound(text))?;
                Ok(())
            },
            show: |of| of.engine.model_load_retry_count.to_string(),
        },
    ),
    served(
        "model-load-timeout-secs",
        Int,
        "Seconds that an attempt to load a version may take before the load fails; 0: no limit. \
         Default: {}.",
        Shown {
            set: |to, text| {
                let seconds = parse_unsigned(text)?;
                to.engine.model_load_timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
                Ok(())
            },
            show: |of| {
                let timeout = of.engine.model_load_timeout.unwrap_or_default();
                timeout.as_secs().to_string()
            },
        },
    ),
    served(
        "model-namespacing",
        Bool,
        "Tell models of the same name in several repositories apart. Default: {}.",
        Switch(|to| &mut to.engine.namespacing),
    ),
    served(
        "enable-peer-access",
        Bool,
        "Let GPUs reach each other's memory directly (default {}).",
        Switch(|to| &mut to.engine.gpu.enables_peer_access),
    ),
];

fn add_repository(to: &mut Arguments, text: &str) -> Result<(), String> {
    to.engine.model_repositories.push(PathBuf::from(text));
    Ok(())
}

fn parse_control_mode(text: &str) -> Result<ControlMode, String> {
    match text.to_ascii_lowercase().as_str() {
        "none" => Ok(ControlMode::None),
        "poll" => Ok(ControlMode::Poll),
        "explicit" => Ok(ControlMode::Explicit),
        _ => Err(String::from("invalid argument for --model-control-mode")),
    }
}

fn control_mode_name(mode: ControlMode) -> String {
    String::from(match mode {
        ControlMode::None => "none",
        ControlMode::Poll => "poll",
        ControlMode::Explicit => "explicit",
    })
}
