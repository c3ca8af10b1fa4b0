//! Room for a request under the limits of live requests, and waiting for it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use conch_engine::{LimitOwner, ModelVersion, ReachedLimit, Reservation, Tenant, clock};
use conch_log as log;

use super::admission::{LimitKey, Place};
use super::ensure_loaded::HeldPermit;
use super::runtime::Timer;
use super::state::Shard;

/// The first in line looks for room when replies have come to its shard, and after this long; then
/// after twice as long, up to the longest: room that other shards give back announces itself to
/// nobody, as one wake-up for each would cost more than the looks.
const LOOK_NS: u64 = 100_000;
const LOOK_NS_MAX: u64 = 1_000_000;

/// Room for a request, or a place among those that wait for it.
pub(crate) enum Room {
    Reserved(Reservation),
    /// Boxed: rare, and what it keeps would make every connection larger.
    Awaited(Box<RoomFuture>),
}

/// Why a request that waited is not let in.
#[derive(Debug)]
pub(crate) enum RoomRefusal {
    /// There was no room under a limit for too long.
    Limit(ReachedLimit),
    /// The client's own deadline has passed.
    Late,
}

impl Shard {
    /// Room under all limits for a request of `tenant` to `model`, if it is there and nobody waits
    /// for it. `held` keeps a model that was loaded for the request; `deadline_ns` is the client's.
    /// Does not block.
    ///
    /// # Errors
    /// The limit that is reached, where the request is not to wait, or would in vain.
    pub(crate) fn reserve(
        self: &Rc<Self>,
        model: &Arc<ModelVersion>,
        tenant: Option<Tenant>,
        held: HeldPermit,
        deadline_ns: Option<u64>,
    ) -> Result<Room, ReachedLimit> {
        let mut reservation = Reservation::holding(held);
        if !self.server.engine().limits_requests(model) {
            return Ok(Room::Reserved(reservation));
        }
        let now_ns = clock::monotonic_ns();
        let limit = match self.awaited_limit(model, tenant, now_ns) {
            Some(limit) => limit,
            None => match self
                .server
                .engine()
                .reserve(model, tenant, &mut reservation)
            {
                Ok(()) => return Ok(Room::Reserved(reservation)),
                Err(limit) => limit,
            },
        };
        let wait = (now_ns, deadline_ns);
        let room = RoomFuture::new(self, (model, tenant), reservation, limit, wait);
        if room.is_err() {
            self.offer_cpu();
        }
        let room = room?;
        let (name, max) = (&model.name, limit.max);
        log::verbose!(
            1,
            "a request to model '{name}' waits for room beside {max} live requests"
        );
        Ok(Room::Awaited(Box::new(room)))
    }

    /// Whether some request may have to wait for room.
    pub(crate) fn limits_requests(&self) -> bool {
        let engine = self.server.engine();
        engine.limits().is_some() || self.reader.borrow_mut().load().limits_requests()
    }

    /// The limit that others wait for whom such a request would overtake.
    fn awaited_limit(
        &self,
        model: &Arc<ModelVersion>,
        tenant: Option<Tenant>,
        now_ns: u64,
    ) -> Option<ReachedLimit> {
        let owners = [
            Some(LimitOwner::Server),
            tenant.map(LimitOwner::Tenant),
            Some(LimitOwner::Model),
        ];
        let mut owners = owners.into_iter().flatten();
        let owner = owners.find(|owner| {
            self.admission.has(LimitKey::new(*owner, model))
                || *owner == LimitOwner::Server && self.admission.is_behind_neighbors(now_ns)
        })?;
        Some(self.server.engine().limit_of(owner, model))
    }

    /// A client that is refused may come again at once, and a shard that refuses always has
    /// something to do. A core on its CPU gets its turn all the same.
    fn offer_cpu(&self) {
        if self.yield_policy.wish() {
            self.look_at_end_of_turn();
        }
    }
}

/// Waits for room under all limits. Dropping it gives the place in line up.
pub(crate) struct RoomFuture {
    shard: Rc<Shard>,
    model: Arc<ModelVersion>,
    tenant: Option<Tenant>,
    /// None once it is given out.
    reservation: Option<Reservation>,
    limit: ReachedLimit,
    connection: u64,
    place: Place,
    since_ns: u64,
    /// When it is refused.
    end_ns: u64,
    /// The client's.
    deadline_ns: Option<u64>,
    look_ns: u64,
    /// With the time for which it is set.
    timer: Option<(u64, Timer)>,
}

