//! Options of the Vertex AI listener.

use std::fmt;

use conch_control::server::Server;
use conch_engine::Error;
use regex::bytes::{Regex, RegexBuilder};

use crate::options::Endpoint;

/// What the listener is started with.
#[derive(Clone)]
pub struct VertexAiOptions {
    pub endpoint: Endpoint,
    pub(super) predict_route: Regex,
    pub(super) health_route: Regex,
    pub(super) default_model: String,
}

impl fmt::Debug for VertexAiOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("VertexAi")
            .field("endpoint", &self.endpoint)
            .field("predict_route", &self.predict_route.as_str())
            .field("health_route", &self.health_route.as_str())
            .field("default_model", &self.default_model)
            .finish()
    }
}

impl VertexAiOptions {
    /// A listener whose routes are regular expressions, as upstream takes them. `default_model` may
    /// be empty if there is just one.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words for a missing route; and for one that is no regular
    /// expression.
    pub fn new(
        endpoint: Endpoint,
        predict_route: &str,
        health_route: &str,
        default_model: &str,
    ) -> Result<VertexAiOptions, Error> {
        if predict_route.is_empty() {
            return Err(Error::invalid(
                "API_PREDICT_ROUTE is not defined for Vertex AI endpoint",
            ));
        }
        if health_route.is_empty() {
            return Err(Error::invalid(
                "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint",
            ));
        }
        Ok(VertexAiOptions {
            endpoint,
            predict_route: whole(predict_route)?,
            health_route: whole(health_route)?,
            default_model: default_model.to_owned(),
        })
    }

    /// Finds out which model the predict route asks.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words if that is not clear, or not loaded.
    pub(crate) fn resolve_default_model(&mut self, server: &Server) -> Result<(), Error> {
        let rows = server.index(true);
        if !self.default_model.is_empty() {
            if rows.iter().any(|row| row.name == self.default_model) {
                return Ok(());
            }
            return Err(Error::invalid(format!(
                "Expect the default model '{}' is loaded",
                self.default_model
            )));
        }
        match rows.as_slice() {
            [only] => {
                self.default_model.clone_from(&only.name);
                Ok(())
            }
            _ => Err(Error::invalid(
                "Expect the model repository contains only a single model if default model is not \
                 specified",
            )),
        }
    }
}

/// A pattern that a path has to match from end to end.
fn whole(route: &str) -> Result<Regex, Error> {
    RegexBuilder::new(&format!(r"\A(?:{route})\z"))
        .unicode(false)
        .size_limit(256 << 10)
        .build()
        .map_err(|error| {
            Error::invalid(format!(
                "the Vertex AI route '{route}' is malformed: {error}"
            ))
        })
}
