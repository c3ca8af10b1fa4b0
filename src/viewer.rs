//! `conch top`: shows in a terminal what a server does, and serves nothing.

use std::process::ExitCode;

use conch_cli::TopCommand;

/// Shows it until the user ends that, or prints it once.
pub fn run(command: &TopCommand) -> ExitCode {
    let shown = match command.prints_once {
        true => conch_top::print_once(&command.server),
        false => conch_top::watch(&command.server),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}
