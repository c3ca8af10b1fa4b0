//! Shared by the floor servers and other programs: the executor, the h2 adapter, the wire bytes
//! of one identity inference, and command-line arguments. No part of the server uses it.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod arguments;
pub mod executor;
pub mod wire;
