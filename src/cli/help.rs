//! The texts of `--help` and `--version`.

use crate::arguments::Arguments;
use crate::client_help::{bench_usage, infer_usage};
use crate::command_table::COMMANDS;
use crate::flag::{EarlyExit, Flag, FlagEffect, FlagValueKind};
use crate::table::GROUPS;

/// The name and version of this program, and whose interfaces it has.
pub fn version() -> String {
    format!(
        "conch {} (interfaces of Triton {})",
        env!("CARGO_PKG_VERSION"),
        conch_control::server_metadata::VERSION
    )
}

/// The text that is asked for in place of serving, if it is one.
pub fn text(exit: &EarlyExit) -> Option<String> {
    match exit {
        EarlyExit::Help => Some(usage()),
        EarlyExit::CheckHelp => Some(check_usage()),
        EarlyExit::DoctorHelp => Some(String::from(DOCTOR)),
        EarlyExit::InferHelp => Some(infer_usage()),
        EarlyExit::BenchHelp => Some(bench_usage()),
        EarlyExit::TopHelp => Some(String::from(TOP)),
        EarlyExit::CompletionsHelp => Some(String::from(COMPLETIONS)),
        EarlyExit::ManualHelp => Some(String::from(MANUAL)),
        EarlyExit::Version => Some(version() + "\n"),
        EarlyExit::Bad { .. } | EarlyExit::Clash(_) | EarlyExit::BadCommand(_) => None,
    }
}

/// The text of `--help`.
pub fn usage() -> String {
    let mut text = format!("{}\nUsage: conch [options] [[NAME=]MODEL...]\n", version());
    for command in &COMMANDS {
        text.push_str(&format!("       conch {}\n", command.usage));
    }
    text.push_str(SERVE);
    let mut defaults = Arguments::default();
    for group in GROUPS {
        if group.title.is_empty() {
            text.push('\n');
        } else {
            text.push_str(&format!("\n{}:\n", group.title));
        }
        for flag in group.flags {
            text.push_str(&line(flag, &mut defaults));
        }
    }
    text
}

/// The text of `conch check --help`.
fn check_usage() -> String {
    let mut text = String::from(CHECK);
    let mut defaults = Arguments::default();
    let flags = GROUPS.iter().flat_map(|group| group.flags);
    for flag in flags.filter(|flag| CHECK_FLAGS.contains(&flag.name)) {
        text.push_str(&line(flag, &mut defaults));
    }
    text
}

/// One flag's lines.
fn line(flag: &Flag, defaults: &mut Arguments) -> String {
    let value = match value_name(flag) {
        "" => String::new(),
        name => format!(" {name}"),
    };
    let help = described(flag, defaults);
    format!("  --{}{value}\n\t{help}\n", flag.name)
}

/// What stands for the value of `flag`; empty if it takes none.
pub(crate) fn value_name(flag: &Flag) -> &'static str {
    match flag.takes {
        FlagValueKind::Nothing => "",
        FlagValueKind::Bool => "<boolean>",
        FlagValueKind::Int => "<integer>",
        FlagValueKind::Text(name) => name,
    }
}

