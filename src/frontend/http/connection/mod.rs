//! One HTTP/1.1 connection: requests in, answers out, in order.
//!
//! Requests are served one after the other, as upstream does. Of requests that arrived together
//! those are answered together that can be answered at once; an answer never waits for what may
//! take long behind it. While a request is with the engine the connection still reads, so that a
//! client that goes away cancels it (see [`half_closed`]). A connection between requests keeps no
//! buffer.

mod body;
mod half_closed;
mod machine;
mod reply;
mod send;
mod serve;
mod service;
mod source;
mod state;
mod streaming;
mod turn;

pub(super) use body::padding;
pub(crate) use body::{BodyPlacement, ReceivedBody, freeze};
pub(crate) use serve::serve;
pub(crate) use service::HttpService;
pub(crate) use source::BodySource;
pub(crate) use state::{ConnectionClosed, HttpConnection};
