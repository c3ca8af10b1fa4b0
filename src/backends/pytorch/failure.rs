//! What a failed load is called.

use conch_backend_sdk::Error;

/// An error of a model's load, with the model's name.
pub fn failed_to_load(model_name: &str, error: &Error) -> Error {
    let text = format!("failed to load model '{model_name}': {}", error.message());
    Error::new(error.code(), text)
}
