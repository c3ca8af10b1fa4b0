//! The threads of a shard's lanes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use conch_engine::Error;
use conch_log as log;

use super::job::{JobDone, OffloadJob, OffloadLane};
use crate::shard::link::{ShardHandle, ShardMessage};

/// Linux then gives a thread that wakes up its CPU before another's longer turn ends.
const TURN_NS: u64 = 500_000;

/// The threads' ends of the lanes, made before the shard runs.
pub(crate) struct OffloadThreads {
    pub(super) senders: [Option<Sender<OffloadJob>>; 3],
}

impl OffloadThreads {
    /// Starts the threads of shard `index`. They end when this, or the [`Offload`](super::Offload)
    /// made of it, is dropped, after the job that they execute.
    ///
    /// # Errors
    /// INTERNAL if the system gives no thread.
    pub(crate) fn start(
        index: usize,
        link: &Arc<ShardHandle>,
        serves_tls: bool,
    ) -> Result<OffloadThreads, Error> {
        let mut threads = OffloadThreads {
            senders: [None, None, None],
        };
        let lanes = [
            OffloadLane::Small,
            OffloadLane::Large,
            OffloadLane::Handshakes,
        ];
        for lane in lanes.into_iter().take(if serves_tls { 3 } else { 2 }) {
            let (sender, receiver) = channel::<OffloadJob>();
            let link = Arc::clone(link);
            std::thread::Builder::new()
                .name(format!("{}-{index}", lane.thread_name()))
                .spawn(move || serve(lane, &receiver, &link))
                .map_err(|cause| {
                    Error::internal(format!("cannot start a thread of shard {index}: {cause}"))
                })?;
            threads.senders[lane.index()] = Some(sender);
        }
        Ok(threads)
    }
}

fn serve(lane: OffloadLane, jobs: &Receiver<OffloadJob>, link: &ShardHandle) {
    if let Err(cause) = conch_net::affinity::shorten_turns_of_current_thread(TURN_NS) {
        log::warning!("cannot shorten the turns of an offload thread: {cause}");
    }
    while let Ok(OffloadJob { key, work }) = jobs.recv() {
        // A panic would end the thread: nothing would be done any more, and the callers would wait
        // for ever.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        link.send(ShardMessage::Offloaded(JobDone { lane, key, outcome }));
    }
}
