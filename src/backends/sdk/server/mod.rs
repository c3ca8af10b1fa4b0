//! Calls of a backend to the server that loaded it: inferences of other models, and control of
//! them.
//!
//! [`Server::infer`] sends a [`ServerRequest`] and returns. What comes back goes to a function of
//! the caller's, on threads of the server or of the called model: be quick there. Nothing of the
//! SDK is locked meanwhile.
//!
//! Who frees what:
//! - The server's request object is made by `infer` and deleted when the call is over, by whoever
//!   used it last: the callback that ended the call, or a thread that cancels it at that moment.
//! - The memory of inputs ([`TensorMemory`]) is kept until the server released the request. The
//!   memory of outputs is taken from the caller's [`OutputMemory`] when the called model asks for
//!   it, belongs to the server's response, and then to the [`ServerOutput`]. That keeps it by its
//!   own reference, so that the response object is deleted before the caller sees what was in it.
//! - A call is known by a number to the C callbacks ([`calls`]), never by its address. It is
//!   forgotten when the last response came and the request was released, in either order. What a
//!   faulty model does with a call that is over is an error.
//! - The child trace of a traced parent is ours until the request is sent and the server's from
//!   then on, also if sending fails: servers do not agree about who frees it then, and a leak is
//!   the lesser evil.
//! - The response allocator is one per library and lives as long as the process: a response that
//!   was never sent may refer to it at any time.
//! - The end of a model ([`ServerScope`]) ends its [`Server`]: later use is an error, calls in
//!   flight are cancelled and waited for, if not for ever. A callback returns through this
//!   library's code after it reported its end, so a library that calls is kept in memory.

mod allocator;
mod callbacks;
mod calls;
mod delivery;
mod handle;
mod memory;
mod models;
mod request;
mod request_handle;
mod response;
mod sending;
mod usage;

pub use calls::ServerCall;
pub use delivery::ServerDelivery;
pub use handle::Server;
pub(crate) use handle::ServerScope;
pub use memory::{HostMemory, OutputMemory, TensorMemory};
pub use request::ServerRequest;
pub use response::{ServerOutput, ServerResponse};
