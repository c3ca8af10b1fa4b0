//! The record of calls that tests read: a line of JSON each, in the file that
//! `CONCH_ORT_DOUBLE_RECORD` names.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

/// Appends a line.
pub fn record(line: &Value) {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let path = std::env::var_os("CONCH_ORT_DOUBLE_RECORD")?;
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.ok().map(Mutex::new)
    });
    if let Some(file) = file {
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // A test that misses a line fails.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
