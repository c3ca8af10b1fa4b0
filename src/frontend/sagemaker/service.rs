//! The routes of the SageMaker listener, and their answers.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use conch_control::json::to_json;
use conch_engine::Error;
use conch_log as log;
use conch_memory::ByteView;
use serde::Serialize;

use super::control::{self, ControlFailure, LoadRequest};
use super::options::{InferenceType, SageMakerOptions};
use crate::access::{Access, Category, GrantedRoute, GuardedRoute, ModelScope};
use crate::blocking::blocking;
use crate::http::answer::{ContentType, HttpResponse};
use crate::http::connection::{
    self, BodyPlacement, ConnectionClosed, HttpConnection, HttpService, ReceivedBody, freeze,
};
use crate::http::dialect::Dialect;
use crate::http::head::{HttpMethod, RequestHead};
use crate::http::json::JsonValue;
use crate::http::route::{HttpRoute as TritonRoute, ModelOperation};
use crate::http::service::{self, InferenceService, plan_route};
use crate::shard::{ConnectionGuard, HeldPermit, Shard, ShardStream};

const TARGET_HEADER: &str = "X-Amzn-SageMaker-Target-Model";

/// Serves one connection until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: ShardStream, guard: ConnectionGuard) {
    let settings = shard.options.sagemaker.clone();
    // There is no connection without a listener.
    if let Some(settings) = settings {
        connection::serve(shard, stream, guard, SageMakerService { settings }).await;
    }
}

struct SageMakerService {
    settings: Arc<SageMakerOptions>,
}

/// What a path and a verb name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SageMakerRoute<'a> {
    Ping,
    Invocations,
    List,
    Get(&'a str),
    Load,
    Unload(&'a str),
    Invoke(&'a str),
    Unknown,
}

impl GuardedRoute for SageMakerRoute<'_> {
    fn access(&self) -> Access {
        Access::Of(match self {
            SageMakerRoute::Ping => Category::Health,
            SageMakerRoute::Invocations | SageMakerRoute::Invoke(_) => Category::Inference,
            SageMakerRoute::List
            | SageMakerRoute::Get(_)
            | SageMakerRoute::Load
            | SageMakerRoute::Unload(_) => Category::ModelRepository,
            SageMakerRoute::Unknown => return Access::Open,
        })
    }

    /// Names are those of endpoints, bodies and headers, which lead to models later.
    fn model_scope(&self) -> ModelScope<'_> {
        match self {
            SageMakerRoute::Ping | SageMakerRoute::Unknown => ModelScope::None,
            SageMakerRoute::Invocations
            | SageMakerRoute::Invoke(_)
            | SageMakerRoute::List
            | SageMakerRoute::Get(_)
            | SageMakerRoute::Load
            | SageMakerRoute::Unload(_) => ModelScope::All,
        }
    }
}

fn route(method: HttpMethod, path: &str) -> SageMakerRoute<'_> {
    let name = match path {
        "/ping" => return SageMakerRoute::Ping,
        "/invocations" => return SageMakerRoute::Invocations,
        "/models" | "/models/" => "",
        _ => match path.strip_prefix("/models/") {
            Some(name) => name,
            None => return SageMakerRoute::Unknown,
        },
    };
    let (name, is_invoke) = match name.strip_suffix("/invoke") {
        Some(name) => (name, true),
        None => (name, false),
    };
    if name.contains('/') || (is_invoke && name.is_empty()) {
        return SageMakerRoute::Unknown;
    }
    match method {
        HttpMethod::Get if name.is_empty() => SageMakerRoute::List,
        HttpMethod::Get => SageMakerRoute::Get(name),
        HttpMethod::Post if is_invoke => SageMakerRoute::Invoke(name),
        HttpMethod::Post => SageMakerRoute::Load,
        HttpMethod::Delete => SageMakerRoute::Unload(name),
        HttpMethod::Head | HttpMethod::Options | HttpMethod::Other => SageMakerRoute::Unknown,
    }
}

enum SageMakerPlan {
    Inference {
        plan: service::RequestPlan,
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

impl SageMakerPlan {
    fn answer(answer: HttpResponse) -> SageMakerPlan {
        SageMakerPlan::Inference {
            plan: service::RequestPlan::Answer(Box::new(answer)),
            is_invoke: false,
        }
    }
}

impl HttpService for SageMakerService {
    type Route<'a> = SageMakerRoute<'a>;
    type Plan = SageMakerPlan;

    fn route<'a>(&self, _shard: &'a Shard, head: &'a RequestHead<'_>) -> SageMakerRoute<'a> {
        log::verbose!(1, "SageMaker request: {:?} {}", head.method, head.path);
        route(head.method, head.path)
    }

