//! The head of a call, as far as it concerns its requests.

use std::sync::Arc;

use conch_engine::{Draft, Error, Tenant};
use conch_memory::Budget;

use crate::forward::{self, ForwardedHeaders};
use crate::trace::RemoteContext;

/// What the head of a call says of who sends its requests.
#[derive(Clone)]
pub(in crate::grpc) struct CallMetadata {
    /// Boxed: every call has room for it.
    pub(in crate::grpc) headers: Option<Box<CallHeaders>>,
    pub(in crate::grpc) tenant: Option<Tenant>,
    /// What its bytes are charged to.
    pub(in crate::grpc) budget: Arc<Budget>,
}

/// What is kept of the metadata that the server has to be asked to read.
#[derive(Clone)]
pub(in crate::grpc) struct CallHeaders {
    pub(in crate::grpc) forwarded: ForwardedHeaders,
    /// The span of the client, where spans are exported.
    pub(in crate::grpc) remote: Option<RemoteContext>,
}

impl CallMetadata {
    /// The span of the client.
    pub(super) fn remote(&self) -> Option<RemoteContext> {
        self.headers.as_ref()?.remote.clone()
    }

    /// Adds it to a request.
    ///
    /// # Errors
    /// For metadata that cannot be forwarded.
    pub(super) fn sign(self, draft: &mut Draft<'_>) -> Result<(), Error> {
        draft.features.budget = Some(self.budget);
        match self.headers {
            Some(headers) => forward::attach(headers.forwarded, &mut draft.parameters),
            None => Ok(()),
        }
    }
}
