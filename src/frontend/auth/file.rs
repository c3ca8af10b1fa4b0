//! The rules as a file has them, in JSON.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;

use super::rules::{ApiSet, AuthRules, Caller, ModelPattern, TokenHash};
use crate::access::Category;

/// Each request with a token is compared with all of them: some microseconds.
const TOKENS_MAX: usize = 256;
/// Of all callers.
const PATTERNS_MAX: usize = 4096;
/// What stands for all APIs.
const ALL: &str = "*";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    callers: Vec<CallerEntry>,
    unnamed: Option<UnnamedEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerEntry {
    name: String,
    /// In hexadecimal. More than one while a token is replaced by another.
    #[serde(default)]
    tokens_sha256: Vec<String>,
    /// Names in certificates of clients.
    #[serde(default)]
    certificates: Vec<String>,
    apis: Vec<String>,
    #[serde(default)]
    models: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnnamedEntry {
    apis: Vec<String>,
    #[serde(default)]
    models: Vec<String>,
}

/// Reads the rules.
///
/// # Errors
/// What is wrong with them.
pub(super) fn parse(text: &[u8]) -> Result<AuthRules, String> {
    let file: RulesFile = serde_json::from_slice(text).map_err(|cause| cause.to_string())?;
    let mut rules = AuthRules {
        tokens: Vec::new(),
        certificates: HashMap::new(),
        callers: Vec::new(),
        unnamed: Arc::new(unnamed(file.unnamed)?),
    };
    let mut pattern_count = rules.unnamed.models.len();
    for entry in file.callers {
        let name = entry.name;
        if name.is_empty() || name.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(String::from(
                "a caller needs a name, without control characters",
            ));
        }
        let known = rules
            .callers
            .iter()
            .filter_map(|caller| caller.name.as_deref());
        if known.into_iter().any(|known| known == name) {
            return Err(format!("caller '{name}' is there twice"));
        }
        for text in &entry.tokens_sha256 {
            let hash = hash(text).ok_or_else(|| {
                format!("caller '{name}': '{text}' is no SHA-256 in 64 hexadecimal digits")
            })?;
            if rules.tokens.iter().any(|(known, _)| *known == hash) {
                return Err(format!("caller '{name}': a token is there twice"));
            }
            rules.tokens.push((hash, rules.callers.len()));
        }
        for certificate in entry.certificates {
            if certificate.is_empty() {
                return Err(format!("caller '{name}': a name in a certificate is empty"));
            }
            let place = rules.callers.len();
            if rules
                .certificates
                .insert(certificate.as_str().into(), place)
                .is_some()
            {
                return Err(format!(
                    "caller '{name}': certificate '{certificate}' is there twice"
                ));
            }
        }
        let apis = apis(&entry.apis).map_err(|reason| format!("caller '{name}': {reason}"))?;
        pattern_count += entry.models.len();
        rules.callers.push(Arc::new(Caller {
            name: Some(name.into()),
            apis,
            models: patterns(&entry.models),
        }));
    }
    if rules.tokens.len() > TOKENS_MAX {
        return Err(format!("there are more than {TOKENS_MAX} tokens"));
    }
    if pattern_count > PATTERNS_MAX {
        return Err(format!(
            "there are more than {PATTERNS_MAX} patterns of models"
        ));
    }
    Ok(rules)
}

/// Whom nothing names may ask for health, unless the file says otherwise.
fn unnamed(entry: Option<UnnamedEntry>) -> Result<Caller, String> {
    let (apis, models) = match entry {
        None => (ApiSet::health(), Vec::new()),
        Some(entry) => {
            let apis = apis(&entry.apis).map_err(|reason| format!("unnamed: {reason}"))?;
            (apis, patterns(&entry.models))
        }
    };
    Ok(Caller {
        name: None,
        apis,
        models,
    })
}

fn apis(names: &[String]) -> Result<ApiSet, String> {
    let mut set = ApiSet::default();
    for name in names {
        match (&**name, Category::of(name)) {
            (ALL, _) => set = ApiSet::ALL,
            (ApiSet::METRICS, _) => set.insert_metrics(),
            (_, Some(category)) => set.insert(category),
            (name, None) => {
                let known = Category::ALL.map(Category::name).join(", ");
                return Err(format!(
                    "unknown api '{name}'; there are {known}, {}, and {ALL} for all",
                    ApiSet::METRICS
                ));
            }
        }
    }
    Ok(set)
}

fn patterns(texts: &[String]) -> Vec<ModelPattern> {
    texts.iter().map(|text| ModelPattern::new(text)).collect()
}

