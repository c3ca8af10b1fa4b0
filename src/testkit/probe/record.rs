//! The record of calls: one line when a call begins and one when it ends, in the order in which
//! that happened.
//!
//! A line is `<number> <time ns> <thread> <begin|end|fail> <call> <object> <detail>`, separated by
//! tabs.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::thread;

use conch_backend_sdk as sdk;
use sdk::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Initialize,
    Finalize,
    Attributes,
    ModelInitialize,
    ModelFinalize,
    InstanceInitialize,
    /// What an instance learns of itself, within its initialisation.
    InstanceFacts,
    InstanceFinalize,
    Execute,
    Ready,
    /// The requests of an execution.
    Rows,
    /// A request was cancelled while it executed.
    SeeCancel,
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

pub struct Record {
    /// The file and the number of the next line; one lock, so that numbers are the order.
    state: Mutex<(File, u64)>,
}

impl Record {
    /// # Errors
    /// `Unavailable` if the file cannot be opened.
    pub fn append(path: &str) -> Result<Self, Error> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.map(|file| Record {
            state: Mutex::new((file, 0)),
        })
        .map_err(|error| Error::unavailable(format!("cannot open the record {path}: {error}")))
    }

    /// Writes down that `body` begins, and how it ends.
    pub fn during<T>(
        &self,
        call: Call,
        object: &str,
        detail: &str,
        body: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.write("begin", call, object, detail);
        let result = body();
        let end = if result.is_ok() { "end" } else { "fail" };
        self.write(end, call, object, detail);
        result
    }

    /// As [`during`](Self::during), for what cannot fail.
    pub fn around(&self, call: Call, object: &str, body: impl FnOnce()) {
        self.write("begin", call, object, "");
        body();
        self.write("end", call, object, "");
    }

    fn write(&self, edge: &str, call: Call, object: &str, detail: &str) {
        let thread = format!("{:?}", thread::current().id());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, number) = &mut *state;
        let now_ns = sdk::clock::monotonic_ns();
        let line = format!("{number}\t{now_ns}\t{thread}\t{edge}\t{call}\t{object}\t{detail}\n");
        *number += 1;
        if let Err(error) = file.write_all(line.as_bytes()) {
            // Not by the server's log: this file's tests run without a server, whose functions they
            // would have to link.
            eprintln!("probe: cannot write the record: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_down_beginning_and_end_in_order() {
        let path = std::env::temp_dir().join(format!("conch-probe-{}", std::process::id()));
        let record = Record::append(path.to_str().unwrap()).unwrap();
        record.around(Call::Finalize, "a", || {
            let failed: Result<(), _> =
                record.during(Call::Execute, "b", "d", || Err(Error::internal("x")));
            assert!(failed.is_err());
        });
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split('\t').collect())
            .collect();
        let told: Vec<_> = lines.iter().map(|line| (line[0], &line[3..])).collect();
        assert_eq!(
            told,
            [
                ("0", &["begin", "Finalize", "a", ""][..]),
                ("1", &["begin", "Execute", "b", "d"]),
                ("2", &["fail", "Execute", "b", "d"]),
                ("3", &["end", "Finalize", "a", ""]),
            ]
        );
    }
}