impl RoomFuture {
    /// Waits from `now_ns` on, for `limit` first.
    ///
    /// # Errors
    /// The limit, if the request is not to wait.
    fn new(
        shard: &Rc<Shard>,
        (model, tenant): (&Arc<ModelVersion>, Option<Tenant>),
        reservation: Reservation,
        limit: ReachedLimit,
        (now_ns, deadline_ns): (u64, Option<u64>),
    ) -> Result<RoomFuture, ReachedLimit> {
        let wait_ns = u64::try_from(shard.options.limit_wait.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = now_ns
            .saturating_add(wait_ns)
            .min(deadline_ns.unwrap_or(u64::MAX));
        if end_ns <= now_ns {
            return Err(limit);
        }
        let connection = shard.current.get();
        let key = LimitKey::new(limit.owner, model);
        let patience_ns = deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(now_ns));
        let joined = shard.admission.join(connection, key, patience_ns);
        let place = joined.ok_or(limit)?;
        Ok(RoomFuture {
            shard: Rc::clone(shard),
            model: Arc::clone(model),
            tenant,
            reservation: Some(reservation),
            limit,
            connection,
            place,
            since_ns: now_ns,
            end_ns,
            deadline_ns,
            look_ns: LOOK_NS,
            timer: None,
        })
    }

    fn key(&self) -> LimitKey {
        LimitKey::new(self.limit.owner, &self.model)
    }

    /// Whether there is room, which is reserved then. Else the request may wait for another limit
    /// than before.
    fn look(&mut self) -> bool {
        let Some(reservation) = &mut self.reservation else {
            return false;
        };
        let engine = self.shard.server.engine();
        // The last room is left to those of other shards who have waited longer.
        if self.shard.admission.is_behind_neighbors(self.since_ns) && !engine.has_room_for(2) {
            return false;
        }
        match engine.reserve(&self.model, self.tenant, reservation) {
            Ok(()) => true,
            Err(limit) => {
                let before = self.key();
                self.limit = limit;
                if self.key() != before {
                    self.shard.admission.take_out(before, self.place);
                    self.look_ns = LOOK_NS;
                }
                false
            }
        }
    }

    /// Waits in line, and sets the timer.
    fn wait(&mut self, context: &mut Context<'_>, now_ns: u64) -> Poll<()> {
        let key = self.key();
        let (place, since_ns) = (self.place, self.since_ns);
        let admission = &self.shard.admission;
        let is_first = admission.wait(key, place, context.waker(), since_ns);
        let mut wake_ns = self.end_ns;
        if is_first {
            wake_ns = wake_ns.min(now_ns.saturating_add(self.look_ns));
            self.look_ns = (self.look_ns * 2).min(LOOK_NS_MAX * admission.look_factor());
        }
        let timer = match &mut self.timer {
            Some((set_ns, timer)) if *set_ns == wake_ns => timer,
            other => &mut other.insert((wake_ns, Timer::at(wake_ns))).1,
        };
        Pin::new(timer).poll(context)
    }
}

impl Future for RoomFuture {
    type Output = Result<Reservation, RoomRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let key = this.key();
            let is_first = this.shard.admission.is_first(key, this.place);
            let now_ns = clock::monotonic_ns();
            if is_first && this.look() {
                this.shard.admission.note_let_in(key, this.place, now_ns);
                // Its place is given up on drop, and the next one looks.
                let reservation = this.reservation.take().unwrap_or_default();
                return Poll::Ready(Ok(reservation));
            }
            if now_ns >= this.end_ns {
                let is_late = this
                    .deadline_ns
                    .is_some_and(|deadline_ns| deadline_ns <= now_ns);
                return Poll::Ready(Err(match is_late {
                    true => RoomRefusal::Late,
                    false => RoomRefusal::Limit(this.limit),
                }));
            }
            if this.wait(context, now_ns).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for RoomFuture {
    fn drop(&mut self) {
        self.shard.admission.leave(self.connection);
        self.shard.admission.take_out(self.key(), self.place);
    }
}
