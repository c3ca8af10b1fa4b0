//! What a failed load is called.

use conch_backend_sdk::Error;

/// An error of a model's load, with the model's name.
pub fn failed_to_load(model_name: &str, error: Error) -> Error {
    error.context(format_args!("failed to load model '{model_name}'"))
}
