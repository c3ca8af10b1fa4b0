//! The writer thread and the bounded queue in front of it.
//!
//! Callers push finished lines and never wait: the queue is lock-free, and a line that finds it
//! full is dropped and counted. The `log` thread alone writes, so a reader that stops (a pipe that
//! nobody empties, a file system that hangs) holds up this thread only. Once the queue moves again,
//! the thread writes how many lines were dropped.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::format::{LogFields, LogMetadata, MessageStyle, format_line};
use crate::level::LogLevel;

/// Where a line goes on the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandardStream {
    Stdout,
    Stderr,
}

impl StandardStream {
    /// Information on stdout, the rest on stderr, as upstream.
    pub(crate) fn of(level: LogLevel) -> StandardStream {
        match level {
            LogLevel::Info | LogLevel::Verbose(_) => StandardStream::Stdout,
            LogLevel::Warning | LogLevel::Error => StandardStream::Stderr,
        }
    }
}

/// An open log file.
#[derive(Debug)]
pub(crate) struct LogFile {
    pub(crate) path: String,
    file: File,
}

impl LogFile {
    /// Opens or creates the file at `path` for appending. Does not wait for the reader of a FIFO:
    /// without one it is an error.
    pub(crate) fn open(path: &str) -> io::Result<LogFile> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .custom_flags(flags)
            .open(path)?;
        Ok(LogFile {
            path: path.to_owned(),
            file,
        })
    }
}

/// A finished line and where it goes: to `file`, else to `stream`.
#[derive(Debug)]
struct LogLine {
    text: String,
    stream: StandardStream,
    file: Option<Arc<LogFile>>,
}

impl LogLine {
    fn has_destination_of(&self, other: &LogLine) -> bool {
        match (&self.file, &other.file) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (None, None) => self.stream == other.stream,
            _ => false,
        }
    }
}

/// The queue's near end. One per process, and one per test.
#[derive(Debug)]
pub(crate) struct LogSink {
    /// Without a bound of its own, which would be an array for the longest queue: `pending_lines`
    /// and `pending_bytes` hold it.
    sender: Sender<LogLine>,
    shared: Arc<SinkShared>,
}

#[derive(Debug, Default)]
struct SinkShared {
    file: ArcSwapOption<LogFile>,
    /// Whether there ever was one. A thread that reads `file` is noted in a list that each change
    /// of any such value walks, and threads of models need not be.
    had_file: AtomicBool,
    /// Lines and bytes that are queued or being written.
    pending_lines: AtomicUsize,
    pending_bytes: AtomicUsize,
    /// Lines that left the queue, written or lost.
    done_count: AtomicU64,
    /// Dropped lines that no notice has told of yet, by stream.
    unsaid: [AtomicU64; 2],
    dropped: AtomicU64,
    /// Threads in [`LogSink::flush`].
    flushers: AtomicUsize,
    flushed: (Mutex<()>, Condvar),
}

impl LogSink {
    /// Starts the writer thread. Where the system has no thread left, lines are written by their
    /// callers.
    pub(crate) fn start() -> LogSink {
        let (sender, receiver) = channel();
        let shared = Arc::new(SinkShared::default());
        let theirs = Arc::clone(&shared);
        // A failed spawn drops the receiver: `push` finds the channel disconnected.
        let _ = thread::Builder::new()
            .name(String::from("log"))
            .spawn(move || LogWriter::new(theirs, receiver).run());
        LogSink { sender, shared }
    }

    /// Queues `text`, one or more whole lines of `level`. Does not block.
    pub(crate) fn push(&self, level: LogLevel, text: String) {
        self.queue(StandardStream::of(level), self.shared.file(), text);
    }

    /// Queues `text` for the console, even where lines go to a file.
    pub(crate) fn print(&self, stream: StandardStream, text: String) {
        self.queue(stream, None, text);
    }

    /// All further lines go to `file`; without one, to the console.
    pub(crate) fn set_file(&self, file: Option<LogFile>) {
        // Never taken back: two changes at once must not end with a file that nobody looks for.
        if file.is_some() {
            self.shared.had_file.store(true, Ordering::Release);
        }
        self.shared.file.store(file.map(Arc::new));
    }

