//! The head of a call, as far as it concerns its requests.

use std::sync::Arc;

use conch_engine::{Draft, Error, Tenant};
use conch_memory::Budget;

use crate::forward::{self, ForwardedHeaders};
use crate::trace::RemoteContext;

/// What the head of a call says of who sends its requests.
#[derive(Clone)]
pub(in crate::grpc) struct CallMetadata {
    pub(in crate::grpc) forwarded: ForwardedHeaders,
    pub(in crate::grpc) tenant: Option<Tenant>,
    /// The span of the client, where spans are exported. Boxed: every call has room for it.
    pub(in crate::grpc) remote: Option<Box<RemoteContext>>,
    /// What its bytes are charged to.
    pub(in crate::grpc) budget: Arc<Budget>,
}

impl CallMetadata {
    /// Adds it to a request.
    ///
    /// # Errors
    /// For metadata that cannot be forwarded.
    pub(super) fn sign(self, draft: &mut Draft<'_>) -> Result<(), Error> {
        draft.features.budget = Some(self.budget);
        forward::attach(self.forwarded, &mut draft.parameters)
    }
}
