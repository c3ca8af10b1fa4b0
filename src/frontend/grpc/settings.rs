//! Limits of every gRPC connection beside those of HTTP/2: sizes and timeouts.

use std::time::Duration;

/// Metadata of a call, counted as HTTP/2 counts it; upstream's limit.
pub(super) const METADATA_BYTES_MAX: usize = 16 << 10;
/// From accepting the connection to the end of the HTTP/2 preface.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a draining connection waits for the peer to learn that it is to open no more calls, and
/// then to confirm that it has. A few round trips round the globe.
pub(super) const GOAWAY_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest pause within a request's message, and while a peer takes no bytes of a response.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages of calls other than inference; gRPC's own default.
pub(super) const CONTROL_MESSAGE_BYTES_MAX: usize = crate::api::CONTROL_BYTES_MAX;
/// How often a health watch looks.
pub(super) const WATCH_PERIOD: Duration = Duration::from_secs(1);
