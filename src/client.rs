//! `conch infer` and `conch bench`: clients of a running server.

use std::fmt::Display;
use std::process::ExitCode;

use conch_client::ClientError;
use conch_client::options::{BenchOptions, InferOptions};

/// What the program ends with if its words cannot be meant.
pub const USAGE: u8 = 2;

/// Asks a server, prints its answer to the standard output, and says what the program ends with.
pub fn infer(options: &InferOptions) -> ExitCode {
    let outcome = conch_client::infer(options, &mut std::io::stdout().lock());
    ended(&outcome)
}

/// Measures a server, and says what the program ends with.
pub fn bench(options: &BenchOptions) -> ExitCode {
    ended(&conch_client::bench(options, &mut std::io::stdout().lock()))
}

fn ended(outcome: &Result<(), ClientError>) -> ExitCode {
    let (error, code): (&dyn Display, u8) = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error @ ClientError::Failed(_)) => (error, 1),
        Err(error @ ClientError::Usage(_)) => (error, USAGE),
    };
    eprintln!("error: {error}");
    ExitCode::from(code)
}
