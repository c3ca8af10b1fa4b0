//! Changing what is loaded while the server serves.

use super::Lifecycle;
use crate::{Error, Overrides};

impl Lifecycle {
    pub(crate) fn load_model(&self, name: &str, _overrides: Overrides) -> Result<(), Error> {
        Err(Error::unsupported(format!("cannot load '{name}' yet")))
    }

    pub(crate) fn unload_model(&self, name: &str, _with_dependents: bool) -> Result<(), Error> {
        Err(Error::unsupported(format!("cannot unload '{name}' yet")))
    }

    pub(crate) fn poll(&self) -> Result<(), Error> {
        Err(Error::unsupported("cannot poll yet"))
    }

    pub(crate) fn register_repository(
        &self,
        path: &str,
        _mappings: Vec<(String, String)>,
    ) -> Result<(), Error> {
        Err(Error::unsupported(format!("cannot register '{path}' yet")))
    }

    pub(crate) fn unregister_repository(&self, path: &str) -> Result<(), Error> {
        Err(Error::unsupported(format!(
            "cannot unregister '{path}' yet"
        )))
    }
}
