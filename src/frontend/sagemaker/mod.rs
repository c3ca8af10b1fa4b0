//! The SageMaker listener: one model at `/invocations`, or many, loaded and unloaded by `/models`.
//!
//! Inferences are those of the HTTP listener, with the length of the JSON in the media type. Statuses are SageMaker's: whatever goes wrong with
//! a model of a multi-model endpoint is a 400, and 507 if memory ran out.

mod catalog;
mod control;
mod place;

use std::borrow::Cow;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use conch_engine::Error;
use conch_log as log;
use conch_memory::View;

use crate::access::{Access, Category, Granted, Guarded};
use crate::aside::aside;
use crate::http::answer::{Answer, ContentType};
use crate::http::connection::{self, Body, Closed, Connection, Placement, Service, freeze};
use crate::http::dialect::Dialect;
use crate::http::head::{Head, Method};
use crate::http::json::{Value, write};
use crate::http::route::{Operation, Route as TritonRoute};
use crate::http::service::{self, Inference, plan_route};
use crate::options::Endpoint;
use crate::shard::{Lease, Presence, Shard, Stream};

use catalog::Catalog;
use control::{Failure, Load};

/// The directory in which SageMaker puts models.
pub const MODELS_ROOT: &str = "/opt/ml/models";

const TARGET_HEADER: &str = "X-Amzn-SageMaker-Target-Model";

/// What `POST /invocations` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InferenceType {
    #[default]
    Infer,
    Generate,
    GenerateStream,
}

/// What the listener is started with.
#[derive(Clone, Debug)]
pub struct SageMaker {
    pub endpoint: Endpoint,
    /// `/ping` asks whether the server lives, not whether it is ready.
    pub ping_is_live: bool,
    /// The model of `/invocations`.
    pub default_model: String,
    pub inference_type: InferenceType,
    /// Models of a multi-model endpoint are below it.
    pub models_root: PathBuf,
    catalog: Arc<Catalog>,
}

impl SageMaker {
    pub fn new(endpoint: Endpoint) -> SageMaker {
        SageMaker {
            endpoint,
            ping_is_live: false,
            // As upstream: the message about an unknown model says what is missing.
            default_model: "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME".to_owned(),
            inference_type: InferenceType::default(),
            models_root: PathBuf::from(MODELS_ROOT),
            catalog: Arc::default(),
        }
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: Stream, presence: Presence) {
    let settings = shard.options.sagemaker.clone();
    // There is no connection without a listener.
    if let Some(settings) = settings {
        connection::serve(shard, stream, presence, Listener { settings }).await;
    }
}

struct Listener {
    settings: Arc<SageMaker>,
}

/// What a path and a verb name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route<'a> {
    Ping,
    Invocations,
    List,
    Get(&'a str),
    Load,
    Unload(&'a str),
    Invoke(&'a str),
    Unknown,
}

impl Guarded for Route<'_> {
    fn access(&self) -> Access {
        Access::Of(match self {
            Route::Ping => Category::Health,
            Route::Invocations | Route::Invoke(_) => Category::Inference,
            Route::List | Route::Get(_) | Route::Load | Route::Unload(_) => {
                Category::ModelRepository
            }
            Route::Unknown => return Access::Open,
        })
    }
}

fn route(method: Method, path: &str) -> Route<'_> {
    let name = match path {
        "/ping" => return Route::Ping,
        "/invocations" => return Route::Invocations,
        "/models" | "/models/" => "",
        _ => match path.strip_prefix("/models/") {
            Some(name) => name,
            None => return Route::Unknown,
        },
    };
    let (name, is_invoke) = match name.strip_suffix("/invoke") {
        Some(name) => (name, true),
        None => (name, false),
    };
    if name.contains('/') || (is_invoke && name.is_empty()) {
        return Route::Unknown;
    }
    match method {
        Method::Get if name.is_empty() => Route::List,
        Method::Get => Route::Get(name),
        Method::Post if is_invoke => Route::Invoke(name),
        Method::Post => Route::Load,
        Method::Delete => Route::Unload(name),
        Method::Head | Method::Options | Method::Other => Route::Unknown,
    }
}

enum Plan {
    Inference {
        plan: service::Plan,
        /// Of a model of a multi-model endpoint.
        is_invoke: bool,
    },
    Load {
        target: Option<Box<str>>,
    },
    Unload {
        name: Box<str>,
    },
}

impl Plan {
    fn answer(answer: Answer) -> Plan {
        Plan::Inference {
            plan: service::Plan::Answer(Box::new(answer)),
            is_invoke: false,
        }
    }
}

impl Service for Listener {
    type Route<'a> = Route<'a>;
    type Plan = Plan;

