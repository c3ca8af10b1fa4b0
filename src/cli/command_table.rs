//! The commands: first words that ask for something else than to serve.

/// A first word that asks for something else than to serve.
#[derive(Debug)]
pub struct CommandRow {
    pub name: &'static str,
    /// With its words.
    pub usage: &'static str,
    pub summary: &'static str,
    /// Flags that only it has.
    pub flags: &'static [&'static str],
}

/// Every command, in the order of `--help`.
pub const COMMANDS: [CommandRow; 7] = [
    CommandRow {
        name: CHECK,
        usage: "check REPOSITORY... [--load] [--json] [options]",
        summary: "Say what is wrong with each model of repositories, and serve nothing",
        flags: &["load", "json"],
    },
    CommandRow {
        name: DOCTOR,
        usage: "doctor [--json]",
        summary: "Say what of this machine slows a server down, and how to change it",
        flags: &["json"],
    },
    CommandRow {
        name: INFER,
        usage: "infer MODEL [--input NAME=VALUE]... [options]",
        summary: "Ask a running server, and print its answer",
        flags: &[
            "output",
            "classes",
            "save",
            "json",
            "no-binary",
            "id",
            "input",
            "zeros",
            "random",
            "shape",
            "scaling",
            "layout",
            "url",
            "version",
            "parameter",
            "header",
            "timeout",
            "ca-certificate",
        ],
    },
    CommandRow {
        name: BENCH,
        usage: "bench MODEL [options]",
        summary: "Measure a running server: latencies at one rate after the other",
        flags: &[
            "protocol",
            "rates",
            "start-rate",
            "latency-limit-ms",
            "seconds",
            "warm-up-seconds",
            "arrivals",
            "connections",
            "in-flight",
            "svg",
            "json",
            "input",
            "zeros",
            "random",
            "shape",
            "scaling",
            "layout",
            "url",
            "version",
            "parameter",
            "header",
            "timeout",
        ],
    },
    CommandRow {
        name: TOP,
        usage: "top [ADDRESS] [--once] [options]",
        summary: "Show in a terminal what a server with --dashboard does",
        flags: &["once", "header", "ca-certificate"],
    },
    CommandRow {
        name: COMPLETIONS,
        usage: "completions bash|zsh|fish",
        summary: "Print completions for a shell",
        flags: &[],
    },
    CommandRow {
        name: MANUAL,
        usage: "man",
        summary: "Print the man page",
        flags: &[],
    },
];

pub const CHECK: &str = "check";
pub const DOCTOR: &str = "doctor";
pub const INFER: &str = "infer";
pub const BENCH: &str = "bench";
pub const TOP: &str = "top";
pub const COMPLETIONS: &str = "completions";
pub const MANUAL: &str = "man";
