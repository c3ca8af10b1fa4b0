//! The head of a call, as far as it concerns its requests.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::{Draft, Error, Tenant};
use conch_memory::Budget;

use crate::access_log::AccessRecord;
use crate::auth::CallerRights;
use crate::forward::{self, ForwardedHeaders};
use crate::trace::RemoteContext;

/// What the head of a call says of who sends its requests.
#[derive(Clone)]
pub(in crate::grpc) struct CallMetadata {
    /// Boxed: every call has room for it.
    pub(in crate::grpc) extensions: Option<Box<CallExtensions>>,
    pub(in crate::grpc) tenant: Option<Tenant>,
    /// What its bytes are charged to.
    pub(in crate::grpc) budget: Arc<Budget>,
}

/// What few calls have, as the server has to be asked for it.
#[derive(Clone)]
pub(in crate::grpc) struct CallExtensions {
    /// Which models its requests may name.
    pub(in crate::grpc) rights: CallerRights,
    pub(in crate::grpc) forwarded: ForwardedHeaders,
    /// The span of the client, where spans are exported.
    pub(in crate::grpc) remote: Option<RemoteContext>,
    /// Its line in the access log, of a call with one request.
    pub(in crate::grpc) access: Option<Rc<AccessRecord>>,
}

impl CallMetadata {
    /// Which models its requests may name.
    pub(in crate::grpc) fn rights(&self) -> CallerRights {
        let extensions = self.extensions.as_ref();
        extensions
            .map(|extensions| extensions.rights.clone())
            .unwrap_or_default()
    }

    /// The span of the client.
    pub(super) fn remote(&self) -> Option<RemoteContext> {
        self.extensions.as_ref()?.remote.clone()
    }

    /// Adds it to a request.
    ///
    /// # Errors
    /// For metadata that cannot be forwarded.
    pub(super) fn sign(self, draft: &mut Draft<'_>) -> Result<(), Error> {
        draft.features.budget = Some(self.budget);
        match self.extensions {
            Some(extensions) => {
                if let Some(access) = &extensions.access {
                    access.note_id(draft.id);
                }
                forward::attach(extensions.forwarded, &mut draft.parameters)
            }
            None => Ok(()),
        }
    }
}
