//! Callers, and what each may use.

use std::collections::HashMap;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use crate::access::{Access, Category, ModelScope};
use crate::tls::sha256;

/// SHA-256 of a token.
pub(super) type TokenHash = [u8; 32];

/// What callers may use: a set of APIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ApiSet {
    categories: [bool; Category::ALL.len()],
    metrics: bool,
}

impl ApiSet {
    pub(super) const ALL: ApiSet = ApiSet {
        categories: [true; Category::ALL.len()],
        metrics: true,
    };
    /// As the file has it, beside the names of categories.
    pub(super) const METRICS: &'static str = "metrics";

    pub(super) fn health() -> ApiSet {
        let mut set = ApiSet::default();
        set.insert(Category::Health);
        set
    }

    pub(super) fn insert(&mut self, category: Category) {
        if let Some(place) = self.categories.get_mut(category as usize) {
            *place = true;
        }
    }

    pub(super) fn insert_metrics(&mut self) {
        self.metrics = true;
    }

    fn allows(&self, access: Access) -> bool {
        match access {
            Access::Open => true,
            Access::Metrics => self.metrics,
            Access::Of(category) => {
                let place = self.categories.get(category as usize);
                place.copied().unwrap_or(false)
            }
        }
    }
}

/// A name in which each `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelPattern(Box<str>);

impl ModelPattern {
    pub(super) fn new(text: &str) -> ModelPattern {
        ModelPattern(text.into())
    }

    fn is_all(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|byte| byte == b'*')
    }

    /// In time of the length of `name` for each `*`.
    fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            let Some(place) = rest.find(part) else {
                return false;
            };
            rest = rest.get(place + part.len()..).unwrap_or_default();
        }
        rest.ends_with(last)
    }
}

/// Somebody who calls, or all whom nothing names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// None: nothing names it.
    pub(super) name: Option<Box<str>>,
    pub(super) apis: ApiSet,
    pub(super) models: Vec<ModelPattern>,
}

/// Why a caller may not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthError {
    /// It has presented no token, or none that is known: it may come again with one.
    Unauthenticated(&'static str),
    Forbidden(String),
}

impl Caller {
    /// Whether the caller may do what `access` says with the models of `scope`.
    pub(super) fn check(&self, access: Access, scope: ModelScope<'_>) -> Result<(), AuthError> {
        if !self.apis.allows(access) {
            let api = match access {
                Access::Of(category) => category.name(),
                Access::Metrics | Access::Open => ApiSet::METRICS,
            };
            return Err(self.denial(api));
        }
        // Health tells no more of a model than that it is there.
        if matches!(access, Access::Of(Category::Health)) {
            return Ok(());
        }
        match scope {
            ModelScope::None | ModelScope::Later => Ok(()),
            ModelScope::One(name) => match self.may_use(name) {
                true => Ok(()),
                false => Err(self.denial(&format!("model '{name}'"))),
            },
            ModelScope::All => match self.models.iter().any(ModelPattern::is_all) {
                true => Ok(()),
                false => Err(self.denial("what concerns all models")),
            },
        }
    }

    fn may_use(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| pattern.matches(model))
    }

    fn denial(&self, what: &str) -> AuthError {
        match &self.name {
            None => AuthError::Unauthenticated("this needs a bearer token"),
            Some(name) => AuthError::Forbidden(format!("'{name}' may not use {what}")),
        }
    }
}

/// All callers.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AuthRules {
    /// Each with the place of its caller.
    pub(super) tokens: Vec<(TokenHash, usize)>,
    /// Each name in a certificate with the place of its caller.
    pub(super) certificates: HashMap<Box<str>, usize>,
    pub(super) callers: Vec<Arc<Caller>>,
    /// Who presents neither.
    pub(super) unnamed: Arc<Caller>,
}

