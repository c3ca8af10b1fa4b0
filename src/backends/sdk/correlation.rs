//! The id of a sequence.

use std::ffi::CStr;

/// What tells the requests of one sequence from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorrelationId<'b> {
    /// 0 is none: the request is no part of a sequence.
    Number(u64),
    Text(&'b CStr),
}

impl CorrelationId<'_> {
    /// Whether the request is no part of a sequence.
    pub fn is_none(&self) -> bool {
        match self {
            CorrelationId::Number(number) => *number == 0,
            CorrelationId::Text(text) => text.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_no_sequence() {
        assert!(CorrelationId::Number(0).is_none());
        assert!(CorrelationId::Text(c"").is_none());
        assert!(!CorrelationId::Number(1).is_none());
        assert!(!CorrelationId::Text(c"0").is_none());
    }
}
