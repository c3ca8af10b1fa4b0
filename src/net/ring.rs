//! An io_uring that watches descriptors for readiness and puts its thread to sleep.
//!
//! One thread makes a ring and uses it. Watches are collected in the ring's memory; they reach the
//! kernel with the next [`Ring::enter`], which is the only system call here: it submits what was
//! collected, waits as long as it is told, and brings completions. No data passes through the ring,
//! so no buffer has to outlive a call.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

/// Of completions that nobody waits for.
const IGNORED: u64 = u64::MAX;

/// How long a thread waits for the kernel to have memory again.
const PAUSE: Duration = Duration::from_millis(1);
/// A watch that finds no room after so many enters is refused: the kernel has no memory.
const PUSH_TRIES_MAX: u32 = 8;

/// Flags in the order in which they are tried: the best that the kernel knows is taken.
///
/// DEFER_TASKRUN (Linux 6.1) runs the kernel's work for a completion when the thread enters the
/// kernel anyway, and never interrupts it. COOP_TASKRUN (5.19) comes close. Before, every
/// completion interrupts the thread.
const SETUPS: [Setup; 3] = [Setup::Deferred, Setup::Cooperative, Setup::Plain];

/// How the kernel runs its part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    Deferred,
    Cooperative,
    Plain,
}

/// What a descriptor is watched for. Errors and hang-ups end every watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Readable,
    Writable,
}

/// How long [`Ring::enter`] waits for the first completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Not,
    AtMost(Duration),
    Forever,
}

/// A watch has something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingEvent {
    /// As given when the watch began.
    pub token: u64,
    /// The watch is over: nothing with its token comes any more.
    pub is_last: bool,
}

/// The ring of one thread.
pub struct Ring {
    ring: IoUring,
    setup: Setup,
    has_timed_enter: bool,
    /// What was brought while there was no room for a watch; at most what the kernel's queue holds,
    /// and then what it kept back.
    brought: VecDeque<RingEvent>,
    /// Where the kernel reads a time-out from during [`Ring::enter`].
    timespec: Box<Timespec>,
    /// With SINGLE_ISSUER the kernel refuses every other thread.
    thread: PhantomData<*const ()>,
}

impl Ring {
    /// A ring for the calling thread, with room for `entries` watches between two calls of
    /// [`Ring::enter`]. More cost an enter of their own.
    ///
    /// # Errors
    /// The kernel's refusal; [`crate::uring::probe`] words it for people.
    pub fn new(entries: u32) -> io::Result<Ring> {
        let mut outcome = Err(io::Error::from(io::ErrorKind::Unsupported));
        for setup in SETUPS {
            outcome = Ring::with_setup(entries, setup);
            match &outcome {
                // An old kernel refuses the flag.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                _ => break,
            }
        }
        outcome
    }

