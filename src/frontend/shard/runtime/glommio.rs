//! glommio 0.9 as the executor of a shard.
//!
//! Rules that it needs, each learnt the hard way: one task queue of the default kind (others lose
//! wake-ups), no cancelled accepts (accepting is a thread's business), a long preempt timer, no
//! task that wakes itself, and the watchdog's heartbeats, which bound a wake-up that is lost.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use conch_engine::{Error, clock};
use futures_util::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use glommio::{CpuSet, LocalExecutorBuilder, Placement};

use super::{RuntimeOptions, SPIN};
use crate::shard::stage::ShardStage;

/// What each executor insists on being allowed to lock in memory.
pub const LOCKED_BYTES_MIN: Option<u64> = Some(512 << 10);

/// Whether a shard with one connection saves anything by waiting outside of the executor, see
/// `brief_wait.rs`: it takes five system calls to go to sleep, and a thread that is parked takes
/// one.
pub(crate) const GAINS_BY_BRIEF_WAITS: bool = true;

/// Whether a task that wakes itself is polled again, and soon: glommio has been seen to sleep on
/// one.
pub(crate) const MAY_WAKE_ITSELF: bool = false;

/// After this long a turn ends though tasks keep waking themselves; no task of ours does (see
/// [`yield_now`]), so it is a backstop.
///
/// It must not be short. The executor arms this timer, then asks "has it fired?" before it runs the
/// first task, and if so goes to sleep with tasks ready to run, as if there were none
/// (`run_task_queues` of glommio 0.9 returns "nothing ran"). With 500 us that happens whenever the
/// thread loses its CPU between the two: within 20 s at 3,000 requests/s on a shared CPU. With 100
/// ms the thread would have to be off its CPU for as long, and the watchdog's heartbeats bound what
/// is left.
const PREEMPT_AFTER: Duration = Duration::from_millis(100);
/// Registered with the ring by each executor. We do no file I/O: the smallest that the runtime
/// takes.
const IO_MEMORY_BYTES: usize = 64 << 10;

/// Completions after which the executor ends a turn, as if its preempt timer had fired, with the
/// same danger (see [`PREEMPT_AFTER`]): more than the connections of a busy shard bring at once.
/// Costs 100 KiB of kernel memory per ring.
const RING_DEPTH: usize = 1024;

/// The handle of a thread with an executor.
pub(crate) struct GlommioThread {
    thread: glommio::ExecutorJoinHandle<()>,
}

impl GlommioThread {
    /// Starts a thread that runs the future of `root`.
    ///
    /// # Errors
    /// What the runtime says: locked memory, or no such CPU.
    pub(crate) fn start<F: Future<Output = ()> + 'static>(
        options: RuntimeOptions,
        root: impl FnOnce() -> F + Send + 'static,
    ) -> Result<GlommioThread, Error> {
        let placement = match options.cpu {
            Some(cpu) => {
                // The runtime looks the CPU up there, and panics without it.
                CpuSet::online().map_err(|error| {
                    Error::internal(format!(
                        "cannot read the CPUs of this machine from /sys ({error}): \
                         mount it (mount -t sysfs sysfs /sys), or give --shard-affinity=set"
                    ))
                })?;
                Placement::Fixed(cpu)
            }
            None => Placement::Unbound,
        };
        let thread = LocalExecutorBuilder::new(placement)
            .name(&options.thread_name)
            .io_memory(IO_MEMORY_BYTES)
            .ring_depth(RING_DEPTH)
            .preempt_timer(PREEMPT_AFTER)
            .spin_before_park(if options.spins { SPIN } else { Duration::ZERO })
            .spawn(root)
            .map_err(|error| Error::internal(error.to_string()))?;
        Ok(GlommioThread { thread })
    }

    /// Blocks until the thread is gone.
    ///
    /// # Errors
    /// It panicked.
    pub(crate) fn join(self) -> Result<(), Error> {
        self.thread
            .join()
            .map_err(|error| Error::internal(error.to_string()))
    }
}

/// Long turns are not told.
pub(crate) fn enter_stage(_stage: ShardStage) {}

/// See [`enter_stage`].
pub(crate) fn note_spent(_stage: ShardStage, _duration_ns: u64) {}

/// The handle of a task.
pub(crate) struct GlommioTask {
    inner: glommio::Task<()>,
}

/// Runs `future` on this thread's executor, which polls it at once.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) -> GlommioTask {
    GlommioTask {
        inner: glommio::spawn_local(future),
    }
}

impl GlommioTask {
    /// Lets the task run to its end on its own.
    pub(crate) fn detach(self) {
        drop(self.inner.detach());
    }

    /// Drops the future, and returns when that is done.
    pub(crate) async fn cancel(self) {
        self.inner.cancel().await;
    }
}

/// Completes at its time. Creating and dropping one costs a fraction of a microsecond; only the
/// nearest of a shard is known to the kernel. May be late by the length of a shard turn, never
/// early.
pub(crate) struct GlommioTimer {
    inner: glommio::timer::Timer,
}

impl GlommioTimer {
    pub(crate) fn after(delay: Duration) -> GlommioTimer {
        GlommioTimer {
            inner: glommio::timer::Timer::new(delay),
        }
    }

    /// At `deadline_ns` of the monotonic clock; at once if that is past.
    pub(crate) fn at(deadline_ns: u64) -> GlommioTimer {
        GlommioTimer::after(Duration::from_nanos(
            deadline_ns.saturating_sub(clock::monotonic_ns()),
        ))
    }
}

impl Future for GlommioTimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.get_mut().inner)
            .poll(context)
            .map(|_| ())
    }
}

/// Ends the task's turn by way of a timer that is due at once, so that the whole shard looks at its
/// sockets, wake-ups and timers. For work that comes in slices.
///
/// A task that wakes itself instead is run again in the same turn of the executor, before it looks
/// at anything else.
pub(crate) async fn yield_now() {
    GlommioTimer::after(Duration::from_micros(1)).await;
}

/// A connected socket on the shard that polls it. Vectored writes go round the runtime, which has
/// none.
pub(crate) struct GlommioSocket {
    inner: TcpStream,
    descriptor: RawFd,
}

impl GlommioSocket {
    /// Takes a socket onto the current shard.
    pub(crate) fn adopt(socket: OwnedFd) -> GlommioSocket {
        GlommioSocket {
            descriptor: socket.as_raw_fd(),
            inner: conch_net::adopt(socket),
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Receives into `target`; 0 is the end of the stream.
    pub(crate) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        target: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_read(context, target)
    }

    /// Receives into `pieces`, one after the other; 0 is the end of the stream.
    pub(crate) fn poll_receive_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        match conch_net::receive_vectored(self.descriptor, pieces) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Tries once more and, if it still would block, waits.
                let first = pieces.iter_mut().find(|piece| !piece.is_empty());
                self.poll_receive(context, first.map_or(&mut [][..], |piece| piece))
            }
            result => Poll::Ready(result),
        }
    }

    pub(crate) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, source)
    }

    /// Sends some bytes of `pieces`, which hold at least one byte.
    pub(crate) fn poll_send_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match conch_net::send_vectored(self.descriptor, pieces) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Tries once more and, if it still would block, waits for room.
                let first = pieces
                    .iter()
                    .find(|piece| !piece.is_empty())
                    .map_or(&[][..], |piece| piece);
                self.poll_send(context, first)
            }
            result => Poll::Ready(result),
        }
    }
}
