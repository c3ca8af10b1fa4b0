//! The one door in front of every listener: who may use what.
//!
//! A listener names the route (or method) that a request asks for, and the route its [`Access`];
//! [`Restrictions::pass`], which listeners call by way of `auth`, then makes a [`GrantedRoute`] of
//! it or says why not. Nothing is answered but from a granted route, and nothing else makes one, so
//! neither can a route be added without saying what it belongs to, nor a listener without asking
//! here.

use std::fmt;
use std::hint::black_box;
use std::ops::Deref;

/// What upstream lets operators restrict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    Health,
    Metadata,
    Inference,
    SharedMemory,
    ModelConfig,
    ModelRepository,
    Statistics,
    Trace,
    Logging,
}

impl Category {
    /// In upstream's order.
    pub const ALL: [Category; 9] = [
        Category::Health,
        Category::Metadata,
        Category::Inference,
        Category::SharedMemory,
        Category::ModelConfig,
        Category::ModelRepository,
        Category::Statistics,
        Category::Trace,
        Category::Logging,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Category::Health => "health",
            Category::Metadata => "metadata",
            Category::Inference => "inference",
            Category::SharedMemory => "shared-memory",
            Category::ModelConfig => "model-config",
            Category::ModelRepository => "model-repository",
            Category::Statistics => "statistics",
            Category::Trace => "trace",
            Category::Logging => "logging",
        }
    }

    pub fn of(name: &str) -> Option<Category> {
        Category::ALL
            .into_iter()
            .find(|category| category.name() == name)
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// What a route says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing that could be restricted: what is not there.
    Open,
    /// Metrics, which upstream has no category for: only the rules of callers know them.
    Metrics,
    Of(Category),
}

/// Which models a request concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelScope<'a> {
    None,
    One(&'a str),
    /// All, or any: nobody may do this who may not use all.
    All,
    /// Those that its messages name: whoever reads them asks `CallerRights`.
    Later,
}

/// A route or method; none goes without saying what it belongs to.
pub(crate) trait GuardedRoute {
    fn access(&self) -> Access;

    fn model_scope(&self) -> ModelScope<'_>;
}

/// A route that has been let through.
#[derive(Debug)]
pub(crate) struct GrantedRoute<R>(R);

impl<R: GuardedRoute> GrantedRoute<R> {
    pub(crate) fn into_inner(self) -> R {
        self.0
    }

    /// What stands for this route on another listener.
    ///
    /// # Panics
    /// If that belongs to something else: leave for one thing is none for another.
    pub(crate) fn to<S: GuardedRoute>(&self, route: S) -> GrantedRoute<S> {
        assert_eq!(
            self.0.access(),
            route.access(),
            "a route stands for another"
        );
        GrantedRoute(route)
    }
}

impl<R> Deref for GrantedRoute<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.0
    }
}

/// A header that requests of a category must carry, and its value.
#[derive(Clone, PartialEq, Eq)]
pub struct Restriction {
    header: Box<str>,
    value: Box<str>,
}

impl Restriction {
    /// The header's name, as refusals tell it.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Takes as long for every wrong value: how much of it is right cannot be measured.
    fn is_met_by(&self, presented: Option<&[u8]>) -> bool {
        let presented = presented.unwrap_or(&[]);
        let mut difference = self.value.len() ^ presented.len();
        for (index, byte) in self.value.bytes().enumerate() {
            let other = presented.get(index).copied().unwrap_or(0);
            difference |= usize::from(byte ^ other);
        }
        black_box(difference) == 0
    }
}

/// The value is a secret.
impl fmt::Debug for Restriction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}=***", self.header)
    }
}

/// The restricted categories of a protocol; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    by_category: [Option<Restriction>; Category::ALL.len()],
}

impl Restrictions {
    /// Requires `header: value` of requests of `category`. False if something is required of them
    /// already.
    pub fn insert(&mut self, category: Category, header: &str, value: &str) -> bool {
        let Some(place) = self.by_category.get_mut(category.index()) else {
            return false;
        };
        if place.is_some() {
            return false;
        }
        *place = Some(Restriction {
            header: header.into(),
            value: value.into(),
        });
        true
    }

    /// What is required of requests of `category`.
    pub fn of(&self, category: Category) -> Option<&Restriction> {
        self.by_category.get(category.index())?.as_ref()
    }

    /// Lets `route` through, if `find` finds the header that its category asks for with the right
    /// value.
    ///
    /// # Errors
    /// The restriction that is not met.
    pub(crate) fn pass<'h, R: GuardedRoute>(
        &self,
        route: R,
        find: impl FnOnce(&str) -> Option<&'h [u8]>,
    ) -> Result<GrantedRoute<R>, &Restriction> {
        let restriction = match route.access() {
            Access::Open | Access::Metrics => None,
            Access::Of(category) => self.of(category),
        };
        match restriction {
            Some(restriction) if !restriction.is_met_by(find(&restriction.header)) => {
                Err(restriction)
            }
            _ => Ok(GrantedRoute(route)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl GuardedRoute for Access {
        fn access(&self) -> Access {
            *self
        }

        fn model_scope(&self) -> ModelScope<'_> {
            ModelScope::None
        }
    }

    #[test]
    fn categories_have_names_and_places_of_their_own() {
        for (index, category) in Category::ALL.into_iter().enumerate() {
            assert_eq!(category.index(), index);
            assert_eq!(Category::of(category.name()), Some(category));
        }
        for name in ["", "Health", "health ", "all", "shared_memory"] {
            assert_eq!(Category::of(name), None, "{name}");
        }
    }

    #[test]
    fn leave_for_one_thing_is_none_for_another() {
        let pass = |access| Restrictions::default().pass(access, |_| None).ok().unwrap();
        let health = pass(Access::Of(Category::Health));
        assert_eq!(
            *health.to(Access::Of(Category::Health)),
            Access::Of(Category::Health)
        );
        for other in [Access::Of(Category::Inference), Access::Open] {
            let passed = std::panic::catch_unwind(|| health.to(other));
            assert!(passed.is_err(), "{other:?}");
        }
    }

    #[test]
    fn only_the_exact_value_opens_a_restricted_category() {
        let mut restrictions = Restrictions::default();
        assert!(restrictions.insert(Category::Health, "key", "secret"));
        assert!(!restrictions.insert(Category::Health, "other", "secret"));
        let pass = |access: Access, presented: Option<&'static str>| {
            let find = |name: &str| {
                assert_eq!(name, "key");
                presented.map(str::as_bytes)
            };
            restrictions.pass(access, find).is_ok()
        };
        let health = Access::Of(Category::Health);
        for (presented, expected) in [
            (Some("secret"), true),
            (None, false),
            (Some(""), false),
            (Some("secre"), false),
            (Some("secrets"), false),
            (Some("Secret"), false),
            (Some("secret\0"), false),
            (Some("secret,secret"), false),
        ] {
            assert_eq!(pass(health, presented), expected, "{presented:?}");
        }
        // Headers are not even looked for where nothing is required.
        assert!(pass(Access::Of(Category::Metadata), None));
        assert!(pass(Access::Open, None));
        let refused = restrictions.pass(health, |_| None).unwrap_err();
        assert_eq!(refused.header(), "key");
        assert!(!format!("{restrictions:?}").contains("secret"));
    }
}
