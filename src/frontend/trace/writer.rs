//! The thread that writes traces into files.
//!
//! Traces are collected per setting, as upstream: with a log frequency they go to `<file>.<index>`,
//! a new one whenever so many are there; else to `<file>`, at the end. A count that is used up
//! while every request was traced fills an indexed file, too. What upstream keeps in memory until
//! then is written on the way once it is large, to the same file; only which file that is may then
//! have been decided too early, where a count was not used up in the end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread::JoinHandle;

use conch_engine::Error;
use conch_engine::clock::monotonic_ns;
use conch_log::LogLimiter;

use super::queue::{TraceMessage, TraceQueue};
use super::record::TraceRecord;
use super::text;

/// Text that is kept before it is written on the way.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// Starts the thread.
///
/// # Errors
/// INTERNAL if there is none to be had.
pub(super) fn start(queue: &Arc<TraceQueue<TraceRecord>>) -> Result<JoinHandle<()>, Error> {
    let queue = Arc::clone(queue);
    std::thread::Builder::new()
        .name("trace".to_owned())
        .spawn(move || TraceWriter::new(&queue).run())
        .map_err(|cause| Error::internal(format!("cannot start the trace thread: {cause}")))
}

struct TraceWriter<'q> {
    queue: &'q TraceQueue<TraceRecord>,
    /// By the number of their setting.
    collections: HashMap<u64, PendingTraces>,
    /// The file without an index; begun when something is written into it.
    whole: Option<File>,
    next_index: u32,
    /// A full disk fails every write; one line per second says so.
    log_limiter: LogLimiter,
}

/// Traces of one setting that are not in a finished file.
#[derive(Default)]
struct PendingTraces {
    text: Vec<u8>,
    /// Since the last finished file.
    count: u32,
    /// In all.
    collected: u64,
    log_frequency: u32,
    /// The indexed file that was begun before its time.
    begun: Option<File>,
}

impl<'q> TraceWriter<'q> {
    fn new(queue: &'q TraceQueue<TraceRecord>) -> TraceWriter<'q> {
        TraceWriter {
            queue,
            collections: HashMap::new(),
            whole: None,
            next_index: 0,
            log_limiter: LogLimiter::default(),
        }
    }

    fn run(mut self) {
        loop {
            for message in self.queue.take() {
                let outcome = match message {
                    TraceMessage::Trace(record, _) => self.collect(&record),
                    TraceMessage::Over(id) => self.close(id),
                    TraceMessage::End => {
                        if let Err(cause) = self.end() {
                            self.complain(&cause);
                        }
                        return;
                    }
                };
                if let Err(cause) = outcome {
                    self.complain(&cause);
                }
            }
        }
    }

    fn complain(&self, cause: &io::Error) {
        let file = self.queue.file();
        self.log_limiter.tell(
            monotonic_ns(),
            format_args!("failed creating trace file: {file}: {cause}"),
        );
    }

    fn collect(&mut self, record: &TraceRecord) -> io::Result<()> {
        let setting = &record.setting;
        let values = setting.values;
        let collection = self.collections.entry(setting.id).or_default();
        collection.log_frequency = values.log_frequency;
        if collection.count > 0 {
            collection.text.push(b',');
        }
        text::render(&mut collection.text, record);
        collection.count += 1;
        collection.collected += 1;
        let is_full = values.log_frequency != 0 && collection.count >= values.log_frequency;
        if is_full || setting.is_complete(collection.collected) {
            return self.finish_indexed(setting.id);
        }
        if collection.text.len() < TEXT_BYTES_MAX {
            return Ok(());
        }
        if values.log_frequency != 0 {
            return self.write_indexed(setting.id);
        }
        self.write_whole(setting.id)
    }

    /// Writes what is collected into the file with the next index, which stays open.
    fn write_indexed(&mut self, id: u64) -> io::Result<()> {
        let Some(collection) = self.collections.get_mut(&id) else {
            return Ok(());
        };
        // Cleared in any case: what cannot be written must not pile up.
        let text = std::mem::take(&mut collection.text);
        let mut file = match collection.begun.take() {
            Some(file) => file,
            None => {
                let index = self.next_index;
                self.next_index = self.next_index.wrapping_add(1);
                let mut file = File::create(format!("{}.{index}", self.queue.file()))?;
                file.write_all(b"[")?;
                file
            }
        };
        file.write_all(&text)?;
        collection.begun = Some(file);
        Ok(())
    }

    fn finish_indexed(&mut self, id: u64) -> io::Result<()> {
        let written = self.write_indexed(id);
        let Some(collection) = self.collections.get_mut(&id) else {
            return Ok(());
        };
        collection.count = 0;
        written?;
        match collection.begun.take() {
            Some(mut file) => file.write_all(b"]"),
            None => Ok(()),
        }
    }

    /// Appends what is collected to the file without an index.
    fn write_whole(&mut self, id: u64) -> io::Result<()> {
        let Some(collection) = self.collections.get_mut(&id) else {
            return Ok(());
        };
        let text = std::mem::take(&mut collection.text);
        collection.count = 0;
        if text.is_empty() {
            return Ok(());
        }
        match &mut self.whole {
            Some(file) => file.write_all(b",")?,
            none => none
                .insert(File::create(self.queue.file())?)
                .write_all(b"[")?,
        }
        match &mut self.whole {
            Some(file) => file.write_all(&text),
            None => Ok(()),
        }
    }

    /// No further trace comes under this setting.
    fn close(&mut self, id: u64) -> io::Result<()> {
        let Some(collection) = self.collections.get(&id) else {
            return Ok(());
        };
        let outcome = match (collection.count, collection.log_frequency) {
            (0, _) => Ok(()),
            (_, 0) => self.write_whole(id),
            _ => self.finish_indexed(id),
        };
        self.collections.remove(&id);
        outcome
    }

    fn end(&mut self) -> io::Result<()> {
        let mut ids: Vec<u64> = self.collections.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Err(cause) = self.close(id) {
                self.complain(&cause);
            }
        }
        match &mut self.whole {
            Some(file) => file.write_all(b"]"),
            None => Ok(()),
        }
    }
}
