//! What an engine does for a model.

use std::sync::Arc;

use super::tensor::{Contents, Feed, Signature, Target};
use crate::{DataType, DeviceWork, Error, Interrupt};

/// A model loaded into an engine, used by one thread at a time.
pub trait Session: Send {
    /// An output in the engine's memory.
    type Output: Output;

    /// What the model takes and makes. Does not change.
    fn signature(&self) -> &Signature;

    /// Whether outputs can be written into memory of the response.
    fn writes_in_place(&self) -> bool {
        false
    }

    /// Whether a session on a GPU takes inputs of a type there, where it takes any. BYTES are
    /// always in main memory.
    fn takes_on_device(&self, _data_type: DataType) -> bool {
        true
    }

    /// What ends a run that is going on, when all its requests are cancelled; none where the engine
    /// cannot be interrupted. Asked for once.
    fn interrupt(&self) -> Option<Arc<dyn Interrupt>> {
        None
    }

    /// Runs the model on `feeds` and returns the outputs of `targets`, in their order: `None` for
    /// those that were written into memory of the target's own. On a GPU nothing reads the feeds
    /// any more when this returns, also with an error, and outputs are there.
    ///
    /// # Errors
    /// What the engine says: each request of the batch gets it.
    fn run(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Self::Output>>, Error>;
}

/// A session on a GPU that can leave a run on the stream of its instance.
pub trait EnqueueSession: Session<Output: Send> {
    /// Why its runs have to be waited for all the same, as only the loaded model tells; none if
    /// they need not be. Asked once.
    fn in_flight_obstacle(&self) -> Option<String> {
        None
    }

    /// Enqueues a run by [`DeviceWork::compute`], on the stream that the session has as well. What
    /// is borrowed for `'m` stays until the batch is done, as the outputs that are returned do.
    /// Targets have no memory but of the session's GPU. Outputs lie there, or where targets have
    /// memory of their own.
    ///
    /// # Errors
    /// What the engine says: each request of the batch gets it.
    fn enqueue<'m>(
        &mut self,
        work: &mut DeviceWork<'m>,
        feeds: &[Feed<'m>],
        targets: &mut [Target<'_, 'm>],
    ) -> Result<Vec<Option<Self::Output>>, Error>;
}

/// An output that a run made.
pub trait Output {
    /// What it holds.
    ///
    /// # Errors
    /// What the engine says.
    fn read(&self) -> Result<Contents<'_>, Error>;
}
