//! The trait of a model's own rules for forming batches.

use crate::entry::Entry;

/// A model's own say in what is executed together, beyond sizes and signatures. One batch at a
/// time, in the order of these methods; a look over the queue that ends in waiting ends its batch,
/// too.
pub trait BatchPolicy<T: Entry> {
    /// A batch begins to form.
    fn begin(&mut self);

    /// Whether `entry`, the next one in order, joins it.
    fn includes(&mut self, entry: &T) -> BatchDecision<T::Owned>;

    /// The batch is formed, or given up.
    fn end(&mut self);
}

impl<T: Entry> std::fmt::Debug for dyn BatchPolicy<T> + Send {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Strategy")
    }
}

/// What a [`BatchPolicy`] says of an entry.
#[derive(Debug)]
pub enum BatchDecision<O> {
    Joins,
    /// It ends the batch, and begins the next one.
    Stays,
    /// Somebody else claimed it.
    Gone,
    /// Somebody asked to cancel it while the strategy looked at it.
    Cancelled(O),
}
