//! The same small HTTP server over several executors, each on one thread: it reads requests, has
//! another thread look at each (or not), and answers.
//!
//!     executors NAME [hand-off]
//!
//! prints the port on which it listens, and serves until it is ended. `perf/executors` drives it.
#![forbid(unsafe_code)]

mod over_compio;
mod over_glommio;
mod over_monoio;
mod over_own;
mod over_tokio;
mod request;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use worker::Worker;

const NAMES: [(&str, fn(Worker) -> io::Result<()>); 5] = [
    ("compio", over_compio::serve),
    ("conch", over_own::serve),
    ("glommio", over_glommio::serve),
    ("monoio", over_monoio::serve),
    ("tokio", over_tokio::serve),
];
/// Where all of them listen: any port of this host's.
const ADDRESS: &str = "127.0.0.1:0";
const BUFFER_BYTES: usize = 8 << 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, hands_off) = match arguments[..] {
        [name] => (name, false),
        [name, "hand-off"] => (name, true),
        _ => ("", false),
    };
    let Some((_, serve)) = NAMES.iter().find(|(known, _)| *known == name) else {
        let names = NAMES.map(|(name, _)| name).join("|");
        eprintln!("usage: executors {names} [hand-off]");
        return ExitCode::FAILURE;
    };
    match serve(Worker::start(hands_off)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_port(address: SocketAddr) {
    println!("{}", address.port());
}
