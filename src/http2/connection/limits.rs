//! What bounds a connection.

/// Per stream. With windows of 64 KiB (the protocol's default) a large request would stall once per
/// round trip.
pub(crate) const STREAM_WINDOW_BYTES: i64 = 1 << 20;
/// Sixteen streams at full speed. What nobody takes waits here, so this times the connections is
/// memory that nothing charges.
pub(crate) const CONNECTION_WINDOW_BYTES: i64 = 16 << 20;
/// What the protocol begins with, for a stream and for the connection.
pub(crate) const FIRST_WINDOW_BYTES: i64 = 65_535;
/// Fewer frames per tensor than the default of 16 KiB. Frames other than DATA are collected until
/// they are whole.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 10;
pub(crate) const STREAMS_MAX: usize = 1024;
/// StreamTable reset by the client before they were accepted: "rapid reset".
pub(crate) const RESET_BEFORE_ACCEPT_MAX: u32 = 200;
/// StreamTable that had to be reset because of the client's errors: "made you reset".
pub(crate) const ERROR_RESETS_MAX: u32 = 200;
/// A queued part of a body from which on its call should run before more is received.
pub(crate) const LARGE_BYTES: usize = 8 << 10;

/// What the protocol begins with, of frames that we send.
pub(crate) const FIRST_FRAME_BYTES: usize = 16 << 10;
/// Frames whose heads are expected by one receive; see `direct.rs`.
pub(crate) const EXPECTED_FRAMES_MAX: usize = 15;