    fn route<'a>(&self, _shard: &'a Shard, head: &'a Head<'_>) -> Route<'a> {
        log::verbose!(1, "SageMaker request: {:?} {}", head.method, head.path);
        route(head.method, head.path)
    }

    fn plan(&self, shard: &Rc<Shard>, head: &Head<'_>, granted: Granted<Route<'_>>) -> Plan {
        let inference = |to: TritonRoute<'_>, is_invoke| {
            let route = granted.to(to);
            Plan::Inference {
                plan: plan_route(shard, head, route, Dialect::SageMaker),
                is_invoke,
            }
        };
        match *granted {
            Route::Ping if self.settings.ping_is_live => inference(TritonRoute::Live, false),
            Route::Ping => inference(TritonRoute::Ready, false),
            Route::Invocations => {
                let operation = match self.settings.inference_type {
                    InferenceType::Infer => Operation::Infer,
                    InferenceType::Generate => Operation::Generate,
                    InferenceType::GenerateStream => Operation::GenerateStream,
                };
                inference(model(&self.settings.default_model, operation), false)
            }
            Route::Invoke(name) => match self.settings.catalog.find(name) {
                None => Plan::answer(Answer::empty(404)),
                Some(entry) => {
                    let target = target_of(head).unwrap_or(entry.target);
                    log::verbose!(1, "Invoking SageMaker TargetModel: {target}");
                    inference(model(&target, Operation::Infer), true)
                }
            },
            Route::List => Plan::answer(self.list(shard)),
            Route::Get(name) => Plan::answer(self.get(name)),
            Route::Load => Plan::Load {
                target: target_of(head),
            },
            Route::Unload(name) => Plan::Unload { name: name.into() },
            Route::Unknown => Plan::answer(Answer::empty(400)),
        }
    }

    fn wanted<'a>(
        &'a self,
        head: &'a Head<'_>,
        route: &'a Route<'_>,
    ) -> Option<(Cow<'a, str>, Option<&'a str>)> {
        match route {
            Route::Invocations => Some((Cow::Borrowed(&self.settings.default_model), None)),
            Route::Invoke(name) => {
                let entry = self.settings.catalog.find(name)?;
                let target = target_of(head).unwrap_or(entry.target);
                Some((Cow::Owned(target.into()), None))
            }
            _ => None,
        }
    }

    fn keep(&self, plan: &mut Plan, lease: Lease) {
        if let Plan::Inference { plan, .. } = plan {
            Inference.keep(plan, lease);
        }
    }

    fn plan_refusal(&self, answer: Answer) -> Plan {
        Plan::answer(answer)
    }

    fn is_at_once(&self, plan: &Plan) -> bool {
        match plan {
            Plan::Inference { plan, .. } => Inference.is_at_once(plan),
            Plan::Load { .. } | Plan::Unload { .. } => false,
        }
    }

    fn placement(&self, plan: &Plan) -> Option<Placement> {
        match plan {
            Plan::Inference { plan, .. } => Inference.placement(plan),
            Plan::Load { .. } => Some(Placement { json_length: 0 }),
            Plan::Unload { .. } => None,
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
            Plan::Inference { plan, is_invoke } => {
                let mut answer = Inference.answer(plan, body, scratch, connection).await?;
                // Who is to come again later is told so in the same words everywhere.
                if is_invoke && answer.status >= 400 && answer.status != 429 {
                    let message = String::from_utf8_lossy(&answer.body);
                    answer.status = if control::is_out_of_memory(&message) {
                        507
                    } else {
                        400
                    };
                    answer.content_type = ContentType::Json;
                }
                Ok(answer)
            }
            // Boxed: rare, and their states would make every connection larger.
            Plan::Load { target } => {
                let body = body.map_or_else(View::empty, freeze);
                Ok(Box::pin(self.load(&connection.shard, body, target)).await)
            }
            Plan::Unload { name } => Ok(Box::pin(self.unload(&connection.shard, name)).await),
        }
    }
}

