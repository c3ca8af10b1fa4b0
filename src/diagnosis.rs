//! `conch doctor`: prints what of this machine slows a server down, and serves nothing.

use std::io::Write as _;
use std::process::ExitCode;

use conch_cli::DoctorCommand;
use conch_doctor::{HostFacts, Requirements, examine};
use conch_frontend::LOCKED_BYTES_MIN;

use crate::machine::{CONNECTIONS_MAX, OWN_FILES};

/// Looks at the machine, prints the report to the standard output, and says what the program ends
/// with.
pub fn run(command: DoctorCommand) -> ExitCode {
    let needs = Requirements {
        open_files: CONNECTIONS_MAX as u64 + OWN_FILES,
        locked_bytes: LOCKED_BYTES_MIN,
    };
    let report = examine(&HostFacts::here(), &needs);
    let text = match command.prints_json {
        true => report.to_json() + "\n",
        false => report.to_lines(),
    };
    // Whoever reads may be gone; the exit code tells all the same.
    let _ = std::io::stdout().write_all(text.as_bytes());
    match report.is_good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
