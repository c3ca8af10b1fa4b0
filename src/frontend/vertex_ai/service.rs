//! The routes of the Vertex AI listener, and their answers.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use conch_log as log;

use super::options::VertexAiOptions;
use crate::access::{Access, Category, GrantedRoute, GuardedRoute, ModelScope};
use crate::api::regions::RegionAction;
use crate::http::answer::HttpResponse;
use crate::http::connection::{
    self, BodyPlacement, ConnectionClosed, HttpConnection, HttpService, ReceivedBody,
};
use crate::http::dialect::Dialect;
use crate::http::head::{HttpMethod, RequestHead};
use crate::http::metrics_page;
use crate::http::route::{self, HttpRoute as TritonRoute, ModelOperation};
use crate::http::service::{self, InferenceService, plan_route};
use crate::shard::{ConnectionGuard, HeldPermit, Shard, ShardStream};

const REDIRECT_HEADER: &str = "X-Vertex-Ai-Triton-Redirect";

/// Serves one connection until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: ShardStream, guard: ConnectionGuard) {
    let settings = shard.options.vertex_ai.clone();
    // There is no connection without a listener.
    if let Some(settings) = settings {
        connection::serve(shard, stream, guard, VertexAiService { settings }).await;
    }
}

struct VertexAiService {
    settings: Arc<VertexAiOptions>,
}

/// What a path, and the header that redirects it, name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VertexAiRoute<'a> {
    Health,
    Predict,
    Metrics,
    /// A route of the HTTP listener, and the verb that it takes.
    Redirect(TritonRoute<'a>, HttpMethod),
    /// One that changes something.
    Blocked,
    /// Redirected, but not by POST.
    WrongVerb,
    Unknown,
}

impl GuardedRoute for VertexAiRoute<'_> {
    fn access(&self) -> Access {
        match self {
            VertexAiRoute::Health => Access::Of(Category::Health),
            VertexAiRoute::Predict => Access::Of(Category::Inference),
            VertexAiRoute::Redirect(route, _) => route.access(),
            VertexAiRoute::Metrics => Access::Metrics,
            // These do nothing.
            VertexAiRoute::Blocked | VertexAiRoute::WrongVerb | VertexAiRoute::Unknown => {
                Access::Open
            }
        }
    }

    fn model_scope(&self) -> ModelScope<'_> {
        match self {
            // That of the default, which the settings know.
            VertexAiRoute::Predict => ModelScope::All,
            VertexAiRoute::Redirect(route, _) => route.model_scope(),
            VertexAiRoute::Health
            | VertexAiRoute::Metrics
            | VertexAiRoute::Blocked
            | VertexAiRoute::WrongVerb
            | VertexAiRoute::Unknown => ModelScope::None,
        }
    }
}

/// Where `target`, a path without its slash, leads.
fn redirect(target: &str) -> VertexAiRoute<'_> {
    if target == "metrics" {
        return VertexAiRoute::Metrics;
    }
    let route = route::below_root(target);
    match route {
        TritonRoute::ServerMetadata
        | TritonRoute::Live
        | TritonRoute::Ready
        | TritonRoute::Statistics => VertexAiRoute::Redirect(route, HttpMethod::Get),
        TritonRoute::Model { operation, .. } => match operation {
            ModelOperation::Metadata
            | ModelOperation::Ready
            | ModelOperation::Config
            | ModelOperation::Statistics => VertexAiRoute::Redirect(route, HttpMethod::Get),
            ModelOperation::Infer => VertexAiRoute::Redirect(route, HttpMethod::Post),
            ModelOperation::Generate
            | ModelOperation::GenerateStream
            | ModelOperation::TraceSetting => VertexAiRoute::Unknown,
        },
        TritonRoute::RepositoryIndex => VertexAiRoute::Redirect(route, HttpMethod::Post),
        TritonRoute::SharedMemory {
            action: RegionAction::Status,
            ..
        } => VertexAiRoute::Redirect(route, HttpMethod::Get),
        TritonRoute::SharedMemory { .. } | TritonRoute::RepositoryControl { .. } => {
            VertexAiRoute::Blocked
        }
        TritonRoute::Logging
        | TritonRoute::TraceSetting
        | TritonRoute::Metrics
        | TritonRoute::Unknown => VertexAiRoute::Unknown,
    }
}

enum VertexAiPlan {
    Inference(service::RequestPlan),
    Metrics,
}

impl VertexAiPlan {
    fn status(status: u16) -> VertexAiPlan {
        VertexAiPlan::Inference(service::RequestPlan::Answer(Box::new(HttpResponse::empty(
            status,
        ))))
    }
}

impl HttpService for VertexAiService {
    type Route<'a> = VertexAiRoute<'a>;
    type Plan = VertexAiPlan;

