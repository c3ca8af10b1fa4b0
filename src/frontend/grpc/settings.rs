//! Limits of every gRPC connection: HTTP/2 settings, counts and timeouts.

use std::time::Duration;

use h2::server::Builder;

/// Per stream. With windows of 64 KiB (the protocol's default) a large request would stall once per
/// round trip.
pub(super) const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Sixteen streams at full speed. Bytes are consumed as they arrive, so a window is no memory that
/// lies about.
pub(super) const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Fewer frames per tensor than the default of 16 KiB. h2 collects a whole frame before the byte
/// budget sees it, so this times the connections is memory that nothing charges.
pub(super) const FRAME_BYTES_MAX: u32 = 64 << 10;
const STREAMS_MAX: u32 = 1024;
/// What h2 reads before it answers with HTTP's 431, which gRPC clients take for an unknown error.
/// What is longer than a call may have but not as long gets a status of gRPC.
const HEADER_LIST_BYTES_MAX: u32 = 64 << 10;
/// Metadata of a call, counted as HTTP/2 counts it; upstream's limit.
pub(super) const METADATA_BYTES_MAX: usize = 16 << 10;
/// Streams reset by the peer before they were accepted: "rapid reset".
const RESET_BEFORE_ACCEPT_MAX: usize = 200;
/// Streams that we had to reset because of the peer's errors: "made you reset". Unbounded if left
/// out.
const LOCAL_ERROR_RESETS_MAX: Option<usize> = Some(200);
/// Reset streams remembered so that late frames are no connection error.
const RESETS_REMEMBERED_MAX: usize = 100;
const RESETS_REMEMBERED_FOR: Duration = Duration::from_secs(1);
/// Response bytes of one stream that wait in h2 for the socket. They are shared handles, not
/// copies.
const SEND_BUFFER_BYTES_MAX: usize = 1 << 20;

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

/// h2's side of the limits.
pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(RESET_BEFORE_ACCEPT_MAX)
        .max_local_error_reset_streams(LOCAL_ERROR_RESETS_MAX)
        .max_concurrent_reset_streams(RESETS_REMEMBERED_MAX)
        .reset_stream_duration(RESETS_REMEMBERED_FOR)
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the builder was told, as its debug output shows: a limit left at "none" would not be
    /// noticed otherwise.
    #[test]
    fn limits_against_resets_are_set() {
        let text = format!("{:?}", builder());
        for expected in [
            "pending_accept_reset_stream_max: 200",
            "local_max_error_reset_streams: Some(200)",
            "reset_stream_max: 100",
            "reset_stream_duration: 1s",
            "max_concurrent_streams: Some(1024)",
            "max_header_list_size: Some(65536)",
        ] {
            let flat = text.replace("StreamId(", "").replace(
                "max_concurrent_streams: 1024",
                "max_concurrent_streams: Some(1024)",
            );
            let flat = flat.replace(
                "max_header_list_size: 65536",
                "max_header_list_size: Some(65536)",
            );
            assert!(flat.contains(expected), "{expected} in {text}");
        }
    }
}
