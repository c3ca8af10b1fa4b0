//! The opened library.

use std::fmt;
use std::path::{Path, PathBuf};

use conch_backend_sdk as sdk;
use sdk::engine::{Binding, Library, c_path, text_at};
use sdk::{Code, Error};

use super::table::{ERROR_OUT_OF_MEMORY, Status, Table};
use crate::settings::{LIBRARY, OLDEST_DALI};

/// The library that holds the operators and needs the others, which lie beside it.
const OPERATORS: &str = "libdali_operators.so";

/// DALI, opened and initialised. It is never closed: its threads and memory pools live as long as
/// the process.
pub struct Runtime {
    pub(super) table: Table,
    path: PathBuf,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DALI ({})", self.path.display())
    }
}

impl Runtime {
    /// Opens the DALI whose `libdali.so` is at `path`.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be loaded or has no second version of the C API.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // Operators register themselves when their library is opened; it brings the others along.
        let operators = path.with_file_name(OPERATORS);
        // SAFETY: the operator names this library to be run in the process; its initialisers are
        // DALI's.
        let library = unsafe { Library::open(&operators, Binding::Lazy) }
            .map_err(|why| LIBRARY.unusable(path, format_args!("cannot be loaded: {why}")))?
            .keep_open();
        // SAFETY: the library is DALI's, and stays open.
        let table = unsafe { Table::read(library) }.map_err(|symbol| {
            let why =
                format_args!("lacks {symbol}: this backend needs DALI {OLDEST_DALI} or later");
            LIBRARY.unusable(path, why)
        })?;
        let runtime = Runtime {
            table,
            path: path.to_owned(),
        };
        // SAFETY: takes nothing.
        runtime.check(unsafe { (runtime.table.init)() })?;
        Ok(runtime)
    }

    /// Opens a plug-in: a library that adds operators.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be loaded.
    pub fn load_plugin(&self, path: &Path) -> Result<(), Error> {
        let unavailable =
            |what: String| Error::unavailable(format!("DALI plug-in '{}' {what}", path.display()));
        // DALI throws where a plug-in cannot be loaded, and an exception must not reach Rust. What
        // loads here loads there.
        // SAFETY: the operator names this library to be run in the process.
        let library = unsafe { Library::open(path, Binding::Lazy) }
            .map_err(|why| unavailable(format!("cannot be loaded: {why}")))?;
        let text = c_path(path)?;
        // SAFETY: NUL-terminated, and only read.
        unsafe { (self.table.load_plugin)(text.as_ptr()) };
        // Its operators stay registered.
        library.keep_open();
        Ok(())
    }

    /// Gives the memory of DALI's pools that nothing uses back to the system.
    pub fn release_unused_memory(&self) {
        // SAFETY: takes nothing; DALI's pools are shared by all threads.
        unsafe { (self.table.release_unused_memory)() };
    }

    /// What a call returned, as a result.
    ///
    /// # Errors
    /// DALI's message, `Unavailable` where memory was short and `Unknown` else, as upstream's.
    pub(super) fn check(&self, status: Status) -> Result<(), Error> {
        if status >= 0 {
            return Ok(());
        }
        // SAFETY: the message of this thread's last call that failed: NUL-terminated, valid until
        // the next call.
        let message = unsafe { text_at((self.table.last_error_message)()) };
        sdk::verbose!("DALI failed: {message}");
        let code = match status {
            ERROR_OUT_OF_MEMORY => Code::Unavailable,
            _ => Code::Unknown,
        };
        Err(Error::new(code, format!("DALI error: {}", brief(&message))))
    }
}

/// DALI's message on one line: what went wrong in which operator, without the definition's
/// traceback, whose paths are those of the machine where the pipeline was made, and without the
/// places in DALI's sources.
fn brief(message: &str) -> String {
    let mut brief = String::new();
    let mut is_traceback = false;
    for line in message.lines().map(str::trim) {
        if line.starts_with("which was used in the pipeline definition") {
            is_traceback = true;
        } else if line == "encountered:" {
            is_traceback = false;
        } else if !is_traceback && !is_filler(line) {
            if !brief.is_empty() {
                brief.push(' ');
            }
            brief.push_str(line);
        }
    }
    brief
}

fn is_filler(line: &str) -> bool {
    line.is_empty()
        || line == "Critical error in pipeline:"
        || line == "Current pipeline object is no longer valid."
        || line.starts_with("C++ context:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_in_one_line() {
        for (message, expected) in [
            ("", ""),
            (
                "Assert on \"x\" failed: Error parsing serialized pipeline.",
                "Assert on \"x\" failed: Error parsing serialized pipeline.",
            ),
            (
                "Critical error in pipeline:\nCritical error in pipeline:\nError in CPU operator \
                 `nvidia.dali.fn.decoders.image`,\nwhich was used in the pipeline definition with \
                 the following traceback:\n\n  File \"/home/x/p.py\", line 12, in jpeg\n    y = \
                 f(x)\n\nencountered:\n\nFailed to decode sample #1 : \nCurrent pipeline object is \
                 no longer valid.\nCurrent pipeline object is no longer valid.",
                "Error in CPU operator `nvidia.dali.fn.decoders.image`, Failed to decode sample #1 \
                 :",
            ),
            (
                "Can't broadcast shapes: \n2 (d=0)\n3 (d=0)\n\nC++ context: [/opt/a.cc:139] ",
                "Can't broadcast shapes: 2 (d=0) 3 (d=0)",
            ),
        ] {
            assert_eq!(brief(message), expected);
        }
    }
}
