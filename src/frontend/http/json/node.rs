//! The nodes that the checker notes.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    Null,
    Bool(bool),
    Number,
    /// Content as it stands in the text.
    Plain,
    /// `start` is an index into `resolved`.
    Escaped,
    /// Children follow until `next`.
    Array,
    /// Names and values follow in turn until `next`.
    Object,
    /// An array whose elements were checked but not noted, or what lies too deep for anybody to
    /// look at.
    Lump,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct JsonNode {
    pub(super) kind: NodeKind,
    pub(super) start: u32,
    pub(super) end: u32,
    /// Index of the first node behind this value.
    pub(super) next: u32,
}