impl AuthRules {
    /// Who presents `authorization`, the value of that header; without it, who has one of the
    /// `peer_names` of its certificate.
    ///
    /// # Errors
    /// It is of no form that is known, or its token is not known.
    pub(super) fn identify(
        &self,
        authorization: Option<&[u8]>,
        peer_names: &[Box<str>],
    ) -> Result<&Arc<Caller>, AuthError> {
        let Some(authorization) = authorization else {
            let mut places = peer_names
                .iter()
                .filter_map(|name| self.certificates.get(name));
            let caller = places.next().and_then(|place| self.callers.get(*place));
            return Ok(caller.unwrap_or(&self.unnamed));
        };
        let token = bearer(authorization).ok_or(AuthError::Unauthenticated(
            "the authorization must be 'Bearer <token>'",
        ))?;
        let presented = sha256(token);
        // All of them, whichever it is.
        let mut found = None;
        for (hash, place) in &self.tokens {
            if is_equal(hash, &presented) {
                found = Some(*place);
            }
        }
        found
            .and_then(|place| self.callers.get(place))
            .ok_or(AuthError::Unauthenticated("the bearer token is not known"))
    }
}

/// Hashes of secrets are none of the log's business.
impl fmt::Debug for AuthRules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} callers", self.callers.len())
    }
}

/// The token, if there is one. The scheme's case does not matter.
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, token) = authorization.split_at_checked(SCHEME.len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(SCHEME) && !token.is_empty()).then_some(token)
}

/// Takes as long wherever they differ.
fn is_equal(one: &TokenHash, other: &TokenHash) -> bool {
    let pairs = one.iter().zip(other);
    black_box(pairs.fold(0, |all, (one, other)| all | (one ^ other))) == 0
}

/// The models that the messages of a call may name; all where nobody is asked who they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallerRights(Option<Arc<Caller>>);

impl CallerRights {
    pub(super) fn of(caller: Arc<Caller>) -> CallerRights {
        CallerRights(Some(caller))
    }

    /// Whether there is anything to be asked.
    #[inline]
    pub(crate) fn are_limited(&self) -> bool {
        self.0.is_some()
    }

