//! Model control: loading, unloading and re-reading repositories while the server serves.
//!
//! Every call blocks its thread for as long as backends do; the data plane goes on meanwhile and
//! sees the outcome through the registry. The control mode says which calls are allowed, as
//! upstream has it.

use conch_engine::{Code, Error};

use crate::load_overrides::Overrides;
use crate::options::ControlMode;
use crate::server::Server;

impl Server {
    /// Loads a model of the repositories, or what `overrides` say; one that is up goes on serving
    /// until the new one is, and if the new one fails. Returns when the model is ready or has
    /// failed. Loads of different models run at once.
    ///
    /// # Errors
    /// UNAVAILABLE outside of explicit mode; INVALID_ARG for a name that cannot be one, and if a
    /// version failed (with each reason); INTERNAL if no such model is found or its configuration
    /// is no good. Under a budget of memory UNAVAILABLE if there is no room.
    pub fn load_model(&self, name: &str, overrides: Overrides) -> Result<(), Error> {
        self.expect_explicit()?;
        match self.demand() {
            Some(demand) => demand.load(name, overrides),
            None => self.lifecycle().load_model(name, overrides),
        }
    }

    /// Takes a model out of service and returns; requests in flight are finished and its versions
    /// unload afterwards. One that is not loaded is no error. `with_dependents` unloads as well
    /// what was loaded for this model alone.
    ///
    /// # Errors
    /// UNAVAILABLE outside of explicit mode.
    pub fn unload_model(&self, name: &str, with_dependents: bool) -> Result<(), Error> {
        self.expect_explicit()?;
        self.lifecycle().unload_model(name, with_dependents)
    }

    /// Brings the loaded models into line with the repositories. Returns when all of them are up or
    /// have failed; what fails is in the log and the index.
    ///
    /// # Errors
    /// UNAVAILABLE outside of poll mode.
    pub fn poll_repositories(&self) -> Result<(), Error> {
        self.check_serving()?;
        if self.options().model_control_mode != ControlMode::Poll {
            return Err(Error::unavailable("polling is disabled"));
        }
        self.lifecycle().poll()
    }

    /// Adds a repository, with (directory, model) pairs for those of its models that go by another
    /// name. Loads nothing.
    ///
    /// # Errors
    /// UNSUPPORTED outside of explicit mode, INVALID_ARG if it is no directory, ALREADY_EXISTS for
    /// a repository or model name that is registered already.
    pub fn register_repository(
        &self,
        path: &str,
        mappings: Vec<(String, String)>,
    ) -> Result<(), Error> {
        self.expect_registrable("registration")?;
        self.lifecycle().register_repository(path, mappings)
    }

    /// Removes a repository and its mappings. Its loaded models stay.
    ///
    /// # Errors
    /// UNSUPPORTED outside of explicit mode, INVALID_ARG if there is none such.
    pub fn unregister_repository(&self, path: &str) -> Result<(), Error> {
        self.expect_registrable("unregistration")?;
        self.lifecycle().unregister_repository(path)
    }

    fn expect_explicit(&self) -> Result<(), Error> {
        self.check_serving()?;
        if self.options().model_control_mode == ControlMode::Explicit {
            return Ok(());
        }
        Err(Error::unavailable(
            "explicit model load / unload is not allowed if polling is enabled",
        ))
    }

    fn expect_registrable(&self, what: &str) -> Result<(), Error> {
        if self.options().model_control_mode == ControlMode::Explicit {
            return Ok(());
        }
        Err(Error::new(
            Code::Unsupported,
            format!("repository {what} is not allowed if model control mode is not EXPLICIT"),
        ))
    }
}
