//! What every listener asks before it answers: the restrictions of upstream's flags, and the rules
//! of callers.

use super::config::AuthConfig;
use super::rules::{AuthError, CallerRights};
use crate::access::{Access, GrantedRoute, GuardedRoute, Restriction, Restrictions};

/// Why a request is not let through.
pub(crate) enum AccessRefusal<'a> {
    Restricted(&'a Restriction),
    Denied(AuthError),
}

impl From<AuthError> for AccessRefusal<'_> {
    fn from(error: AuthError) -> Self {
        AccessRefusal::Denied(error)
    }
}

const AUTHORIZATION: &str = "authorization";

/// Decides about the requests of one connection.
#[derive(Clone, Copy)]
pub(crate) struct Authorizer<'a> {
    auth: Option<&'a AuthConfig>,
    restrictions: &'a Restrictions,
    /// Those in the certificate of the peer.
    peer_names: &'a [Box<str>],
}

impl<'a> Authorizer<'a> {
    #[inline]
    pub(crate) fn new(
        auth: &'a Option<AuthConfig>,
        restrictions: &'a Restrictions,
        peer_names: &'a [Box<str>],
    ) -> Authorizer<'a> {
        Authorizer {
            auth: auth.as_ref(),
            restrictions,
            peer_names,
        }
    }

    /// Lets `route` through if both let it. `find` finds a header by its name in lower case. What
    /// comes beside the route says of which models the messages of the request may speak.
    ///
    /// # Errors
    /// What does not let it through.
    #[inline]
    pub(crate) fn authorize<'h, R: GuardedRoute>(
        self,
        route: R,
        find: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<(GrantedRoute<R>, CallerRights), AccessRefusal<'a>> {
        let rights = match self.auth {
            None => CallerRights::default(),
            Some(auth) => check(auth, &route, find(AUTHORIZATION), self.peer_names)?,
        };
        match self.restrictions.pass(route, find) {
            Ok(granted) => Ok((granted, rights)),
            Err(restriction) => Err(AccessRefusal::Restricted(restriction)),
        }
    }
}

fn check(
    auth: &AuthConfig,
    route: &impl GuardedRoute,
    authorization: Option<&[u8]>,
    peer_names: &[Box<str>],
) -> Result<CallerRights, AuthError> {
    let access = route.access();
    // What is not there is not there for anybody.
    if access == Access::Open {
        return Ok(CallerRights::default());
    }
    let rules = auth.rules();
    let caller = rules.identify(authorization, peer_names)?;
    caller.check(access, route.model_scope())?;
    Ok(CallerRights::of(caller.clone()))
}