    /// Whether `access` is granted to the model `name`; to all if that is empty.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn check(&self, access: Access, name: &str) -> Result<(), AuthError> {
        let Some(caller) = &self.0 else {
            return Ok(());
        };
        let scope = match name {
            "" => ModelScope::All,
            name => ModelScope::One(name),
        };
        caller.check(access, scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "ba", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "bac", false),
            ("*a", "bca", true),
            ("*a", "ab", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a**c", "abc", true),
            ("*ab*", "xaab", true),
        ] {
            let found = ModelPattern::new(pattern).matches(name);
            assert_eq!(found, expected, "{pattern} {name}");
        }
        for (pattern, expected) in [("*", true), ("**", true), ("", false), ("a*", false)] {
            assert_eq!(ModelPattern::new(pattern).is_all(), expected, "{pattern}");
        }
    }

    #[test]
    fn schemes() {
        for (text, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc ", Some("abc")),
            ("BEARER  abc", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("Bearerabc", None),
            ("", None),
        ] {
            let expected = expected.map(str::as_bytes);
            assert_eq!(bearer(text.as_bytes()), expected, "{text}");
        }
    }

    fn rules() -> AuthRules {
        let mut apis = ApiSet::health();
        apis.insert(Category::Inference);
        let caller = |name: &str, apis, pattern| {
            Arc::new(Caller {
                name: Some(name.into()),
                apis,
                models: vec![ModelPattern::new(pattern)],
            })
        };
        AuthRules {
            tokens: vec![(sha256(b"one"), 0), (sha256(b"two"), 1)],
            certificates: HashMap::from([(Box::from("team.example"), 0)]),
            callers: vec![
                caller("team", apis, "res*"),
                caller("all", ApiSet::ALL, "*"),
            ],
            unnamed: Arc::new(Caller {
                name: None,
                apis: ApiSet::health(),
                models: Vec::new(),
            }),
        }
    }

    #[test]
    fn who_may_do_what() {
        use AuthError::Unauthenticated;
        let forbidden = |text: &str| Err(AuthError::Forbidden(text.to_owned()));
        let (health, inference) = (
            Access::Of(Category::Health),
            Access::Of(Category::Inference),
        );
        let statistics = Access::Of(Category::Statistics);
        let needed = Err(Unauthenticated("this needs a bearer token"));
        let unknown = Err(Unauthenticated("the bearer token is not known"));
        let no_model = "'team' may not use model 'bert'";
        for (authorization, access, scope, expected) in [
            (None, health, ModelScope::None, Ok(())),
            (None, health, ModelScope::One("bert"), Ok(())),
            (None, Access::Open, ModelScope::None, Ok(())),
            (None, inference, ModelScope::One("resnet"), needed.clone()),
            (None, Access::Metrics, ModelScope::None, needed),
            (
                Some("Bearer three"),
                health,
                ModelScope::None,
                unknown.clone(),
            ),
            (Some("Bearer onE"), inference, ModelScope::Later, unknown),
            (
                Some("Bearer one"),
                inference,
                ModelScope::One("resnet"),
                Ok(()),
            ),
            (Some("Bearer one"), inference, ModelScope::Later, Ok(())),
            (
                Some("Bearer one"),
                inference,
                ModelScope::One("bert"),
                forbidden(no_model),
            ),
            (
                Some("Bearer one"),
                inference,
                ModelScope::All,
                forbidden("'team' may not use what concerns all models"),
            ),
            (
                Some("Bearer one"),
                statistics,
                ModelScope::One("resnet"),
                forbidden("'team' may not use statistics"),
            ),
            (
                Some("Bearer one"),
                Access::Metrics,
                ModelScope::None,
                forbidden("'team' may not use metrics"),
            ),
            (
                Some("Bearer two"),
                Access::Metrics,
                ModelScope::None,
                Ok(()),
            ),
            (Some("Bearer two"), statistics, ModelScope::All, Ok(())),
        ] {
            let rules = rules();
            let caller = rules.identify(authorization.map(str::as_bytes), &[]);
            let outcome = caller.and_then(|caller| caller.check(access, scope));
            assert_eq!(outcome, expected, "{authorization:?} {access:?} {scope:?}");
        }
    }

    #[test]
    fn names_of_certificates() {
        let rules = rules();
        let name_of = |authorization: Option<&str>, names: &[&str]| {
            let names: Vec<Box<str>> = names.iter().map(|name| Box::from(*name)).collect();
            let caller = rules.identify(authorization.map(str::as_bytes), &names);
            caller.map(|caller| caller.name.clone().unwrap_or_default())
        };
        for (authorization, names, expected) in [
            (None, &[][..], ""),
            (None, &["other.example"], ""),
            (None, &["other.example", "team.example"], "team"),
            (None, &["TEAM.example"], ""),
            // A token says more.
            (Some("Bearer two"), &["team.example"], "all"),
        ] {
            let found = name_of(authorization, names);
            assert_eq!(
                found.as_deref(),
                Ok(expected),
                "{authorization:?} {names:?}"
            );
        }
        assert!(name_of(Some("Bearer three"), &["team.example"]).is_err());
    }

    #[test]
    fn messages_name_models() {
        let inference = Access::Of(Category::Inference);
        assert_eq!(CallerRights::default().check(inference, "any"), Ok(()));
        assert_eq!(CallerRights::default().check(inference, ""), Ok(()));
        let rules = rules();
        let team = CallerRights::of(Arc::clone(&rules.callers[0]));
        assert_eq!(team.check(inference, "res"), Ok(()));
        for (name, what) in [("bert", "model 'bert'"), ("", "what concerns all models")] {
            let expected = AuthError::Forbidden(format!("'team' may not use {what}"));
            assert_eq!(team.check(inference, name), Err(expected));
        }
    }
}
