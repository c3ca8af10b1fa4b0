//! Headers of a request that become parameters of it: `--http-header-forward-pattern`,
//! `--grpc-header-forward-pattern`.

use std::fmt;

use conch_engine::{Error, Parameter, ParameterValue, truncated};
use regex::bytes::{Regex, RegexBuilder};

/// Upstream's names of request parameters that are more than a custom parameter; names beginning
/// with `triton_` are kept back as well.
const RESERVED: [&str; 7] = [
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "headers",
    "binary_data_output",
];

/// Bytes that a compiled pattern may take up: some thousand characters of text. What it costs to
/// look at a header grows with it.
const PATTERN_BYTES_MAX: usize = 256 << 10;

/// Which headers are forwarded, by their names. Matches any part of a name, whatever the case, as
/// RE2 does upstream.
#[derive(Clone)]
pub struct HeaderPattern(Regex);

impl HeaderPattern {
    /// # Errors
    /// What is wrong with `pattern`, over several lines.
    pub fn new(pattern: &str) -> Result<HeaderPattern, String> {
        RegexBuilder::new(pattern)
            .case_insensitive(true)
            .unicode(false)
            .size_limit(PATTERN_BYTES_MAX)
            .build()
            .map(HeaderPattern)
            .map_err(|error| error.to_string())
    }
}

impl PartialEq for HeaderPattern {
    fn eq(&self, other: &HeaderPattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl fmt::Debug for HeaderPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.0.as_str())
    }
}

/// The headers of one request that match, or why they may not be forwarded; none while nothing is
/// forwarded at all. Boxed: most requests have none, and carry this along.
pub(crate) type ForwardedHeaders = Option<Box<Result<Vec<Parameter>, Error>>>;

/// Adds what `forwarded` holds to `parameters`.
///
/// # Errors
/// Its own.
pub(crate) fn attach(
    forwarded: ForwardedHeaders,
    parameters: &mut Vec<Parameter>,
) -> Result<(), Error> {
    if let Some(forwarded) = forwarded {
        parameters.append(&mut (*forwarded)?);
    }
    Ok(())
}

/// Collects the headers of a request that match.
pub(crate) struct HeaderCollector<'p> {
    pattern: &'p HeaderPattern,
    outcome: Result<Vec<Parameter>, Error>,
}

