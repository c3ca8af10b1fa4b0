//! The copies that streams have carried out, by the kinds of memory at their ends, and the kernels,
//! by name, for tests whose server is another process.
//!
//! `CONCH_CUDA_DOUBLE_TALLY` names a file. After each copy, and before anyone learns that it is
//! done, the file is replaced by rows `<from> <to> <copies> <bytes>`. A kernel's row is
//! `kernel <name> <launches> <threads>`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Copies and bytes, by the kinds of memory they were read from and written to; launches and
/// threads, by `kernel` and the kernel's name.
type Rows = BTreeMap<(&'static str, String), (u64, u64)>;

static ROWS: Mutex<Rows> = Mutex::new(Rows::new());

/// Counts a copy of `len` bytes, or a launch of as many threads.
pub fn add(from: &'static str, to: &str, len: usize) {
    static PATH: OnceLock<Option<String>> = OnceLock::new();
    let path = PATH.get_or_init(|| std::env::var("CONCH_CUDA_DOUBLE_TALLY").ok());
    let Some(path) = path else { return };
    let mut rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    let (copies, bytes) = rows.entry((from, to.to_owned())).or_default();
    *copies += 1;
    *bytes += len as u64;
    let mut text = String::new();
    for ((from, to), (copies, bytes)) in rows.iter() {
        let _ = writeln!(text, "{from} {to} {copies} {bytes}");
    }
    // Replaced as a whole, so that no reader sees a part of it.
    let fresh = format!("{path}.new");
    let _ = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, path));
}
