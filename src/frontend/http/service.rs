//! Answers the requests of the inference protocol.

use std::borrow::Cow;
use std::rc::Rc;

use conch_control::documents;
use conch_engine::Error;
use conch_engine::model::readiness::{ReadinessAnswer, ReadinessProbe};
use conch_log as log;
use conch_memory::ByteView;

use super::answer::{ContentType, HttpResponse};
use super::connection::{
    self, BodyPlacement, ConnectionClosed, HttpConnection, HttpService, ReceivedBody, freeze,
};
use super::dialect::Dialect;
use super::generate::GenerateCall;
use super::head::{BodyFraming, HttpMethod, RequestHead};
use super::infer::call::{InferCall, InferFailure, JsonLength, plan_infer};
use super::infer::decode;
use super::json::write;
use super::route::{HttpRoute, ModelOperation, route};
use super::{deadline, logging, metrics_page, repository, shared_memory, trace};
use crate::access::GrantedRoute;
use crate::api;
use crate::api::regions::RegionAction;
use crate::options::FrontendOptions;
use crate::shard::{ConnectionGuard, HeldPermit, Shard, ShardStream};
use crate::tls::TlsConfig;

/// Serves one connection of the inference protocol until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: ShardStream, guard: ConnectionGuard) {
    connection::serve(shard, stream, guard, InferenceService).await;
}

pub(crate) struct InferenceService;

/// What is left to do once the head is known.
pub(crate) enum RequestPlan {
    Answer(Box<HttpResponse>),
    /// Backends are asked whether they are ready.
    Ready {
        probe: Box<ReadinessProbe>,
        subject: ReadinessSubject,
        wanted: HealthJson,
    },
    Index,
    Control {
        name: Box<str>,
        is_load: bool,
    },
    /// Settings that a body changes.
    Settings(SettingsKind),
    Infer(InferCall),
    Generate(Box<GenerateCall>),
    SharedMemory(shared_memory::RegionRequest),
    Metrics,
}

/// Which settings.
pub(crate) enum SettingsKind {
    Logging,
    /// Of a model, or of the server.
    Trace(Option<Box<str>>),
}

/// The beginning of the JSON that the client asks for in an answer about health, up to the value;
/// none for upstream's answers, which have no body when all is well.
type HealthJson = Option<Box<str>>;

/// Whose readiness is asked for.
#[derive(Clone, Copy)]
pub(crate) enum ReadinessSubject {
    Server,
    Model,
}

impl HttpService for InferenceService {
    type Route<'a> = HttpRoute<'a>;
    type Plan = RequestPlan;

