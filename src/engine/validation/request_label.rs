//! What the messages of a refused request begin with.

use std::fmt;

use crate::Error;
use crate::request::messages::RequestIdPrefix;

/// What messages name: the model and the request.
pub(crate) struct RequestLabel<'a> {
    pub(crate) model: &'a str,
    pub(crate) id: &'a str,
}

impl RequestLabel<'_> {
    /// INVALID_ARG, with the request's id in front.
    pub(crate) fn invalid(&self, message: impl fmt::Display) -> Error {
        Error::invalid(format!("{}{message}", RequestIdPrefix(self.id)))
    }
}
