//! Control of the server's models.

use std::ptr;

use conch_abi as abi;

use super::handle::Server;
use crate::Error;
use crate::error::c_string;
use crate::parameter::RawParameter;

impl Server {
    /// Loads a model, or loads it anew. Blocks until it is ready or has failed, and must not be
    /// called by what the load waits for.
    ///
    /// `config` is a model configuration in JSON that replaces that of the repository. `files` are
    /// contents by name, `file:<version>/<path>`, that replace the model's directory; with them a
    /// configuration is needed.
    ///
    /// # Errors
    /// Whatever the server reports: `Unavailable` if models are not controlled explicitly.
    pub fn load_model(
        &self,
        name: &str,
        config: Option<&str>,
        files: &[(&str, &[u8])],
    ) -> Result<(), Error> {
        let config = config.map(|config| RawParameter::text("config", config));
        let files = files
            .iter()
            .map(|(name, bytes)| RawParameter::bytes(name, bytes));
        let parameters: Vec<RawParameter<'_>> =
            config.into_iter().chain(files).collect::<Result<_, _>>()?;
        let mut pointers: Vec<_> = parameters.iter().map(RawParameter::as_ptr).collect();
        let name = c_string(name);
        let server = self.enter()?;
        // SAFETY: the server is live while in use; the name is NUL-terminated; the parameters and
        // their bytes live during the call.
        unsafe {
            Error::check(abi::TRITONSERVER_ServerLoadModelWithParameters(
                server.raw.as_ptr(),
                name.as_ptr(),
                pointers.as_mut_ptr(),
                pointers.len() as u64,
            ))
        }
    }

    /// Takes a model out of service. Requests that it has are answered; whether this waits for them
    /// is the server's affair. `with_dependents` also unloads what was loaded for this model alone.
    ///
    /// # Errors
    /// Whatever the server reports: `Unavailable` if models are not controlled explicitly.
    pub fn unload_model(&self, name: &str, with_dependents: bool) -> Result<(), Error> {
        let name = c_string(name);
        let server = self.enter()?;
        // SAFETY: the server is live while in use; the name is NUL-terminated.
        unsafe {
            Error::check(if with_dependents {
                abi::TRITONSERVER_ServerUnloadModelAndDependents(server.raw.as_ptr(), name.as_ptr())
            } else {
                abi::TRITONSERVER_ServerUnloadModel(server.raw.as_ptr(), name.as_ptr())
            })
        }
    }

    /// Whether a model takes requests. With an empty `version`, any version.
    ///
    /// # Errors
    /// `InvalidArgument` if the version is no number; otherwise whatever the server reports.
    pub fn is_model_ready(&self, name: &str, version: &str) -> Result<bool, Error> {
        let version = parse_version(version)?;
        let name = c_string(name);
        let server = self.enter()?;
        let mut is_ready = false;
        // SAFETY: the server is live while in use; the name is NUL-terminated, the result writable.
        unsafe {
            Error::check(abi::TRITONSERVER_ServerModelIsReady(
                server.raw.as_ptr(),
                name.as_ptr(),
                version,
                &raw mut is_ready,
            ))?;
        }
        Ok(is_ready)
    }

    /// Whether a model sends any number of responses to a request, and not just one. -1 lets the
    /// server choose the version.
    ///
    /// # Errors
    /// Whatever the server reports: for one, that there is no such model.
    pub fn is_model_decoupled(&self, name: &str, version: i64) -> Result<bool, Error> {
        let name = c_string(name);
        let server = self.enter()?;
        let mut flags = 0;
        // SAFETY: the server is live while in use; the name is NUL-terminated, the result writable,
        // and the other one may be null.
        unsafe {
            Error::check(abi::TRITONSERVER_ServerModelTransactionProperties(
                server.raw.as_ptr(),
                name.as_ptr(),
                version,
                &raw mut flags,
                ptr::null_mut(),
            ))?;
        }
        Ok(flags & abi::TRITONSERVER_TXN_DECOUPLED != 0)
    }
}

/// The server's number of a version: -1 for none. Errors are in the words of Triton's Python
/// backend.
fn parse_version(text: &str) -> Result<i64, Error> {
    if text.is_empty() {
        return Ok(-1);
    }
    let version = text.parse().ok().filter(|version| *version >= 0);
    version.ok_or_else(|| {
        Error::invalid(format!(
            "failed to get model version from specified version string '{text}', version should be \
             an integral value > 0"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_or_none() {
        for (text, expected) in [
            ("", Some(-1)),
            ("1", Some(1)),
            ("0", Some(0)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-1", None),
            ("latest", None),
            ("1 ", None),
        ] {
            assert_eq!(parse_version(text).ok(), expected, "{text}");
        }
        let error = parse_version("x").unwrap_err();
        assert_eq!(
            error.message(),
            "failed to get model version from specified version string 'x', version should be an \
             integral value > 0"
        );
    }
}
