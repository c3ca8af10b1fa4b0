//! The id of a sequence.

use std::fmt;

use conch_scheduler::SequenceKey;

/// A sequence's id. The default, `Unsigned(0)`, means none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorrelationId {
    Unsigned(u64),
    Text(Box<str>),
}

impl Default for CorrelationId {
    fn default() -> CorrelationId {
        CorrelationId::Unsigned(0)
    }
}

impl CorrelationId {
    /// The sequence that a client means; none if it names none.
    pub(crate) fn sequence_key(&self) -> Option<SequenceKey> {
        match self {
            CorrelationId::Unsigned(0) => None,
            CorrelationId::Unsigned(number) => Some(SequenceKey::Unsigned(*number)),
            CorrelationId::Text(text) if text.is_empty() => None,
            CorrelationId::Text(text) => Some(SequenceKey::Text(text.clone())),
        }
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CorrelationId::Unsigned(number) => number.fmt(f),
            CorrelationId::Text(text) => text.fmt(f),
        }
    }
}
