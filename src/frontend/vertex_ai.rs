//! The Vertex AI listener: a health route, and a predict route that can stand for others of the HTTP listener.
//!
//! Both routes are Vertex AI's choice, told in environment variables. The header X-Vertex-Ai-Triton-Redirect names what a POST to the
//! predict route is to do instead of an inference with the default model: whatever only reads, but for traces and logs.

use std::borrow::Cow;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use conch_engine::Error;
use conch_engine::server::Server;
use conch_log as log;
use regex::bytes::{Regex, RegexBuilder};

use crate::access::{Access, Category, Granted, Guarded};
use crate::api::regions::RegionAction;
use crate::http::answer::Answer;
use crate::http::connection::{self, Body, Closed, Connection, Placement, Service};
use crate::http::dialect::Dialect;
use crate::http::head::{Head, Method};
use crate::http::route::{self, Operation, Route as TritonRoute};
use crate::http::service::{self, Inference, plan_route};
use crate::metrics;
use crate::options::Endpoint;
use crate::shard::{Lease, Presence, Shard, Stream};

const REDIRECT_HEADER: &str = "X-Vertex-Ai-Triton-Redirect";

/// What the listener is started with.
#[derive(Clone)]
pub struct VertexAi {
    pub endpoint: Endpoint,
    predict_route: Regex,
    health_route: Regex,
    default_model: String,
}

impl fmt::Debug for VertexAi {
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

impl VertexAi {
    /// A listener whose routes are regular expressions, as upstream takes them. `default_model` may be empty if there is just one.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words for a missing route; and for one that is no regular expression.
    pub fn new(
        endpoint: Endpoint,
        predict_route: &str,
        health_route: &str,
        default_model: &str,
    ) -> Result<VertexAi, Error> {
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
        Ok(VertexAi {
            endpoint,
            predict_route: whole(predict_route)?,
            health_route: whole(health_route)?,
            default_model: default_model.to_owned(),
        })
    }

    /// Settles which model the predict route asks.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words if that is not clear, or not loaded.
    pub(crate) fn settle_default_model(&mut self, server: &Server) -> Result<(), Error> {
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
                "Expect the model repository contains only a single model if default model is not specified",
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

/// Serves one connection until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: Stream, presence: Presence) {
    let settings = shard.options.vertex_ai.clone();
    // There is no connection without a listener.
    if let Some(settings) = settings {
        connection::serve(shard, stream, presence, Listener { settings }).await;
    }
}

struct Listener {
    settings: Arc<VertexAi>,
}

/// What a path, and the header that redirects it, name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route<'a> {
    Health,
    Predict,
    Metrics,
    /// A route of the HTTP listener, and the verb that it takes.
    Redirect(TritonRoute<'a>, Method),
    /// One that changes something.
    Blocked,
    /// Redirected, but not by POST.
    WrongVerb,
    Unknown,
}

impl Guarded for Route<'_> {
    fn access(&self) -> Access {
        match self {
            Route::Health => Access::Of(Category::Health),
            Route::Predict => Access::Of(Category::Inference),
            Route::Redirect(route, _) => route.access(),
            // Upstream has no category for metrics; the others do nothing.
            Route::Metrics | Route::Blocked | Route::WrongVerb | Route::Unknown => Access::Open,
        }
    }
}

/// Where `target`, a path without its slash, leads.
fn redirect(target: &str) -> Route<'_> {
    if target == "metrics" {
        return Route::Metrics;
    }
    let route = route::below_root(target);
    match route {
        TritonRoute::ServerMetadata
        | TritonRoute::Live
        | TritonRoute::Ready
        | TritonRoute::Statistics => Route::Redirect(route, Method::Get),
        TritonRoute::Model { operation, .. } => match operation {
            Operation::Metadata | Operation::Ready | Operation::Config | Operation::Statistics => {
                Route::Redirect(route, Method::Get)
            }
            Operation::Infer => Route::Redirect(route, Method::Post),
            Operation::Generate | Operation::GenerateStream | Operation::TraceSetting => {
                Route::Unknown
            }
        },
        TritonRoute::RepositoryIndex => Route::Redirect(route, Method::Post),
        TritonRoute::SharedMemory {
            action: RegionAction::Status,
            ..
        } => Route::Redirect(route, Method::Get),
        TritonRoute::SharedMemory { .. } | TritonRoute::RepositoryControl { .. } => Route::Blocked,
        TritonRoute::Logging | TritonRoute::TraceSetting | TritonRoute::Unknown => Route::Unknown,
    }
}

enum Plan {
    Inference(service::Plan),
    Metrics,
}

impl Plan {
    fn status(status: u16) -> Plan {
        Plan::Inference(service::Plan::Answer(Box::new(Answer::empty(status))))
    }
}

impl Service for Listener {
    type Route<'a> = Route<'a>;
    type Plan = Plan;

