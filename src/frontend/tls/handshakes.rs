//! The handshakes of a shard that are under way, and their bound.
//!
//! Beyond the bound one is closed. It is one of the peer address with the most of them: the one
//! that has waited longest for its peer's bytes, if that is longer than a peer needs to answer,
//! else the last to have come. So a flood from one address displaces itself, peers that connect and
//! say nothing go first, and those that have begun are completed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::shard::Slab;

/// A peer that has not answered for so long stalls: more than the round trip of any path.
const STALL: Duration = Duration::from_millis(500);

/// Those of one shard.
pub(crate) struct Handshakes {
    table: RefCell<Slab<Rc<HandshakeEntry>>>,
    /// Of all that came.
    come_count: Cell<u64>,
    count_max: usize,
}

struct HandshakeEntry {
    peer: IpAddr,
    /// Its number among all that came.
    number: u64,
    /// Since when it waits for its peer's bytes; 0 while we are at work.
    waiting_since_ns: Cell<u64>,
    is_displaced: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// One of them; it is over when this is dropped.
pub(super) struct Handshake<'a> {
    handshakes: &'a Handshakes,
    key: u64,
    entry: Rc<HandshakeEntry>,
}

impl Handshakes {
    pub(crate) fn new(count_max: usize) -> Handshakes {
        Handshakes {
            table: RefCell::new(Slab::new()),
            come_count: Cell::new(0),
            count_max: count_max.max(1),
        }
    }

    /// Lets a handshake with `peer` begin. Displaces one, which may be this one, if they are too
    /// many; then says so as the second value.
    pub(super) fn begin(&self, peer: IpAddr, now_ns: u64) -> (Handshake<'_>, bool) {
        let entry = Rc::new(HandshakeEntry {
            peer: network_of(peer),
            number: self.come_count.replace(self.come_count.get() + 1),
            waiting_since_ns: Cell::new(now_ns),
            is_displaced: Cell::new(false),
            waker: RefCell::new(None),
        });
        let key = self.table.borrow_mut().insert(Rc::clone(&entry));
        let handshake = Handshake {
            handshakes: self,
            key,
            entry,
        };
        let displaced = self.choose(now_ns);
        if let Some(displaced) = &displaced {
            displaced.is_displaced.set(true);
            let waker = displaced.waker.take();
            waker.into_iter().for_each(Waker::wake);
        }
        (handshake, displaced.is_some())
    }

    /// Who has to go, if anyone.
    fn choose(&self, now_ns: u64) -> Option<Rc<HandshakeEntry>> {
        let mut table = self.table.borrow_mut();
        // Those who were told to go are as good as gone.
        let entries: Vec<&Rc<HandshakeEntry>> = table
            .iter_mut()
            .map(|entry| &*entry)
            .filter(|entry| !entry.is_displaced.get())
            .collect();
        if entries.len() <= self.count_max {
            return None;
        }
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for entry in &entries {
            *counts.entry(entry.peer).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        let of_most = entries
            .into_iter()
            .filter(|entry| counts.get(&entry.peer) == Some(&most));
        let rank = |entry: &&Rc<HandshakeEntry>| {
            let since_ns = entry.waiting_since_ns.get();
            let stalled_ns = match since_ns {
                0 => 0,
                since_ns => now_ns.saturating_sub(since_ns),
            };
            let stalled_ns = match stalled_ns > STALL.as_nanos() as u64 {
                true => stalled_ns,
                false => 0,
            };
            (stalled_ns, entry.number)
        };
        of_most.max_by_key(rank).map(Rc::clone)
    }
}

impl Handshake<'_> {
    /// Notes that the peer is waited for, or (0) that it is not.
    pub(super) fn wait_since(&self, now_ns: u64) {
        self.entry.waiting_since_ns.set(now_ns);
    }

    /// The outcome of `work`; none as soon as the handshake is displaced.
    pub(super) async fn unless_displaced<T>(
        &self,
        work: impl Future<Output = Option<T>>,
    ) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if self.entry.is_displaced.get() {
                return Poll::Ready(None);
            }
            match &mut *self.entry.waker.borrow_mut() {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            work.as_mut().poll(context)
        })
        .await
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.handshakes.table.borrow_mut().remove(self.key);
    }
}