    fn tls<'a>(&self, options: &'a FrontendOptions) -> Option<&'a TlsConfig> {
        options.http_tls.as_ref()
    }

    fn route<'a>(&self, shard: &'a Shard, head: &'a RequestHead<'_>) -> HttpRoute<'a> {
        log::verbose!(1, "HTTP request: {:?} {}", head.method, head.path);
        if shard.options.metrics_on_http && metrics_page::is_page(head.path) {
            return HttpRoute::Metrics;
        }
        route(head.path)
    }

    fn plan(
        &self,
        shard: &Rc<Shard>,
        head: &RequestHead<'_>,
        route: GrantedRoute<HttpRoute<'_>>,
    ) -> RequestPlan {
        plan_route(shard, head, route, Dialect::Triton)
    }

    fn required_model<'a>(
        &'a self,
        head: &'a RequestHead<'_>,
        route: &'a HttpRoute<'_>,
    ) -> Option<(Cow<'a, str>, Option<&'a str>)> {
        match route {
            HttpRoute::Model {
                name,
                version,
                operation,
            } if head.method == HttpMethod::Post && operation.is_inference() => {
                Some((Cow::Borrowed(name), *version))
            }
            _ => None,
        }
    }

    fn attach_permit(&self, plan: &mut RequestPlan, permit: HeldPermit) {
        match plan {
            RequestPlan::Infer(infer) => infer.permit = permit,
            RequestPlan::Generate(generate) => generate.attach_permit(permit),
            _ => {}
        }
    }

    fn plan_refusal(&self, answer: HttpResponse) -> RequestPlan {
        RequestPlan::Answer(Box::new(answer))
    }

    fn is_at_once(&self, plan: &RequestPlan) -> bool {
        matches!(plan, RequestPlan::Answer(_))
    }

    fn placement(&self, plan: &RequestPlan) -> Option<BodyPlacement> {
        match plan {
            RequestPlan::Answer(_) | RequestPlan::Ready { .. } | RequestPlan::Metrics => None,
            RequestPlan::Index
            | RequestPlan::Control { .. }
            | RequestPlan::Generate(_)
            | RequestPlan::Settings(_)
            | RequestPlan::SharedMemory(_) => Some(BodyPlacement::TEXT),
            RequestPlan::Infer(infer) => Some(BodyPlacement {
                json_length: match &infer.json_length {
                    JsonLength::Known(length) => *length,
                    JsonLength::Later(text) => text
                        .as_ref()
                        .and_then(|text| text.trim().parse().ok())
                        .unwrap_or(0),
                },
                is_for_gpu: infer.is_for_gpu(),
            }),
        }
    }

    async fn answer(
        &self,
        plan: RequestPlan,
        body: Option<ReceivedBody>,
        scratch: Vec<u8>,
        connection: &mut HttpConnection,
    ) -> Result<HttpResponse, ConnectionClosed> {
        let body = body.map_or_else(ByteView::empty, freeze);
        match plan {
            RequestPlan::Answer(answer) => Ok(*answer),
            RequestPlan::Ready {
                probe,
                subject,
                wanted,
            } => {
                let is_ready = api::ProbeWithTimeout::new(*probe).await;
                Ok(ready_answer(is_ready, subject, wanted))
            }
            // Boxed, as they are rare: what they keep would make every connection larger.
            RequestPlan::Index => Ok(Box::pin(repository::index(&connection.shard, body))
                .await
                .unwrap_or_else(|error| HttpResponse::error(&error, ContentType::Json))),
            RequestPlan::Control { name, is_load } => {
                let control = repository::control(&connection.shard, body, name, is_load);
                Ok(Box::pin(control)
                    .await
                    .unwrap_or_else(|error| HttpResponse::error(&error, ContentType::Json)))
            }
            RequestPlan::Metrics => Ok(Box::pin(metrics_page::page(&connection.shard)).await),
            RequestPlan::Generate(generate) => Box::pin(generate.run(body, connection)).await,
            RequestPlan::Settings(settings) => {
                Ok(Box::pin(change(&connection.shard, body, settings))
                    .await
                    .unwrap_or_else(|error| HttpResponse::error(&error, ContentType::Json)))
            }
            RequestPlan::SharedMemory(request) => {
                let answer = shared_memory::answer(&connection.shard, body, request);
                Ok(Box::pin(answer)
                    .await
                    .unwrap_or_else(|error| HttpResponse::error(&error, ContentType::Json)))
            }
            RequestPlan::Infer(infer) => match infer.run(body, scratch, connection).await {
                Ok(answer) => Ok(answer),
                Err(InferFailure::Late) => Ok(deadline::exceeded()),
                Err(InferFailure::Refused(error, content_type)) => {
                    Ok(HttpResponse::error(&error, content_type))
                }
                Err(InferFailure::Closed) => Err(ConnectionClosed),
            },
        }
    }
}

/// What a route of this protocol, let through on whichever listener, is answered with.
pub(crate) fn plan_route(
    shard: &Rc<Shard>,
    head: &RequestHead<'_>,
    route: GrantedRoute<HttpRoute<'_>>,
    dialect: Dialect,
) -> RequestPlan {
    let route = route.into_inner();
    if let Some(error) = json_refusal(shard, head, route) {
        return RequestPlan::Answer(Box::new(HttpResponse::error(&error, ContentType::Json)));
    }
    match route {
        HttpRoute::RepositoryIndex if head.method == HttpMethod::Post => RequestPlan::Index,
        HttpRoute::RepositoryControl {
            name,
            is_load,
            names_repository: false,
        } if head.method == HttpMethod::Post => RequestPlan::Control {
            name: name.into(),
            is_load,
        },
        HttpRoute::Model {
            name,
            version,
            operation: ModelOperation::Infer,
        } if head.method == HttpMethod::Post => {
            match plan_infer(shard, head, (name, version), dialect) {
                Ok(infer) => RequestPlan::Infer(infer),
                Err(answer) => RequestPlan::Answer(answer),
            }
        }
        HttpRoute::Model {
            name,
            version,
            operation: operation @ (ModelOperation::Generate | ModelOperation::GenerateStream),
        } if head.method == HttpMethod::Post => {
            let is_stream = operation == ModelOperation::GenerateStream;
            plan_generate(shard, head, (name, version), is_stream)
        }
        HttpRoute::SharedMemory {
            kind,
            region,
            action,
        } if (head.method == HttpMethod::Get) == (action == RegionAction::Status)
            && matches!(head.method, HttpMethod::Get | HttpMethod::Post) =>
        {
            RequestPlan::SharedMemory(shared_memory::RegionRequest {
                kind,
                action,
                name: region.into(),
            })
        }
        HttpRoute::Logging if head.method == HttpMethod::Post => {
            RequestPlan::Settings(SettingsKind::Logging)
        }
        HttpRoute::TraceSetting if head.method == HttpMethod::Post => {
            RequestPlan::Settings(SettingsKind::Trace(None))
        }
        HttpRoute::Model {
            name,
            operation: ModelOperation::TraceSetting,
            ..
        } if head.method == HttpMethod::Post => {
            RequestPlan::Settings(SettingsKind::Trace(Some(name.into())))
        }
        HttpRoute::Metrics if head.method.is_read() => RequestPlan::Metrics,
        HttpRoute::Ready if head.method.is_read() => plan_ready(shard, head),
        HttpRoute::Model {
            name,
            version,
            operation: ModelOperation::Ready,
        } if head.method.is_read() => plan_model_ready(shard, head, name, version),
        route => RequestPlan::Answer(Box::new(answer_at_once(shard, head, route))),
    }
}

