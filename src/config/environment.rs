//! `${NAME}` in a configuration file: values from the environment, put in before the text is read.

use crate::ConfigError;

/// `text` with `${NAME}` replaced by what `lookup` knows, and `${NAME:-other}` by `other` where it
/// knows nothing. `$${` stands for `${`; any other `$` is itself. What is put in is not looked at
/// again.
///
/// # Errors
/// INVALID_ARG with file and line for a name that means nothing, or has no end; or if the text
/// becomes larger than `bytes_max`.
pub fn expand(
    file_name: &str,
    text: &str,
    bytes_max: usize,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<String, ConfigError> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find("${") {
        let (before, from) = rest.split_at(place);
        let at_line = || {
            let read = text.len() - rest.len() + place;
            let lines = text.as_bytes().iter().take(read);
            1 + lines.filter(|byte| **byte == b'\n').count()
        };
        if let Some(escaped) = before.strip_suffix('$') {
            expanded.push_str(escaped);
            expanded.push_str("${");
            rest = &from[2..];
            continue;
        }
        expanded.push_str(before);
        let inside = &from[2..];
        let end = inside
            .find(['}', '\n'])
            .filter(|end| inside[*end..].starts_with('}'));
        let Some(end) = end else {
            return Err(ConfigError::invalid(format!(
                "{file_name}:{}: '${{' without '}}'",
                at_line()
            )));
        };
        let (name, default) = match inside[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&inside[..end], None),
        };
        let value = lookup(name).or_else(|| default.map(str::to_owned));
        expanded.push_str(&value.ok_or_else(|| {
            ConfigError::invalid(format!(
                "{file_name}:{}: environment variable '{name}' is not set",
                at_line()
            ))
        })?);
        rest = &inside[end + 1..];
        if expanded.len() > bytes_max {
            break;
        }
    }
    expanded.push_str(rest);
    if expanded.len() > bytes_max {
        return Err(ConfigError::invalid(format!(
            "{file_name}: more than {bytes_max} bytes with the values of environment variables"
        )));
    }
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_in() {
        let lookup = |name: &str| match name {
            "SIZE" => Some("8".to_owned()),
            "EMPTY" => Some(String::new()),
            "TRICK" => Some("${SIZE}".to_owned()),
            _ => None,
        };
        for (text, expected) in [
            ("", Ok("")),
            ("plain $ {x} $x", Ok("plain $ {x} $x")),
            ("max_batch_size: ${SIZE}", Ok("max_batch_size: 8")),
            ("${SIZE}${SIZE}", Ok("88")),
            ("a${EMPTY}b", Ok("ab")),
            ("${EMPTY:-x}", Ok("")),
            ("${NONE:-x y}", Ok("x y")),
            ("${NONE:-}", Ok("")),
            ("${TRICK}", Ok("${SIZE}")),
            ("$${SIZE}", Ok("${SIZE}")),
            ("é${SIZE}é", Ok("é8é")),
            (
                "\n\n${NONE}",
                Err("f:3: environment variable 'NONE' is not set"),
            ),
            ("${}", Err("f:1: environment variable '' is not set")),
            ("\n${SIZE", Err("f:2: '${' without '}'")),
            ("${SIZE\n}", Err("f:1: '${' without '}'")),
        ] {
            let got = expand("f", text, 100, lookup).map_err(|error| error.message);
            assert_eq!(
                got.as_deref(),
                expected.map_err(str::to_owned).as_deref(),
                "{text}"
            );
        }
        let long = "${SIZE:-xxxxxxxxxx}".repeat(20);
        assert_eq!(
            expand("f", &long, 100, |_| None).unwrap_err().message,
            "f: more than 100 bytes with the values of environment variables"
        );
        assert!(expand("f", &long, 1_000, |_| None).is_ok());
    }
}