    pub(crate) fn path(&self) -> Option<String> {
        let file = self.shared.file.load();
        file.as_ref().map(|file| file.path.clone())
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Lines that are not written yet. Safe in a signal handler.
    pub(crate) fn pending(&self) -> usize {
        self.shared.pending_lines.load(Ordering::Relaxed)
    }

    /// Waits until all lines queued so far have left the queue; whether they did within `timeout`.
    pub(crate) fn flush(&self, timeout: Duration) -> bool {
        let shared = &*self.shared;
        let deadline = Instant::now() + timeout;
        let (lock, flushed) = &shared.flushed;
        // Registered before the first look: a line that is done after the look finds a flusher to
        // wake.
        shared.flushers.fetch_add(1, Ordering::SeqCst);
        let target = shared.done_count.load(Ordering::SeqCst)
            + shared.pending_lines.load(Ordering::SeqCst) as u64;
        let mut held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let is_flushed = loop {
            if shared.pending_lines.load(Ordering::SeqCst) == 0
                || shared.done_count.load(Ordering::SeqCst) >= target
            {
                break true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            (held, _) = flushed
                .wait_timeout(held, left)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(held);
        shared.flushers.fetch_sub(1, Ordering::SeqCst);
        is_flushed
    }

    fn queue(&self, stream: StandardStream, file: Option<Arc<LogFile>>, text: String) {
        let shared = &*self.shared;
        // Information must not crowd out what went wrong: the last quarter of the queue is for
        // warnings and errors.
        let (lines_max, bytes_max) = match stream {
            StandardStream::Stdout => (LINES_MAX / 4 * 3, BYTES_MAX / 4 * 3),
            StandardStream::Stderr => (LINES_MAX, BYTES_MAX),
        };
        let bytes = text.len();
        let lines = shared.pending_lines.fetch_add(1, Ordering::SeqCst) + 1;
        let total = shared
            .pending_bytes
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        if lines > lines_max || total > bytes_max {
            return shared.drop_line(stream, bytes);
        }
        if let Err(SendError(line)) = self.sender.send(LogLine { text, stream, file }) {
            // Nothing useful can be done where a line cannot be written.
            let _ = write_to(&line, line.text.as_bytes());
            shared.note_done(1, bytes);
        }
    }
}

impl SinkShared {
    /// Where lines go now, if not to the console.
    fn file(&self) -> Option<Arc<LogFile>> {
        let had_file = self.had_file.load(Ordering::Acquire);
        had_file.then(|| self.file.load_full()).flatten()
    }

    fn drop_line(&self, stream: StandardStream, bytes: usize) {
        self.unsaid[stream as usize].fetch_add(1, Ordering::Relaxed);
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.pending_lines.fetch_sub(1, Ordering::SeqCst);
    }

    fn note_done(&self, lines: usize, bytes: usize) {
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.done_count.fetch_add(lines as u64, Ordering::SeqCst);
        self.pending_lines.fetch_sub(lines, Ordering::SeqCst);
        if self.flushers.load(Ordering::SeqCst) > 0 {
            let (lock, flushed) = &self.flushed;
            // The lock orders this wake-up after a flusher's look, so none is missed.
            drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
            flushed.notify_all();
        }
    }
}

/// Lines that come within this time come one after the other.
const BURST: Duration = Duration::from_millis(2);
/// How long such lines may wait to be written.
const LINGER: Duration = Duration::from_micros(500);

/// The far end.
struct LogWriter {
    shared: Arc<SinkShared>,
    receiver: Receiver<LogLine>,
    /// Taken from the queue, but has another destination than the batch before it.
    held: Option<LogLine>,
    last_notice: Option<Instant>,
    /// When the thread last came to an empty queue.
    last_empty: Option<Instant>,
}

impl LogWriter {
    fn new(shared: Arc<SinkShared>, receiver: Receiver<LogLine>) -> LogWriter {
        LogWriter {
            shared,
            receiver,
            held: None,
            last_notice: None,
            last_empty: None,
        }
    }

    fn run(mut self) {
        let mut batch = String::with_capacity(BATCH_BYTES);
        while let Some(first) = self.next() {
            batch.clear();
            let lines = self.fill(&mut batch, &first);
            let text = if lines == 1 { &first.text } else { &batch };
            if write_to(&first, text.as_bytes()).is_err() {
                let unsaid = &self.shared.unsaid[first.stream as usize];
                unsaid.fetch_add(lines as u64, Ordering::Relaxed);
                self.shared
                    .dropped
                    .fetch_add(lines as u64, Ordering::Relaxed);
            }
            self.shared.note_done(lines, text.len());
        }
    }

    /// The next line. Before the thread sleeps, and every second under load, it says what was
    /// dropped.
    fn next(&mut self) -> Option<LogLine> {
        if self
            .last_notice
            .is_none_or(|at| at.elapsed() >= NOTICE_INTERVAL)
        {
            self.say_dropped();
        }
        if let Some(line) = self.held.take() {
            return Some(line);
        }
        match self.receiver.try_recv() {
            Ok(line) => Some(line),
            Err(TryRecvError::Empty) => {
                self.say_dropped();
                self.linger();
                let line = self.receiver.recv().ok();
                if line.is_none() {
                    self.say_dropped();
                }
                line
            }
            Err(TryRecvError::Disconnected) => {
                self.say_dropped();
                None
            }
        }
    }

    /// Where lines come one after the other, waits for some: they go in one write, and their
    /// callers wake nobody.
    fn linger(&mut self) {
        let now = Instant::now();
        let last = self.last_empty.replace(now);
        let is_burst = last.is_some_and(|last| now.duration_since(last) < BURST);
        // A flush waits for this thread.
        if is_burst && self.shared.flushers.load(Ordering::SeqCst) == 0 {
            thread::sleep(LINGER);
        }
    }

    /// Gathers lines behind `first` that go the same way, as many as fit into one write; how many
    /// there are with it.
    fn fill(&mut self, batch: &mut String, first: &LogLine) -> usize {
        let mut lines = 1;
        let mut bytes = first.text.len();
        while bytes < BATCH_BYTES {
            let Ok(line) = self.receiver.try_recv() else {
                break;
            };
            bytes += line.text.len();
            if bytes > BATCH_BYTES || !line.has_destination_of(first) {
                self.held = Some(line);
                break;
            }
            if lines == 1 {
                batch.push_str(&first.text);
            }
            batch.push_str(&line.text);
            lines += 1;
        }
        lines
    }

    fn say_dropped(&mut self) {
        for stream in [StandardStream::Stdout, StandardStream::Stderr] {
            let count = self.shared.unsaid[stream as usize].swap(0, Ordering::Relaxed);
            if count == 0 {
                continue;
            }
            self.last_notice = Some(Instant::now());
            let notice = LogLine {
                text: notice(count),
                stream,
                file: self.shared.file(),
            };
            if write_to(&notice, notice.text.as_bytes()).is_err() {
                self.shared.unsaid[stream as usize].fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

fn notice(count: u64) -> String {
    let metadata = LogMetadata {
        level: LogLevel::Warning,
        now: SystemTime::now(),
        process_id: std::process::id(),
        path: file!(),
        line: line!(),
    };
    format_line(
        crate::switches::format(),
        metadata,
        LogFields::default(),
        MessageStyle::Quoted,
        format_args!(
            "{count} log lines were dropped: they could not be written as fast as they came"
        ),
    )
}

fn write_to(line: &LogLine, bytes: &[u8]) -> io::Result<()> {
    // Not by way of the standard library's streams: their locks would be held while the write
    // blocks.
    match (&line.file, line.stream) {
        (Some(file), _) => write_all(file.file.as_fd(), bytes),
        (None, StandardStream::Stdout) => write_all(io::stdout().as_fd(), bytes),
        (None, StandardStream::Stderr) => write_all(io::stderr().as_fd(), bytes),
    }
}

fn write_all(target: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(target, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // A full pipe that somebody made non-blocking, or a FIFO as the log file.
            Err(Errno::AGAIN) => thread::sleep(RETRY_INTERVAL),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What a burst of a tenth of a second may bring at 80,000 lines per second: verbose lines of a
/// loaded server.
const LINES_MAX: usize = 8_192;
/// A kilobyte per line: four times what a usual line has.
const BYTES_MAX: usize = 8 << 20;
/// PIPE_BUF: a write of at most as much to a pipe is not torn apart by the writes of other
/// processes.
const BATCH_BYTES: usize = 4_096;
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    use super::*;

    fn sink_into_pipe() -> (LogSink, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let sink = LogSink::start();
        sink.set_file(Some(LogFile {
            path: String::from("pipe"),
            file: File::from(OwnedFd::from(writer)),
        }));
        (sink, reader)
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_no_time_of_callers() {
        let (sink, mut reader) = sink_into_pipe();
        let line = format!("{}\n", "x".repeat(99));
        let sent = 3 * LINES_MAX;
        for _ in 0..sent {
            sink.push(LogLevel::Info, line.clone());
        }
        assert!(
            !sink.flush(Duration::from_millis(20)),
            "the pipe holds 64 KiB"
        );
        let dropped = usize::try_from(sink.dropped()).unwrap();
        assert!(dropped >= sent - LINES_MAX - (1 << 20) / line.len());
        assert!(sink.pending() <= LINES_MAX / 4 * 3);
        // The part of the queue that information leaves alone.
        sink.push(LogLevel::Error, String::from("what went wrong\n"));
        assert_eq!(usize::try_from(sink.dropped()).unwrap(), dropped);

        let reading = thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        assert!(sink.flush(Duration::from_secs(60)));
        // The writer ends when the last sender goes, and closes the pipe.
        drop(sink);
        let text = reading.join().unwrap();
        let whole = text.lines().filter(|text| text.len() == 99).count();
        assert_eq!(whole, sent - dropped);
        assert_eq!(text.matches("what went wrong\n").count(), 1);
        let notices: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("were dropped"))
            .collect();
        let told: usize = notices
            .iter()
            .map(|line| {
                let (_, rest) = line.split_once("] \"").unwrap();
                rest.split(' ').next().unwrap().parse::<usize>().unwrap()
            })
            .sum();
        assert_eq!(told, dropped, "{notices:?}");
    }

    #[test]
    fn bytes_are_bounded_too() {
        let (sink, _reader) = sink_into_pipe();
        let line = "x".repeat(1 << 20);
        for _ in 0..2 * BYTES_MAX / line.len() {
            sink.push(LogLevel::Error, line.clone());
        }
        assert_eq!(sink.dropped(), (BYTES_MAX / line.len()) as u64);
        assert!(sink.shared.pending_bytes.load(Ordering::Relaxed) <= BYTES_MAX);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (sink, reader) = sink_into_pipe();
        drop(reader);
        sink.push(LogLevel::Info, String::from("nobody reads this\n"));
        assert!(sink.flush(Duration::from_secs(60)));
        assert_eq!(sink.dropped(), 1);
    }
}
