//! The metrics listener: `GET /metrics` on a port of its own.

use std::rc::Rc;

use crate::access::{Access, GrantedRoute, GuardedRoute, ModelScope};
use crate::http::answer::{ContentType, HttpResponse};
use crate::http::connection::{
    self, BodyPlacement, ConnectionClosed, HttpConnection, HttpService, ReceivedBody,
};
use crate::http::head::{HttpMethod, RequestHead};
use crate::http::metrics_page::{is_page, page};
use crate::options::FrontendOptions;
use crate::shard::{ConnectionGuard, Shard, ShardStream};
use crate::tls::TlsConfig;

/// Serves one connection until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: ShardStream, guard: ConnectionGuard) {
    connection::serve(shard, stream, guard, MetricsService).await;
}

struct MetricsService;

/// What a path of this listener names.
enum MetricsRoute {
    Page,
    Other,
}

impl GuardedRoute for MetricsRoute {
    fn access(&self) -> Access {
        match self {
            MetricsRoute::Page => Access::Metrics,
            MetricsRoute::Other => Access::Open,
        }
    }

    fn model_scope(&self) -> ModelScope<'_> {
        ModelScope::None
    }
}

enum MetricsPlan {
    Text,
    Answer(Box<HttpResponse>),
}

impl HttpService for MetricsService {
    type Route<'a> = MetricsRoute;
    type Plan = MetricsPlan;

    fn tls<'a>(&self, options: &'a FrontendOptions) -> Option<&'a TlsConfig> {
        options.metrics_tls.as_ref()
    }

    fn route(&self, _shard: &Shard, head: &RequestHead<'_>) -> MetricsRoute {
        match is_page(head.path) {
            true => MetricsRoute::Page,
            false => MetricsRoute::Other,
        }
    }

    fn plan(
        &self,
        _shard: &Rc<Shard>,
        head: &RequestHead<'_>,
        route: GrantedRoute<MetricsRoute>,
    ) -> MetricsPlan {
        match (head.method, route.into_inner()) {
            (HttpMethod::Get | HttpMethod::Head, MetricsRoute::Page) => MetricsPlan::Text,
            // As upstream: any other page is there, and empty.
            (HttpMethod::Get | HttpMethod::Head, _) => {
                MetricsPlan::Answer(Box::new(HttpResponse::empty(200)))
            }
            _ => MetricsPlan::Answer(Box::new(HttpResponse::failure(
                405,
                ContentType::Plain,
                "Method Not Allowed",
            ))),
        }
    }

    fn plan_refusal(&self, answer: HttpResponse) -> MetricsPlan {
        MetricsPlan::Answer(Box::new(answer))
    }

    fn is_at_once(&self, plan: &MetricsPlan) -> bool {
        matches!(plan, MetricsPlan::Answer(_))
    }

    fn placement(&self, _plan: &MetricsPlan) -> Option<BodyPlacement> {
        None
    }

    async fn answer(
        &self,
        plan: MetricsPlan,
        _body: Option<ReceivedBody>,
        _scratch: Vec<u8>,
        connection: &mut HttpConnection,
    ) -> Result<HttpResponse, ConnectionClosed> {
        Ok(match plan {
            MetricsPlan::Answer(answer) => *answer,
            MetricsPlan::Text => page(&connection.shard).await,
        })
    }
}
