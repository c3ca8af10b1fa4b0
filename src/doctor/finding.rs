//! What an examination found, as a value.

use std::fmt::Write as _;

use serde::Serialize;

/// All findings, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in a few words that never change.
    pub subject: &'static str,
    pub state: FindingState,
    /// What there is.
    pub seen: String,
    /// What it means, and the command or setting that changes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum FindingState {
    Ok,
    /// Neither good nor bad: a matter of what the host is for.
    Note,
    /// The server runs, slower or with a longer tail.
    Warning,
    /// The server does not start.
    Failed,
}

impl Finding {
    pub(crate) fn ok(subject: &'static str, seen: impl Into<String>) -> Finding {
        Finding {
            subject,
            state: FindingState::Ok,
            seen: seen.into(),
            advice: None,
        }
    }

    /// One that says what to do.
    pub(crate) fn advise(
        state: FindingState,
        subject: &'static str,
        seen: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            state,
            advice: Some(advice.into()),
            ..Finding::ok(subject, seen)
        }
    }
}

impl Report {
    /// Whether a server would start.
    pub fn is_good(&self) -> bool {
        self.count(FindingState::Failed) == 0
    }

    fn count(&self, state: FindingState) -> usize {
        let of_state = |finding: &&Finding| finding.state == state;
        self.findings.iter().filter(of_state).count()
    }

    /// For people: a line per finding, its advice below it, and how many there are of each kind.
    pub fn to_lines(&self) -> String {
        let mut lines = String::new();
        for finding in &self.findings {
            let word = match finding.state {
                FindingState::Ok => "ok  ",
                FindingState::Note => "note",
                FindingState::Warning => "warn",
                FindingState::Failed => "FAIL",
            };
            let (subject, seen) = (finding.subject, &finding.seen);
            // A string takes any write.
            let _ = writeln!(lines, "{word} {subject}: {seen}");
            for line in finding.advice.iter().flat_map(|advice| wrapped(advice)) {
                let _ = writeln!(lines, "{INDENT}{line}");
            }
        }
        let counts = [
            (FindingState::Failed, "to mend before it starts"),
            (FindingState::Warning, "slower than need be"),
            (FindingState::Note, "to know"),
            (FindingState::Ok, "ok"),
        ];
        let counts = counts.map(|(state, words)| format!("{} {words}", self.count(state)));
        let _ = writeln!(lines, "{}", counts.join(", "));
        lines
    }

    /// For programs: `{"findings": [{"subject", "state", "seen", "advice"}]}`.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and enums are JSON")
    }
}

const INDENT: &str = "     ";
/// As wide as a terminal of 100 columns shows.
const COLUMNS: usize = 100 - INDENT.len();

/// `text` in lines of at most [`COLUMNS`]; a longer word has a line of its own.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(String::from(word)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_json_tell_the_same() {
        let report = Report {
            findings: vec![
                Finding::ok("a", "good"),
                Finding::advise(FindingState::Failed, "b", "bad", "do this and that"),
                Finding::advise(FindingState::Note, "c", "so", "if you like"),
            ],
        };
        let expected = "ok   a: good\nFAIL b: bad\n     do this and that\nnote c: so\n     \
                        if you like\n1 to mend before it starts, 0 slower than need be, 1 to \
                        know, 1 ok\n";
        assert_eq!(report.to_lines(), expected);
        assert!(!report.is_good());
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["findings"][1]["state"], "FAILED");
        assert_eq!(json["findings"][1]["advice"], "do this and that");
        assert_eq!(json["findings"][0].get("advice"), None);
    }

    #[test]
    fn advice_fits_a_terminal() {
        let words = vec!["abcdefghi"; 30].join(" ");
        let lines = wrapped(&words);
        assert_eq!(lines.join(" "), words);
        assert!(lines[..3].iter().all(|line| line.len() == 89), "{lines:?}");
        let long = "x".repeat(200);
        assert_eq!(wrapped(&format!("a {long} b")), ["a", &long, "b"]);
        assert!(wrapped("").is_empty());
    }
}
