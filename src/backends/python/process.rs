//! One stub process, and the memory that it shares with this one.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use conch_backend_sdk::{DeviceAccess, MemoryCharge};
use conch_python_ipc::{
    BlockAllocator, BlockHeader, MESSAGE_BYTES_MAX, Message, MessageSlot, OffsetRing, PageBound,
    SegmentError, SharedSegment,
};
use conch_sync::CpuOffers;
use rustix::process::{Pid, Signal};

use crate::devices::StubDevices;

/// The server may send responses from this part of a stub's segment; further ones are copied.
const LENT_PART: u64 = 4;

/// What the segments of a model's processes may take up, of those in which we write.
#[derive(Debug)]
pub(crate) struct ModelMemory(pub(crate) MemoryCharge);

impl PageBound for ModelMemory {
    fn add(&self, bytes: u64) -> bool {
        self.0.add(bytes).is_ok()
    }

    fn sub(&self, bytes: u64) {
        self.0.sub(bytes);
    }
}

/// A process from its start to its end.
#[derive(Debug)]
pub(crate) struct StubProcess {
    /// Our segment: requests, and answers to calls.
    pub(crate) blocks: BlockAllocator,
    /// The stub's segment.
    pub(crate) responses: Arc<SharedSegment>,
    state: Mutex<ProcessState>,
    ended: Condvar,
    is_dead: AtomicBool,
    /// The last reply that was taken.
    last_reply: AtomicU32,
    /// To a stub that waits for the CPU of whoever has a look at its reply.
    cpu_offers: CpuOffers,
    /// GPUs on which the stub has tensors.
    pub(crate) devices: StubDevices,
    /// Output blocks that the stub was told of.
    kept: Mutex<HashSet<u64>>,
    /// Bytes of the stub's segment that the server sends responses from.
    lent_bytes: AtomicU64,
}

#[derive(Debug)]
enum ProcessState {
    Starting,
    Running(Pid),
    /// With the words of the log.
    Ended(String),
}

/// Why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReply {
    /// The process ended.
    Ended,
    /// The process ended before it took the command.
    NotTaken,
    TimedOut,
    /// The reply is no message.
    Malformed,
}

/// A command that the stub was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentCommand {
    /// Of its block, in our segment.
    offset: u64,
    /// Counts the commands.
    number: u32,
}

/// A reply in the stub's segment; dropping it gives its block back.
pub(crate) struct Reply<'p> {
    process: &'p StubProcess,
    offset: u64,
    pub(crate) text: Vec<u8>,
    /// Where the tensors of the message begin.
    pub(crate) tensors_at: u64,
    /// Our block with the command that this answers, whose inputs may be among the outputs.
    command: Option<u64>,
    /// Set once outputs are sent from the block: who has the last of them gives it back.
    lent: OnceCell<Arc<LentBlock>>,
}

/// A stub's block that the server sends outputs from; dropping it gives the block back.
#[derive(Debug)]
pub(crate) struct LentBlock {
    process: Arc<StubProcess>,
    offset: u64,
    bytes: AtomicU64,
}

impl StubProcess {
    /// The memory of a process that is to be started.
    ///
    /// # Errors
    /// Without memory or descriptors.
    pub(crate) fn new(
        segment_bytes: u64,
        memory: Arc<dyn PageBound>,
        devices: DeviceAccess,
    ) -> Result<StubProcess, SegmentError> {
        let requests = SharedSegment::create("conch python requests", segment_bytes)?;
        let responses = SharedSegment::create("conch python responses", segment_bytes)?;
        Ok(StubProcess {
            blocks: BlockAllocator::new(Arc::new(requests), memory),
            responses: Arc::new(responses),
            state: Mutex::new(ProcessState::Starting),
            ended: Condvar::new(),
            is_dead: AtomicBool::new(false),
            last_reply: AtomicU32::new(0),
            cpu_offers: CpuOffers::new(),
            devices: StubDevices::new(devices, segment_bytes),
            kept: Mutex::default(),
            lent_bytes: AtomicU64::new(0),
        })
    }

    /// Called by the supervisor.
    pub(crate) fn has_started(&self, pid: Pid) {
        *self.lock() = ProcessState::Running(pid);
    }