    fn plan(
        &self,
        shard: &Rc<Shard>,
        head: &RequestHead<'_>,
        granted: GrantedRoute<SageMakerRoute<'_>>,
    ) -> SageMakerPlan {
        let inference = |to: TritonRoute<'_>, is_invoke| {
            let route = granted.to(to);
            SageMakerPlan::Inference {
                plan: plan_route(shard, head, route, Dialect::SageMaker),
                is_invoke,
            }
        };
        match *granted {
            SageMakerRoute::Ping if self.settings.ping_is_live => {
                inference(TritonRoute::Live, false)
            }
            SageMakerRoute::Ping => inference(TritonRoute::Ready, false),
            SageMakerRoute::Invocations => {
                let operation = match self.settings.inference_type {
                    InferenceType::Infer => ModelOperation::Infer,
                    InferenceType::Generate => ModelOperation::Generate,
                    InferenceType::GenerateStream => ModelOperation::GenerateStream,
                };
                inference(model(&self.settings.default_model, operation), false)
            }
            SageMakerRoute::Invoke(name) => match self.settings.catalog.find(name) {
                None => SageMakerPlan::answer(HttpResponse::empty(404)),
                Some(entry) => {
                    let target = target_of(head).unwrap_or(entry.target);
                    log::verbose!(1, "Invoking SageMaker TargetModel: {target}");
                    inference(model(&target, ModelOperation::Infer), true)
                }
            },
            SageMakerRoute::List => SageMakerPlan::answer(self.list(shard)),
            SageMakerRoute::Get(name) => SageMakerPlan::answer(self.get(name)),
            SageMakerRoute::Load => SageMakerPlan::Load {
                target: target_of(head),
            },
            SageMakerRoute::Unload(name) => SageMakerPlan::Unload { name: name.into() },
            SageMakerRoute::Unknown => SageMakerPlan::answer(HttpResponse::empty(400)),
        }
    }

    fn required_model<'a>(
        &'a self,
        head: &'a RequestHead<'_>,
        route: &'a SageMakerRoute<'_>,
    ) -> Option<(Cow<'a, str>, Option<&'a str>)> {
        match route {
            SageMakerRoute::Invocations => {
                Some((Cow::Borrowed(&self.settings.default_model), None))
            }
            SageMakerRoute::Invoke(name) => {
                let entry = self.settings.catalog.find(name)?;
                let target = target_of(head).unwrap_or(entry.target);
                Some((Cow::Owned(target.into()), None))
            }
            _ => None,
        }
    }

    fn attach_permit(&self, plan: &mut SageMakerPlan, permit: HeldPermit) {
        if let SageMakerPlan::Inference { plan, .. } = plan {
            InferenceService.attach_permit(plan, permit);
        }
    }

    fn plan_refusal(&self, answer: HttpResponse) -> SageMakerPlan {
        SageMakerPlan::answer(answer)
    }

    fn is_at_once(&self, plan: &SageMakerPlan) -> bool {
        match plan {
            SageMakerPlan::Inference { plan, .. } => InferenceService.is_at_once(plan),
            SageMakerPlan::Load { .. } | SageMakerPlan::Unload { .. } => false,
        }
    }

    fn placement(&self, plan: &SageMakerPlan) -> Option<BodyPlacement> {
        match plan {
            SageMakerPlan::Inference { plan, .. } => InferenceService.placement(plan),
            SageMakerPlan::Load { .. } => Some(BodyPlacement::TEXT),
            SageMakerPlan::Unload { .. } => None,
        }
    }

    async fn answer(
        &self,
        plan: SageMakerPlan,
        body: Option<ReceivedBody>,
        scratch: Vec<u8>,
        connection: &mut HttpConnection,
    ) -> Result<HttpResponse, ConnectionClosed> {
        match plan {
            SageMakerPlan::Inference { plan, is_invoke } => {
                let mut answer = InferenceService
                    .answer(plan, body, scratch, connection)
                    .await?;
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
            SageMakerPlan::Load { target } => {
                let body = body.map_or_else(ByteView::empty, freeze);
                Ok(Box::pin(self.load(&connection.shard, body, target)).await)
            }
            SageMakerPlan::Unload { name } => {
                Ok(Box::pin(self.unload(&connection.shard, name)).await)
            }
        }
    }
}

impl SageMakerService {
    async fn load(
        &self,
        shard: &Rc<Shard>,
        body: ByteView,
        target: Option<Box<str>>,
    ) -> HttpResponse {
        let read = crate::http::repository::with_json(shard, body, read_load).await;
        let (name, url) = match read {
            Ok(fields) => fields.unwrap_or_default(),
            Err(error) => return HttpResponse::failure(400, ContentType::Plain, &error.message),
        };
        let load = LoadRequest {
            name: name.into(),
            url,
            target,
        };
        let (server, catalog) = (
            Arc::clone(&shard.server),
            Arc::clone(&self.settings.catalog),
        );
        let root = self.settings.models_root.clone();
        let work = blocking(shard.server.loader_placement(), move || {
            Ok(answer_of(control::load(&server, &catalog, &root, load)))
        });
        finish(work).await
    }

