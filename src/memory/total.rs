//! What the process, its clients and its connections hold of the byte budget, and who may take
//! more: [`Total::reserve_for`].

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Granularity of reservations.
pub(crate) const STEP_BYTES: u64 = 64 << 10;

/// The budget has no room for what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetExhausted {
    pub asked_bytes: u64,
    pub limit_bytes: u64,
}

impl fmt::Display for BudgetExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server has no memory left for the request: the limit is {} bytes",
            self.limit_bytes
        )
    }
}

impl std::error::Error for BudgetExhausted {}

/// A client, as far as shares go: one of [`CLIENT_COUNT`] counters. Two clients may share one, and
/// then a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(usize);

/// Counters of clients: 32 KiB. With a hundred clients two of them share one in seven of ten
/// servers, with ten in one of a hundred.
const CLIENT_COUNT: usize = 4096;
/// A client may hold as many times what is free. The more others hold, the less that is; alone it
/// gets 8/9.
pub const CLIENT_FACTOR: u64 = 8;
/// The same of a connection, within what its client may still take. Alone it gets 4/5 of that.
const CONNECTION_FACTOR: u64 = 4;
/// Of the limit, what only small holders may take, unless it is said.
pub(crate) const RESERVE_PART: u64 = 16;
/// A connection that holds no more than 1/64 of the limit, within these bounds, is small.
const SMALL_PART: u64 = 64;
pub(crate) const SMALL_BYTES_MIN: u64 = 2 * STEP_BYTES;
const SMALL_BYTES_MAX: u64 = 1 << 20;

/// What each client holds of something. Relaxed: counters that guard no other memory.
#[derive(Debug)]
pub struct ClientCounters(Box<[AtomicU64]>);

impl Default for ClientCounters {
    fn default() -> ClientCounters {
        let counters = std::iter::repeat_with(AtomicU64::default).take(CLIENT_COUNT);
        ClientCounters(counters.collect())
    }
}

impl ClientCounters {
    /// Adds `bytes` to what `client` holds; returns what it holds then.
    pub fn add(&self, client: ClientId, bytes: u64) -> u64 {
        self.of(client).fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Takes off what was added.
    pub fn sub(&self, client: ClientId, bytes: u64) {
        self.of(client).fetch_sub(bytes, Ordering::Relaxed);
    }

    fn of(&self, ClientId(index): ClientId) -> &AtomicU64 {
        self.0
            .get(index)
            .expect("made by the remainder of a division by their count")
    }
}

/// The figures of one connection, over all clients that it speaks for. Relaxed: they guard no other
/// memory.
#[derive(Debug, Default)]
pub struct ConnectionUsage {
    held_bytes: AtomicU64,
    /// Of these, what waits for the server.
    complete_bytes: AtomicU64,
    /// In all, in either direction.
    moved_bytes: AtomicU64,
}

impl ConnectionUsage {
    /// Bytes that are held because the peer has not sent, or not taken, the rest of a message.
    pub fn peer_bytes(&self) -> u64 {
        let complete_bytes = self.complete_bytes.load(Ordering::Relaxed);
        let held_bytes = self.held_bytes.load(Ordering::Relaxed);
        held_bytes.saturating_sub(complete_bytes)
    }