    /// Called by the supervisor, after it took the status; none if it is not known.
    pub(crate) fn has_ended(&self, status: Option<ExitStatus>) {
        *self.lock() = ProcessState::Ended(described(status));
        self.is_dead.store(true, Ordering::SeqCst);
        self.ended.notify_all();
        MessageSlot::of(&self.responses).interrupt();
        OffsetRing::of(&self.responses).interrupt();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<String> {
        match &*self.lock() {
            ProcessState::Ended(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// Ends the process, and those that it started and that did not leave its group.
    pub(crate) fn kill(&self) {
        // The lock keeps the number from being somebody else's: it is the process' until the
        // supervisor took its status and says so here.
        if let ProcessState::Running(pid) = &*self.lock() {
            let _ = rustix::process::kill_process_group(*pid, Signal::KILL);
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
    }

    /// Blocks until the process has ended, or for `timeout`; says whether it has.
    pub(crate) fn wait_for_end(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !matches!(*state, ProcessState::Ended(_)) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.ended.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// A block of ours with a message and room for `tensor_bytes` behind it: its offset, and where
    /// the tensors go. None without room.
    pub(crate) fn write(&self, text: &[u8], tensor_bytes: u64) -> Option<(u64, u64)> {
        let len = BlockHeader::BYTES
            .checked_add(text.len() as u64)?
            .checked_next_multiple_of(conch_python_ipc::ALIGNMENT_BYTES)?
            .checked_add(tensor_bytes)?;
        let offset = self.blocks.take(len)?;
        let segment = self.blocks.segment();
        let header = BlockHeader::at(segment, offset)?;
        header.begin(text.len() as u64);
        segment.write(header.message_at(), text);
        Some((offset, header.tensors_at()))
    }

    /// Sends a block as the next command and waits for the reply. One thread at a time. The stub
    /// gives the block back.
    ///
    /// # Errors
    /// See [`NoReply`].
    pub(crate) fn command(
        &self,
        offset: u64,
        timeout: Option<Duration>,
    ) -> Result<Reply<'_>, NoReply> {
        let sent = self.send(offset);
        self.reply(sent, timeout).inspect_err(|failure| {
            if *failure == NoReply::TimedOut {
                self.blocks.lend(offset);
            }
        })
    }

    /// Sends a block as the next command. One at a time: its reply is taken before the next one is
    /// sent.
    pub(crate) fn send(&self, offset: u64) -> SentCommand {
        let number = MessageSlot::of(self.blocks.segment()).send(offset);
        SentCommand { offset, number }
    }

    /// Waits for the reply to the command that was sent last. After [`NoReply::TimedOut`] it is
    /// still to come; otherwise the stub gives the command's block back.
    ///
    /// # Errors
    /// See [`NoReply`].
    pub(crate) fn reply(
        &self,
        sent: SentCommand,
        timeout: Option<Duration>,
    ) -> Result<Reply<'_>, NoReply> {
        let reply = self.wait_for_reply(sent, timeout)?;
        self.last_reply.store(reply.sequence, Ordering::Relaxed);
        let Some(mut reply) = self.message(reply.offset) else {
            self.blocks.lend(sent.offset);
            return Err(NoReply::Malformed);
        };
        reply.command = Some(sent.offset);
        Ok(reply)
    }

    /// The reply is waited for asleep. Where executions in other threads do not pay for a while,
    /// offers are due again as soon as those executions are.
    pub(crate) fn pass_offer(&self) {
        self.cpu_offers.pass();
    }

    /// Waits for the reply as [`StubProcess::reply`] does, and has a look at its text. The reply is
    /// still to be taken.
    ///
    /// # Errors
    /// See [`NoReply`].
    pub(crate) fn look_at_reply<R>(
        &self,
        sent: SentCommand,
        timeout: Duration,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, NoReply> {
        if self.cpu_offers.is_due() {
            let last = self.last_reply.load(Ordering::Relaxed);
            let slot = MessageSlot::of(&self.responses);
            // What it finds, the wait finds too.
            self.cpu_offers.offer(|| slot.poll(last));
        }
        let reply = self.wait_for_reply(sent, Some(timeout))?;
        let reply = self.message(reply.offset);
        Ok(reply.map(|reply| {
            let seen = look(&reply.text);
            reply.defer();
            seen
        }))
    }

    fn wait_for_reply(
        &self,
        sent: SentCommand,
        timeout: Option<Duration>,
    ) -> Result<Message, NoReply> {
        let last = self.last_reply.load(Ordering::Relaxed);
        let slot = MessageSlot::of(&self.responses);
        slot.wait(last, timeout, || self.is_dead()).ok_or_else(|| {
            if !self.is_dead() {
                return NoReply::TimedOut;
            }
            // Nothing takes it any more.
            self.blocks.lend(sent.offset);
            match MessageSlot::of(self.blocks.segment()).last_taken() == sent.number {
                true => NoReply::Ended,
                false => NoReply::NotTaken,
            }
        })
    }

    /// The message in a block of the stub's; none if there is none that makes sense.
    pub(crate) fn message(&self, offset: u64) -> Option<Reply<'_>> {
        let header = BlockHeader::at(&self.responses, offset)?;
        let text = header.read_message(&self.responses, MESSAGE_BYTES_MAX)?;
        // As it was when it was copied: the stub may change the header meanwhile.
        let end = header.message_at().checked_add(text.len() as u64)?;
        Some(Reply {
            process: self,
            offset,
            text,
            tensors_at: end.checked_next_multiple_of(conch_python_ipc::ALIGNMENT_BYTES)?,
            command: None,
            lent: OnceCell::new(),
        })
    }

    /// An output block that the stub is told of: the stub gives it back, after the last reference
    /// here is gone.
    pub(crate) fn keep_for_stub(&self, offset: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(offset);
    }

    /// The last reference here to an output block is gone.
    pub(crate) fn release_output(&self, offset: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.remove(&offset) {
            true => self.blocks.lend(offset),
            false => self.blocks.give_back(offset),
        }
    }

    /// Gives back what was not used for a while: pages of our segment, memory of the stub's.
    pub(crate) fn trim(&self) {
        self.blocks.trim();
        self.devices.trim();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reply<'_> {
    /// Keeps the block as long as the result lives, whose `bytes` of tensors the server is to send
    /// from there; `process` is the reply's. None if so much is on its way already that the stub
    /// would run short of memory while clients read slowly.
    pub(crate) fn lend(&self, process: &Arc<StubProcess>, bytes: u64) -> Option<Arc<LentBlock>> {
        let limit = process.responses.len() / LENT_PART;
        let add = |sum: u64| sum.checked_add(bytes).filter(|sum| *sum <= limit);
        let order = Ordering::Relaxed;
        process.lent_bytes.fetch_update(order, order, add).ok()?;
        let lent = self.lent.get_or_init(|| {
            Arc::new(LentBlock {
                process: Arc::clone(process),
                offset: self.offset,
                bytes: AtomicU64::new(0),
            })
        });
        lent.bytes.fetch_add(bytes, order);
        Some(Arc::clone(lent))
    }

    /// Answers the stub's thread that waits for this message, with a block of ours (0: nothing),
    /// which it gives back.
    pub(crate) fn answer(self, reply: u64) {
        if reply != 0 {
            self.process.blocks.lend(reply);
        }
        if let Some(header) = BlockHeader::at(&self.process.responses, self.offset) {
            header.finish(reply);
        }
        std::mem::forget(self);
    }

    /// Leaves it unanswered for now; see [`StubProcess::answer_later`].
    pub(crate) fn defer(self) -> u64 {
        let offset = self.offset;
        std::mem::forget(self);
        offset
    }
}

impl StubProcess {
    /// Answers a message that was deferred.
    pub(crate) fn answer_later(&self, offset: u64, reply: u64) {
        if reply != 0 {
            self.blocks.lend(reply);
        }
        if let Some(header) = BlockHeader::at(&self.responses, offset) {
            header.finish(reply);
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        if let Some(command) = self.command {
            self.process.blocks.lend(command);
        }
        if self.lent.get().is_none()
            && let Some(header) = BlockHeader::at(&self.process.responses, self.offset)
        {
            header.finish(0);
        }
    }
}

impl Drop for LentBlock {
    fn drop(&mut self) {
        self.process
            .lent_bytes
            .fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
        if let Some(header) = BlockHeader::at(&self.process.responses, self.offset) {
            header.finish(0);
        }
    }
}

fn described(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("exited with code {code}"),
        Some((None, Some(9))) => {
            "was killed (signal 9, as by the kernel without memory)".to_owned()
        }
        Some((None, Some(signal))) => format!("ended by signal {signal}"),
        _ => "ended".to_owned(),
    }
}
