//! What the floor servers and the load generator share: the executor, the h2 adapter, the wire
//! bytes of one identity inference, and command-line arguments. Nothing here is part of the server;
//! none of it is used in production.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod arguments;
pub mod executor;
pub mod wire;