fn plan_generate(
    shard: &Rc<Shard>,
    head: &RequestHead<'_>,
    (name, version): (&str, Option<&str>),
    is_stream: bool,
) -> RequestPlan {
    let limit_bytes = shard.options.http_input_bytes_max;
    let plan =
        GenerateCall::plan(shard, head, name, version, is_stream).and_then(|plan| {
            match head.framing {
                BodyFraming::Length(length) if length > limit_bytes => {
                    Err(decode::too_long(length, limit_bytes))
                }
                _ => Ok(plan),
            }
        });
    match plan {
        Ok(generate) => RequestPlan::Generate(Box::new(generate)),
        Err(error) => RequestPlan::Answer(Box::new(HttpResponse::error(&error, ContentType::Json))),
    }
}

/// What is wrong with a body that is JSON from end to end and too long: nobody need receive it to
/// know.
fn json_refusal(shard: &Rc<Shard>, head: &RequestHead<'_>, route: HttpRoute<'_>) -> Option<Error> {
    let is_json = matches!(
        route,
        HttpRoute::RepositoryIndex
            | HttpRoute::RepositoryControl { .. }
            | HttpRoute::SharedMemory { .. }
            | HttpRoute::Logging
            | HttpRoute::TraceSetting
            | HttpRoute::Model {
                operation: ModelOperation::TraceSetting,
                ..
            }
    );
    let limit_bytes = shard.options.http_input_bytes_max;
    match head.framing {
        BodyFraming::Length(length)
            if is_json && head.method == HttpMethod::Post && length > limit_bytes =>
        {
            Some(decode::too_long(length, limit_bytes))
        }
        _ => None,
    }
}

async fn change(
    shard: &Rc<Shard>,
    body: ByteView,
    settings: SettingsKind,
) -> Result<HttpResponse, Error> {
    match settings {
        SettingsKind::Logging => logging::update(shard, body).await,
        SettingsKind::Trace(model) => trace::update(shard, body, model).await,
    }
}

/// Everything that needs no body.
fn answer_at_once(shard: &Rc<Shard>, head: &RequestHead<'_>, route: HttpRoute<'_>) -> HttpResponse {
    let is_get = head.method == HttpMethod::Get;
    let server = &shard.server;
    // Upstream's handlers say what they answer before they look at the verb, except for health and
    // inference.
    let type_of_errors = match route {
        HttpRoute::Live
        | HttpRoute::Ready
        | HttpRoute::Metrics
        | HttpRoute::Unknown
        | HttpRoute::Model {
            operation: ModelOperation::Ready | ModelOperation::Infer,
            ..
        } => ContentType::Plain,
        _ => ContentType::Json,
    };
    let wrong_verb = || HttpResponse::failure(405, type_of_errors, "Method Not Allowed");
    let outcome = match route {
        HttpRoute::Unknown => return HttpResponse::failure(404, ContentType::Plain, "Not Found"),
        HttpRoute::ServerMetadata if is_get => {
            Ok(documents::server_metadata(server.metadata()).into_bytes())
        }
        HttpRoute::Live if head.method.is_read() => return live(shard, head),
        HttpRoute::Statistics if is_get => api::statistics(server, "", None)
            .map(|models| documents::statistics(&models).into_bytes()),
        HttpRoute::Model {
            name,
            version,
            operation,
        } => {
            return match operation {
                ModelOperation::Metadata | ModelOperation::Config | ModelOperation::Statistics
                    if is_get =>
                {
                    model(shard, name, version, operation)
                        .unwrap_or_else(|error| HttpResponse::error(&error, type_of_errors))
                }
                ModelOperation::TraceSetting if is_get => trace::show(shard, name)
                    .unwrap_or_else(|error| HttpResponse::error(&error, type_of_errors)),
                _ => wrong_verb(),
            };
        }
        // Without a repository's name it has been planned already.
        HttpRoute::RepositoryControl { .. } if head.method == HttpMethod::Post => {
            Err(api::repository_name_refusal())
        }
        HttpRoute::TraceSetting if is_get => {
            return trace::show(shard, "")
                .unwrap_or_else(|error| HttpResponse::error(&error, type_of_errors));
        }
        HttpRoute::Logging if is_get => return logging::show(),
        _ => return wrong_verb(),
    };
    match outcome {
        Ok(body) => HttpResponse::json(body),
        Err(error) => HttpResponse::error(&error, type_of_errors),
    }
}

