//! The turn of a request in its model's response order.

/// The turn of a request under preserve-ordering.
pub(crate) trait ResponseTurn: Send + Sync {
    /// Takes the next turn for the request, which is about to execute.
    fn reserve(&self);
}
