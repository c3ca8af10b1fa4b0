//! `conch top`: shows in a terminal what a server does, and serves nothing.

use std::process::ExitCode;

use conch_cli::TopCommand;
use conch_top::TopAddress;

/// Shows it until the user ends that, or prints it once.
pub fn run(command: &TopCommand) -> ExitCode {
    let address = match &command.address {
        Some(text) => TopAddress::parse(text),
        None => Ok(TopAddress::default()),
    };
    let shown = address.and_then(|address| match command.prints_once {
        true => conch_top::print_once(address),
        false => conch_top::watch(address),
    });
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}