    /// Bytes that were charged, given back or taken by the peer, in all, but for what was charged
    /// ahead and has not come.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_moved(&self, bytes: u64) {
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// No more than was noted: what is given back was charged before.
    pub(crate) fn forget_moved(&self, bytes: u64) {
        self.moved_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_held(&self, bytes: u64) -> u64 {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    pub(crate) fn sub_held(&self, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_complete(&self, bytes: u64) {
        self.complete_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub_complete(&self, bytes: u64) {
        self.complete_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What all charges of the process count in. Relaxed throughout: the counters guard no other
/// memory.
#[derive(Debug)]
pub(crate) struct Total {
    used_bytes: AtomicU64,
    /// Of these, what plug-ins hold for themselves.
    plugin_bytes: AtomicU64,
    limit_bytes: u64,
    reserve_bytes: u64,
    small_bytes: u64,
    clients: ClientCounters,
    /// Keyed at random: nobody can choose names that share a counter.
    hasher: RandomState,
    /// A share was refused since [`Total::excess_bytes`].
    has_refused: AtomicBool,
    dropped_count: AtomicU64,
    refused_count: AtomicU64,
}

impl Total {
    /// The last `reserve_bytes` are for connections that hold little.
    pub(crate) fn new(limit_bytes: u64, reserve_bytes: u64) -> Total {
        Total {
            used_bytes: AtomicU64::new(0),
            plugin_bytes: AtomicU64::new(0),
            limit_bytes,
            reserve_bytes: reserve_bytes.min(limit_bytes),
            small_bytes: (limit_bytes / SMALL_PART).clamp(SMALL_BYTES_MIN, SMALL_BYTES_MAX),
            clients: ClientCounters::default(),
            hasher: RandomState::new(),
            has_refused: AtomicBool::new(false),
            dropped_count: AtomicU64::new(0),
            refused_count: AtomicU64::new(0),
        }
    }

    pub(crate) fn client(&self, name: &[u8]) -> ClientId {
        // The remainder is below the count, whatever the width of a pointer.
        ClientId((self.hasher.hash_one(name) % CLIENT_COUNT as u64) as usize)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(crate) fn excess_bytes(&self) -> u64 {
        let (used_bytes, common_bytes) = (self.used_bytes(), self.common_bytes());
        let half_bytes = common_bytes / 2;
        let has_refused = self.has_refused.swap(false, Ordering::Relaxed);
        let is_pressed = used_bytes > common_bytes / 4 * 3 || has_refused;
        if is_pressed {
            used_bytes.saturating_sub(half_bytes)
        } else {
            0
        }
    }

    pub(crate) fn note_dropped(&self) -> u64 {
        self.dropped_count.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn dropped_count(&self) -> u64 {
        self.dropped_count.load(Ordering::Relaxed)
    }

    pub(crate) fn refused_count(&self) -> u64 {
        self.refused_count.load(Ordering::Relaxed)
    }

    /// Takes `bytes` for the process itself, within the limit and nothing else.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), BudgetExhausted> {
        self.reserve_below(bytes, self.limit_bytes).map(|_| ())
    }

    /// What everybody may use.
    fn common_bytes(&self) -> u64 {
        self.limit_bytes - self.reserve_bytes
    }

    /// Takes `bytes` if no more than `ceiling_bytes` are used then; returns how many are.
    fn reserve_below(&self, bytes: u64, ceiling_bytes: u64) -> Result<u64, BudgetExhausted> {
        let taken = self
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes)
                    .filter(|total| *total <= ceiling_bytes)
            });
        taken
            .map(|used| used + bytes)
            .map_err(|_| self.refusal(bytes))
    }

    /// Gives back what [`Total::reserve`] took.
    pub(crate) fn release(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` for plug-ins: they hold at most half of the limit together, and nothing of the
    /// reserve, as nobody can take it from them.
    pub(crate) fn reserve_for_plugin(&self, bytes: u64) -> Result<(), BudgetExhausted> {
        let held_bytes = self.plugin_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let taken = match held_bytes <= self.limit_bytes / 2 {
            true => self.reserve_below(bytes, self.common_bytes()).map(|_| ()),
            false => Err(self.refusal(bytes)),
        };
        if taken.is_err() {
            self.plugin_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// Gives back what [`Total::reserve_for_plugin`] took.
    pub(crate) fn release_for_plugin(&self, bytes: u64) {
        self.release(bytes);
        self.plugin_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn refusal(&self, asked_bytes: u64) -> BudgetExhausted {
        self.refused_count.fetch_add(1, Ordering::Relaxed);
        BudgetExhausted {
            asked_bytes,
            limit_bytes: self.limit_bytes,
        }
    }

    /// Takes `bytes` for the connection of `usage` on behalf of `client`.
    ///
    /// A connection that holds a small request and its response may use all of the limit, one that
    /// holds little all but half of the reserve. One that holds more may use all but the reserve,
    /// and no more than [`CONNECTION_FACTOR`] times what is left for its client; its client no more
    /// than [`CLIENT_FACTOR`] times what is free. So whoever comes finds something free, however
    /// many hold as much as they may, and nobody counts them.
    pub(crate) fn reserve_for(
        &self,
        usage: &ConnectionUsage,
        client: ClientId,
        bytes: u64,
    ) -> Result<(), BudgetExhausted> {
        let held_bytes = usage.add_held(bytes);
        let client_bytes = self.clients.add(client, bytes);
        let is_small = held_bytes <= self.small_bytes;
        let ceiling_bytes = if held_bytes <= SMALL_BYTES_MIN {
            self.limit_bytes
        } else if is_small {
            self.limit_bytes - self.reserve_bytes / 2
        } else {
            self.common_bytes()
        };
        let taken = self
            .reserve_below(bytes, ceiling_bytes)
            .and_then(|used_bytes| {
                let free_bytes = ceiling_bytes - used_bytes;
                if is_small || held_bytes <= room_bytes(free_bytes, client_bytes) {
                    return Ok(());
                }
                self.release(bytes);
                Err(self.refusal(bytes))
            });
        if taken.is_err() {
            self.clients.sub(client, bytes);
            usage.sub_held(bytes);
            if self.used_bytes() > self.common_bytes() / 2 {
                self.has_refused.store(true, Ordering::Relaxed);
            }
        }
        taken
    }

    /// Gives back what [`Total::reserve_for`] took.
    pub(crate) fn release_for(&self, usage: &ConnectionUsage, client: ClientId, bytes: u64) {
        self.release(bytes);
        self.clients.sub(client, bytes);
        usage.sub_held(bytes);
    }
}

/// What a connection may hold where `free_bytes` are free and its client holds `client_bytes`.
fn room_bytes(free_bytes: u64, client_bytes: u64) -> u64 {
    // What the client may take until it holds its factor of what is free then.
    let client_room_bytes = free_bytes
        .saturating_mul(CLIENT_FACTOR)
        .saturating_sub(client_bytes)
        / (CLIENT_FACTOR + 1);
    client_room_bytes
        .min(free_bytes)
        .saturating_mul(CONNECTION_FACTOR)
}