    async fn unload(&self, shard: &Rc<Shard>, name: Box<str>) -> HttpResponse {
        let (server, catalog) = (
            Arc::clone(&shard.server),
            Arc::clone(&self.settings.catalog),
        );
        let work = blocking(shard.server.loader_placement(), move || {
            Ok(answer_of(control::unload(&server, &catalog, &name)))
        });
        finish(work).await
    }

    /// The models that can be asked now.
    fn list(&self, shard: &Rc<Shard>) -> HttpResponse {
        #[derive(Serialize)]
        struct ListDocument<'m> {
            models: Vec<SageMakerModel<'m>>,
        }
        let catalog = self.settings.catalog.models();
        let models = catalog
            .iter()
            .filter(|(_, entry)| shard.find(&entry.target, None).is_ok())
            .map(|(name, entry)| SageMakerModel {
                model_name: name,
                model_url: &entry.repository,
            })
            .collect();
        plain_json(&ListDocument { models })
    }

    fn get(&self, name: &str) -> HttpResponse {
        let Some(entry) = self.settings.catalog.find(name) else {
            return HttpResponse::empty(404);
        };
        plain_json(&SageMakerModel {
            model_name: name,
            model_url: &entry.repository,
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SageMakerModel<'m> {
    model_name: &'m str,
    model_url: &'m str,
}

fn plain_json(document: &impl Serialize) -> HttpResponse {
    HttpResponse::new(200, ContentType::Plain, to_json(document).into_bytes())
}

fn model(name: &str, operation: ModelOperation) -> TritonRoute<'_> {
    TritonRoute::Model {
        name,
        version: None,
        operation,
    }
}

fn target_of(head: &RequestHead<'_>) -> Option<Box<str>> {
    head.find(TARGET_HEADER)
        .map(|value| String::from_utf8_lossy(value).into())
}

/// SageMaker's name of the model, and where it is; empty if not said.
fn read_load(root: JsonValue<'_>) -> Result<(String, String), Error> {
    let text = |name: &str| match root.find(name) {
        Some(value) => value.as_str().map(str::to_owned),
        None => Ok(String::new()),
    };
    Ok((text("model_name")?, text("url")?))
}

fn answer_of(done: Result<(), ControlFailure>) -> HttpResponse {
    match done {
        Ok(()) => HttpResponse::empty(200),
        Err(failure) if failure.message.is_empty() => HttpResponse::empty(failure.status),
        Err(failure) => HttpResponse::failure(failure.status, ContentType::Plain, &failure.message),
    }
}

/// The answer of work on another thread, or why it could not be done there.
async fn finish(
    work: Result<impl Future<Output = Result<HttpResponse, Error>>, Error>,
) -> HttpResponse {
    let outcome = match work {
        Ok(work) => work.await,
        Err(error) => Err(error),
    };
    outcome.unwrap_or_else(|error| HttpResponse::error(&error, ContentType::Plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_described_as_the_service_expects() {
        let document = SageMakerModel {
            model_name: "m\"",
            model_url: "/opt/ml/models/1/\u{1}",
        };
        assert_eq!(
            to_json(&document),
            r#"{"modelName":"m\"","modelUrl":"/opt/ml/models/1/\u0001"}"#
        );
    }

    #[test]
    fn routes() {
        use HttpMethod::{Delete, Get, Head, Other, Post};
        for (method, path, expected) in [
            (Get, "/ping", SageMakerRoute::Ping),
            (Post, "/ping", SageMakerRoute::Ping),
            (Get, "/ping/", SageMakerRoute::Unknown),
            (Post, "/invocations", SageMakerRoute::Invocations),
            (Get, "/invocations", SageMakerRoute::Invocations),
            (Post, "/invocations/x", SageMakerRoute::Unknown),
            (Get, "/models", SageMakerRoute::List),
            (Get, "/models/", SageMakerRoute::List),
            (Post, "/models", SageMakerRoute::Load),
            (Delete, "/models/h", SageMakerRoute::Unload("h")),
            (Get, "/models/h", SageMakerRoute::Get("h")),
            (Post, "/models/h/invoke", SageMakerRoute::Invoke("h")),
            (Get, "/models/invoke", SageMakerRoute::Get("invoke")),
            (Post, "/models//invoke", SageMakerRoute::Unknown),
            (Post, "/models/a/b/invoke", SageMakerRoute::Unknown),
            (Get, "/models/h/", SageMakerRoute::Unknown),
            (Get, "/modelsh", SageMakerRoute::Unknown),
            (Head, "/models/h", SageMakerRoute::Unknown),
            (Other, "/models", SageMakerRoute::Unknown),
            (Get, "/v2", SageMakerRoute::Unknown),
            (Get, "/", SageMakerRoute::Unknown),
        ] {
            assert_eq!(route(method, path), expected, "{method:?} {path}");
        }
    }
}