impl Listener {
    async fn load(&self, shard: &Rc<Shard>, body: View, target: Option<Box<str>>) -> Answer {
        let read = crate::http::repository::with_json(shard, body, read_load).await;
        let (name, url) = match read {
            Ok(fields) => fields.unwrap_or_default(),
            Err(error) => return Answer::failure(400, ContentType::Plain, &error.message),
        };
        let load = Load {
            name: name.into(),
            url,
            target,
        };
        let (server, catalog) = (
            Arc::clone(&shard.server),
            Arc::clone(&self.settings.catalog),
        );
        let root = self.settings.models_root.clone();
        let work = aside(move || Ok(control::load(&server, &catalog, &root, load)));
        outcome(work).await
    }

    async fn unload(&self, shard: &Rc<Shard>, name: Box<str>) -> Answer {
        let (server, catalog) = (
            Arc::clone(&shard.server),
            Arc::clone(&self.settings.catalog),
        );
        let work = aside(move || Ok(control::unload(&server, &catalog, &name)));
        outcome(work).await
    }

    /// The models that can be asked now.
    fn list(&self, shard: &Rc<Shard>) -> Answer {
        let mut body = b"{\"models\":[".to_vec();
        let mut is_first = true;
        for (name, entry) in self.settings.catalog.models().iter() {
            if shard.find(&entry.target, None).is_err() {
                continue;
            }
            if !is_first {
                body.push(b',');
            }
            is_first = false;
            write_model(&mut body, name, &entry.repository);
        }
        body.extend_from_slice(b"]}");
        Answer::new(200, ContentType::Plain, body)
    }

    fn get(&self, name: &str) -> Answer {
        let Some(entry) = self.settings.catalog.find(name) else {
            return Answer::empty(404);
        };
        let mut body = Vec::new();
        write_model(&mut body, name, &entry.repository);
        Answer::new(200, ContentType::Plain, body)
    }
}

fn write_model(body: &mut Vec<u8>, name: &str, repository: &str) {
    body.extend_from_slice(b"{\"modelName\":");
    write::string(body, name.as_bytes());
    body.extend_from_slice(b",\"modelUrl\":");
    write::string(body, repository.as_bytes());
    body.push(b'}');
}

fn model(name: &str, operation: Operation) -> TritonRoute<'_> {
    TritonRoute::Model {
        name,
        version: None,
        operation,
    }
}

fn target_of(head: &Head<'_>) -> Option<Box<str>> {
    head.find(TARGET_HEADER)
        .map(|value| String::from_utf8_lossy(value).into())
}

/// SageMaker's name of the model, and where it is; empty if not said.
fn read_load(root: Value<'_>) -> Result<(String, String), Error> {
    let text = |name: &str| match root.find(name) {
        Some(value) => value.as_str().map(str::to_owned),
        None => Ok(String::new()),
    };
    Ok((text("model_name")?, text("url")?))
}

async fn outcome(
    work: Result<impl Future<Output = Result<Result<(), Failure>, Error>>, Error>,
) -> Answer {
    let outcome = match work {
        Ok(work) => work.await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(Ok(())) => Answer::empty(200),
        Ok(Err(failure)) if failure.message.is_empty() => Answer::empty(failure.status),
        Ok(Err(failure)) => Answer::failure(failure.status, ContentType::Plain, &failure.message),
        Err(error) => Answer::error(&error, ContentType::Plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes() {
        use Method::{Delete, Get, Head, Other, Post};
        for (method, path, expected) in [
            (Get, "/ping", Route::Ping),
            (Post, "/ping", Route::Ping),
            (Get, "/ping/", Route::Unknown),
            (Post, "/invocations", Route::Invocations),
            (Get, "/invocations", Route::Invocations),
            (Post, "/invocations/x", Route::Unknown),
            (Get, "/models", Route::List),
            (Get, "/models/", Route::List),
            (Post, "/models", Route::Load),
            (Delete, "/models/h", Route::Unload("h")),
            (Get, "/models/h", Route::Get("h")),
            (Post, "/models/h/invoke", Route::Invoke("h")),
            (Get, "/models/invoke", Route::Get("invoke")),
            (Post, "/models//invoke", Route::Unknown),
            (Post, "/models/a/b/invoke", Route::Unknown),
            (Get, "/models/h/", Route::Unknown),
            (Get, "/modelsh", Route::Unknown),
            (Head, "/models/h", Route::Unknown),
            (Other, "/models", Route::Unknown),
            (Get, "/v2", Route::Unknown),
            (Get, "/", Route::Unknown),
        ] {
            assert_eq!(route(method, path), expected, "{method:?} {path}");
        }
    }
}
