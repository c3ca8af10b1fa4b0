//! The responses that wait for their readers beyond the credits of their requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conch_memory::{CLIENT_FACTOR, ClientCounters, ClientId};

/// The backlogs of all requests may hold a quarter of the byte budget, that of one request a
/// sixteenth: neither keeps others from memory. Of the quarter a client may hold as many times what
/// is free as of the byte budget itself.
const BACKLOG_SHARE: u64 = 4;
pub(super) const REQUEST_SHARE: u64 = 16;
/// Of one request, whatever its share: four of these fit into the word that counts its bytes.
pub(super) const REQUEST_BYTES_MAX: u64 = ((1 << COUNT_SHIFT) - 1) / 4;
/// Where the count of responses begins in that word; the bytes are below.
pub(super) const COUNT_SHIFT: u32 = 40;

/// The responses of all streams of a server that wait for their readers beyond their requests'
/// credits.
#[derive(Debug)]
pub struct StreamBacklog {
    pub(super) patience: Duration,
    pub(super) bytes_max: u64,
    /// Of one request.
    pub(super) request_bytes_max: u64,
    pub(super) held_bytes: AtomicU64,
    clients: ClientCounters,
}

impl StreamBacklog {
    /// A backlog of readers that are given up after `patience`, within a byte budget of
    /// `limit_bytes`.
    pub fn new(patience: Duration, limit_bytes: u64) -> Arc<StreamBacklog> {
        Arc::new(StreamBacklog {
            patience,
            bytes_max: limit_bytes / BACKLOG_SHARE,
            request_bytes_max: (limit_bytes / REQUEST_SHARE).min(REQUEST_BYTES_MAX),
            held_bytes: AtomicU64::new(0),
            clients: ClientCounters::default(),
        })
    }

    /// Adds `bytes` on behalf of `client`, if there is room for them.
    pub(super) fn take(&self, client: Option<ClientId>, bytes: u64) -> bool {
        let taken = self
            .held_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|sum| *sum <= self.bytes_max)
            });
        let Ok(held_before) = taken else {
            return false;
        };
        let Some(client) = client else { return true };
        let free_bytes = self.bytes_max - held_before - bytes;
        if self.clients.add(client, bytes) <= free_bytes.saturating_mul(CLIENT_FACTOR) {
            return true;
        }
        self.uncharge(Some(client), bytes);
        false
    }

    pub(super) fn uncharge(&self, client: Option<ClientId>, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(client) = client {
            self.clients.sub(client, bytes);
        }
    }
}