    /// As [`Ring::new`], with this setup and no other.
    ///
    /// # Errors
    /// Those of [`Ring::new`], and EINVAL if the kernel does not know the setup.
    pub fn with_setup(entries: u32, setup: Setup) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.dontfork();
        match setup {
            Setup::Deferred => {
                builder
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_taskrun_flag();
            }
            Setup::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            Setup::Plain => {}
        }
        // Without room for a completion the kernel keeps it and brings it later.
        let ring: IoUring = builder.build(entries)?;
        Ok(Ring {
            setup,
            has_timed_enter: ring.params().is_feature_ext_arg(),
            brought: VecDeque::new(),
            ring,
            timespec: Box::default(),
            thread: PhantomData,
        })
    }

    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// Watches `descriptor` until it is ready once.
    ///
    /// # Errors
    /// The kernel's refusal to take earlier watches, where there is no room for one more.
    pub fn watch(&mut self, descriptor: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        let events = match interest {
            Interest::Readable => libc::POLLIN | libc::POLLRDHUP,
            Interest::Writable => libc::POLLOUT,
        };
        let entry = opcode::PollAdd::new(Fd(descriptor), u32::from(events.cast_unsigned()));
        self.push(&entry.build().user_data(token))
    }

    /// Watches `descriptor` for bytes that arrive, again and again, until a completion is the last.
    ///
    /// # Errors
    /// As [`Ring::watch`].
    pub fn watch_arrivals(&mut self, descriptor: RawFd, token: u64) -> io::Result<()> {
        let events = u32::from(libc::POLLIN.cast_unsigned());
        let entry = opcode::PollAdd::new(Fd(descriptor), events).multi(true);
        self.push(&entry.build().user_data(token))
    }

    /// Ends the watch with `token`. Its last completion still comes.
    ///
    /// # Errors
    /// As [`Ring::watch`].
    pub fn unwatch(&mut self, token: u64) -> io::Result<()> {
        self.push(&opcode::PollRemove::new(token).build().user_data(IGNORED))
    }

    /// Whether watches wait for the next [`Ring::enter`].
    pub fn has_submissions(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Whether an enter that does not wait would bring completions, as far as can be told without a
    /// system call; with [`Setup::Plain`] they come by themselves.
    pub fn has_completions(&mut self) -> bool {
        self.ring.submission().taskrun()
            || !self.brought.is_empty()
            || !self.ring.completion().is_empty()
    }

    /// Submits what was collected and waits for a completion as told. Also returns early, without
    /// any, on a signal, or where the kernel has no memory left for what was collected: then it
    /// blocks for [`PAUSE`], and the next call tries again.
    ///
    /// # Errors
    /// The kernel's refusal. What was not taken stays collected.
    pub fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let result = match wait {
            Wait::Not => self.enter_raw(0),
            Wait::Forever => self.ring.submit_and_wait(1).map(drop),
            Wait::AtMost(limit) => self.enter_for(limit),
        };
        match result.as_ref().map_err(io::Error::raw_os_error) {
            // A time-out, a signal, or completions that have to be taken first.
            Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(Some(libc::EAGAIN | libc::ENOMEM)) => {
                std::thread::sleep(PAUSE);
                Ok(())
            }
            _ => result,
        }
    }

    /// The next completion that was brought.
    pub fn take(&mut self) -> Option<RingEvent> {
        self.brought.pop_front().or_else(|| self.take_from_queue())
    }

    fn take_from_queue(&mut self) -> Option<RingEvent> {
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() != IGNORED {
                return Some(RingEvent {
                    token: entry.user_data(),
                    is_last: !cqueue::more(entry.flags()),
                });
            }
        }
    }

    fn enter_for(&mut self, limit: Duration) -> io::Result<()> {
        *self.timespec = Timespec::from(limit);
        if self.has_timed_enter {
            let args = SubmitArgs::new().timespec(&self.timespec);
            return self.ring.submitter().submit_with_args(1, &args).map(drop);
        }
        // Before Linux 5.11: ends with the first completion, or when its time is over. The kernel
        // reads the time while it takes the entry.
        let timeout = opcode::Timeout::new(&raw const *self.timespec).count(1);
        self.push(&timeout.build().user_data(IGNORED))?;
        self.ring.submit_and_wait(1).map(drop)
    }

    /// An enter that does not wait, but has the kernel do what it deferred.
    fn enter_raw(&mut self, min_complete: u32) -> io::Result<()> {
        /// `IORING_ENTER_GETEVENTS`
        const GET_EVENTS: u32 = 1;
        let mut submission = self.ring.submission();
        submission.sync();
        let count = u32::try_from(submission.len()).unwrap_or(u32::MAX);
        drop(submission);
        // SAFETY: no argument is passed, and the entries were pushed by `push`, which says why they
        // are sound.
        unsafe {
            self.ring
                .submitter()
                .enter::<libc::sigset_t>(count, min_complete, GET_EVENTS, None)
        }
        .map(drop)
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..PUSH_TRIES_MAX {
            // SAFETY: polls and their removal refer to no memory, and a descriptor that is closed,
            // or another's by now, is polled as any other; a time-out refers to `timespec`, which
            // lives until the kernel has taken the entry, in the enter that follows at once.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter(Wait::Not)?;
            // Kernels before 5.19 take nothing while completions wait.
            while let Some(event) = self.take_from_queue() {
                self.brought.push_back(event);
            }
        }
        Err(io::Error::from(io::ErrorKind::OutOfMemory))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    fn taken(ring: &mut Ring) -> Vec<(u64, bool)> {
        let mut taken: Vec<_> = std::iter::from_fn(|| ring.take())
            .map(|completion| (completion.token, completion.is_last))
            .collect();
        taken.sort_unstable();
        taken
    }

    /// With every setup that this kernel knows, with and without the newer way to wait.
    fn each(test: impl Fn(Ring)) {
        for setup in SETUPS {
            for has_timed_enter in [true, false] {
                match Ring::with_setup(8, setup) {
                    Ok(mut ring) => {
                        ring.has_timed_enter &= has_timed_enter;
                        test(ring);
                    }
                    Err(error) => println!("{setup:?} is not tested: {error}"),
                }
            }
        }
    }

    #[test]
    fn a_watch_ends_when_its_descriptor_is_ready() {
        each(|mut ring| {
            let (mut client, server) = UnixStream::pair().unwrap();
            ring.watch(server.as_raw_fd(), Interest::Readable, 7)
                .unwrap();
            assert!(ring.has_submissions());
            ring.enter(Wait::Not).unwrap();
            assert_eq!(taken(&mut ring), []);
            ring.watch(server.as_raw_fd(), Interest::Writable, 8)
                .unwrap();
            ring.enter(Wait::Forever).unwrap();
            assert_eq!(taken(&mut ring), [(8, true)]);
            client.write_all(b"x").unwrap();
            ring.enter(Wait::Forever).unwrap();
            assert_eq!(taken(&mut ring), [(7, true)]);
            assert!(!ring.has_submissions() && !ring.has_completions());
        });
    }

    #[test]
    fn a_watch_of_arrivals_goes_on_without_a_read() {
        each(|mut ring| {
            let (mut client, server) = UnixStream::pair().unwrap();
            ring.watch_arrivals(server.as_raw_fd(), 1).unwrap();
            for _ in 0..3 {
                client.write_all(b"x").unwrap();
                ring.enter(Wait::Forever).unwrap();
                let seen = taken(&mut ring);
                assert!(!seen.is_empty() && seen.iter().all(|one| *one == (1, false)));
            }
        });
    }

    #[test]
    fn a_wait_ends_in_time() {
        each(|mut ring| {
            let (_client, server) = UnixStream::pair().unwrap();
            ring.watch(server.as_raw_fd(), Interest::Readable, 7)
                .unwrap();
            let begin = Instant::now();
            ring.enter(Wait::AtMost(Duration::from_millis(5))).unwrap();
            assert!(begin.elapsed() >= Duration::from_millis(5));
            assert_eq!(taken(&mut ring), []);
        });
    }

    #[test]
    fn what_is_unwatched_completes_once_more() {
        each(|mut ring| {
            let (mut client, mut server) = UnixStream::pair().unwrap();
            ring.watch(server.as_raw_fd(), Interest::Readable, 7)
                .unwrap();
            ring.unwatch(7).unwrap();
            ring.enter(Wait::Forever).unwrap();
            assert_eq!(taken(&mut ring), [(7, true)]);
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
            ring.enter(Wait::Not).unwrap();
            assert_eq!(taken(&mut ring), []);
        });
    }

    #[test]
    fn more_watches_than_there_is_room_for_are_submitted() {
        each(|mut ring| {
            let pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
            for (token, (_, server)) in pairs.iter().enumerate() {
                ring.watch(server.as_raw_fd(), Interest::Readable, token as u64)
                    .unwrap();
            }
            for (client, _) in &pairs {
                let mut client = client;
                client.write_all(b"x").unwrap();
            }
            let mut seen = Vec::new();
            while seen.len() < pairs.len() {
                ring.enter(Wait::Forever).unwrap();
                seen.append(&mut taken(&mut ring));
            }
            seen.sort_unstable();
            let expected: Vec<_> = (0..100).map(|token| (token, true)).collect();
            assert_eq!(seen, expected);
        });
    }

    #[test]
    fn a_descriptor_that_is_no_descriptor_completes_at_once() {
        each(|mut ring| {
            ring.watch(-1, Interest::Readable, 7).unwrap();
            ring.enter(Wait::Forever).unwrap();
            assert_eq!(taken(&mut ring), [(7, true)]);
        });
    }
}
