//! The standard output, for programs whose libraries print.

use std::fs::File;
use std::io;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stdout, stderr, stdout};

/// Takes the standard output away from the rest of the process: whatever else is printed there, by
/// foreign libraries too, goes to the standard error from now on. Child processes inherit that.
///
/// # Errors
/// One of the two is closed.
pub fn take_stdout() -> io::Result<File> {
    let own = fcntl_dupfd_cloexec(stdout(), FIRST_FREE)?;
    dup2_stdout(stderr())?;
    Ok(File::from(own))
}

/// Above the standard streams.
const FIRST_FREE: i32 = 3;
