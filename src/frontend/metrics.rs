//! The metrics listener: `GET /metrics` on a port of its own, and the operator's page.

use std::rc::Rc;

use crate::access::{Access, GrantedRoute, GuardedRoute, ModelScope};
use crate::dashboard::page;
use crate::dashboard::source::FeedSource;
use crate::http::answer::{ContentType, HttpResponse};
use crate::http::connection::{
    self, BodyPlacement, ConnectionClosed, HttpConnection, HttpService, ReceivedBody,
};
use crate::http::head::{HttpMethod, RequestHead};
use crate::http::metrics_page::{self, is_page};
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
    Dashboard,
    DashboardEvents,
    Other,
}

impl GuardedRoute for MetricsRoute {
    fn access(&self) -> Access {
        match self {
            MetricsRoute::Page | MetricsRoute::Dashboard | MetricsRoute::DashboardEvents => {
                Access::Metrics
            }
            MetricsRoute::Other => Access::Open,
        }
    }

    fn model_scope(&self) -> ModelScope<'_> {
        ModelScope::None
    }
}

enum MetricsPlan {
    Text,
    Events,
    Answer(Box<HttpResponse>),
}

impl HttpService for MetricsService {
    type Route<'a> = MetricsRoute;
    type Plan = MetricsPlan;

    fn tls<'a>(&self, options: &'a FrontendOptions) -> Option<&'a TlsConfig> {
        options.metrics_tls.as_ref()
    }

    fn route(&self, _shard: &Shard, head: &RequestHead<'_>) -> MetricsRoute {
        match head.path {
            path if is_page(path) => MetricsRoute::Page,
            "/dashboard" | "/dashboard/" => MetricsRoute::Dashboard,
            "/dashboard/events" => MetricsRoute::DashboardEvents,
            _ => MetricsRoute::Other,
        }
    }

    fn plan(
        &self,
        shard: &Rc<Shard>,
        head: &RequestHead<'_>,
        route: GrantedRoute<MetricsRoute>,
    ) -> MetricsPlan {
        let is_shown = shard.dashboard.is_some();
        let answer = match (head.method, route.into_inner()) {
            (HttpMethod::Get | HttpMethod::Head, MetricsRoute::Page) => return MetricsPlan::Text,
            (HttpMethod::Get, MetricsRoute::DashboardEvents) if is_shown => {
                return MetricsPlan::Events;
            }
            (HttpMethod::Head, MetricsRoute::DashboardEvents) if is_shown => {
                page::events_response()
            }
            (HttpMethod::Get | HttpMethod::Head, MetricsRoute::Dashboard) if is_shown => {
                page::page()
            }
            (
                HttpMethod::Get | HttpMethod::Head,
                MetricsRoute::Dashboard | MetricsRoute::DashboardEvents,
            ) => page::page_off(),
            // As upstream: any other page is there, and empty.
            (HttpMethod::Get | HttpMethod::Head, MetricsRoute::Other) => HttpResponse::empty(200),
            _ => HttpResponse::failure(405, ContentType::Plain, "Method Not Allowed"),
        };
        MetricsPlan::Answer(Box::new(answer))
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
            MetricsPlan::Text => metrics_page::page(&connection.shard).await,
            MetricsPlan::Events => begin_events(connection),
        })
    }
}

/// Has the connection send events until its client goes away, if there is room for one more.
fn begin_events(connection: &mut HttpConnection) -> HttpResponse {
    let feed = connection.shard.dashboard.as_ref();
    match feed.and_then(|feed| feed.join()) {
        Some(client) => {
            connection.stream_from(FeedSource::new(client));
            page::events_response()
        }
        None => page::events_refused(),
    }
}
