//! The metrics listener: `GET /metrics` on a port of its own.

use std::rc::Rc;

use crate::access::{Access, Granted, Guarded};
use crate::http::answer::{Answer, ContentType};
use crate::http::connection::{self, Body, Closed, Connection, Placement, Service};
use crate::http::head::{Head, Method};
use crate::shard::offload::METRICS_COST;
use crate::shard::{Presence, Shard, Stream};

/// Serves one connection until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: Stream, presence: Presence) {
    connection::serve(shard, stream, presence, Metrics).await;
}

/// The page itself.
pub(crate) async fn page(shard: &Shard) -> Answer {
    // Rendering reads every model's numbers and files of /proc: not on a shard.
    let server = std::sync::Arc::clone(&shard.server);
    let text = shard
        .offload(METRICS_COST, move || server.metrics_text())
        .await;
    Answer::new(200, ContentType::Metrics, text.into_bytes())
}

struct Metrics;

/// What a path of this listener names.
enum Route {
    Page,
    Other,
}

impl Guarded for Route {
    fn access(&self) -> Access {
        match self {
            // Upstream has no category for metrics.
            Route::Page | Route::Other => Access::Open,
        }
    }
}

enum Plan {
    Text,
    Answer(Box<Answer>),
}

impl Service for Metrics {
    type Route<'a> = Route;
    type Plan = Plan;

    fn route(&self, _shard: &Shard, head: &Head<'_>) -> Route {
        match head.path {
            "/metrics" | "/metrics/" => Route::Page,
            _ => Route::Other,
        }
    }

    fn plan(&self, _shard: &Rc<Shard>, head: &Head<'_>, route: Granted<Route>) -> Plan {
        match (head.method, route.into_inner()) {
            (Method::Get | Method::Head, Route::Page) => Plan::Text,
            // As upstream: any other page is there, and empty.
            (Method::Get | Method::Head, _) => Plan::Answer(Box::new(Answer::empty(200))),
            _ => Plan::Answer(Box::new(Answer::failure(
                405,
                ContentType::Plain,
                "Method Not Allowed",
            ))),
        }
    }

    fn plan_refusal(&self, answer: Answer) -> Plan {
        Plan::Answer(Box::new(answer))
    }

    fn is_at_once(&self, plan: &Plan) -> bool {
        matches!(plan, Plan::Answer(_))
    }

    fn placement(&self, _plan: &Plan) -> Option<Placement> {
        None
    }

    async fn answer(
        &self,
        plan: Plan,
        _body: Option<Body>,
        _scratch: Vec<u8>,
        connection: &mut Connection,
    ) -> Result<Answer, Closed> {
        Ok(match plan {
            Plan::Answer(answer) => *answer,
            Plan::Text => page(&connection.shard).await,
        })
    }
}
