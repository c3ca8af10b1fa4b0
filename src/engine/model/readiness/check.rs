//! The readiness hook of an instance.

use crate::Error;

/// An instance's readiness hook. May outlive its instance, and answers then that it is gone.
pub trait ReadinessCheck: Send + Sync {
    /// Asks the backend, at any time, also while the instance executes. Blocks as long as the
    /// backend does.
    ///
    /// # Errors
    /// Why the instance is not ready.
    fn check(&self) -> Result<(), Error>;
}
