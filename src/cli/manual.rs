//! The page of `conch man`, in the language of man pages (roff), made from the table of flags and
//! the texts of `--help`.

use crate::arguments::Arguments;
use crate::command_table::COMMANDS;
use crate::help::{described, value_name};
use crate::table::GROUPS;

/// What `conch man` prints.
pub fn manual() -> String {
    let mut page = format!(
        ".TH CONCH 1 \"\" \"conch {}\" \"User Commands\"\n",
        env!("CARGO_PKG_VERSION")
    );
    page.push_str(HEAD);
    page.push_str(".SH COMMANDS\n");
    for command in COMMANDS {
        page.push_str(&format!(
            ".TP\n.B {}\n{}\n",
            escaped(&format!("conch {}", command.usage)),
            line(command.summary)
        ));
    }
    page.push_str(".SH OPTIONS\n");
    let mut defaults = Arguments::default();
    for group in GROUPS {
        if !group.title.is_empty() {
            page.push_str(&format!(".SS {}\n", escaped(group.title)));
        }
        for flag in group.flags {
            let name = escaped(&format!("--{}", flag.name));
            page.push_str(&match value_name(flag) {
                "" => format!(".TP\n.B {name}\n"),
                value => format!(".TP\n.BI \"{name} \" \"{}\"\n", escaped(value)),
            });
            page.push_str(&line(&described(flag, &mut defaults)));
            page.push('\n');
        }
    }
    page.push_str(TAIL);
    page
}

/// A line of text: none that begins as a request does.
fn line(text: &str) -> String {
    let text = escaped(text);
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

/// A sign of the page is printed as it stands.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\e"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '"' => escaped.push_str("\\(dq"),
            '`' => escaped.push_str("\\(ga"),
            '^' => escaped.push_str("\\(ha"),
            '~' => escaped.push_str("\\(ti"),
            '\n' => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

const HEAD: &str = r#".SH NAME
conch \- serve machine\-learning models over HTTP and gRPC
.SH SYNOPSIS
.B conch
.RI [ options ]
.RI [[ name\fB=\fP ] model ...]
.br
.B conch
.I command
.RI [ words ]
.SH DESCRIPTION
conch serves the models of Triton model repositories
.RB ( \-\-model\-repository ),
and those that are named as words of the command line: a model's file, or its directory.
A file is served under its name without what follows the last dot, without a configuration.
For each model named so, a request that works is printed as a command for curl.
.PP
Options may be abbreviated, and values follow a blank or an equals sign.
"#;

const TAIL: &str = r#".SH SIGNALS
.TP
.BR SIGINT ", " SIGTERM
The server is no longer ready, finishes what is in flight, and ends.
.TP
.B SIGHUP
The log file is opened by its path again, and certificates are read again.
.SH EXIT STATUS
0 after a stop that was asked for; 1 if the server could not start, or could not stop in time.
Of a command that asks a server: 0 for an answer, 1 if there is none,
2 for words that cannot be meant.
.SH EXAMPLES
.TP
.B conch net.onnx
Serve one file.
.TP
.B conch \-\-model\-repository=/models \-\-backend\-directory=/backends
Serve a repository.
.TP
.B conch check /models
Say what is wrong with each of its models.
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::flags;

    #[test]
    fn every_flag_and_command_is_on_the_page() {
        let page = manual();
        for flag in flags() {
            let name = escaped(&format!("--{}", flag.name));
            let is_there = [format!(".B {name}\n"), format!(".BI \"{name} \" ")]
                .iter()
                .any(|request| page.contains(request));
            assert!(is_there, "{}", flag.name);
        }
        for command in COMMANDS {
            assert!(page.contains(&escaped(command.summary)), "{}", command.name);
        }
        assert!(!page.contains("{}"), "defaults are shown");
    }

    #[test]
    fn text_cannot_be_taken_for_a_request() {
        for (text, expected) in [
            (".SH x", "\\&.SH x"),
            ("a - b\\n", "a \\- b\\en"),
            ("'x'", "\\(aqx\\(aq"),
        ] {
            assert_eq!(line(text), expected, "{text}");
        }
        for line in manual()
            .lines()
            .filter(|line| line.starts_with(['.', '\'']))
        {
            let request = line.split(' ').next().unwrap();
            let known = [
                ".TH", ".SH", ".SS", ".TP", ".B", ".BI", ".BR", ".RB", ".RI", ".I", ".PP", ".br",
            ];
            assert!(known.contains(&request), "{line}");
        }
    }
}
