//! What the network side tells the metrics about itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use conch_control::metrics::FamilySamples;

use crate::shard::link::{Protocol, ShardHandle};

/// Shared by acceptors and shards.
#[derive(Default)]
pub(crate) struct FrontendFigures {
    /// Once all shards run.
    links: OnceLock<Vec<Arc<ShardHandle>>>,
    /// Connections that were closed at once, by protocol.
    refused: [AtomicU64; Protocol::ALL.len()],
    /// Requests beyond what a shard may have in flight.
    overflow: AtomicU64,
}

impl FrontendFigures {
    /// Counts the connections of these shards.
    pub(crate) fn open(&self, links: &[Arc<ShardHandle>]) {
        self.links.get_or_init(|| links.to_vec());
    }

    /// A connection was closed at once: there are too many, or descriptors are scarce.
    pub(crate) fn note_refused(&self, protocol: Protocol) {
        // The order of `Protocol::ALL` is that of its variants.
        if let Some(count) = self.refused.get(protocol as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A shard had no room for a request.
    pub(crate) fn note_overflow(&self) {
        self.overflow.fetch_add(1, Ordering::Relaxed);
    }

    /// What it is now.
    pub(crate) fn read(&self) -> Vec<FamilySamples> {
        let links = self.links.get().map_or(&[][..], |links| links);
        let open_count = |protocol: Protocol| {
            let counts = links.iter().map(|link| link.connection_count_of(protocol));
            counts.sum::<usize>() as u64
        };
        let by_protocol = |count: &dyn Fn(Protocol) -> u64| {
            let protocols = Protocol::ALL.into_iter();
            protocols
                .map(|protocol| (protocol.name(), count(protocol)))
                .collect()
        };
        let refused_count = |protocol: Protocol| {
            let count = self.refused.get(protocol as usize);
            count.map_or(0, |count| count.load(Ordering::Relaxed))
        };
        vec![
            FamilySamples {
                name: "conch_connections",
                help: "Open connections",
                kind: "gauge",
                label: "protocol",
                samples: by_protocol(&open_count),
            },
            FamilySamples {
                name: "conch_connections_refused_total",
                help: "Connections that were closed at once because there were too many",
                kind: "counter",
                label: "protocol",
                samples: by_protocol(&refused_count),
            },
            FamilySamples {
                name: "conch_requests_refused_total",
                help: "Requests that were refused before they reached a model",
                kind: "counter",
                label: "reason",
                samples: vec![("shard_full", self.overflow.load(Ordering::Relaxed))],
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_by_protocol() {
        let figures = FrontendFigures::default();
        figures.note_refused(Protocol::Grpc);
        figures.note_overflow();
        let (link, _receiver) = ShardHandle::new();
        figures.open(&[link]);
        let families = figures.read();
        let seen: Vec<(&str, Vec<(&str, u64)>)> = families
            .into_iter()
            .map(|family| (family.name, family.samples))
            .collect();
        let counts = |grpc| {
            let names = ["http", "grpc", "metrics", "sagemaker", "vertex_ai"];
            let count = |name| if name == "grpc" { grpc } else { 0 };
            names.map(|name| (name, count(name))).to_vec()
        };
        assert_eq!(
            seen,
            [
                ("conch_connections", counts(0)),
                ("conch_connections_refused_total", counts(1)),
                ("conch_requests_refused_total", vec![("shard_full", 1)]),
            ]
        );
    }
}