impl<'p> HeaderCollector<'p> {
    pub(crate) fn new(pattern: &'p HeaderPattern) -> HeaderCollector<'p> {
        HeaderCollector {
            pattern,
            outcome: Ok(Vec::new()),
        }
    }

    /// Looks at one header. After the first that may not be forwarded, at none.
    pub(crate) fn collect(&mut self, name: &str, value: &[u8]) {
        let Ok(parameters) = &mut self.outcome else {
            return;
        };
        if !self.pattern.0.is_match(name.as_bytes()) {
            return;
        }
        if RESERVED.contains(&name) || name.starts_with("triton_") {
            self.outcome = Err(Error::invalid(format!(
                "Header '{name}' is reserved for Triton usage and cannot be forwarded.",
                name = truncated(&name)
            )));
            return;
        }
        match std::str::from_utf8(value) {
            Ok(value) if !value.contains('\0') => parameters.push(Parameter {
                name: name.into(),
                value: ParameterValue::Text(value.into()),
            }),
            _ => {
                self.outcome = Err(Error::invalid(format!(
                    "the value of header '{name}' is not text and cannot be forwarded.",
                    name = truncated(&name)
                )));
            }
        }
    }

    /// The headers cannot be forwarded.
    pub(crate) fn refuse(&mut self, error: Error) {
        self.outcome = Err(error);
    }

    /// [`HeaderCollector::see`] for a value that may hold any byte: it counts up to its first NUL,
    /// as it does for upstream, and what is no text becomes U+FFFD.
    pub(crate) fn see_binary(&mut self, name: &str, value: &[u8]) {
        let end = value.iter().position(|byte| *byte == 0);
        let value = value.get(..end.unwrap_or(value.len())).unwrap_or(value);
        self.collect(name, String::from_utf8_lossy(value).as_bytes());
    }

    pub(crate) fn finish(self) -> ForwardedHeaders {
        match self.outcome {
            Ok(parameters) if parameters.is_empty() => None,
            outcome => Some(Box::new(outcome)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, headers: &[(&str, &[u8])], expected: Result<&[(&str, &str)], &str>) {
        let pattern = HeaderPattern::new(pattern).unwrap();
        let mut collector = HeaderCollector::new(&pattern);
        for (name, value) in headers {
            collector.collect(name, value);
        }
        let mut parameters = Vec::new();
        let outcome = attach(collector.finish(), &mut parameters);
        let found: Vec<(&str, &str)> = parameters
            .iter()
            .map(|parameter| match &parameter.value {
                ParameterValue::Text(value) => (&*parameter.name, &**value),
                other => panic!("{other:?}"),
            })
            .collect();
        match outcome {
            Ok(()) => assert_eq!(Ok(&*found), expected, "{pattern:?}"),
            Err(error) => assert_eq!(Err(&*error.message), expected, "{pattern:?}"),
        }
    }

    #[test]
    fn names_that_match_in_part_are_forwarded_as_they_are() {
        let headers: &[(&str, &[u8])] = &[("X-My-Key", b"a b"), ("my", b""), ("Other", b"c")];
        check("my", headers, Ok(&[("X-My-Key", "a b"), ("my", "")]));
        check("^MY$", headers, Ok(&[("my", "")]));
        check(
            "^(x-.*|other)$",
            headers,
            Ok(&[("X-My-Key", "a b"), ("Other", "c")]),
        );
        check("none", headers, Ok(&[]));
        check("(?-i)my", headers, Ok(&[("my", "")]));
        // Each as often as it was sent.
        check(
            r"\w",
            &[("a", b"1"), ("a", b"2")],
            Ok(&[("a", "1"), ("a", "2")]),
        );
    }

    #[test]
    fn reserved_names_and_what_is_no_text_are_refused() {
        for name in RESERVED.into_iter().chain(["triton_", "triton_x"]) {
            let refusal =
                format!("Header '{name}' is reserved for Triton usage and cannot be forwarded.");
            check(
                ".*",
                &[("a", b"1"), (name, b"1"), ("b", b"\xff")],
                Err(&refusal),
            );
            check("^a$", &[("a", b"1"), (name, b"1")], Ok(&[("a", "1")]));
        }
        // Names are compared as they are, as parameters are.
        let other: &[(&str, &[u8])] = &[("Timeout", b"1"), ("triton-x", b"2"), ("x-timeout", b"3")];
        let expected: &[(&str, &str)] = &[("Timeout", "1"), ("triton-x", "2"), ("x-timeout", "3")];
        check(".*", other, Ok(expected));
        let refusal = "the value of header 'a' is not text and cannot be forwarded.";
        for value in [&b"\xff"[..], b"x\0"] {
            check(".*", &[("a", value)], Err(refusal));
        }
    }

    #[test]
    fn binary_values_never_fail() {
        for (value, expected) in [
            (&b"text"[..], "text"),
            (b"a\0b", "a"),
            (b"\0", ""),
            (b"", ""),
            (b"a\xff\xfe\0\xff", "a\u{fffd}\u{fffd}"),
        ] {
            let pattern = HeaderPattern::new("x").unwrap();
            let mut collector = HeaderCollector::new(&pattern);
            collector.see_binary("x-bin", value);
            let mut parameters = Vec::new();
            attach(collector.finish(), &mut parameters).unwrap();
            assert_eq!(parameters[0].value, ParameterValue::Text(expected.into()));
        }
    }

    #[test]
    fn patterns() {
        assert!(HeaderPattern::new("(").unwrap_err().contains("unclosed"));
        assert!(HeaderPattern::new("(a{1000}){1000}").is_err());
        assert_eq!(HeaderPattern::new("a"), HeaderPattern::new("a"));
        assert_ne!(HeaderPattern::new("a"), HeaderPattern::new("b"));
    }
}