fn live(shard: &Rc<Shard>, head: &RequestHead<'_>) -> HttpResponse {
    if shard.server.is_stopping() {
        return exiting();
    }
    let is_live = shard.server.is_live();
    let status = if is_live { 200 } else { 400 };
    let wanted = head.wants_json().then(|| r#"{"live":"#.into());
    health_json(status, is_live, wanted).unwrap_or_else(|| HttpResponse::empty(status))
}

/// `{...:<value>}`, if the client asks for it.
fn health_json(status: u16, value: bool, wanted: HealthJson) -> Option<HttpResponse> {
    let body = format!("{}{value}}}", wanted?);
    Some(HttpResponse::new(
        status,
        ContentType::Json,
        body.into_bytes(),
    ))
}

fn exiting() -> HttpResponse {
    HttpResponse::failure(503, ContentType::Plain, "Server exiting")
}

fn plan_ready(shard: &Rc<Shard>, head: &RequestHead<'_>) -> RequestPlan {
    if shard.server.is_draining() {
        return RequestPlan::Answer(Box::new(exiting()));
    }
    let wanted = head.wants_json().then(|| r#"{"ready":"#.into());
    plan_readiness(shard.server.readiness(), ReadinessSubject::Server, wanted)
}

fn plan_model_ready(
    shard: &Rc<Shard>,
    head: &RequestHead<'_>,
    name: &str,
    version: Option<&str>,
) -> RequestPlan {
    let readiness = api::parse_version(version.unwrap_or(""))
        .and_then(|version| shard.server.model_readiness(name, version));
    let wanted = head.wants_json().then(|| {
        let mut text = br#"{"name":"#.to_vec();
        write::string(&mut text, name.as_bytes());
        text.extend_from_slice(br#","ready":"#);
        String::from_utf8_lossy(&text).into()
    });
    match readiness {
        Ok(readiness) => plan_readiness(readiness, ReadinessSubject::Model, wanted),
        Err(error) => {
            RequestPlan::Answer(Box::new(HttpResponse::error(&error, ContentType::Plain)))
        }
    }
}

/// Answers what is known, else plans to ask the backends.
fn plan_readiness(
    readiness: ReadinessAnswer,
    subject: ReadinessSubject,
    wanted: HealthJson,
) -> RequestPlan {
    match readiness {
        ReadinessAnswer::Known(is_ready) => {
            RequestPlan::Answer(Box::new(ready_answer(is_ready, subject, wanted)))
        }
        ReadinessAnswer::Asked(probe) => RequestPlan::Ready {
            probe: Box::new(probe),
            subject,
            wanted,
        },
    }
}

fn ready_answer(is_ready: bool, subject: ReadinessSubject, wanted: HealthJson) -> HttpResponse {
    let status = if is_ready { 200 } else { 400 };
    health_json(status, is_ready, wanted).unwrap_or_else(|| match (is_ready, subject) {
        (false, ReadinessSubject::Model) => {
            HttpResponse::failure(400, ContentType::Plain, "Model version not ready")
        }
        _ => HttpResponse::empty(status),
    })
}

fn model(
    shard: &Rc<Shard>,
    name: &str,
    version: Option<&str>,
    operation: ModelOperation,
) -> Result<HttpResponse, Error> {
    let server = &shard.server;
    let version = api::parse_version(version.unwrap_or(""))?;
    Ok(match operation {
        ModelOperation::Statistics => {
            let models = api::statistics(server, name, version)?;
            HttpResponse::json(documents::statistics(&models).into_bytes())
        }
        ModelOperation::Config => {
            let model = shard.find(name, version)?;
            HttpResponse::json(model.reported_config().json.as_bytes().to_vec())
        }
        _ => {
            let model = shard.find(name, version)?;
            let metadata = api::model_metadata(server, &model, version)?;
            HttpResponse::json(documents::model_metadata(&metadata).into_bytes())
        }
    })
}
