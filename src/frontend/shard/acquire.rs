//! Room for a request under the limits of live requests, and waiting for it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use conch_engine::admission::refuse;
use conch_engine::{
    Error, LimitOwner, ModelVersion, ReachedLimit, Rejected, RequestPermits, Tenant,
    TryAcquireError, clock,
};
use conch_log as log;

use super::admission::{LimitKey, QueuePosition};
use super::ensure_loaded::HeldPermit;
use super::runtime::Timer;
use super::state::Shard;

/// The first in line looks for room when replies have come to its shard, and after this long; then
/// after twice as long, up to the longest: room that other shards give back announces itself to
/// nobody, as one wake-up for each would cost more than the looks.
const LOOK_NS: u64 = 100_000;
const LOOK_NS_MAX: u64 = 1_000_000;

/// Room for a request, or a place among those that wait for it.
pub(crate) enum AcquireOutcome {
    Acquired(RequestPermits),
    /// Boxed: rare, and what it keeps would make every connection larger.
    Waiting(Box<AcquireFuture>),
}

/// Why a request that waited is not let in.
#[derive(Debug)]
pub(crate) enum AcquireError {
    /// There was no room under a limit for too long.
    Limit(ReachedLimit),
    /// The client's own deadline has passed.
    DeadlineExceeded,
    /// The model is gone.
    Gone(Error),
}

/// What a request needs room for.
#[derive(Clone, Copy)]
pub(crate) struct AcquireTarget<'a> {
    /// What the registry showed when the request was parsed.
    pub(crate) model: &'a Arc<ModelVersion>,
    /// What was asked for; none: the highest that is ready.
    pub(crate) version: Option<i64>,
    pub(crate) tenant: Option<Tenant>,
    /// The client's.
    pub(crate) deadline_ns: Option<u64>,
}

