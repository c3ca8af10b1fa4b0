//! The tests of the loader, by subject, and what they share.

mod agent;
mod config;
mod control;
mod demand;
mod ensemble;
pub(crate) mod fake;
mod handover;
mod refusal;
mod reload;
mod remote;
mod reports;
mod revise;
mod startup;
mod stop;
mod wide;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conch_config::DataType;
use conch_engine::testing::Directory;
use conch_engine::{
    Completion, Delivery, Draft, DraftInput, Error, RequestPermits, RequestTarget, Timestamps,
    clock,
};

use self::fake::Host;
use crate::Server;
use crate::options::EngineOptions;
use crate::server_metadata::IndexRow;

pub(crate) fn options(directory: &Directory, repositories: &[&str]) -> EngineOptions {
    EngineOptions {
        model_repositories: repositories
            .iter()
            .map(|name| directory.path(name))
            .collect(),
        exit_on_error: false,
        exit_timeout: Duration::from_secs(10),
        ..EngineOptions::default()
    }
}

pub(crate) fn start(options: EngineOptions) -> (Arc<Host>, Arc<Server>) {
    let host = Arc::new(Host::default());
    let server = Server::start(options, Arc::clone(&host) as Arc<dyn crate::PluginHost>).unwrap();
    (host, server)
}

pub(super) fn row(name: &str, version: Option<i64>, state: &'static str, reason: &str) -> IndexRow {
    IndexRow {
        name: name.into(),
        version,
        state,
        reason: reason.into(),
    }
}

#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicUsize);

impl Completion for Count {
    fn deliver(&self, delivery: Delivery) {
        assert!(delivery.is_final() && delivery.into_outcome().unwrap().is_ok());
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn wake(&self) {}
}

/// Submits a request of one element; the answer raises the count.
pub(crate) fn submit(server: &Server, model: &str, count: &Arc<Count>) -> Result<(), Error> {
    let completion = Arc::clone(count) as Arc<dyn Completion>;
    submit_as(server, model, &completion, Draft::default()).map(|_| ())
}

/// [`submit`] for what else there is to say of a request.
pub(super) fn submit_as(
    server: &Server,
    model: &str,
    completion: &Arc<dyn Completion>,
    mut draft: Draft<'_>,
) -> Result<conch_engine::RequestHandle, Error> {
    let snapshot = server.registry().snapshot();
    let model = snapshot.find(model, None)?;
    draft.inputs.push(DraftInput {
        name: "IN",
        data_type: DataType::Int32,
        shape: [1, 1].into_iter().collect(),
        chunks: [conch_memory::ByteView::copy_of(&[1, 0, 0, 0])]
            .into_iter()
            .collect(),
    });
    let now_ns = clock::monotonic_ns();
    let timestamps = Timestamps {
        request_start_ns: now_ns,
        ..Timestamps::default()
    };
    let target = RequestTarget {
        model,
        version: None,
        id: draft.id,
        tenant: None,
        correlation_id: &draft.correlation_id,
        sequence_flags: draft.sequence_flags,
        keeps_kind: true,
    };
    let engine = server.engine();
    let permit = engine.enter(target, RequestPermits::default())?;
    engine.submit(
        permit,
        &mut draft,
        completion,
        0,
        timestamps,
        &mut conch_engine::InlineOffer::none(),
    )
}
