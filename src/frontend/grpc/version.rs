//! The `model_version` of a request.

use super::status::{Code, Status};

/// The version that `text` names; none if it is empty (the server chooses). Reads numbers as upstream does: blanks before and anything
/// after them is ignored.
pub(super) fn parse(text: &str) -> Result<Option<i64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let Some(version) = leading_number(text) else {
        return Err(Status::new(
            Code::InvalidArgument,
            format!(
                "failed to get model version from specified version string '{text}' (details: stol), version should be an integral value > 0"
            ),
        ));
    };
    if version < 0 {
        return Err(Status::new(
            Code::InvalidArgument,
            format!(
                "invalid model version specified '{text}' , version should be an integral value > 0"
            ),
        ));
    }
    Ok(Some(version))
}

/// What C's `strtol` reads; none if there is no number or it does not fit.
fn leading_number(text: &str) -> Option<i64> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\u{b}', '\u{c}']);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = digits
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    let number = text.get(..text.len() - digits.len() + end)?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let table: &[(&str, Result<Option<i64>, &str>)] = &[
            ("", Ok(None)),
            ("3", Ok(Some(3))),
            (" +7x", Ok(Some(7))),
            ("9223372036854775807", Ok(Some(i64::MAX))),
            (
                "-1",
                Err(
                    "invalid model version specified '-1' , version should be an integral value > 0",
                ),
            ),
            (
                "wrong",
                Err(
                    "failed to get model version from specified version string 'wrong' (details: stol), version should be an integral value > 0",
                ),
            ),
            (
                "9223372036854775808",
                Err(
                    "failed to get model version from specified version string '9223372036854775808' (details: stol), version should be an integral value > 0",
                ),
            ),
        ];
        for (text, expected) in table {
            let outcome = parse(text).map_err(|status| status.message.into_owned());
            assert_eq!(outcome, expected.map_err(str::to_owned), "{text:?}");
        }
    }
}