    fn route<'a>(&self, _shard: &'a Shard, head: &'a RequestHead<'_>) -> VertexAiRoute<'a> {
        log::verbose!(1, "Vertex AI request: {:?} {}", head.method, head.path);
        if self.settings.health_route.is_match(head.path.as_bytes()) {
            return VertexAiRoute::Health;
        }
        if !self.settings.predict_route.is_match(head.path.as_bytes()) {
            return VertexAiRoute::Unknown;
        }
        match head.find(REDIRECT_HEADER).map(std::str::from_utf8) {
            None => VertexAiRoute::Predict,
            Some(_) if head.method != HttpMethod::Post => VertexAiRoute::WrongVerb,
            Some(Ok(target)) => redirect(target),
            Some(Err(_)) => VertexAiRoute::Unknown,
        }
    }

    fn plan(
        &self,
        shard: &Rc<Shard>,
        head: &RequestHead<'_>,
        granted: GrantedRoute<VertexAiRoute<'_>>,
    ) -> VertexAiPlan {
        let inference = |to: TritonRoute<'_>, method| {
            let head = head.with_method(method);
            let route = granted.to(to);
            VertexAiPlan::Inference(plan_route(shard, &head, route, Dialect::VertexAi))
        };
        match *granted {
            VertexAiRoute::Health => inference(TritonRoute::Ready, head.method),
            VertexAiRoute::Predict => {
                let model = TritonRoute::Model {
                    name: &self.settings.default_model,
                    version: None,
                    operation: ModelOperation::Infer,
                };
                inference(model, head.method)
            }
            VertexAiRoute::Redirect(route, method) => inference(route, method),
            VertexAiRoute::Metrics => VertexAiPlan::Metrics,
            VertexAiRoute::Blocked => VertexAiPlan::status(403),
            VertexAiRoute::WrongVerb => VertexAiPlan::status(405),
            VertexAiRoute::Unknown => VertexAiPlan::status(400),
        }
    }

    fn required_model<'a>(
        &'a self,
        head: &'a RequestHead<'_>,
        route: &'a VertexAiRoute<'_>,
    ) -> Option<(Cow<'a, str>, Option<&'a str>)> {
        match route {
            VertexAiRoute::Predict if head.method == HttpMethod::Post => {
                Some((Cow::Borrowed(&self.settings.default_model), None))
            }
            VertexAiRoute::Redirect(route, HttpMethod::Post) => {
                InferenceService.required_model(head, route)
            }
            _ => None,
        }
    }

    fn attach_permit(&self, plan: &mut VertexAiPlan, permit: HeldPermit) {
        if let VertexAiPlan::Inference(plan) = plan {
            InferenceService.attach_permit(plan, permit);
        }
    }

    fn plan_refusal(&self, answer: HttpResponse) -> VertexAiPlan {
        VertexAiPlan::Inference(service::RequestPlan::Answer(Box::new(answer)))
    }

    fn is_at_once(&self, plan: &VertexAiPlan) -> bool {
        match plan {
            VertexAiPlan::Inference(plan) => InferenceService.is_at_once(plan),
            VertexAiPlan::Metrics => false,
        }
    }

    fn placement(&self, plan: &VertexAiPlan) -> Option<BodyPlacement> {
        match plan {
            VertexAiPlan::Inference(plan) => InferenceService.placement(plan),
            VertexAiPlan::Metrics => None,
        }
    }

    async fn answer(
        &self,
        plan: VertexAiPlan,
        body: Option<ReceivedBody>,
        scratch: Vec<u8>,
        connection: &mut HttpConnection,
    ) -> Result<HttpResponse, ConnectionClosed> {
        match plan {
            VertexAiPlan::Inference(plan) => {
                InferenceService
                    .answer(plan, body, scratch, connection)
                    .await
            }
            VertexAiPlan::Metrics => Ok(metrics_page::page(&connection.shard).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Endpoint;

    #[test]
    fn only_what_reads_is_redirected_to() {
        let model = |operation| TritonRoute::Model {
            name: "m",
            version: None,
            operation,
        };
        let get = |route| VertexAiRoute::Redirect(route, HttpMethod::Get);
        let post = |route| VertexAiRoute::Redirect(route, HttpMethod::Post);
        for (target, expected) in [
            ("metrics", VertexAiRoute::Metrics),
            ("v2", get(TritonRoute::ServerMetadata)),
            ("v2/health/live", get(TritonRoute::Live)),
            ("v2/health/ready", get(TritonRoute::Ready)),
            ("v2/models/stats", get(TritonRoute::Statistics)),
            ("v2/models/m", get(model(ModelOperation::Metadata))),
            ("v2/models/m/ready", get(model(ModelOperation::Ready))),
            ("v2/models/m/config", get(model(ModelOperation::Config))),
            ("v2/models/m/stats", get(model(ModelOperation::Statistics))),
            ("v2/models/m/infer", post(model(ModelOperation::Infer))),
            ("v2/repository/index", post(TritonRoute::RepositoryIndex)),
            ("v2/repository/models/m/load", VertexAiRoute::Blocked),
            ("v2/repository/models/m/unload", VertexAiRoute::Blocked),
            ("v2/repository/r/models/m/load", VertexAiRoute::Blocked),
            (
                "v2/systemsharedmemory/region/r/register",
                VertexAiRoute::Blocked,
            ),
            ("v2/cudasharedmemory/unregister", VertexAiRoute::Blocked),
            ("v2/models/m/generate", VertexAiRoute::Unknown),
            ("v2/models/m/trace/setting", VertexAiRoute::Unknown),
            ("v2/trace/setting", VertexAiRoute::Unknown),
            ("v2/logging", VertexAiRoute::Unknown),
            ("/v2", VertexAiRoute::Unknown),
            ("/metrics", VertexAiRoute::Unknown),
            ("v2/", VertexAiRoute::Unknown),
            ("V2", VertexAiRoute::Unknown),
            ("", VertexAiRoute::Unknown),
            (
                "v2/repository/models/m/load/../../../index",
                VertexAiRoute::Unknown,
            ),
        ] {
            assert_eq!(redirect(target), expected, "{target}");
        }
        let status = redirect("v2/systemsharedmemory/status");
        assert!(
            matches!(status, VertexAiRoute::Redirect(_, HttpMethod::Get)),
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
        let new = |predict: &str, health: &str| {
            VertexAiOptions::new(endpoint.clone(), predict, health, "")
        };
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
