//! Why a command ends without what it was asked for.

use std::fmt;

/// Why a command ends without what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The command line asks for what cannot be, whatever the server does.
    Usage(String),
    /// The server, the network or a file.
    Failed(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Usage(reason) | ClientError::Failed(reason) => formatter.write_str(reason),
        }
    }
}

impl std::error::Error for ClientError {}
