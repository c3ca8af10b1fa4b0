//! The command line: the table of flags, and the options that the server is started with.
//!
//! A flag is one row in `table/`: its name, the kind of its value, its effect, its help and
//! the field that it sets. The rows write into the option structures of the other crates, which
//! [`Arguments`] holds whole. Nothing here starts anything: the executable prints, logs and serves.
#![forbid(unsafe_code)]

mod access;
mod arguments;
mod check;
mod client;
mod client_bench;
mod client_help;
mod client_top;
mod client_words;
mod cloud;
mod collector;
mod command;
mod command_table;
mod completions;
mod deprecated;
mod flag;
mod grpc;
mod help;
mod limits;
mod listeners;
mod lookup;
mod manual;
mod network;
mod parse;
mod suggest;
mod table;
mod tls;
mod trace;
mod values;

#[cfg(test)]
mod tests;

pub use arguments::Arguments;
pub use client_top::TopCommand;
pub use cloud::CloudVariables;
pub use command::{CheckCommand, Command, DoctorCommand, parse_command};
pub use completions::{Shell, completions};
pub use flag::EarlyExit;
pub use help::{text, usage, version};
pub use manual::manual;
pub use network::{frontend_options, tls_sources};
pub use parse::parse;