    fn route<'a>(&self, _shard: &'a Shard, head: &'a Head<'_>) -> Route<'a> {
        log::verbose!(1, "Vertex AI request: {:?} {}", head.method, head.path);
        if self.settings.health_route.is_match(head.path.as_bytes()) {
            return Route::Health;
        }
        if !self.settings.predict_route.is_match(head.path.as_bytes()) {
            return Route::Unknown;
        }
        match head.find(REDIRECT_HEADER).map(std::str::from_utf8) {
            None => Route::Predict,
            Some(_) if head.method != Method::Post => Route::WrongVerb,
            Some(Ok(target)) => redirect(target),
            Some(Err(_)) => Route::Unknown,
        }
    }

    fn plan(&self, shard: &Rc<Shard>, head: &Head<'_>, granted: Granted<Route<'_>>) -> Plan {
        let inference = |to: TritonRoute<'_>, method| {
            let head = head.with_method(method);
            let route = granted.to(to);
            Plan::Inference(plan_route(shard, &head, route, Dialect::VertexAi))
        };
        match *granted {
            Route::Health => inference(TritonRoute::Ready, head.method),
            Route::Predict => {
                let model = TritonRoute::Model {
                    name: &self.settings.default_model,
                    version: None,
                    operation: Operation::Infer,
                };
                inference(model, head.method)
            }
            Route::Redirect(route, method) => inference(route, method),
            Route::Metrics => Plan::Metrics,
            Route::Blocked => Plan::status(403),
            Route::WrongVerb => Plan::status(405),
            Route::Unknown => Plan::status(400),
        }
    }

    fn wanted<'a>(
        &'a self,
        head: &'a Head<'_>,
        route: &'a Route<'_>,
    ) -> Option<(Cow<'a, str>, Option<&'a str>)> {
        match route {
            Route::Predict if head.method == Method::Post => {
                Some((Cow::Borrowed(&self.settings.default_model), None))
            }
            Route::Redirect(route, Method::Post) => Inference.wanted(head, route),
            _ => None,
        }
    }

    fn keep(&self, plan: &mut Plan, lease: Lease) {
        if let Plan::Inference(plan) = plan {
            Inference.keep(plan, lease);
        }
    }

    fn plan_refusal(&self, answer: Answer) -> Plan {
        Plan::Inference(service::Plan::Answer(Box::new(answer)))
    }

    fn is_at_once(&self, plan: &Plan) -> bool {
        match plan {
            Plan::Inference(plan) => Inference.is_at_once(plan),
            Plan::Metrics => false,
        }
    }

    fn placement(&self, plan: &Plan) -> Option<Placement> {
        match plan {
            Plan::Inference(plan) => Inference.placement(plan),
            Plan::Metrics => None,
        }
    }

    async fn answer(
        &self,
        plan: Plan,
        body: Option<Body>,
        scratch: Vec<u8>,
        connection: &mut Connection,
    ) -> Result<Answer, Closed> {
        match plan {
            Plan::Inference(plan) => Inference.answer(plan, body, scratch, connection).await,
            Plan::Metrics => Ok(metrics::page(&connection.shard).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_reads_is_redirected_to() {
        let model = |operation| TritonRoute::Model {
            name: "m",
            version: None,
            operation,
        };
        let get = |route| Route::Redirect(route, Method::Get);
        let post = |route| Route::Redirect(route, Method::Post);
        for (target, expected) in [
            ("metrics", Route::Metrics),
            ("v2", get(TritonRoute::ServerMetadata)),
            ("v2/health/live", get(TritonRoute::Live)),
            ("v2/health/ready", get(TritonRoute::Ready)),
            ("v2/models/stats", get(TritonRoute::Statistics)),
            ("v2/models/m", get(model(Operation::Metadata))),
            ("v2/models/m/ready", get(model(Operation::Ready))),
            ("v2/models/m/config", get(model(Operation::Config))),
            ("v2/models/m/stats", get(model(Operation::Statistics))),
            ("v2/models/m/infer", post(model(Operation::Infer))),
            ("v2/repository/index", post(TritonRoute::RepositoryIndex)),
            ("v2/repository/models/m/load", Route::Blocked),
            ("v2/repository/models/m/unload", Route::Blocked),
            ("v2/repository/r/models/m/load", Route::Blocked),
            ("v2/systemsharedmemory/region/r/register", Route::Blocked),
            ("v2/cudasharedmemory/unregister", Route::Blocked),
            ("v2/models/m/generate", Route::Unknown),
            ("v2/models/m/trace/setting", Route::Unknown),
            ("v2/trace/setting", Route::Unknown),
            ("v2/logging", Route::Unknown),
            ("/v2", Route::Unknown),
            ("/metrics", Route::Unknown),
            ("v2/", Route::Unknown),
            ("V2", Route::Unknown),
            ("", Route::Unknown),
            ("v2/repository/models/m/load/../../../index", Route::Unknown),
        ] {
            assert_eq!(redirect(target), expected, "{target}");
        }
        let status = redirect("v2/systemsharedmemory/status");
        assert!(
            matches!(status, Route::Redirect(_, Method::Get)),
            "{status:?}"
        );
    }

    #[test]
    fn routes_match_from_end_to_end() {
        let endpoint = Endpoint {
            address: "127.0.0.1".to_owned(),
            port: 0,
            reuse_port: false,
        };
        let new =
            |predict: &str, health: &str| VertexAi::new(endpoint.clone(), predict, health, "");
        let listener = new("/predict|/p/.*", "/health").unwrap();
        for (path, expected) in [
            ("/predict", true),
            ("/p/x/y", true),
            ("/predict/", false),
            ("/x/predict", false),
            ("/p", false),
        ] {
            assert_eq!(
                listener.predict_route.is_match(path.as_bytes()),
                expected,
                "{path}"
            );
        }
        let message = |predict, health| new(predict, health).unwrap_err().message;
        assert_eq!(
            message("", "/h"),
            "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"
        );
        assert_eq!(
            message("/p", ""),
            "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"
        );
        assert!(message("(", "/h").contains("malformed"));
    }
}