/// 64 hexadecimal digits as bytes.
fn hash(text: &str) -> Option<TokenHash> {
    let mut hash = TokenHash::default();
    if text.len() != 2 * hash.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Access, ModelScope};
    use crate::tls::sha256;

    /// Of `abc`, as every table of test vectors has it.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn hashes() {
        assert_eq!(hash(ABC), Some(sha256(b"abc")));
        assert_eq!(hash(&ABC.to_uppercase()), Some(sha256(b"abc")));
        for text in [
            "",
            "ba",
            &ABC[1..],
            &format!("{ABC}0"),
            &ABC.replace('b', "g"),
        ] {
            assert_eq!(hash(text), None, "{text}");
        }
    }

    #[test]
    fn a_file() {
        let text = format!(
            r#"{{"callers": [
                {{"name": "a", "tokens_sha256": ["{ABC}"],
                  "apis": ["inference"], "models": ["m*"]}},
                {{"name": "b", "certificates": ["b.example", "spiffe://b"], "apis": ["*"]}}
            ]}}"#
        );
        let rules = parse(text.as_bytes()).unwrap();
        let caller = rules.identify(Some(b"Bearer abc"), &[]).unwrap();
        assert_eq!(caller.name.as_deref(), Some("a"));
        let inference = Access::Of(Category::Inference);
        assert_eq!(caller.check(inference, ModelScope::One("m1")), Ok(()));
        assert!(
            caller
                .check(Access::Of(Category::Health), ModelScope::None)
                .is_err()
        );
        let by_certificate = rules.identify(None, &[Box::from("spiffe://b")]).unwrap();
        assert_eq!(by_certificate.name.as_deref(), Some("b"));
        assert_eq!(rules.unnamed.apis, ApiSet::health());
        assert_eq!(format!("{rules:?}"), "2 callers");
        let open = parse(br#"{"callers": [], "unnamed": {"apis": ["*"], "models": ["*"]}}"#);
        let open = open.unwrap();
        assert_eq!(open.unnamed.check(inference, ModelScope::All), Ok(()));
        let closed = parse(br#"{"callers": [], "unnamed": {"apis": []}}"#).unwrap();
        let health = Access::Of(Category::Health);
        assert!(closed.unnamed.check(health, ModelScope::None).is_err());
    }

    #[test]
    fn files_that_will_not_do() {
        let one = |fields: &str| format!(r#"{{"callers": [{{{fields}}}]}}"#);
        let named = |rest: &str| one(&format!(r#""name": "a", {rest}"#));
        let twice = format!(
            r#"{{"callers": [{{"name": "a", "tokens_sha256": ["{ABC}"], "apis": []}},
                {{"name": "b", "tokens_sha256": ["{ABC}"], "apis": []}}]}}"#
        );
        let same_name = r#"{"callers": [{"name": "a", "tokens_sha256": [], "apis": []},
            {"name": "a", "tokens_sha256": [], "apis": []}]}"#;
        for (text, expected) in [
            (String::new(), "EOF"),
            (String::from("[]"), "invalid"),
            (String::from("{}"), "missing field `callers`"),
            (one(r#""name": "a""#), "missing field `apis`"),
            (
                named(r#""certificates": [""], "apis": []"#),
                "caller 'a': a name in a certificate is empty",
            ),
            (
                named(r#""certificates": ["x", "x"], "apis": []"#),
                "caller 'a': certificate 'x' is there twice",
            ),
            (named(r#""tokens": []"#), "unknown field `tokens`"),
            (
                named(r#""tokens_sha256": ["secret"], "apis": []"#),
                "is no SHA-256",
            ),
            (
                named(r#""tokens_sha256": [], "apis": ["infer"]"#),
                "caller 'a': unknown api 'infer'; there are health,",
            ),
            (
                one(r#""name": "", "tokens_sha256": [], "apis": []"#),
                "needs a name",
            ),
            (twice, "caller 'b': a token is there twice"),
            (String::from(same_name), "caller 'a' is there twice"),
            (
                String::from(r#"{"callers": [], "unnamed": {"apis": ["all"]}}"#),
                "unnamed: unknown api 'all'",
            ),
        ] {
            let reason = parse(text.as_bytes()).unwrap_err();
            assert!(reason.contains(expected), "{text}: {reason}");
        }
        let hashes: Vec<String> = (0..=TOKENS_MAX)
            .map(|number| format!("\"{number:064x}\""))
            .collect();
        let many = named(&format!(
            r#""tokens_sha256": [{}], "apis": []"#,
            hashes.join(",")
        ));
        assert!(
            parse(many.as_bytes())
                .unwrap_err()
                .contains("more than 256 tokens")
        );
    }
}