/// Whoever has an IPv6 address has 2^64 of them.
fn network_of(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(peer) => match peer.to_ipv4_mapped() {
            Some(peer) => IpAddr::V4(peer),
            None => IpAddr::V6(Ipv6Addr::from_bits(peer.to_bits() & !u128::from(u64::MAX))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Handshakes begin as `come` says: peers, and for how long each has waited for its peer (0: we
    /// are at work). Who is displaced by the last?
    fn displaced_by_last(count_max: usize, come: &[(u8, u64)]) -> Option<usize> {
        let handshakes = Handshakes::new(count_max);
        let now_ns = 3_600_000 * MS;
        let mut begun = Vec::new();
        let mut has_displaced = false;
        for (last, waits_ms) in come {
            assert!(!has_displaced, "only the last one is one too many");
            let (handshake, displaces) = handshakes.begin(peer(*last), now_ns);
            let since_ns = match waits_ms {
                0 => 0,
                waits_ms => now_ns - waits_ms * MS,
            };
            handshake.wait_since(since_ns);
            begun.push(handshake);
            has_displaced = displaces;
        }
        let found = begun.iter().position(|it| it.entry.is_displaced.get());
        assert_eq!(found.is_some(), has_displaced);
        found
    }

    #[test]
    fn who_has_to_go() {
        for (count_max, come, expected) in [
            (3, &[(1, 0), (1, 0), (1, 0)][..], None),
            // All at work, or within the patience: the last, if its address has the most.
            (3, &[(1, 0), (1, 0), (1, 0), (1, 0)], Some(3)),
            (3, &[(1, 499), (1, 400), (2, 300), (1, 1)], Some(3)),
            // Another address displaces the last of the flood.
            (3, &[(1, 0), (1, 0), (1, 0), (2, 0)], Some(2)),
            (3, &[(2, 900), (1, 0), (1, 0), (2, 0), (3, 0)][..0], None),
            // Who stalls goes first, longest first, though only of the address with the most.
            (3, &[(1, 501), (1, 700), (1, 600), (2, 0)], Some(1)),
            (3, &[(1, 0), (1, 501), (1, 0), (1, 0)], Some(1)),
            (3, &[(2, 5_000), (1, 0), (1, 0), (1, 0)], Some(3)),
            (4, &[(2, 5_000), (1, 0), (1, 0), (2, 0), (3, 0)], Some(0)),
            // From everywhere, one each: whoever stalls, else the last.
            (3, &[(1, 0), (2, 900), (3, 0), (4, 0)], Some(1)),
            (3, &[(1, 0), (2, 400), (3, 0), (4, 0)], Some(3)),
            (0, &[(1, 0), (2, 0)], Some(1)),
        ] {
            assert_eq!(displaced_by_last(count_max, come), expected, "{come:?}");
        }
    }

    #[test]
    fn displaced_ones_make_room_at_once_and_end() {
        let handshakes = Handshakes::new(2);
        let (first, _) = handshakes.begin(peer(1), MS);
        let (second, _) = handshakes.begin(peer(1), MS);
        let (third, displaces) = handshakes.begin(peer(2), MS);
        assert!(displaces && second.entry.is_displaced.get());
        let outcome =
            |it: &Handshake<'_>| crate::testing::block_on(it.unless_displaced(async { Some(1) }));
        assert_eq!(
            [&first, &second, &third].map(outcome),
            [Some(1), None, Some(1)]
        );
        drop(third);
        let (_fourth, displaces) = handshakes.begin(peer(2), MS);
        assert!(
            !displaces,
            "the second counts no more, though it is not over yet"
        );
        drop((first, second));
        assert_eq!(handshakes.table.borrow().len(), 1);
    }

    #[test]
    fn one_network_is_one_peer() {
        for (one, other, is_same) in [
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            let network = |text: &str| network_of(text.parse().unwrap());
            assert_eq!(network(one) == network(other), is_same, "{one} {other}");
        }
    }
}