impl Shard {
    /// Room under all limits for a request to `target`, if it is there and nobody waits for it.
    /// `held` keeps a model that was loaded for the request. Does not block.
    ///
    /// # Errors
    /// The limit that is reached, where the request is not to wait, or would in vain.
    pub(crate) fn acquire(
        self: &Rc<Self>,
        target: AcquireTarget<'_>,
        held: HeldPermit,
    ) -> Result<AcquireOutcome, ReachedLimit> {
        let AcquireTarget { model, tenant, .. } = target;
        let mut permits = RequestPermits::holding(held);
        let engine = self.server.engine();
        if !engine.limits_requests(model) {
            return Ok(AcquireOutcome::Acquired(permits));
        }
        let now_ns = clock::monotonic_ns();
        let error = match self.awaited_limit(model, tenant, now_ns) {
            Some(limit) => TryAcquireError::Limit(limit),
            None => match engine.acquire(model, tenant, &mut permits) {
                Ok(()) => return Ok(AcquireOutcome::Acquired(permits)),
                Err(error) => error,
            },
        };
        let limit = match error {
            TryAcquireError::Limit(limit) => limit,
            // Its first look goes to what took the model's place.
            TryAcquireError::Retired => engine.limit_of(LimitOwner::Model, model),
        };
        let room = match AcquireFuture::new(self, target, permits, limit, now_ns) {
            Ok(room) => room,
            // Admission follows the reload, and refuses at once.
            Err(_) if error == TryAcquireError::Retired => {
                return Ok(AcquireOutcome::Acquired(RequestPermits::default()));
            }
            Err(limit) => {
                self.offer_cpu();
                return Err(limit);
            }
        };
        let (name, max) = (&model.name, limit.max);
        log::verbose!(
            1,
            "a request to model '{name}' waits for room beside {max} live requests"
        );
        Ok(AcquireOutcome::Waiting(Box::new(room)))
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
pub(crate) struct AcquireFuture {
    shard: Rc<Shard>,
    /// What took the place of the version that the request was parsed for, if that was reloaded.
    model: Arc<ModelVersion>,
    version: Option<i64>,
    tenant: Option<Tenant>,
    /// None once it is given out.
    permits: Option<RequestPermits>,
    limit: ReachedLimit,
    connection: u64,
    position: QueuePosition,
    since_ns: u64,
    /// When it is refused.
    end_ns: u64,
    /// The client's.
    deadline_ns: Option<u64>,
    look_ns: u64,
    /// With the time for which it is set.
    timer: Option<(u64, Timer)>,
}

/// What a request finds that looks for room.
enum AcquireAttempt {
    /// Room, which is reserved.
    Acquired,
    Nothing,
    /// Another version than before: it goes on in the line of that.
    Reloaded,
    /// The model is gone.
    Gone(Error),
}

impl AcquireFuture {
    /// Waits from `now_ns` on, for `limit` first.
    ///
    /// # Errors
    /// The limit, if the request is not to wait.
    fn new(
        shard: &Rc<Shard>,
        target: AcquireTarget<'_>,
        permits: RequestPermits,
        limit: ReachedLimit,
        now_ns: u64,
    ) -> Result<AcquireFuture, ReachedLimit> {
        let AcquireTarget {
            model,
            version,
            tenant,
            deadline_ns,
        } = target;
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
        let position = joined.ok_or(limit)?;
        Ok(AcquireFuture {
            shard: Rc::clone(shard),
            model: Arc::clone(model),
            version,
            tenant,
            permits: Some(permits),
            limit,
            connection,
            position,
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

    /// Looks for room. Afterwards the request may be in another line than before, at its place.
    fn look(&mut self) -> AcquireAttempt {
        let Some(permits) = &mut self.permits else {
            return AcquireAttempt::Nothing;
        };
        let engine = self.shard.server.engine();
        // The last room is left to those of other shards who have waited longer.
        if self.shard.admission.is_behind_neighbors(self.since_ns) && !engine.has_room_for(2) {
            return AcquireAttempt::Nothing;
        }
        match engine.acquire(&self.model, self.tenant, permits) {
            Ok(()) => AcquireAttempt::Acquired,
            Err(TryAcquireError::Limit(limit)) => {
                self.wait_for(limit, None);
                AcquireAttempt::Nothing
            }
            Err(TryAcquireError::Retired) => {
                let successor = engine.follow_reload(&self.model, self.version, permits);
                match successor {
                    // It is about to leave the registry, or stays after all.
                    Ok(successor) if Arc::ptr_eq(&successor, &self.model) => {
                        AcquireAttempt::Nothing
                    }
                    Ok(successor) => {
                        let limit = engine.limit_of(self.limit.owner, &successor);
                        self.wait_for(limit, Some(successor));
                        AcquireAttempt::Reloaded
                    }
                    Err(error) => AcquireAttempt::Gone(error),
                }
            }
        }
    }

    /// From now on waits for `limit`, of `successor` if the model was reloaded.
    fn wait_for(&mut self, limit: ReachedLimit, successor: Option<Arc<ModelVersion>>) {
        let before = self.key();
        self.limit = limit;
        // Kept until the place in its line is given up, which goes by its address.
        let model = successor.map(|successor| std::mem::replace(&mut self.model, successor));
        if self.key() != before {
            self.shard.admission.take_out(before, self.position);
            self.look_ns = LOOK_NS;
        }
        drop(model);
    }

    /// Why the request has waited for long enough.
    fn refusal(&self, now_ns: u64) -> AcquireError {
        if self
            .deadline_ns
            .is_some_and(|deadline_ns| deadline_ns <= now_ns)
        {
            return AcquireError::DeadlineExceeded;
        }
        match self.limit.owner {
            // It waited for what was to take the model's place.
            LimitOwner::Model if !self.model.limits_requests() => {
                AcquireError::Gone(refuse(&self.model, "", Rejected::Retired))
            }
            _ => AcquireError::Limit(self.limit),
        }
    }

    /// Waits in line, and sets the timer.
    fn wait(&mut self, context: &mut Context<'_>, now_ns: u64) -> Poll<()> {
        let key = self.key();
        let (position, since_ns) = (self.position, self.since_ns);
        let admission = &self.shard.admission;
        let is_first = admission.wait(key, position, context.waker(), since_ns);
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

impl Future for AcquireFuture {
    type Output = Result<RequestPermits, AcquireError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let key = this.key();
            let is_first = this.shard.admission.is_first(key, this.position);
            let now_ns = clock::monotonic_ns();
            let look = match is_first {
                true => this.look(),
                false => AcquireAttempt::Nothing,
            };
            match look {
                AcquireAttempt::Acquired => {
                    this.shard.admission.note_let_in(key, this.position, now_ns);
                    this.shard.owed_wakes.note_let_in();
                    // Its place is given up on drop, and the next one looks.
                    let permits = this.permits.take().unwrap_or_default();
                    return Poll::Ready(Ok(permits));
                }
                AcquireAttempt::Gone(error) => return Poll::Ready(Err(AcquireError::Gone(error))),
                // Another reload takes longer than this look.
                AcquireAttempt::Reloaded => continue,
                AcquireAttempt::Nothing => {}
            }
            if now_ns >= this.end_ns {
                return Poll::Ready(Err(this.refusal(now_ns)));
            }
            if this.wait(context, now_ns).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for AcquireFuture {
    fn drop(&mut self) {
        self.shard.admission.leave(self.connection);
        self.shard.admission.take_out(self.key(), self.position);
    }
}
