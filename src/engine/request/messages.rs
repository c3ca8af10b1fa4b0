//! Parts of messages about requests, in the words of upstream.

use std::fmt;

use crate::{Error, truncated};

/// Dimensions that a message shows; upstream's own bound is far below.
const DIMS_SHOWN_MAX: usize = 64;

/// The words with which upstream begins messages that name a request.
pub struct RequestIdPrefix<'a>(pub &'a str);

impl fmt::Display for RequestIdPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = if self.0.is_empty() {
            "<id_unknown>"
        } else {
            self.0
        };
        write!(f, "[request id: {}] ", truncated(id))
    }
}

/// Dimensions as upstream prints them: `[-1,16]`.
pub(crate) struct Dims<'a>(pub(crate) &'a [i64]);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dim) in self.0.iter().take(DIMS_SHOWN_MAX).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{dim}")?;
        }
        if self.0.len() > DIMS_SHOWN_MAX {
            f.write_str(",...")?;
        }
        f.write_str("]")
    }
}

/// The refusal of request `id` for want of a place. Not counted as a failure, as upstream counts
/// none that was never queued.
pub(crate) fn full(id: &str) -> Error {
    Error::unavailable(format!("{}Exceeds maximum queue size", RequestIdPrefix(id)))
}
