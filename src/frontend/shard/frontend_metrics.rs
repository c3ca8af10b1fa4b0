//! What the network side tells the metrics about itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use conch_control::metrics::{FamilyKind, FamilySamples, LabelledValue};

use super::link::{Protocol, ShardHandle};
use super::long_turns::{self, LongTurns};

/// Shared by acceptors and shards.
#[derive(Default)]
pub(crate) struct FrontendMetrics {
    /// Once all shards run.
    links: OnceLock<Vec<Arc<ShardHandle>>>,
    /// Connections that were closed at once, by protocol.
    refused: [AtomicU64; Protocol::ALL.len()],
    /// Requests beyond what a shard may have in flight.
    overflow: AtomicU64,
}

impl FrontendMetrics {
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

    /// Open connections by the name of their protocol.
    pub(crate) fn connection_counts(&self) -> Vec<(&'static str, u64)> {
        let links = self.links.get().map_or(&[][..], |links| links);
        let protocols = Protocol::ALL.into_iter();
        let counts = protocols.map(|protocol| {
            let counts = links.iter().map(|link| link.connection_count_of(protocol));
            (protocol.name(), counts.sum::<usize>() as u64)
        });
        counts.collect()
    }

    /// Connections that were closed at once, and requests that a shard had no room for.
    pub(crate) fn refused_counts(&self) -> (u64, u64) {
        let counts = self.refused.iter();
        let connection_count = counts.map(|count| count.load(Ordering::Relaxed)).sum();
        (connection_count, self.overflow.load(Ordering::Relaxed))
    }

    /// What it is now.
    pub(crate) fn read(&self) -> Vec<FamilySamples> {
        let links = self.links.get().map_or(&[][..], |links| links);
        let open_count = |protocol: Protocol| {
            let counts = links.iter().map(|link| link.connection_count_of(protocol));
            counts.sum::<usize>() as u64
        };
        let refused_count = |protocol: Protocol| {
            let count = self.refused.get(protocol as usize);
            count.map_or(0, |count| count.load(Ordering::Relaxed))
        };
        let overflow_count = self.overflow.load(Ordering::Relaxed);
        let long_turns: Vec<&LongTurns> = links.iter().map(|link| &**link.long_turns()).collect();
        let mut families = vec![
            FamilySamples {
                name: "conch_connections",
                help: "Open connections",
                kind: FamilyKind::Gauge,
                samples: by_protocol(open_count),
            },
            FamilySamples {
                name: "conch_connections_refused_total",
                help: "Connections that were closed at once because there were too many",
                kind: FamilyKind::Counter,
                samples: by_protocol(refused_count),
            },
            FamilySamples {
                name: "conch_requests_refused_total",
                help: "Requests that were refused before they reached a model",
                kind: FamilyKind::Counter,
                samples: vec![labelled("reason", "shard_full", overflow_count)],
            },
        ];
        families.extend(long_turns::families(&long_turns));
        families
    }
}

fn by_protocol(count: impl Fn(Protocol) -> u64) -> Vec<LabelledValue> {
    let protocols = Protocol::ALL.into_iter();
    let samples = protocols.map(|protocol| labelled("protocol", protocol.name(), count(protocol)));
    samples.collect()
}

fn labelled(label: &'static str, value: &'static str, count: u64) -> LabelledValue {
    LabelledValue {
        labels: vec![(label, value.into())],
        value: count as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_by_protocol() {
        let metrics = FrontendMetrics::default();
        metrics.note_refused(Protocol::Grpc);
        metrics.note_overflow();
        let (link, _receiver) = ShardHandle::new();
        metrics.open(&[link]);
        assert_eq!(metrics.refused_counts(), (1, 1));
        assert_eq!(metrics.connection_counts()[1], ("grpc", 0));
        let families = metrics.read();
        let seen: Vec<(&str, Vec<(String, f64)>)> = families
            .into_iter()
            .filter(|family| !family.samples.is_empty())
            .map(|family| {
                let samples = family.samples.into_iter();
                let values = samples.map(|mut sample| {
                    let (_, label) = sample.labels.remove(0);
                    (label.into_owned(), sample.value)
                });
                (family.name, values.collect())
            })
            .collect();
        let counts = |grpc| {
            let names = ["http", "grpc", "metrics", "sagemaker", "vertex_ai"];
            let count = |name| if name == "grpc" { grpc } else { 0.0 };
            names.map(|name| (name.to_owned(), count(name))).to_vec()
        };
        assert_eq!(
            seen,
            [
                ("conch_connections", counts(0.0)),
                ("conch_connections_refused_total", counts(1.0)),
                (
                    "conch_requests_refused_total",
                    vec![("shard_full".to_owned(), 1.0)]
                ),
            ]
        );
    }
}