/// The help of `flag` with its default, and what becomes of it in this version.
pub(crate) fn described(flag: &Flag, defaults: &mut Arguments) -> String {
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

const SERVE: &str = "
  Serves the models of a Triton model repository over HTTP and gRPC.
  Example: conch --model-repository=/models --backend-directory=/backends

  A MODEL is a model's file or its directory, which is served without a repository, under the name
  of the file or as NAME; a request that works is printed for each.
  Example: conch net.onnx

  conch check says what is wrong with each model, and serves nothing: see conch check --help.
  conch doctor says what of this machine slows a server down, and how to change it.
  conch infer asks a running server, this one or another: see conch infer --help.
  conch bench measures one: latencies at one rate after the other, see conch bench --help.
  conch top shows in a terminal what a server with --dashboard does.
  conch completions and conch man print texts for shells and for man.
";

const COMPLETIONS: &str = "\
Usage: conch completions bash|zsh|fish

  Prints a script that completes the words of conch in a shell.
  bash: source <(conch completions bash)
\tor, for good, conch completions bash > ~/.local/share/bash-completion/completions/conch
  zsh: source <(conch completions zsh), behind compinit
\tor, for good, conch completions zsh > _conch in a folder of $fpath
  fish: conch completions fish | source
\tor, for good, conch completions fish > ~/.config/fish/completions/conch.fish
";

const MANUAL: &str = "\
Usage: conch man

  Prints the man page.
  Example: conch man | man -l -
\tor, for good, conch man > ~/.local/share/man/man1/conch.1
";

const CHECK: &str = "\
Usage: conch check REPOSITORY... [--load] [--json] [options]

  Says what is wrong with each model of the repositories, and serves nothing: no port is opened, no
  backend is loaded, and no GPU is needed. The server's own loader looks at configurations, version
  folders, model files where it knows their names, labels, warm-up data, instance groups, the
  steps of ensembles, and whether the libraries of backends are found. What a backend has to add,
  or to say of a model file, shows with --load.

  One line per model, in the words of the server:
    ok   NAME (versions 1, 3)
    FAIL NAME: FILE:LINE:COLUMN: REASON

  The exit code is 0 if all models are good, and 1 if one is not, or a repository cannot be read.

  Example: conch check /models --backend-directory=/backends

  --load
\tLoad each model as a server does, on its own, with the models that it needs; warm it up, say
\twhether it is READY, and unload it. The log goes to the standard error.
  --json
\tPrint one JSON document: repositories, errors of repositories, and models with name, versions,
\tstate (OK, READY or FAILED), errors (file, line, column, message) and notes.

Options of the server hold as if it were to serve the repositories. These matter most:
";

const DOCTOR: &str = "\
Usage: conch doctor [--json]

  Says what of this machine keeps a server from starting, or slows it down, and how to change that.
  It serves nothing and changes nothing. Run it as the server is run: by the same user, in the same
  container or unit, with the same CPUs.

  It looks at io_uring, the limits of locked memory and of open files, the clock source, CPUs and
  their quota, frequency, sleep states and SMT, NUMA nodes, huge pages, memory limits, swap, shared
  memory, the backlog of new connections, network interfaces, GPUs and their driver.

  One line per finding, and below it what to do:
    ok   SUBJECT: WHAT THERE IS
    note SUBJECT: what depends on what the host is for
    warn SUBJECT: what makes requests slower than need be
    FAIL SUBJECT: what keeps a server from starting

  The exit code is 0 if a server would start, and 1 if not.

  --json
\tPrint one JSON document: findings with subject, state (OK, NOTE, WARNING or FAILED), seen and
\tadvice.
";

const TOP: &str = "\
Usage: conch top [ADDRESS] [--once] [options]

  Shows in a terminal, second by second, what a server does that was started with --dashboard:
  requests, latencies, queues and batches of each model, instances, errors, memory, connections,
  loads in progress and the slowest requests. Up and down choose a model, q ends.

  ADDRESS is that of its metrics port: [http://]HOST[:PORT], https://HOST[:PORT] or unix:/PATH.
\tDefault: http://localhost:8002.

  --once
\tPrint one second as text, for scripts. The exit code is 1 if the server cannot be asked.
  --header 'NAME: VALUE'
\tA header of the request, such as the token of a caller. May be repeated.
  --ca-certificate FILE
\tThe certificates, in PEM, that vouch for a server with https. Default: those of the system
";

/// Flags that change what a check sees.
const CHECK_FLAGS: [&str; 13] = [
    "model-repository",
    "disable-auto-complete-config",
    "model-control-mode",
    "load-model",
    "model-config-name",
    "model-load-retry-count",
    "model-load-timeout-secs",
    "model-namespacing",
    "backend-directory",
    "backend-config",
    "repoagent-directory",
    "log-file",
    "log-verbose",
];
