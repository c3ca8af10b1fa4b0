//! The executor of conch's own.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use conch_engine::Error;
use conch_executor::{LocalExecutor, Options};
pub(crate) use conch_executor::{Task, Timer, spawn, yield_now};

use super::{RuntimeOptions, SPIN, long_turns};
use crate::shard::stage::ShardStage;

/// Bytes that the process must be allowed to lock in memory, if that is known: kernels differ in
/// whether they count rings, and say so when one is made.
pub const LOCKED_BYTES_MIN: Option<u64> = None;

/// Connections that begin to wait in one turn without a system call for them. The ring takes 28 KiB
/// then.
const RING_ENTRIES: u32 = 256;
/// The same where little may be locked, in case that the kernel counts rings: 8 KiB.
const RING_ENTRIES_MIN: u32 = 64;
/// The limit that kernels begin with.
const LOCKED_BYTES_USUAL: u64 = 8 << 20;

/// Whether a shard with one connection saves anything by waiting outside of the executor, see
/// `brief_wait.rs`. Requests of 64 bytes, one at a time, cost 66 us of CPU with the waits and 59
/// without where shard and client have a CPU each, 82 and 60 where they share two; one that a model
/// in Python answers 114 and 99, 121 and 115.
pub(crate) const GAINS_BY_BRIEF_WAITS: bool = false;

/// Whether a task that wakes itself is polled again, and soon: so it is, after all that are ready.
pub(crate) const MAY_WAKE_ITSELF: bool = true;

/// The handle of a thread with an executor.
pub(crate) struct RingThread {
    thread: JoinHandle<()>,
}

impl RingThread {
    /// Starts a thread that runs the future of `root`. Waits until its executor is made.
    ///
    /// # Errors
    /// The system's: no thread, no such CPU, no ring.
    pub(crate) fn start<F: Future<Output = ()>>(
        options: RuntimeOptions,
        root: impl FnOnce() -> F + Send + 'static,
    ) -> Result<RingThread, Error> {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(options.thread_name.clone())
            .spawn(move || {
                let executor = match executor(&options) {
                    Ok(executor) => executor,
                    // Failure: the starter is gone, and with it the interest.
                    Err(error) => return drop(sender.send(Err(error))),
                };
                let _ = sender.send(Ok(()));
                if let Err(error) = executor.run(root()) {
                    conch_log::error!("the ring of '{}' failed: {error}", options.thread_name);
                }
            })
            .map_err(|error| Error::internal(format!("no thread: {error}")))?;
        match receiver.recv() {
            Ok(Ok(())) => Ok(RingThread { thread }),
            Ok(Err(error)) => Err(Error::internal(conch_net::uring::explain(&error))),
            Err(_) => Err(Error::internal("its thread ended before it ran")),
        }
    }

    /// Blocks until the thread is gone.
    ///
    /// # Errors
    /// It panicked.
    pub(crate) fn join(self) -> Result<(), Error> {
        self.thread
            .join()
            .map_err(|_| Error::internal("its thread panicked"))
    }
}

/// Notes what the thread is at from now on, as its long turns are told.
pub(crate) fn enter_stage(stage: ShardStage) {
    conch_executor::enter_stage(stage as usize);
}

/// Notes how much of this turn went to `stage`.
pub(crate) fn note_spent(stage: ShardStage, duration_ns: u64) {
    conch_executor::note_spent(stage as usize, duration_ns);
}

fn executor(options: &RuntimeOptions) -> io::Result<LocalExecutor> {
    if let Some(cpu) = options.cpu {
        conch_net::affinity::confine_current_thread(&[cpu])?;
    }
    let locked = conch_net::limits::raise_locked_memory(u64::MAX)?;
    let mut executor = LocalExecutor::new(&Options {
        ring_entries: match locked.soft < LOCKED_BYTES_USUAL {
            true => RING_ENTRIES_MIN,
            false => RING_ENTRIES,
        },
        spin: if options.spins { SPIN } else { Duration::ZERO },
        setup: None,
    })?;
    executor.observe_long_turns(long_turns::observer(Arc::clone(&options.long_turns)));
    Ok(executor)
}

/// A connected socket on the shard that polls it.
pub(crate) struct RingSocket {
    inner: conch_executor::Socket,
}

impl RingSocket {
    /// Takes a socket onto the current shard.
    pub(crate) fn adopt(socket: OwnedFd) -> RingSocket {
        RingSocket {
            inner: conch_executor::Socket::new(socket),
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.inner.as_raw_fd()
    }

    /// Receives into `target`; 0 is the end of the stream.
    pub(crate) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        target: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let room = target.len();
        self.inner.poll_receive(context, room, |socket| {
            let mut target = target;
            conch_net::receive(socket, &mut target)
        })
    }

    /// Receives into `pieces`, one after the other; 0 is the end of the stream.
    pub(crate) fn poll_receive_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let room = pieces.iter().map(|piece| piece.len()).sum();
        self.inner.poll_receive(context, room, |socket| {
            conch_net::receive_vectored(socket, pieces)
        })
    }

    /// Sends some bytes of `pieces`, which hold at least one byte.
    pub(crate) fn poll_send_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner
            .poll_send(context, |socket| conch_net::send_vectored(socket, pieces))
    }

    pub(crate) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send_vectored(context, &[IoSlice::new(source)])
    }
}
