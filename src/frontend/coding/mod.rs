//! Compression of requests and responses, for both protocols: gzip and deflate (which is zlib's
//! format in HTTP and in gRPC).
//!
//! Pure: nothing here waits or knows a shard. The only door to flate2. How much is done at a time
//! is for the callers to say, who know where they run.

mod deflate;
mod format;
mod inflate;

pub(crate) use deflate::deflate_into;
pub(crate) use format::ContentCoding;
pub(crate) use inflate::Inflater;

/// Compressing up to this many bytes is done in place: about 300 us.
pub(crate) const DEFLATE_IN_PLACE_BYTES: usize = 16 << 10;
/// What is inflated in place: up to so many bytes become up to so many, about 200 us. What is more
/// continues elsewhere.
pub(crate) const INFLATE_IN_PLACE_BYTES: usize = 64 << 10;

/// The longest compressed form of `plain_bytes_max` bytes: incompressible bytes grow by less than a
/// thousandth, and writers that flush often by some percent.
pub(crate) fn packed_bytes_max(plain_bytes_max: u64) -> u64 {
    plain_bytes_max
        .saturating_add(plain_bytes_max / 16)
        .saturating_add(64 << 10)
}
