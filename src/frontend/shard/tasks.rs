//! Tasks of a shard, and work that they hand to its offload threads.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::task::Context;

use futures_util::FutureExt;

use super::runtime;
use super::stage::ShardStage;
use super::state::Shard;

impl Shard {
    /// Runs `future` on this shard, as work of `stage`. A panic ends only that future. It may be
    /// polled for the first time before this returns: hold no borrow of anything that it uses.
    pub(crate) fn spawn(
        self: &Rc<Self>,
        stage: ShardStage,
        future: impl Future<Output = ()> + 'static,
    ) {
        let key = self.tasks.borrow_mut().insert(None);
        let shard = Rc::clone(self);
        // Boxed, because an async block has room for what it captures and once more for what it
        // awaits.
        let mut future = Box::pin(AssertUnwindSafe(future).catch_unwind());
        let task = runtime::spawn(async move {
            let polled = |context: &mut Context<'_>| {
                // Another connection's task may be in the middle of spawning this one.
                let outer = shard.current.replace(key);
                runtime::enter_stage(stage);
                let polled = future.as_mut().poll(context);
                shard.current.set(outer);
                polled
            };
            if poll_fn(polled).await.is_err() {
                conch_log::error!("a task of a shard panicked; its connection is closed");
            }
            let own = shard.tasks.borrow_mut().remove(key);
            if let Some(Some(own)) = own {
                own.detach();
            }
        });
        let mut tasks = self.tasks.borrow_mut();
        match tasks.get_mut(key) {
            Some(place) => *place = Some(task),
            // It is finished already.
            None => task.detach(),
        }
    }

    /// Runs `work` on a thread where it may take long, off the shard. Connections share fairly:
    /// `cost_bytes` says how much work it is, in bytes of JSON that take as long. A panic of it is
    /// one of the caller; dropping the future withdraws work that was not begun.
    pub async fn offload<T: Send + 'static>(
        &self,
        cost_bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.offload.run(self.current.get(), cost_bytes, work).await
    }

    /// Runs a step of a TLS handshake with `peer`, apart from [`Shard::offload`]. Peers share
    /// fairly; the first steps come last.
    pub(crate) async fn offload_handshake<T: Send + 'static>(
        &self,
        peer: IpAddr,
        is_first: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.offload.run_handshake(peer, is_first, work).await
    }
}
