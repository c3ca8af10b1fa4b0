//! Who a caller is, by its bearer token or the names in its certificate, and what it may use, as a
//! file says it (`--auth-config`).
//!
//! [`authorizer`] is what every listener asks before it answers, [`rules`] are what it asks by,
//! [`file`] reads them, and [`config`] holds those in force and reads changed ones. Without the
//! flag there is none of this.

mod authorizer;
mod config;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod rules;

pub(crate) use authorizer::{AccessRefusal, Authorizer};
pub use config::{AuthConfig, AuthReloader};
pub(crate) use rules::{AuthError, CallerRights};
