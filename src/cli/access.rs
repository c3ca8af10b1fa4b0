//! Flags about headers: restricted categories (`<categories>:<header>=<value>`), forwarded headers,
//! and the header that sets deadlines.

use conch_frontend::{Category, HeaderPattern, Restrictions};

/// What upstream puts in front of the key that a gRPC restriction names.
pub const GRPC_HEADER_PREFIX: &str = "triton-grpc-protocol-";

/// What a flag restricts.
#[derive(Clone, Copy, Debug)]
pub struct AccessKind {
    pub flag: &'static str,
    /// As upstream's messages call one category.
    pub noun: &'static str,
    pub header_prefix: &'static str,
}

pub const HTTP: AccessKind = AccessKind {
    flag: "http-restricted-api",
    noun: "api",
    header_prefix: "",
};

pub const GRPC: AccessKind = AccessKind {
    flag: "grpc-restricted-protocol",
    noun: "protocol",
    header_prefix: GRPC_HEADER_PREFIX,
};

/// Adds what `text` restricts.
///
/// # Errors
/// In upstream's words; and for a name that no header can have, which nobody could ever present.
pub fn restrict(
    restrictions: &mut Restrictions,
    kind: AccessKind,
    text: &str,
) -> Result<(), String> {
    let parts = text
        .split_once(':')
        .and_then(|(categories, rest)| Some((categories, rest.split_once('=')?)))
        .filter(|(categories, (key, value))| {
            !categories.is_empty() && !key.is_empty() && !value.is_empty()
        });
    let AccessKind {
        flag,
        noun,
        header_prefix,
    } = kind;
    let (categories, (key, value)) = parts.ok_or_else(|| {
        format!("--{flag} option format is '<config name>:<setting>=<value>'. Got {text}")
    })?;
    if !key.bytes().all(is_header_byte) {
        return Err(format!("'{key}' cannot be the name of a header"));
    }
    if value != value.trim() || value.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(format!(
            "the value for '{key}' cannot be that of a header: it begins or ends with a blank, or \
             holds a control character"
        ));
    }
    let header = format!("{header_prefix}{key}");
    for name in categories.split(',') {
        let category = Category::of(name).ok_or_else(|| {
            let known = Category::ALL.map(Category::name).join(", ");
            format!("unknown restricted {noun} '{name}' ; there are {known}")
        })?;
        if !restrictions.insert(category, &header, value) {
            return Err(format!(
                "restricted {noun} '{name}' can not be specified in multiple config groups"
            ));
        }
    }
    Ok(())
}

/// Which headers to forward; none if `text` is empty.
pub fn header_pattern(text: &str) -> Result<Option<HeaderPattern>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    HeaderPattern::new(text).map(Some)
}

/// The name of a header; none if `text` is empty.
pub fn header_name(text: &str) -> Result<Option<Box<str>>, String> {
    if !text.bytes().all(is_header_byte) {
        return Err(format!("'{text}' cannot be the name of a header"));
    }
    Ok((!text.is_empty()).then(|| text.into()))
}

/// Of a token, as HTTP has it.
fn is_header_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_names() {
        assert_eq!(header_pattern(""), Ok(None));
        assert!(matches!(header_pattern("^x-"), Ok(Some(_))));
        assert!(header_pattern("(").is_err());
        assert_eq!(header_name(""), Ok(None));
        assert_eq!(header_name("X-Ms"), Ok(Some("X-Ms".into())));
        assert!(header_name("x ms").is_err());
    }

    #[test]
    fn restrictions() {
        let format = |text: &str| {
            format!(
                "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got \
                 {text}"
            )
        };
        let unknown = |name: &str| {
            format!(
                "unknown restricted api '{name}' ; there are health, metadata, inference, \
                 shared-memory, model-config, model-repository, statistics, trace, logging"
            )
        };
        let table = [
            ("health:key=value", Ok(())),
            ("inference,trace:X-Key=a=b:c", Ok(())),
            ("", Err(format(""))),
            ("health", Err(format("health"))),
            ("health:key", Err(format("health:key"))),
            ("health=key:value", Err(format("health=key:value"))),
            (":key=value", Err(format(":key=value"))),
            ("health:=value", Err(format("health:=value"))),
            ("health:key=", Err(format("health:key="))),
            ("all:k=v", Err(unknown("all"))),
            ("health,:k=v", Err(unknown(""))),
            (
                "health,health:k=v",
                Err(
                    "restricted api 'health' can not be specified in multiple config groups"
                        .to_owned(),
                ),
            ),
            (
                "health:a key=v",
                Err("'a key' cannot be the name of a header".to_owned()),
            ),
            (
                "health:key= v",
                Err(
                    "the value for 'key' cannot be that of a header: it begins or ends with a \
                     blank, or holds a control character"
                        .to_owned(),
                ),
            ),
        ];
        for (text, expected) in table {
            let outcome = restrict(&mut Restrictions::default(), HTTP, text);
            assert_eq!(outcome, expected, "{text}");
        }
        let mut restrictions = Restrictions::default();
        restrict(&mut restrictions, GRPC, "trace,logging:key=v").unwrap();
        let header = |category| restrictions.of(category).map(|found| found.header());
        assert_eq!(header(Category::Trace), Some("triton-grpc-protocol-key"));
        assert_eq!(header(Category::Health), None);
        assert_eq!(
            restrict(&mut restrictions, GRPC, "trace:key=v").unwrap_err(),
            "restricted protocol 'trace' can not be specified in multiple config groups"
        );
    }
}
